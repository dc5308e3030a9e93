"""Optimizer sharding: each rank keeps the optimizer's state of its own share of the parameters.

1. Gradients are summed as always, so every rank has all of them.
2. Each rank steps the parameters of its share: a contiguous run of them; shares hold about as many elements.
3. Each owner hands out its weights, in flat buckets in a fixed order.
4. Before a checkpoint the owners hand out their state, and rank 0 keeps it: a checkpoint holds the whole state, so it
   can be resumed with any number of ranks, sharded or not.

AdamW treats every element by itself, so the result is the same to the bit. Paddle's own wrapper (Fleet's
`sharding_degree`) sums gradients its own way, without our fixed order and zeros, and is not used.

Saved: 8 bytes a parameter (two moments) on one rank become 8 / W. Cost: the weights' bytes once more a step, and the
state's bytes once a checkpoint.
"""

from __future__ import annotations

import glob
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import paddle

from headrace.schemas.errors import UsageError
from headrace.trainer import optimizer
from headrace.trainer.buckets import buckets
from headrace.trainer.communication import BucketCost, Traffic
from headrace.trainer.config import TrainConfig
from headrace.trainer.distributed import Ranks, broadcast, meet
from headrace.trainer.optimizer import Optimizer

Tensor = Any


def shares(sizes: Sequence[int], ranks: int) -> list[range]:
    """Cut a sequence of element counts into one contiguous run per rank, each with about the same sum.

    Runs may be empty where there are fewer parameters than ranks.
    """
    total, passed, start = sum(sizes), 0, 0
    runs: list[range] = []
    for rank in range(ranks):
        end = start
        while end < len(sizes) and (rank == ranks - 1 or (passed + sizes[end] / 2) * ranks <= total * (rank + 1)):
            passed += sizes[end]
            end += 1
        runs.append(range(start, end))
        start = end
    return runs


class ShardedOptimizer(Optimizer):
    """AdamW of which this rank keeps a share. Implements `communication.Exchange` too. `create` makes one."""

    def __init__(
        self, parameters: Mapping[str, Tensor], own: Optimizer, owners: Sequence[range], ranks: Ranks, bucket_bytes: int
    ) -> None:
        self.parameters = parameters
        self._own = own
        self._owners = owners
        self._ranks = ranks
        self._bucket_bytes = bucket_bytes
        self._collected: dict[str, np.ndarray] = {}

    @property
    def accumulators(self) -> Mapping[str, Tensor]:
        """Those of this rank's share."""
        return self._own.accumulators

    def step(self, gradients: Sequence[Tensor], learning_rate: float) -> None:
        """One update of this rank's share; `gradients` are those of all parameters."""
        own = self._owners[self._ranks.rank]
        self._own.step([gradients[position] for position in own], learning_rate)

    @property
    def together(self) -> bool:
        return True

    def after_step(self) -> Traffic:
        """Hand out the weights of all shares."""
        tensors = list(self.parameters.values())
        with paddle.no_grad():
            costs = tuple(
                self._hand_out([tensors[share[place]] for place in run], owner)
                for owner, share in enumerate(self._owners)
                for run in buckets([tensors[position].size for position in share], self._bucket_bytes)
            )
        return Traffic(costs)

    def _hand_out(self, tensors: Sequence[Tensor], owner: int) -> BucketCost:
        flat = paddle.concat([tensor.reshape([-1]) for tensor in tensors])
        began = time.perf_counter()
        broadcast(flat, owner, self._ranks)
        took_s = time.perf_counter() - began
        if owner != self._ranks.rank:
            parts = paddle.split(flat, [tensor.size for tensor in tensors])
            for tensor, part in zip(tensors, parts, strict=True):
                paddle.assign(part.reshape(tensor.shape), tensor)
        return BucketCost(flat.size * flat.element_size(), took_s, took_s)

    def collect(self) -> None:
        """Gather the whole state on rank 0, in its host memory; the other ranks forget it again."""
        meet(self._ranks)
        collected: dict[str, np.ndarray] = {}
        for owner in range(self._ranks.world):
            mine = self._own.arrays() if owner == self._ranks.rank else {}
            for key, shape in json.loads(self._text(json.dumps(_shapes(mine)), owner)).items():
                array = mine.get(key, np.zeros(shape, np.float32))
                handed = broadcast(paddle.to_tensor(array), owner, self._ranks).numpy()
                if self._ranks.rank == 0:
                    collected[key] = np.array(handed)
        self._collected = collected

    def _text(self, text: str, owner: int) -> str:
        """The text of rank `owner`."""
        data = np.frombuffer(text.encode(), np.uint8)
        size = broadcast(paddle.to_tensor([len(data)], dtype="int64"), owner, self._ranks).item()
        padded = np.zeros(size, np.uint8)
        if owner == self._ranks.rank:
            padded[:] = data
        return bytes(broadcast(paddle.to_tensor(padded), owner, self._ranks).numpy().tobytes()).decode()

    def arrays(self) -> dict[str, np.ndarray]:
        """The whole state, as the last `collect` gave it to rank 0."""
        return dict(self._collected)

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take this rank's share of a whole state."""
        names = {key.rpartition("/")[0] for key in self._own.accumulators}
        self._own.load({key: array for key, array in arrays.items() if key.rpartition("/")[0] in names})


def create(parameters: Mapping[str, Tensor], settings: TrainConfig, ranks: Ranks) -> ShardedOptimizer:
    """Raises UsageError where there are fewer parameters than ranks."""
    names = list(parameters)
    owners = shares([parameters[name].size for name in names], ranks.world)
    if not all(owners):
        raise UsageError(
            f"train.sharding: {ranks.world} ranks cannot share {len(names)} parameters of such sizes: set it to none, "
            "or start fewer ranks"
        )
    mine = {names[position]: parameters[names[position]] for position in owners[ranks.rank]}
    own = optimizer.create(mine, settings.optimizer.revised(no_decay=_no_decay(parameters, mine, settings)))
    bucket_bytes = round(settings.communication.bucket_mb * 2**20)
    return ShardedOptimizer(parameters, own, owners, ranks, bucket_bytes)


def _no_decay(
    parameters: Mapping[str, Tensor], mine: Mapping[str, Tensor], settings: TrainConfig
) -> Sequence[str] | None:
    """The patterns, as names of this share: a pattern may fit parameters of other shares only."""
    if settings.optimizer.no_decay is None:
        return None
    decaying = optimizer.decaying(parameters, settings.optimizer.no_decay)
    return [glob.escape(name) for name in mine if name not in decaying]


def _shapes(arrays: Mapping[str, np.ndarray]) -> dict[str, list[int]]:
    return {key: list(array.shape) for key, array in arrays.items()}
