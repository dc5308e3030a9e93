"""Loading: the newest checkpoint that is whole, every file checked against its manifest.

One whose files do not match is damaged. The trainer renames it aside and goes on from its *parent*, not from whatever
is next, so that the chain of parents stays one line and the ledger, which is that chain, never forks. A store that does
not answer is no damage: that error is raised as it is.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection

import pyarrow as pa

from headrace.schemas.errors import CheckpointDamaged, Stop
from headrace.trainer.checkpoint import (
    FOLDER_NAME,
    HELD_OUT_FILE,
    MANIFEST_FILE,
    OPTIMIZER_FILE,
    OWN_FILES,
    PRUNED_FILE,
    STATE_FILE,
    UNFINISHED,
    WEIGHTS_FILE,
    Checkpoint,
    folder_of,
    newest_step,
    published_steps,
    read_manifest,
)
from headrace.trainer.checkpoint_state import Manifest, TrainerState
from headrace.trainer.checkpoint_store import Store
from headrace.trainer.checkpoint_tensors import Tensors, read_tensors

_DAMAGED = ".damaged"
_TENSORS = frozenset({WEIGHTS_FILE, OPTIMIZER_FILE})
_log = logging.getLogger(__name__)


def read_file(store: Store, manifest: Manifest, name: str) -> bytes:
    """A file of a checkpoint, checked. A wrong one is read twice: a short read is not damage."""
    folder = folder_of(manifest.step)
    what = f"{store.address}/{folder}/{name}"
    expected = manifest.files.get(name)
    if expected is None:
        raise CheckpointDamaged(f"{what} is not in the manifest: the checkpoint was not made by this headrace")
    for _ in range(2):
        try:
            data = store.read(folder, name)
        except FileNotFoundError as error:
            raise CheckpointDamaged(f"{what} is missing") from error
        if len(data) == expected.size_bytes and hashlib.sha256(data).hexdigest() == expected.sha256:
            return data
    raise CheckpointDamaged(f"{what} does not match its checksum")


def load(store: Store, step: int, *, with_optimizer: bool = True) -> Checkpoint:
    """Read a checkpoint and check every file of it. Raises CheckpointDamaged, or Stop when its weights were pruned.

    `with_optimizer=False` is for those who only want the model: the optimizer's file is neither read nor checked.
    """
    folder = folder_of(step)
    where = f"{store.address}/{folder}"
    if PRUNED_FILE in store.files(folder):
        raise Stop(
            f"{where} has no weights any more, only its ledger is kept: raise `checkpoint.keep`, or set "
            "`checkpoint.keep_every_steps`, to keep more from now on"
        )
    try:
        manifest = read_manifest(store, step)
    except FileNotFoundError as error:
        raise Stop(f"there is no checkpoint {where}") from error
    weights = read_tensors(read_file(store, manifest, WEIGHTS_FILE), f"{where}/{WEIGHTS_FILE}")
    optimizer = Tensors()
    if with_optimizer:
        optimizer = read_tensors(read_file(store, manifest, OPTIMIZER_FILE), f"{where}/{OPTIMIZER_FILE}")
    small = {
        name: read_file(store, manifest, name) for name in manifest.files.keys() | {STATE_FILE} if name not in _TENSORS
    }
    return Checkpoint(
        parent=manifest.parent,
        state=TrainerState.from_json(small[STATE_FILE], f"{where}/{STATE_FILE}"),
        weights=weights,
        optimizer=optimizer,
        held_out=_read_table(small.get(HELD_OUT_FILE)),
        extra={name: data for name, data in small.items() if name not in OWN_FILES},
    )


def whole_steps(store: Store) -> list[int]:
    """Steps of the checkpoints that have their weights, oldest first."""
    steps = published_steps(store)
    folders = [folder_of(step) for step in steps]
    files = (store.read_each(folders, MANIFEST_FILE), store.read_each(folders, PRUNED_FILE))
    return [
        step for step, manifest, pruned in zip(steps, *files, strict=True) if manifest is not None and pruned is None
    ]


def _read_table(data: bytes | None) -> pa.Table | None:
    if data is None:
        return None
    with pa.ipc.open_file(data) as file:
        return file.read_all()


def load_latest(store: Store, *, mend: bool, with_optimizer: bool = True) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None when the run has none.

    With `mend` (for the trainer, which holds the run's lock) unfinished folders are removed and damaged ones renamed
    aside. Without it (for everybody else) they are passed over. Raises CheckpointDamaged when checkpoints were
    published but none can be loaded, however often it is asked: beginning again is not ours to decide.
    """
    if mend:
        _remove_unfinished(store)
    step = newest_step(store)
    while step is not None and PRUNED_FILE not in store.files(folder_of(step)):
        try:
            return load(store, step, with_optimizer=with_optimizer)
        except CheckpointDamaged as error:
            if PRUNED_FILE in store.files(folder_of(step)):  # pruned while we read it: there are newer ones
                step = newest_step(store)
                continue
            parent = _parent_of_damaged(store, step)
            _log.warning("%s: going on from step %s", error, parent)
            if mend:
                _set_aside(store, step, parent)
            step = parent
    if step is not None or any(_DAMAGED in folder for folder in store.folders()):
        raise CheckpointDamaged(
            f"no checkpoint in {store.address} can be loaded: the newest are damaged (renamed *{_DAMAGED}), older ones "
            "have only their ledgers: restore the files, or set another `train.run` to begin again"
        )
    return None


def _remove_unfinished(store: Store) -> None:
    for folder in store.folders():
        match = FOLDER_NAME.fullmatch(folder.removesuffix(UNFINISHED))
        if match and (folder.endswith(UNFINISHED) or MANIFEST_FILE not in store.files(folder)):
            store.remove_folder(folder)


def _parent_of_damaged(store: Store, step: int) -> int | None:
    try:
        return read_manifest(store, step).parent
    except CheckpointDamaged:  # the chain is one line, so the parent is the one before
        older = [s for s in published_steps(store) if s < step and MANIFEST_FILE in store.files(folder_of(s))]
        return older[-1] if older else None


def _set_aside(store: Store, step: int, parent: int | None) -> None:
    """Rename a damaged checkpoint, and any that lies between it and its parent: those are on no chain."""
    taken = set(store.folders())
    for between in published_steps(store):
        if between <= step and (parent is None or between > parent):
            rename_aside(store, between, _DAMAGED, taken)


def rename_aside(store: Store, step: int, suffix: str, taken: Collection[str]) -> None:
    """Give the folder of a checkpoint a name under which nobody takes it for one, and that is not `taken`."""
    folder = folder_of(step)
    names = (f"{folder}{suffix}{number}" for number in ["", *(f".{n}" for n in range(2, 1000))])
    store.rename(folder, next(name for name in names if name not in taken))
