"""PaddleLearner: one optimizer step over this rank's part of a global batch.

1. Each micro-batch: seed the dropout with the batch's own seed, forward, backward of (summed loss / global count).
   Gradients add up in the order of the batches.
2. Sum gradients, loss, right predictions and failure marks over all ranks (`reduce.Reducer`).
3. Everything that decides what happens next is read off those sums, so all ranks decide alike: a rank failed; fp16
   overflowed (repeat from 1 at a lower scale); the loss is bad (`loss_watch`: stop, or pass the step over).
4. Clip to the global norm, step.

Up to 4 no weight has changed. All ranks end with the same bits: they start with the same, and add the same sums.
The device is waited for once, in 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle

from headrace.schemas.errors import UsageError
from headrace.trainer import evaluate, local_steps, network_weights, optimizer, recompute, reduce, shard
from headrace.trainer.collate import Batch
from headrace.trainer.communication import NOTHING_SENT, Exchange, Traffic
from headrace.trainer.config import ClassificationTask, TrainConfig
from headrace.trainer.distributed import Ranks, failure_vector, raise_failure
from headrace.trainer.learner import ByClass, LearnerState, Score, StepResult, by_class_of
from headrace.trainer.loss_watch import Bad, LossWatch
from headrace.trainer.model import Built
from headrace.trainer.network_weights import NetworkWeights
from headrace.trainer.optimizer import Optimizer
from headrace.trainer.precision import LossScale, Precision, choose
from headrace.trainer.reduce import Reduced, Reducer
from headrace.trainer.tasks import loss_of
from headrace.trainer.tasks.inputs import Loss, Network, Tensor, Terms
from headrace.trainer.weights import weight_hash

_LOSS_SCALE = "loss_scale"
_LOSS_WATCH = "loss_watch"
_MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Model:
    """What is trained: the network, its weights, its loss, and the files that a loader needs beside the weights."""

    network: Network
    weights: NetworkWeights
    loss: Loss
    files: Mapping[str, bytes]
    classes: int = 0  # of a task that counts by class


@dataclass(frozen=True, slots=True)
class Limits:
    """What a step may do to the weights."""

    clip_norm: float
    watch: LossWatch


@dataclass(frozen=True, slots=True)
class _Sums:
    """A forward and backward pass over all ranks, before anything is changed."""

    loss: float  # mean
    correct: float
    by_class: ByClass
    gradients: list[Tensor]  # of the mean loss, unscaled
    norm: float
    losses: list[Tensor]  # of this rank's batches that have terms
    traffic: Traffic

    @property
    def overflowed(self) -> bool:
        """Whether a lower loss scale may help: it does not where the loss itself is not finite."""
        return math.isfinite(self.loss) and not math.isfinite(self.norm)


@dataclass(frozen=True, slots=True)
class Between:
    """What this rank has to do with the others."""

    ranks: Ranks
    reducer: Reducer
    exchange: Exchange | None = None


class PaddleLearner:
    """The `Learner` on Paddle. `create` makes one."""

    def __init__(
        self, model: Model, optimizer: Optimizer, limits: Limits, between: Between, precision: Precision
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._clip_norm = limits.clip_norm
        self._watch = limits.watch
        self._ranks = between.ranks
        self._reducer = between.reducer
        self._exchange = between.exchange
        self._precision = precision
        self._scale = LossScale() if precision.scaled else LossScale(1.0)

    def step(self, batches: Sequence[Batch], count: int, learning_rate: float) -> StepResult:
        """See `Learner.step`."""
        try:
            return self._step(batches, count, learning_rate)
        finally:
            self._model.weights.clear_gradients()

    def _step(self, batches: Sequence[Batch], count: int, learning_rate: float) -> StepResult:
        sums = self._pass(batches, count)
        while self._lower_scale_helps(sums):
            self._scale = self._scale.after(overflow=True)
            self._model.weights.clear_gradients()
            sums = self._pass(batches, count)
        bad = self._watch.judge(sums.loss, sums.norm)
        if bad is not None:
            return self._pass_over(bad, sums, batches)
        if sums.norm > self._clip_norm:
            optimizer.scale_(sums.gradients, self._clip_norm / sums.norm)
        self._optimizer.step(sums.gradients, learning_rate)
        sent = sums.traffic + (self._exchange.after_step() if self._exchange else NOTHING_SENT)
        self._model.weights.publish()
        self._watch.learnt(sums.loss)
        if self._precision.scaled:
            self._scale = self._scale.after(overflow=False)
        return StepResult(Score(sums.loss * count, sums.correct, count, sums.by_class), sums.norm, traffic=sent)

    def _lower_scale_helps(self, sums: _Sums) -> bool:
        """A step that is given up for its loss must not bring the scale down with it."""
        if not self._precision.scaled or self._scale.lowest or not sums.overflowed:
            return False
        return self._watch.spike(sums.loss) is None

    def evaluate(self, batches: Iterable[Batch]) -> Score:
        """See `Learner.evaluate`."""
        with self._autocast():
            return evaluate.score(self._model.network, self._model.loss, batches, self._ranks, self._model.classes)

    @property
    def together(self) -> bool:
        """See `Learner.together`."""
        return self._exchange is None or self._exchange.together

    def collect(self) -> None:
        """See `Learner.collect`."""
        if self._exchange is not None:
            self._exchange.collect()
            self._model.weights.publish()

    def state(self) -> LearnerState:
        """A copy of everything. Tied weights stand under each of their names, as PaddleNLP saves them."""
        arrays = self._optimizer.arrays()
        if self._precision.scaled:
            arrays[_LOSS_SCALE] = np.array([self._scale.value, self._scale.good_steps])
        arrays[_LOSS_WATCH] = self._watch.array()
        return LearnerState(self._model.weights.arrays(), arrays, dict(self._model.files))

    def load(self, state: LearnerState) -> None:
        """Go on from `state`. Raises ResumeRefused, with nothing changed, where it belongs to another model."""
        optimizer.refuse_mismatch("weights", self._model.weights.tensors, state.weights)
        arrays = dict(state.optimizer)
        scale, watch = arrays.pop(_LOSS_SCALE, None), arrays.pop(_LOSS_WATCH, None)
        self._optimizer.load(arrays)
        self._model.weights.load(state.weights)
        if watch is not None:
            self._watch.load(watch)
        if scale is not None and self._precision.scaled:
            self._scale = LossScale(float(scale[0]), int(scale[1]))

    def weight_hash(self) -> str:
        """See `Learner.weight_hash`."""
        return weight_hash(self._model.weights.arrays())

    def _pass(self, batches: Sequence[Batch], count: int) -> _Sums:
        """Steps 1 to 3 of the module's order. Collective."""
        done: list[Terms] = []
        error: Exception | None = None
        try:
            with_terms = [batch for batch in batches if batch.count]
            for number, batch in enumerate(with_terms, 1):
                done.append(self._forward_backward(batch, count, last=number == len(with_terms)))
        except Exception as caught:  # noqa: BLE001 raised below, after the sum that the other ranks wait in
            error = caught
        error = error or self._reducer.error
        zero = paddle.zeros([], dtype="float32")
        own = [paddle.stack([zero, *column]).sum() for column in ([t.loss for t in done], [t.right for t in done])]
        by_class = paddle.zeros([3 * self._model.classes], dtype="float32")
        for terms in done:
            if terms.by_class is not None:
                by_class += terms.by_class.reshape([-1])
        failures = paddle.to_tensor(failure_vector(self._ranks, error is not None).astype(np.float32))
        reduced = self._reducer.finish(paddle.concat([paddle.stack(own), by_class, failures]))
        first = 2 + 3 * self._model.classes  # the failures begin here
        raise_failure(self._ranks, reduced.sums[first:], error)
        if self._scale.value != 1.0:
            optimizer.scale_(reduced.gradients, 1.0 / self._scale.value)
        norm = self._norm(reduced)
        loss, correct = float(reduced.sums[0]) / count, float(reduced.sums[1])
        counts = by_class_of(reduced.sums[2:first])
        losses = [terms.loss for terms in done]
        return _Sums(loss, correct, counts, reduced.gradients, norm, losses, reduced.traffic)

    def _norm(self, reduced: Reduced) -> float:
        """Of the gradients, the same on every rank. A rank's own ones count with the mean of their squares."""
        if not reduced.local:
            return optimizer.global_norm(reduced.gradients)
        summed = [gradient for position, gradient in enumerate(reduced.gradients) if position not in reduced.local]
        own = math.sqrt(reduced.local_square) / self._scale.value
        return math.hypot(own, optimizer.global_norm(summed) if summed else 0.0)

    def _forward_backward(self, batch: Batch, count: int, *, last: bool) -> Terms:
        """Add one micro-batch to the gradients; returns its terms, without their graph."""
        paddle.seed(batch.seed & _MAX_SEED)
        with self._autocast():
            terms = Terms(*self._model.loss(self._model.network, batch.arrays))
        loss_sum = terms.loss.astype("float32")
        if last:
            self._reducer.arm()
        (loss_sum * (self._scale.value / count)).backward()
        self._model.weights.collect()
        return terms._replace(loss=loss_sum.detach())

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._precision.autocast is None:
            return nullcontext()
        context: AbstractContextManager[Any] = paddle.amp.auto_cast(
            dtype=self._precision.autocast, level=self._precision.level
        )
        return context

    def _pass_over(self, bad: Bad, sums: _Sums, batches: Sequence[Batch]) -> StepResult:
        """Skip the step or stop the run, as the settings say."""
        blamed = _blamed(bad, sums, batches)
        lanes = ", ".join(f"micro-batch {position} of lane {batches[position].lane}" for position in blamed)
        what = f"{bad.what} (rank {self._ranks.rank}: {lanes or 'not in the batches of this rank'})"
        if not self._watch.skips:
            raise bad.error(f"{what}; no weight has changed: {self._watch.cure}", blamed)
        self._watch.skipped()
        return StepResult(Score(0.0, 0.0, 0), 0.0, bad.error(what, blamed), sums.traffic)


