"""Checkpoints: ROOT/NAME/RUN/step-N, published so that a kill at any moment leaves the one before it usable.

Publishing goes in this order, and the numbers stand again in `publish`:

1. The newest published step must be our parent: if it is not, another trainer writes to this run, and we stop.
2. Remove what an unfinished attempt at the same step left.
3. Write every file, taking its SHA-256 on the way. On a disk into `step-N.unfinished`, each file synced.
4. Look at what is there: every file must have the size that was written.
5. Check the parent again, since writing may have taken minutes.
6. Write `manifest.json`, last. In an object store the checkpoint exists from here on.
7. On a disk: sync the folder, rename it to `step-N`, sync the run's folder. From here on it exists.

A folder without a manifest is no checkpoint. The ledger of a checkpoint is its chain of parents, and step 1 keeps that
chain one line. Pruning takes weights and keeps ledgers, so it is never cut. `checkpoint_load` reads.

No pickle and no random states: cursors decide every seed.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.schemas.errors import CheckpointDamaged, Stop
from headrace.trainer import ledger
from headrace.trainer.checkpoint_state import FileSum, Manifest, TrainerState
from headrace.trainer.checkpoint_store import Chunk, Store
from headrace.trainer.checkpoint_tensors import Tensors, write_tensors
from headrace.trainer.lineage import MEND_FILE
from headrace.trainer.lock import this_process

MANIFEST_FILE = "manifest.json"
STATE_FILE = "trainer.json"
WEIGHTS_FILE = "model.safetensors"  # the name that PaddleNLP's `from_pretrained` looks for
OPTIMIZER_FILE = "optimizer.safetensors"
HELD_OUT_FILE = "held_out.arrow"
HISTORY_FILE = "history.jsonl"
EVALUATED_FILE = "evaluated.jsonl"  # beside a checkpoint, in no manifest: see `history`
PRUNED_FILE = "pruned"

#: Kept for ever; everything else goes when newer checkpoints have weights.
KEPT_FILES = frozenset(
    {
        *(MANIFEST_FILE, STATE_FILE, ledger.STEPS_FILE, ledger.OUTCOMES_FILE, PRUNED_FILE, MEND_FILE),
        *(HISTORY_FILE, EVALUATED_FILE),
    }
)
OWN_FILES = KEPT_FILES | {WEIGHTS_FILE, OPTIMIZER_FILE, HELD_OUT_FILE}

FOLDER_NAME = re.compile(r"step-(\d{10})")
UNFINISHED = ".unfinished"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint holds. `ledger` and `history` have what happened since the parent; loading leaves them out."""

    parent: int | None
    state: TrainerState
    weights: Tensors
    optimizer: Tensors
    ledger: ledger.LedgerTables | None = None
    held_out: pa.Table | None = None
    history: bytes = b""  # as `history.History.drain` gives it
    extra: Mapping[str, bytes] = field(default_factory=dict)  # model configuration, vocabulary…

    @property
    def step(self) -> int:
        return self.state.step


def folder_of(step: int) -> str:
    return f"step-{step:010d}"


def published_steps(store: Store) -> list[int]:
    """Steps of the folders that look like checkpoints, oldest first. Their manifests are not looked at."""
    return sorted(int(match[1]) for match in map(FOLDER_NAME.fullmatch, store.folders()) if match)


def newest_step(store: Store) -> int | None:
    """Step of the newest folder that has a manifest."""
    return next((s for s in reversed(published_steps(store)) if MANIFEST_FILE in store.files(folder_of(s))), None)


def read_manifest(store: Store, step: int) -> Manifest:
    """Raises CheckpointDamaged when it cannot be read, FileNotFoundError when there is none."""
    folder = folder_of(step)
    return Manifest.from_json(store.read(folder, MANIFEST_FILE), f"{store.address}/{folder}/{MANIFEST_FILE}")


def publish(store: Store, checkpoint: Checkpoint, clock: Callable[[], float] = time.time) -> Manifest:
    """Write a checkpoint in the order that the module describes. Raises Stop when the parent is not the newest."""
    _check_parent(store, checkpoint)  # 1
    final = folder_of(checkpoint.step)
    folder = final + UNFINISHED if store.renames else final
    store.remove_folder(folder)  # 2
    store.remove_folder(final)
    tables = checkpoint.ledger or ledger.LedgerTables.empty()
    sums: dict[str, FileSum] = {}
    for name, chunks in _files(checkpoint, tables):  # 3
        sums[name] = _write(store, folder, name, chunks)
    _check_written(store, folder, sums)  # 4
    _check_parent(store, checkpoint)  # 5
    summary = ledger.summarize(tables)
    manifest = Manifest(checkpoint.step, checkpoint.parent, int(clock() * 1000), this_process(), sums, summary)
    store.write(folder, MANIFEST_FILE, [manifest.to_json()])  # 6
    if store.renames:  # 7
        store.seal(folder)
        store.rename(folder, final)
    return manifest


