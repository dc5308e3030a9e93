"""The learning rate as a pure function of how far the run has come: nothing to restore, the same on every rank.

    rate = learning_rate * warm-up * decay

Warm-up rises in a straight line and reaches 1 with its last step, so that the first step already learns. The decay is 1
for `constant`; `linear` and `cosine` fall from 1 at the end of the warm-up to 0 at the end of the schedule, and stay
there. Each has its measure (`reach.Reach`): steps, tokens, or the share of the lanes' range.

    warm-up     warmup_tokens, else warmup_steps, else warmup_share in the measure of the end
    end         total_tokens, else total_steps, else the steps of `stop`, else with `stop: end | {time}` the lanes' ends

Where the lanes' ends are not known yet, the decay is 1; it begins when they are. Where warm-up and end are measured
differently, the decay begins with the run. `auto` is linear where the end is known from the beginning, else constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.schemas.errors import UsageError
from headrace.trainer.config import OptimizerConfig
from headrace.trainer.reach import Reach


@dataclass(frozen=True, slots=True)
class Bounds:
    """What `stop` says of the run's length: a number of steps, the ends of the lanes, or nothing."""

    steps: int | None = None
    by_range: bool = False


ENDLESS = Bounds()


def measured_by_range(settings: OptimizerConfig, bounds: Bounds) -> bool:
    """Whether the rate depends on the share of the lanes' range."""
    counted = settings.total_steps or settings.total_tokens or bounds.steps
    return bounds.by_range and not counted and (settings.schedule != "constant" or settings.warmup_share > 0)


def learning_rate(reach: Reach, settings: OptimizerConfig, bounds: Bounds = ENDLESS) -> float:
    """Rate of the step that `reach` stands before. Raises UsageError for a schedule that cannot know where it ends."""
    unit, end = _end(settings, bounds)
    warm_unit, warmup = _warmup(settings, unit, end)
    begin = warmup if warm_unit == unit else 0.0
    return settings.learning_rate * _rise(reach, warm_unit, warmup) * _decay(reach, settings, (unit, end, begin))


def _rise(reach: Reach, unit: str, length: float) -> float:
    if not length:
        return 1.0
    if unit == "share" and reach.share is None:
        raise UsageError(
            "optimizer.warmup_share: the end of the lanes is not known when the run begins: "
            "set optimizer.warmup_steps or warmup_tokens instead"
        )
    return 1.0 if _before(reach, unit) >= length else min(1.0, _after(reach, unit) / length)


def _decay(reach: Reach, settings: OptimizerConfig, line: tuple[str, float | None, float]) -> float:
    """`line`: in which measure the decay runs, where it ends and where it begins."""
    unit, end, begin = line
    schedule = settings.schedule
    if schedule == "auto":
        known = end is not None and (unit != "share" or (reach.range is not None and reach.range.whole))
        schedule = "linear" if known else "constant"
    if schedule == "constant":
        return 1.0
    if end is None:
        raise UsageError(
            f"optimizer.schedule: {schedule} must know where it ends: set optimizer.total_steps or total_tokens, "
            "or a stop other than never, or schedule: constant"
        )
    if unit == "share" and reach.share is None:
        return 1.0
    left = min(1.0, max(0.0, (end - _before(reach, unit)) / max(end - begin, 1e-9)))
    return left if schedule == "linear" else 0.5 * (1.0 - math.cos(math.pi * left))


def _end(settings: OptimizerConfig, bounds: Bounds) -> tuple[str, float | None]:
    """Measure and place of the schedule's end."""
    if settings.total_tokens is not None:
        return "tokens", settings.total_tokens
    steps = settings.total_steps or bounds.steps
    if steps is None and bounds.by_range:
        return "share", 1.0
    return "steps", steps


def _warmup(settings: OptimizerConfig, unit: str, end: float | None) -> tuple[str, float]:
    """Measure and length of the warm-up."""
    if settings.warmup_tokens:
        return "tokens", settings.warmup_tokens
    if settings.warmup_steps or not settings.warmup_share:
        return "steps", settings.warmup_steps
    if end is None:
        raise UsageError(
            "optimizer.warmup_share is a share of a length that is not known: set optimizer.warmup_steps or "
            "warmup_tokens instead, or optimizer.total_steps or total_tokens, or a stop other than never"
        )
    length = settings.warmup_share * end
    return unit, float(round(length)) if unit == "steps" else length


def _before(reach: Reach, unit: str) -> float:
    return {"steps": reach.steps, "tokens": reach.tokens, "share": reach.share or 0.0}[unit]


def _after(reach: Reach, unit: str) -> float:
    return {"steps": reach.steps + 1, "tokens": reach.tokens_after, "share": reach.share_after or 0.0}[unit]