def _blamed(bad: Bad, sums: _Sums, batches: Sequence[Batch]) -> tuple[int, ...]:
    """Which of this rank's batches made the step bad; none where another rank's did.

    A gradient that is not finite has no mark of where it came from: then any of them may have.
    """
    with_terms = [position for position, batch in enumerate(batches) if batch.count]
    if math.isfinite(sums.loss) and math.isinf(bad.bound):
        return tuple(with_terms)
    means = [loss.item() / batches[position].count for position, loss in zip(with_terms, sums.losses, strict=True)]
    pairs = zip(with_terms, means, strict=True)
    return tuple(position for position, mean in pairs if not math.isfinite(mean) or mean > bad.bound)


def create(built: Built, settings: TrainConfig, ranks: Ranks) -> PaddleLearner:
    """A learner for `settings.task` over `built`, on the device that `distributed.join` chose."""
    on_gpu = paddle.get_device().startswith("gpu")
    bf16_supported = bool(on_gpu and paddle.amp.is_bfloat16_supported())
    precision = choose(settings.precision, settings.amp_level, on_gpu=on_gpu, bf16_supported=bf16_supported)
    if settings.recompute:
        recompute.enable(built.network)
    weights = network_weights.create(built.network, precision.stored)
    trainable = weights.trainable
    adamw, exchange = _optimizer(trainable, settings, ranks)
    local = local_steps.local_names(trainable, settings.communication) if exchange is not None else []
    # The last layer's gradients are ready first.
    forward = [name for name, _ in built.network.named_parameters() if name in trainable and name not in local]
    order = [list(trainable).index(name) for name in reversed(forward)]
    reducer = reduce.create(ranks, list(trainable.values()), order, settings.communication)
    classes = len(settings.task.labels) if isinstance(settings.task, ClassificationTask) else 0
    return PaddleLearner(
        Model(built.network, weights, loss_of(settings.task), built.files, classes),
        adamw,
        Limits(settings.optimizer.clip_norm, LossWatch(settings)),
        Between(ranks, reducer, exchange),
        precision,
    )


def _optimizer(
    parameters: Mapping[str, Tensor], settings: TrainConfig, ranks: Ranks
) -> tuple[Optimizer, Exchange | None]:
    """The optimizer, and what ranks exchange behind its step."""
    if settings.sharding == "optimizer" and ranks.world > 1:
        if any(settings.communication.interval(name) > 1 for name in parameters):
            raise UsageError(
                "train.sharding: optimizer needs equal weights after every step: leave train.communication.local_steps "
                "and groups out, or set sharding to none"
            )
        sharded = shard.create(parameters, settings, ranks)
        return sharded, sharded
    whole = optimizer.create(parameters, settings.optimizer)
    return whole, local_steps.create(ranks, whole, settings.communication)
