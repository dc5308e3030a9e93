"""Reducer: the sum of all gradients over all ranks, beside the backward pass where the device can.

1. `arm`, before the backward pass of the last micro-batch. From then on a hook of each parameter says that its gradient
   is ready, and buckets start in their fixed order (`buckets.Readiness`).
2. `finish`, after it: buckets that have not started do now, with zeros where this rank has no gradient; then the sums
   of the step. A rank that has no micro-batch, or whose pass failed, only calls `finish`.
3. The sums are waited for in the order in which they started.

Both ways give the same bits: overlap changes when a bucket starts, and nothing else.

**Devices.** NCCL sums in a stream of its own, beside the backward pass. Paddle's Gloo returns from a call with
`sync_op=False` only when it is done, so over Gloo overlap hides nothing, and it is off unless it is asked for. It also
moves the ranks' meeting before the last backward pass, and Gloo gives up after 30 s: a longer pass needs it off.

**Compression.** A bucket is rounded once before the sum and summed in the small type; everything before and after is
float32. All ranks get the same bits, since they get the same sum. The figures of the step stay float32. Paddle's Gloo
returns infinity for every sum of fp16, which is why that is refused there.

**Cost.** Two copies of the gradients, and one sum of their size over the network.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle

from headrace.schemas.errors import HeadraceError, UsageError
from headrace.trainer.buckets import Readiness, buckets
from headrace.trainer.communication import NOTHING_SENT, BucketCost, CommunicationConfig, Traffic
from headrace.trainer.distributed import Ranks, Sum, meet, start_sum

Tensor = Any

_WIRE = {"none": None, "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True)
class Reduced:
    """What a step has after its sums."""

    gradients: list[Tensor]  # of all parameters
    sums: np.ndarray
    traffic: Traffic
    local: frozenset[int] = frozenset()  # parameters whose gradients are this rank's own, see `local_steps`
    local_square: float = 0.0  # their square sum, mean over the ranks, as before any scaling


@dataclass(slots=True)
class _Bucket:
    """A bucket on its way."""

    parts: list[Tensor]
    sum: Sum
    timer: Timer


class Reducer:
    """`create` makes one. `order` holds positions in `parameters`: those that are summed, in the order of the sums."""

    def __init__(
        self, ranks: Ranks, parameters: Sequence[Tensor], order: Sequence[int], settings: CommunicationConfig
    ) -> None:
        self._ranks = ranks
        self._parameters = parameters
        self._order = order
        self._local = frozenset(range(len(parameters))).difference(order)
        self._wire = _WIRE[settings.compress]
        self._runs = buckets([parameters[position].size for position in order], round(settings.bucket_mb * 2**20))
        self._readiness = Readiness(self._runs)
        self._started: list[_Bucket] = []
        self._armed = False
        self._meet_s = 0.0
        self.error: HeadraceError | None = None  # what went wrong in a hook: an exception must not cross Paddle's
        self._readiness.begin()

    def watch(self) -> None:
        """Register the hooks. Paddle cannot take them back, so they live as long as the parameters."""
        for place, position in enumerate(self._order):
            self._parameters[position]._register_backward_hook(lambda place=place: self._ready(place))

    def arm(self) -> None:
        """The next backward pass is the last of the step."""
        self._armed = True

    def finish(self, sums: Tensor) -> Reduced:
        """Sum gradients where `order` names them, and the float32 vector `sums`.

        Other gradients stay this rank's own, times the number of ranks: their mean over the ranks is the gradient of
        the global batch. Waits for the device. Raises RankLost where another rank is gone.
        """
        self._armed = False
        try:
            if self._ranks.world == 1:
                return Reduced([_gradient(each) for each in self._parameters], np.array(sums.numpy()), NOTHING_SENT)
            return self._finish(sums)
        finally:
            self._started = []
            self._meet_s = 0.0
            self.error = None
            self._readiness.begin()

    def _finish(self, sums: Tensor) -> Reduced:
        with paddle.no_grad():
            own = {position: _gradient(self._parameters[position]).scale(self._ranks.world) for position in self._local}
            squares = [paddle.square(gradient).sum() for gradient in own.values()]
            sums = paddle.concat([sums, paddle.stack([paddle.zeros([]), *squares]).sum().reshape([1])])
            for number in self._readiness.rest():
                self._start(number)
            if not self._started:
                self._meet()
            totals = start_sum(sums, self._ranks)
            reduced = own
            for run, bucket in zip(self._runs, self._started, strict=True):
                flat = bucket.timer.wait(bucket.sum)
                flat = flat.astype("float32") if self._wire else flat
                summed = paddle.split(flat, [part.size for part in bucket.parts])
                for place, part in zip(run, summed, strict=True):
                    position = self._order[place]
                    reduced[position] = part.reshape(self._parameters[position].shape)
            figures = np.array(totals.wait().numpy())
        costs = tuple(bucket.timer.cost() for bucket in self._started)
        gradients = [reduced[position] for position in range(len(self._parameters))]
        mean_square = float(figures[-1]) / self._ranks.world
        return Reduced(gradients, figures[:-1], Traffic(costs, self._meet_s), self._local, mean_square)

    def _ready(self, place: int) -> None:
        """A hook: called inside the backward pass, when a parameter's gradient has been added up."""
        if not self._armed or self.error is not None:
            return
        try:
            if self._readiness.too_late(place):
                raise UsageError(
                    "train.communication.overlap: a gradient changed after it was sent, since the model runs its "
                    "backward pass in parts (recomputation does): set train.communication.overlap to false"
                )
            with paddle.no_grad():
                for number in self._readiness.mark(place):
                    self._start(number)
        except HeadraceError as error:
            self.error = error

    def _start(self, number: int) -> None:
        if not self._started:
            self._meet()
        positions = [self._order[place] for place in self._runs[number]]
        parts = [_gradient(self._parameters[position]).reshape([-1]) for position in positions]
        flat = paddle.concat(parts)
        if self._wire:
            flat = flat.astype(self._wire)
        timer = Timer(self._ranks.on_device, flat.size * flat.element_size())
        self._started.append(_Bucket(parts, timer.start(flat, self._ranks), timer))

    def _meet(self) -> None:
        began = time.perf_counter()
        meet(self._ranks)
        self._meet_s = time.perf_counter() - began


