"""What only rank 0 has: its decisions, its view of the loop, saving, and telling the broker what was saved."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from headrace.pipeline import names
from headrace.pipeline.child import Channel
from headrace.schemas.cursor import Cursor
from headrace.schemas.errors import TryAgain
from headrace.schemas.position import Position
from headrace.trainer.beginning import Look
from headrace.trainer.best import Best, best_at
from headrace.trainer.cadence import Cadence
from headrace.trainer.checkpoint import EVALUATED_FILE, folder_of
from headrace.trainer.checkpoint_saver import Saver
from headrace.trainer.checkpoint_state import TrainerState
from headrace.trainer.checkpoint_store import Store
from headrace.trainer.conduct import Conductor, emitted_tokens
from headrace.trainer.history import History
from headrace.trainer.progress import Reporter
from headrace.trainer.save import RootParts
from headrace.trainer.visual import open_log
from headrace.trainer.watch import Notes, RootWatcher

if TYPE_CHECKING:
    from headrace.trainer.run import Run

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Root:
    """What only rank 0 has."""

    conductor: Conductor
    watcher: RootWatcher
    saver: Saver
    parts: RootParts
    store: Store

    @classmethod
    def open(cls, run: Run, store: Store, channel: Channel, look: Look, stack: ExitStack) -> Self:
        plan, broker = run.plan, run.broker
        cadence = Cadence(
            plan.checkpoint.every_steps, plan.checkpoint.every_s, plan.train.batch.flush_s, time.monotonic
        )
        conductor = Conductor(cadence, run.beginning.end, look.topics, look.text_complete)
        progress = run.progress()
        group = names.trained_group(plan.name, plan.train.run)
        reporter = Reporter(broker, group, plan.tokens.topic, _away("progress"))
        reporter.start()
        stack.callback(reporter.close)
        saver = Saver(store, plan.checkpoint.keep, keep_every_steps=plan.checkpoint.keep_every_steps)
        stack.callback(saver.close)
        history = History()
        watcher = RootWatcher(
            progress,
            reporter,
            channel.report,
            lambda: emitted_tokens(look.topics),
            run.learning_rate,
            saver.check,
            _notes(run, history, stack),
        )
        progress.best = _best_so_far(run, store)

        def state_of(step: int, cursors: Mapping[int, Cursor]) -> TrainerState:
            return TrainerState(
                step=step,
                cursors=cursors,
                starts=run.beginning.starts,
                progress=progress.to_json(),
                settings=run.settings,
                changes=run.changes,
                end=conductor.end,
                meta=run.meta,
                lineage=run.beginning.lineage,
            )

        saved_group = names.checkpoint_group(plan.name, plan.train.run)

        def published(cursors: Mapping[int, Cursor]) -> None:
            positions = {lane: Position(cursor.start) for lane, cursor in cursors.items()}
            try:
                broker.set_positions(saved_group, plan.tokens.topic, positions)
            except TryAgain as error:
                _away("checkpoint")(error)

        parts = RootParts(saver, state_of, published, history, run.vocabulary())
        return cls(conductor, watcher, saver, parts, store)

    def finish(self, step: int) -> None:
        """After the last step, whose checkpoint is there: what was evaluated since that was saved goes beside it."""
        self.saver.wait()
        evaluated = self.parts.history.drain()
        if evaluated:
            self.store.write(folder_of(step), EVALUATED_FILE, [evaluated])
            self.saver.keep(Best.from_json(self.watcher.progress.best))
        self.watcher.finish()


def _notes(run: Run, history: History, stack: ExitStack) -> Notes:
    train, evaluate = run.plan.train, run.plan.evaluate
    visual = open_log(train.visualdl, run.plan.name, train.run, run.beginning.step)
    if visual is not None:
        stack.callback(visual.close)
    return Notes(history, visual, evaluate.keep_best, train.balance_steps, train.skew_warning)


def _best_so_far(run: Run, store: Store) -> dict[str, Any] | None:
    """None where the best checkpoint is not kept, or there is none yet."""
    if not run.plan.evaluate.keep_best:
        return None
    best = best_at(store, run.beginning.step, Best.from_json(run.progress().best))
    return best.to_json() if best is not None else None


def _away(what: str) -> Callable[[TryAgain], None]:
    return lambda error: _log.warning("the %s report did not reach the broker: %s", what, error)
