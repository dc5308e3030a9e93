"""Arithmetic of the forward and backward pass, and the loss scale of fp16. No Paddle.

Weights, gradients of weights and AdamW stay float32 in all three; bf16 and fp16 are Paddle's autocast (O1).

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


def choose(precision: str, *, on_gpu: bool, bf16_supported: bool) -> Precision:
    """Resolve the setting `precision` for a device. Paddle's CPU autocast does nothing in silence: refused here."""
    if precision == "auto":
        precision = "bf16" if on_gpu and bf16_supported else "fp32"
    if precision != "fp32" and not on_gpu:
        raise UsageError(f"train.precision: {precision} needs a GPU, this rank runs on the CPU: set fp32 or auto")
    if precision == "bf16" and not bf16_supported:
        raise UsageError("train.precision: this GPU has no bf16: set fp16, fp32 or auto")
    return Precision(_TYPES[precision], scaled=precision == "fp16")
