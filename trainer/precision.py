"""Arithmetic of the forward and backward pass, and the loss scale of fp16. No Paddle.

O1: weights and AdamW stay float32, operations that gain by it cast their inputs (Paddle's autocast). O2: the network
keeps its weights in half precision and nearly all operations run in it; `network_weights` holds the float32 ones.

GPUs only: Paddle's autocast does nothing on CPUs, in silence, and a network that is cast fails at once, since no CPU
kernel of matrix product or normalisation takes either type (oneDNN has some for bf16, but no backward pass of softmax
and normalisation).

fp16 gradients underflow, so the loss is multiplied by a scale before the backward pass and the gradients are divided by
it after the reduction. When they overflow, the step is repeated on the same micro-batches at half the scale; after
`GROW_STEPS` good steps the scale doubles. Whether they overflowed is read off the *reduced* gradients, so all ranks
take the same decision and there is one scale.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.schemas.errors import UsageError

GROW_STEPS = 2000
_HIGHEST = 2.0**24

#: precision -> Paddle's name of the autocast type; none for full precision.
_TYPES = {"fp32": None, "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True)
class LossScale:
    """The factor on the loss. Powers of two, so that scaling rounds nothing."""

    value: float = 2.0**16
    good_steps: int = 0

    @property
    def lowest(self) -> bool:
        return self.value <= 1.0

    def after(self, *, overflow: bool) -> LossScale:
        """The scale after a step at this one."""
        if overflow:
            return LossScale(max(1.0, self.value / 2))
        if self.good_steps + 1 >= GROW_STEPS:
            return LossScale(min(_HIGHEST, self.value * 2))
        return LossScale(self.value, self.good_steps + 1)


@dataclass(frozen=True, slots=True)
class Precision:
    """What to run in."""

    autocast: str | None = None  # Paddle's type name
    scaled: bool = False  # whether the loss needs a scale
    stored: str | None = None  # Paddle's name of the type in which the network keeps its weights; None: float32

    @property
    def level(self) -> str:
        return "O1" if self.stored is None else "O2"


def choose(precision: str, level: str = "O1", *, on_gpu: bool, bf16_supported: bool) -> Precision:
    """Resolve the settings `precision` and `amp_level` for a device. Raises UsageError for what it cannot do."""
    if precision == "auto":
        precision = "bf16" if on_gpu and bf16_supported else "fp32"
    if precision != "fp32" and not on_gpu:
        raise UsageError(f"train.precision: {precision} needs a GPU, this rank runs on the CPU: set fp32 or auto")
    if precision == "bf16" and not bf16_supported:
        raise UsageError("train.precision: this GPU has no bf16: set fp16, fp32 or auto")
    half = _TYPES[precision]
    return Precision(half, scaled=precision == "fp16", stored=half if level == "O2" else None)