def _check_parent(store: Store, checkpoint: Checkpoint) -> None:
    newest = newest_step(store)
    if newest != checkpoint.parent:
        raise Stop(
            f"the newest checkpoint in {store.address} is step {newest}{_writer(store, newest)}, but this trainer goes "
            f"on from step {checkpoint.parent}: another trainer writes to this run; stop one of them, or set another "
            "`train.run`"
        )
    if checkpoint.parent is not None and checkpoint.step <= checkpoint.parent:
        raise ValueError(f"step {checkpoint.step} does not follow its parent {checkpoint.parent}")


def _writer(store: Store, step: int | None) -> str:
    try:
        return "" if step is None else f" (written by {read_manifest(store, step).writer})"
    except (CheckpointDamaged, FileNotFoundError):
        return ""


def _files(checkpoint: Checkpoint, tables: ledger.LedgerTables) -> Iterator[tuple[str, Iterable[Chunk]]]:
    for name, data in checkpoint.extra.items():
        if name in OWN_FILES or "/" in name:
            raise ValueError(f"an extra file may not be called {name!r}")
        yield name, [data]
    yield WEIGHTS_FILE, write_tensors(checkpoint.weights)
    yield OPTIMIZER_FILE, write_tensors(checkpoint.optimizer)
    if checkpoint.held_out is not None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, checkpoint.held_out.schema) as file:
            file.write_table(checkpoint.held_out)
        yield HELD_OUT_FILE, [sink.getvalue().to_pybytes()]
    for name, data in ledger.write(tables).items():
        yield name, [data]
    if checkpoint.history:
        yield HISTORY_FILE, [checkpoint.history]
    yield STATE_FILE, [checkpoint.state.to_json()]


def _write(store: Store, folder: str, name: str, chunks: Iterable[Chunk]) -> FileSum:
    digest = hashlib.sha256()
    size_bytes = 0

    def counted() -> Iterator[Chunk]:
        nonlocal size_bytes
        for chunk in chunks:
            digest.update(chunk)
            size_bytes += len(chunk)
            yield chunk

    store.write(folder, name, counted())
    return FileSum(size_bytes, digest.hexdigest())


def _check_written(store: Store, folder: str, sums: Mapping[str, FileSum]) -> None:
    sizes = store.files(folder)
    for name, expected in sums.items():
        if sizes.get(name) != expected.size_bytes:
            raise Stop(
                f"{store.address}/{folder}/{name} has {sizes.get(name)} bytes and not the {expected.size_bytes} that "
                "were written: another trainer writes to this run, or the store loses data; the checkpoint before it "
                "is untouched"
            )


def prune(
    store: Store,
    keep: int,
    keep_every_steps: int | None = None,
    *,
    spared: int | None = None,
    former: int | None = None,
) -> None:
    """Remove all but ledger, history, state and manifest of every checkpoint but the newest `keep`.

    That of step `spared` is left whole too. `former` is the step that was spared before: its checkpoint may lie behind
    others that are pruned.

    With `keep_every_steps` the first checkpoint at or behind each multiple of it stays whole for good.

    A marker is written before the first file goes, so that a checkpoint that is being pruned is not taken for a damaged
    one. Oldest first: the first one that is pruned and clean, seen from the newest, says that all before it are.
    """
    dirty: list[tuple[str, set[str], bool]] = []
    published = published_steps(store)
    old = published[: max(0, len(published) - keep)]
    for at in reversed(range(len(old))):
        step, before = published[at], published[at - 1] if at else -1
        if step == spared or (keep_every_steps is not None and step // keep_every_steps > before // keep_every_steps):
            continue
        folder = folder_of(step)
        names = set(store.files(folder))
        if MANIFEST_FILE not in names:
            continue
        marked = PRUNED_FILE in names
        if marked and names <= KEPT_FILES:
            if former in old and former != spared and former < step:
                continue
            break
        dirty.append((folder, names - KEPT_FILES, marked))
    for folder, names, marked in reversed(dirty):
        if not marked:
            store.write(folder, PRUNED_FILE, [b""])
            store.seal(folder)
        for name in sorted(names):
            store.remove(folder, name)
