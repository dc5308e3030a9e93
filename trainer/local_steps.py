"""Local steps: ranks step on their own gradients, and every N steps average weights and moments.

1. After each optimizer step the groups whose interval has come are averaged: weights, and with `average: state` the
   moments, in flat buckets in a fixed order, summed and divided by the number of ranks. All ranks get the same bits.
2. When all groups have been averaged in the same step, the ranks' weights are equal and counting begins again. So there
   is nothing to store: a checkpoint is taken only there (`together`), and a resumed run counts from there too.
3. `collect`, before a checkpoint, averages what still differs: the moments, and also the weights where the checkpoint
   cannot wait (the stream is idle, the run ends). The running ranks go on with exactly what was saved.

What this waives: weights between two averages differ from rank to rank, and the result depends on the number of ranks.
Cost: the bytes of one sum of gradients (three with `average: state`) every N steps instead of every step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import paddle

from headrace.trainer.buckets import buckets
from headrace.trainer.communication import NOTHING_SENT, BucketCost, CommunicationConfig, Traffic
from headrace.trainer.distributed import Ranks, meet, start_sum
from headrace.trainer.optimizer import Optimizer

Tensor = Any


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors that are averaged every `every` steps."""

    every: int
    tensors: Sequence[Tensor]
    saved: Sequence[Tensor]  # those that are averaged for checkpoints only


class LocalSteps:
    """Implements `communication.Exchange`. `create` makes one."""

    def __init__(self, ranks: Ranks, groups: Sequence[Group], bucket_bytes: int) -> None:
        self._ranks = ranks
        self._groups = groups
        self._bucket_bytes = bucket_bytes
        self._common = math.lcm(*(group.every for group in groups))
        self._steps = 0  # since the weights were equal
        self._stepped = False  # since everything was

    @property
    def together(self) -> bool:
        return self._steps == 0

    def after_step(self) -> Traffic:
        """Average what is due."""
        self._steps += 1
        self._stepped = True
        due = [tensor for group in self._groups if self._steps % group.every == 0 for tensor in group.tensors]
        self._steps %= self._common
        return self._average(due)

    def collect(self) -> None:
        """Average everything that differs now."""
        weights = [tensor for group in self._groups for tensor in group.tensors] if self._steps else []
        saved = [tensor for group in self._groups for tensor in group.saved] if self._stepped else []
        self._average([*weights, *saved])
        self._steps = 0
        self._stepped = False

    def _average(self, tensors: Sequence[Tensor]) -> Traffic:
        if not tensors:
            return NOTHING_SENT
        began = time.perf_counter()
        meet(self._ranks)
        meet_s = time.perf_counter() - began
        runs = buckets([tensor.size for tensor in tensors], self._bucket_bytes)
        with paddle.no_grad():
            costs = tuple(self._average_bucket([tensors[position] for position in run]) for run in runs)
        return Traffic(costs, meet_s)

    def _average_bucket(self, tensors: Sequence[Tensor]) -> BucketCost:
        flat = paddle.concat([tensor.astype("float32").reshape([-1]) for tensor in tensors])
        began = time.perf_counter()
        summed = start_sum(flat, self._ranks).wait()
        took_s = time.perf_counter() - began
        means = paddle.split(summed.scale(1.0 / self._ranks.world), [tensor.size for tensor in tensors])
        for tensor, mean in zip(tensors, means, strict=True):
            paddle.assign(mean.reshape(tensor.shape).astype(tensor.dtype), tensor)
        return BucketCost(flat.size * flat.element_size(), took_s, took_s)


def create(ranks: Ranks, optimizer: Optimizer, settings: CommunicationConfig) -> LocalSteps | None:
    """Local steps as `settings` say; None where every parameter is summed at every step."""
    state: dict[str, list[Tensor]] = {}
    for key, tensor in optimizer.accumulators.items():
        if tensor.size > 1:  # powers of beta are the same on every rank
            state.setdefault(key.rpartition("/")[0], []).append(tensor)
    groups: dict[int, tuple[list[Tensor], list[Tensor]]] = {}
    for name in local_names(optimizer.parameters, settings) if ranks.world > 1 else ():
        averaged, saved = groups.setdefault(settings.interval(name), ([], []))
        averaged.append(optimizer.parameters[name])
        (averaged if settings.average == "state" else saved).extend(state.get(name, []))
    if not groups:
        return None
    return LocalSteps(
        ranks, [Group(every, *groups[every]) for every in sorted(groups)], round(settings.bucket_mb * 2**20)
    )


def local_names(parameters: Mapping[str, Tensor], settings: CommunicationConfig) -> list[str]:
    """Parameters that are averaged and whose gradients are not summed, in the order of `parameters`."""
    return [name for name in parameters if settings.interval(name) > 1]
