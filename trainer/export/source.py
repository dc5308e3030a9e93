"""Which checkpoint is meant, and what it says of its task and its tokenizer.

An address is the folder of a checkpoint (`ROOT/NAME/RUN/step-N`) or of a run (`ROOT/NAME/RUN`: its newest whole
checkpoint), on a disk or in any store that fsspec reaches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from headrace.schemas.errors import UsageError
from headrace.trainer.checkpoint import FOLDER_NAME, Checkpoint
from headrace.trainer.checkpoint_load import load, load_latest
from headrace.trainer.checkpoint_store import Store, open_store
from headrace.trainer.config import Task

_TASK = "train.task."
_TOKENIZER = "tokenizer."


@dataclass(frozen=True, slots=True)
class Source:
    """One checkpoint, without its optimizer; every file was checked against its manifest."""

    store: Store
    name: str
    run: str
    checkpoint: Checkpoint

    @property
    def task(self) -> Task:
        return task_of(self.checkpoint.state.settings)


def find(address: str) -> Source:
    """The checkpoint at an address. Raises UsageError where there is none, CheckpointDamaged for a damaged one."""
    path = address.rstrip("/") if "://" in address else str(Path(address).expanduser().absolute())
    parent, _, last = path.rpartition("/")
    step = FOLDER_NAME.fullmatch(last)
    parts = (parent if step else path).rsplit("/", 2)
    if len(parts) < 3 or not all(parts[1:]):
        raise UsageError(f"{address} is no checkpoint: name ROOT/NAME/RUN/step-N, or the run's folder ROOT/NAME/RUN")
    root, name, run = parts
    return of_run(root or "/", name, run, int(step[1]) if step else None)


def of_run(root: str, name: str, run: str, step: int | None = None) -> Source:
    """The checkpoint of a run at `step`, else the newest that is whole."""
    store = open_store(root, name, run)
    if step is None:
        found = load_latest(store, mend=False, with_optimizer=False)
    else:
        found = load(store, step, with_optimizer=False)
    if found is None:
        raise UsageError(
            f"there is no checkpoint in {store.address}: name one (ROOT/NAME/RUN/step-N) or a run (ROOT/NAME/RUN)"
        )
    return Source(store, name, run, found)


def task_of(settings: Mapping[str, Any]) -> Task:
    """The task of a run, from the settings that its checkpoints keep."""
    fields = {key.removeprefix(_TASK): value for key, value in settings.items() if key.startswith(_TASK)}
    task: Task = TypeAdapter(Task).validate_python(fields)
    return task


def tokenizer_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer's settings; empty where an older headrace wrote the checkpoint."""
    own = {key.removeprefix(_TOKENIZER): value for key, value in settings.items() if key.startswith(_TOKENIZER)}
    own.pop("fingerprint", None)
    return own
