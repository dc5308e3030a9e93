"""A network with a layer that only some micro-batches use, and batches that go wrong on purpose.

It casts its weights to float32 before it multiplies. So a CPU, which has no arithmetic in half precision, can train it
with weights that are kept in half precision: their gradients come back as real fp16 or bf16, overflows included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle

from headrace.trainer import network_weights, optimizer, reduce, step
from headrace.trainer.collate import Batch
from headrace.trainer.config import TrainConfig
from headrace.trainer.distributed import Ranks
from headrace.trainer.loss_watch import LossWatch
from headrace.trainer.precision import Precision
from headrace.trainer.tasks.inputs import Terms

WIDTH = 5
HUGE = 2.0**116


class TwoBranches(paddle.nn.Layer):
    """`common`, then `branch` where the batch asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.common = paddle.nn.Linear(WIDTH, WIDTH)
        self.branch = paddle.nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: Any, branch: bool) -> Any:
        common = linear(self.common, rows)
        return linear(self.branch, common) if branch else common


def linear(layer: Any, rows: Any) -> Any:
    return paddle.nn.functional.linear(rows, layer.weight.astype("float32"), layer.bias.astype("float32"))


def loss(network: Any, arrays: Mapping[str, np.ndarray]) -> Terms:
    if arrays["unusable"].any():
        raise ValueError("a batch that breaks the forward pass")
    output = network(paddle.to_tensor(arrays["rows"]), bool(arrays["branch"].any()))
    if "overflowing" in arrays:
        # Changes no value, being a power of two; on the way back the gradient is multiplied first.
        output = output / HUGE * HUGE
    return Terms((output**2).sum(), paddle.zeros([]))


def learner(
    ranks: Ranks = Ranks(),  # noqa: B008
    precision: Precision = Precision(),  # noqa: B008
    clip_norm: float = 1e9,
    **changes: Any,
) -> step.PaddleLearner:
    """`changes` are settings of `train`."""
    network = TwoBranches()
    random = np.random.default_rng(0)
    for parameter in network.parameters():
        parameter.set_value(random.standard_normal(tuple(parameter.shape)).astype(np.float32))
    settings = TrainConfig.model_validate({"task": {"type": "masked-lm"}, **changes})
    weights = network_weights.create(network, precision.stored)
    trainable = weights.trainable
    adamw = optimizer.create(trainable, settings.optimizer)
    limits = step.Limits(clip_norm, LossWatch(settings))
    reducer = reduce.create(ranks, list(trainable.values()), range(len(trainable))[::-1], settings.communication)
    return step.PaddleLearner(
        step.Model(network, weights, loss, {}), adamw, limits, step.Between(ranks, reducer), precision
    )


def batch(number: int, *, branch: bool, rows: int = 3) -> Batch:
    values = np.random.default_rng(number).standard_normal((rows, WIDTH)).astype(np.float32)
    return _batch(number, {"rows": values, "branch": np.array([branch]), "unusable": np.array([False])})


def not_a_number(number: int) -> Batch:
    good = batch(number, branch=True)
    return _batch(number, good.arrays | {"rows": np.full((3, WIDTH), np.nan, np.float32)})


def overflowing(number: int) -> Batch:
    """Its gradients overflow on the way, unless the loss scale is low."""
    good = batch(number, branch=True)
    return _batch(number, good.arrays | {"overflowing": np.array([True])})


def unusable(number: int) -> Batch:
    good = batch(number, branch=True)
    return _batch(number, good.arrays | {"unusable": np.array([True])})


def _batch(number: int, arrays: dict[str, Any]) -> Batch:
    rows = len(arrays["rows"])
    return Batch(arrays=arrays, count=rows, seed=number, lane=number, tokens=rows, padded_tokens=rows)