class Timer:
    """Times one sum: by the host's clock where a call returns when it is done, by events of the device elsewhere.

    On a device `seconds` is the time from the start to the end of the wait, which is an upper bound; `exposed_s` is how
    long the computing stream stood still for it.
    """

    def __init__(self, on_device: bool, size_bytes: int) -> None:
        self._on_device = on_device
        self._size_bytes = size_bytes
        self._host_s = 0.0
        self._events: list[Any] = []

    def start(self, tensor: Tensor, ranks: Ranks) -> Sum:
        self._event()
        began = time.perf_counter()
        started = start_sum(tensor, ranks)
        self._host_s += time.perf_counter() - began
        return started

    def wait(self, started: Sum) -> Tensor:
        self._event()
        began = time.perf_counter()
        tensor = started.wait()
        self._host_s += time.perf_counter() - began
        self._event()
        return tensor

    def cost(self) -> BucketCost:
        """After the device was waited for."""
        if not self._on_device:
            return BucketCost(self._size_bytes, self._host_s, self._host_s)
        started, waiting, done = self._events
        return BucketCost(self._size_bytes, started.elapsed_time(done) / 1000, waiting.elapsed_time(done) / 1000)

    def _event(self) -> None:
        if self._on_device:
            event = paddle.device.Event(enable_timing=True)
            event.record()
            self._events.append(event)


def create(ranks: Ranks, parameters: Sequence[Tensor], order: Sequence[int], settings: CommunicationConfig) -> Reducer:
    """A reducer with its hooks, where they are of use. Raises UsageError for what the device cannot sum."""
    if settings.compress == "fp16" and not ranks.on_device:
        raise UsageError(
            "train.communication.compress: Paddle's Gloo gives infinity for sums of fp16: set bf16 on CPUs"
        )
    reducer = Reducer(ranks, parameters, order, settings)
    overlap = ranks.on_device if settings.overlap is None else settings.overlap
    if overlap and ranks.world > 1:
        reducer.watch()
    return reducer


def _gradient(parameter: Tensor) -> Tensor:
    """float32 gradient, zeros where the micro-batches of this rank did not use the parameter."""
    gradient = parameter.grad
    if gradient is None:
        return paddle.zeros(parameter.shape, dtype="float32")
    return gradient.astype("float32")
