"""The learning rate as a pure function of the step: nothing to save, nothing to restore, the same on every rank.

Warm-up rises in a straight line and reaches the peak at its last step, so that the first step already learns. After it
`constant` stays, `linear` and `cosine` fall to zero at the end of the run and stay there.
"""

from __future__ import annotations

import math

from headrace.schemas.errors import UsageError
from headrace.trainer.config import OptimizerConfig


def learning_rate(step: int, settings: OptimizerConfig, total_steps: int | None = None) -> float:
    """Rate of the step that follows `step` finished ones (0 for the first).

    `total_steps` is the run's length where `stop` names one; `optimizer.total_steps` goes before it. `auto` is linear
    where either is known, else constant.
    """
    end = settings.total_steps or total_steps
    warmup = warmup_steps(settings, end)
    if step < warmup:
        return settings.learning_rate * (step + 1) / warmup
    schedule = settings.schedule
    if schedule == "auto":
        schedule = "constant" if end is None else "linear"
    if schedule == "constant":
        return settings.learning_rate
    if end is None:
        raise UsageError(
            f"optimizer.schedule: {schedule} must know where it ends: "
            "set optimizer.total_steps, or stop: {steps: N}, or schedule: constant"
        )
    left = max(0.0, (end - step) / max(1, end - warmup))
    if schedule == "linear":
        return settings.learning_rate * left
    return settings.learning_rate * 0.5 * (1.0 - math.cos(math.pi * left))


def warmup_steps(settings: OptimizerConfig, end: int | None) -> int:
    """Steps of warm-up: the number where one is set, else the share of the run."""
    if settings.warmup_steps:
        return settings.warmup_steps
    if not settings.warmup_share:
        return 0
    if end is None:
        raise UsageError(
            "optimizer.warmup_share is a share of an unknown number of steps: "
            "set optimizer.warmup_steps instead, or optimizer.total_steps, or stop: {steps: N}"
        )
    return round(settings.warmup_share * end)
