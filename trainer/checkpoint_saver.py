"""Saving in the background: one thread, one checkpoint at a time, and no failure that goes unseen.

The trainer hands over arrays that will not change any more and goes on with the next step. A store that does not answer
is asked again a few times, since everything before the manifest can be repeated. Any other failure is raised by the
next call, and by every one after it: the ledger rows of a checkpoint that was not published are in no other, so
training must not go on as if it had been.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from headrace.schemas.errors import CheckpointDamaged, StoreAway
from headrace.trainer import best
from headrace.trainer.checkpoint import Checkpoint, folder_of, newest_step, publish, read_manifest
from headrace.trainer.checkpoint_state import Manifest
from headrace.trainer.checkpoint_store import Store
from headrace.trainer.lock import this_process

_log = logging.getLogger(__name__)


class Saver:
    """Publishes and prunes the checkpoints of one run. Used by one thread of the trainer."""

    def __init__(
        self,
        store: Store,
        keep: int,
        *,
        keep_every_steps: int | None = None,
        clock: Callable[[], float] = time.time,
        pauses_s: Sequence[float] = (1.0, 5.0, 25.0),
    ) -> None:
        self._store = store
        self._keep = keep
        self._keep_every_steps = keep_every_steps
        self._clock = clock
        self._pauses_s = pauses_s  # before asking a store again that did not answer
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._published: Manifest | None = None

    @property
    def busy(self) -> bool:
        """Whether a save is in flight."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def published(self) -> Manifest | None:
        """The last checkpoint that this saver published: what may be reported as saved."""
        return self._published

    def check(self) -> None:
        """Raise what went wrong in the background, if anything did; does not wait."""
        if self._failure is not None:
            raise self._failure

    def save(self, checkpoint: Checkpoint, published: Callable[[], None] = lambda: None) -> None:
        """Begin to publish; waits for the save before it to end. `published` is called once the checkpoint exists."""
        self.wait()
        name = f"save-{checkpoint.step}"
        self._thread = threading.Thread(target=self._save, args=(checkpoint, published), name=name)
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is in flight."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def close(self) -> None:
        """As `wait`; call it before the process ends."""
        self.wait()

    def _save(self, checkpoint: Checkpoint, published: Callable[[], None]) -> None:
        try:
            self._published = self._publish(checkpoint)
            published()
            self.keep(best.Best.from_json(checkpoint.state.progress.get("best")))
        except BaseException as failure:  # noqa: BLE001 - raised by the next call
            self._failure = failure

    def keep(self, best_one: best.Best | None) -> None:
        """Prune all but the newest checkpoints and the best one."""
        try:
            best.keep(self._store, best_one, self._keep, self._keep_every_steps)
        except StoreAway as error:  # the checkpoint is safe, and the next one prunes again
            _log.warning("old checkpoints were not pruned: %s", error)

    def _publish(self, checkpoint: Checkpoint) -> Manifest:
        for pause_s in self._pauses_s:
            try:
                return publish(self._store, checkpoint, self._clock)
            except StoreAway:
                time.sleep(pause_s)
                written = self._written(checkpoint.step)
                if written is not None:
                    return written
        return publish(self._store, checkpoint, self._clock)

    def _written(self, step: int) -> Manifest | None:
        """The manifest, when it was written and only the answer was lost; half of one is removed."""
        try:
            if newest_step(self._store) != step:
                return None
            manifest = read_manifest(self._store, step)
        except StoreAway:
            return None  # still away: publishing is tried again, and says so
        except CheckpointDamaged:
            self._store.remove_folder(folder_of(step))
            return None
        return manifest if manifest.writer == this_process() else None
