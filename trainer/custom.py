"""Tasks of the user's own: a class that the configuration names by its import path. See docs/tasks.md. No Paddle here.

A class needs `collate` and `loss`; `screen` and `network` have defaults. It is made once in each rank.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import pyarrow as pa

from headrace.schemas.errors import UsageError
from headrace.trainer.collate import Batch, Collate, batch_of, pad
from headrace.trainer.config import CustomTask
from headrace.trainer.families import nearest
from headrace.trainer.window import MicroBatch, Screen

_NEEDED = ("collate", "loss")


class UserTask(Protocol):
    """What a class must have. Beside it, if it likes, `screen` and `network`:

    `screen(rows)` -> StringArray: per row null to keep it, or the reason why it is dropped. Without it all are kept.

    `network(config)` -> paddle.nn.Layer, from the configuration of `train.model`. Without it the bare encoder.
    """

    def collate(self, micro: MicroBatch, padded: dict[str, np.ndarray]) -> tuple[Mapping[str, np.ndarray], int]:
        """The arrays that the loss takes, and how many terms the loss sums (rows, tokens, pairs).

        `padded` are `input_ids`, `token_type_ids` and `attention_mask` [B, S], `micro.rows` the rows as ingest made
        them. What is random derives from `micro.seed`. Never called without rows.
        """

    def loss(self, network: Any, arrays: Mapping[str, np.ndarray]) -> tuple[Any, Any]:
        """The loss summed (not averaged) over the terms, and how many terms are right: two scalar tensors."""


def load(task: CustomTask) -> UserTask:
    """The task's object; the same one for every caller. Raises UsageError with what is wrong with path or class."""
    return _load(task.type, json.dumps(task.options, sort_keys=True))


def screen(task: CustomTask) -> Screen:
    """The task's own screen, checked."""
    own: Callable[[pa.RecordBatch], Any] | None = getattr(load(task), "screen", None)

    def checked(rows: pa.RecordBatch) -> pa.StringArray:
        if own is None:
            return pa.nulls(rows.num_rows, pa.string())
        reasons = own(rows)
        if not isinstance(reasons, pa.Array) or reasons.type != pa.string() or len(reasons) != rows.num_rows:
            raise UsageError(
                f"train.task.type: screen of {task.type} must return a pyarrow string array with an entry for each of "
                f"the {rows.num_rows} rows (null keeps the row), not {_shown(reasons)}"
            )
        return reasons

    return checked


def collate(task: CustomTask, pad_id: int) -> Collate:
    """The task's own collate, checked; a micro-batch without rows has no terms, and is not shown to it."""
    own = load(task).collate

    def checked(micro: MicroBatch) -> Batch:
        padded = pad(micro.rows, pad_id, micro.plan.pad_multiple)
        if not micro.rows.num_rows:
            return batch_of(micro, padded, 0)
        found = own(micro, cast("dict[str, np.ndarray]", padded))
        match found:
            case (Mapping() as arrays, int() | np.integer() as count) if count >= 0:
                return batch_of(micro, dict(arrays), int(count))
        raise UsageError(
            f"train.task.type: collate of {task.type} must return the arrays of the batch by name and the number of "
            f"terms that the loss sums, not {_shown(found)}"
        )

    return checked


def network_of(task: CustomTask, encoder: type[Any]) -> Callable[[Any], Any]:
    """Makes the task's network from a PaddleNLP configuration: its own, or the bare `encoder`."""
    own: Callable[[Any], Any] | None = getattr(load(task), "network", None)

    def make(config: Any) -> Any:
        network = (own or encoder)(config)
        if not callable(getattr(network, "named_parameters", None)):
            raise UsageError(f"train.task.type: network of {task.type} must return a Layer, not {_shown(network)}")
        if not hasattr(network, "config"):
            network.config = config
        return network

    return make


@lru_cache
def _load(path: str, options: str) -> UserTask:
    kind = _class(*path.split(":"))
    try:
        task = kind(**json.loads(options))
    except TypeError as error:
        raise UsageError(f"train.task.options: {path} cannot be made with them: {error}") from error
    lacking = [name for name in _NEEDED if not callable(getattr(task, name, None))]
    if lacking:
        raise UsageError(f"train.task.type: {path} has no {' and no '.join(lacking)}: add it (docs/tasks.md)")
    return cast(UserTask, task)


def _class(module_name: str, name: str) -> type[Any]:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise UsageError(
            f"train.task.type: {module_name} cannot be imported ({type(error).__name__}: {error}): it must lie in the "
            f"working directory, {folder}, or be installed"
        ) from error
    found = getattr(module, name, None)
    if not isinstance(found, type):
        classes = [each for each, value in vars(module).items() if isinstance(value, type)]
        raise UsageError(f"train.task.type: {module_name} has no class {name!r}: {nearest(name, classes)}")
    return found


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"[:200]
