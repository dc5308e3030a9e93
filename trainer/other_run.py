"""`train.model: run:NAME` or `run:NAME@STEP`: a new run begins with the weights that another run has learnt.

Weights only: the optimizer is new, and the cursors come from `train.start`. Rank 0 chooses the checkpoint when the run
begins and its choice lies in every checkpoint of the new run (`lineage`). A resume takes the model's configuration from
the run's own checkpoint: the other run may have pruned that one, or be gone. No Paddle: the model is built from a
folder in PaddleNLP's layout, which every checkpoint is; one in an object store is copied to this machine first.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from headrace.schemas.errors import UsageError
from headrace.trainer.agree import Line
from headrace.trainer.beginning import Beginning
from headrace.trainer.checkpoint import OWN_FILES, WEIGHTS_FILE, folder_of, read_manifest
from headrace.trainer.checkpoint_load import read_file, whole_steps
from headrace.trainer.checkpoint_store import LocalStore, Store, open_store
from headrace.trainer.config import RankPlan
from headrace.trainer.lineage import WeightsOf

PREFIX = "run:"
_NAMED = re.compile(rf"{PREFIX}(?P<run>[A-Za-z0-9][A-Za-z0-9._-]*)(@(?P<step>\d+))?")
_MOST_LISTED = 20


def names_run(model: str | dict[str, Any]) -> bool:
    """Whether the setting `train.model` names a run."""
    return isinstance(model, str) and model.startswith(PREFIX)


def chosen(plan: RankPlan, beginning: Beginning, line: Line) -> Beginning:
    """A beginning that says whose weights a new run takes. On all ranks together; any other is returned as it is."""
    if beginning.checkpoint is not None or not names_run(plan.train.model):
        return beginning
    mine = asdict(choose(plan)) if line.rank == 0 else {}
    told = line.exchange_json(mine)[0]
    return replace(beginning, lineage=replace(beginning.lineage, weights_of=WeightsOf(**told)))


def choose(plan: RankPlan) -> WeightsOf:
    """The checkpoint that `train.model` names, the newest without a step. Raises UsageError listing those there are."""
    match = _NAMED.fullmatch(str(plan.train.model))
    if match is None:
        raise UsageError(f"train.model: {plan.train.model!r} does not name a run: write run:NAME or run:NAME@STEP")
    if match["run"] == plan.train.run:
        raise UsageError(f"train.model: {match[0]!r} is this run itself: set another `train.run`")
    store = _store(plan, match["run"])
    steps = whole_steps(store)
    if not steps or (match["step"] and int(match["step"]) not in steps):
        listed = ", ".join(map(str, steps[-_MOST_LISTED:])) or "none"
        raise UsageError(f"train.model: {store.address} has no such checkpoint with weights. Those there are: {listed}")
    return WeightsOf(match["run"], int(match["step"] or steps[-1]))


@contextmanager
def model_of(plan: RankPlan, store: Store, beginning: Beginning) -> Iterator[str | dict[str, Any]]:
    """What `model.build` is given: the setting, or, where it names a run, a folder with that checkpoint."""
    source, step = store, beginning.step
    if not names_run(plan.train.model):
        yield plan.train.model
        return
    if beginning.checkpoint is None:
        assert beginning.lineage.weights_of is not None
        source, step = _store(plan, beginning.lineage.weights_of.run), beginning.lineage.weights_of.step
    if isinstance(source, LocalStore):
        yield str(source.path / folder_of(step))
        return
    with tempfile.TemporaryDirectory() as folder:
        manifest = read_manifest(source, step)
        for name in manifest.files.keys() - (OWN_FILES - {WEIGHTS_FILE}):
            (Path(folder) / name).write_bytes(read_file(source, manifest, name))
        yield folder


def _store(plan: RankPlan, run: str) -> Store:
    return open_store(plan.checkpoint.root, plan.name, run)
