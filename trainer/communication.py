"""What ranks send each other: its settings, and what it cost in a step. No Paddle.

The bytes are those that a rank hands to sums; what the wire carries also depends on the algorithm of the library that
sums (a ring of W ranks sends and receives 2 (W - 1) / W of them).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, Protocol

from pydantic import Field

from headrace.schemas.settings import Settings

DEFAULT_BUCKET_MB = 25.0


class CommunicationConfig(Settings):
    """What ranks exchange, and how."""

    overlap: bool | None = None
    """Sum gradients while the backward pass still runs; unset: where the device can (not over Gloo)."""
    bucket_mb: float = Field(default=DEFAULT_BUCKET_MB, gt=0)
    """Gradients are summed in buckets of so many megabytes."""
    compress: Literal["none", "bf16", "fp16"] = "none"
    """Type of gradients on the wire: halves the bytes, and keeps 8 (bf16) or 11 (fp16) significant bits of a sum."""
    local_steps: int = Field(default=1, ge=1)
    """Steps that ranks take on their own before weights are averaged; above 1 results depend on the number of ranks."""
    average: Literal["weights", "state"] = "weights"
    """What local steps average: weights, or also the moments, for three times the bytes. Checkpoints do both."""
    groups: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """Intervals of parameters by pattern of their names; the first that fits counts, and 1 is every step."""

    def interval(self, name: str) -> int:
        """Steps between two averages of a parameter; 1 where its gradients are summed at every step."""
        fitting = (every for pattern, every in self.groups.items() if fnmatch.fnmatchcase(name, pattern))
        return next(fitting, self.local_steps)


@dataclass(frozen=True, slots=True)
class BucketCost:
    """One sum of one bucket on one rank."""

    size_bytes: int
    seconds: float
    exposed_s: float  # the part of it that nothing else of the step ran beside


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one step sent."""

    buckets: tuple[BucketCost, ...] = ()
    meet_s: float = 0.0  # waited for slower ranks before the first bucket

    @property
    def size_bytes(self) -> int:
        return sum(bucket.size_bytes for bucket in self.buckets)

    @property
    def seconds(self) -> float:
        return sum(bucket.seconds for bucket in self.buckets)

    @property
    def exposed_s(self) -> float:
        return sum(bucket.exposed_s for bucket in self.buckets)

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.buckets + other.buckets, self.meet_s + other.meet_s)

    def to_json(self) -> list[list[float]]:
        """Per bucket: bytes, seconds, exposed seconds."""
        return [[each.size_bytes, round(each.seconds, 6), round(each.exposed_s, 6)] for each in self.buckets]


NOTHING_SENT = Traffic()


class Exchange(Protocol):
    """What ranks exchange behind the optimizer's step. Every method is called on all ranks together."""

    @property
    def together(self) -> bool:
        """Whether all ranks hold the same weights now."""

    def after_step(self) -> Traffic: ...

    def collect(self) -> None:
        """Make the ranks equal, and give rank 0 everything that a checkpoint holds."""


@dataclass(slots=True)
class SumCosts:
    """What sums cost since this start, on rank 0: of each step the slowest rank, since the others wait for it."""

    steps: int = 0
    step_s: float = 0.0
    sent_bytes: float = 0.0
    seconds: float = 0.0
    exposed_s: float = 0.0
    last: list[list[float]] = field(default_factory=list)  # buckets of the last step, as `Traffic.to_json`

    def add(self, ranks: Sequence[tuple[float, list[list[float]]]]) -> None:
        """One step: of every rank its duration and its buckets."""
        self.steps += 1
        self.step_s += max(step_s for step_s, _ in ranks)
        sents = [sent for _, sent in ranks]
        self.last = [[max(figures) for figures in zip(*each, strict=True)] for each in zip(*sents, strict=True)]
        totals = [sum(column) for column in zip(*self.last, strict=True)] or [0.0, 0.0, 0.0]
        self.sent_bytes += totals[0]
        self.seconds += totals[1]
        self.exposed_s += totals[2]

    def figures(self) -> dict[str, object]:
        """Totals since this start."""
        return {
            "step_s": round(self.step_s, 3),
            "sent_bytes": int(self.sent_bytes),
            "sum_s": round(self.seconds, 3),
            "exposed_sum_s": round(self.exposed_s, 3),
        }

    def text(self) -> str:
        """The same as a line, with the share of the step that was not hidden."""
        steps = max(1, self.steps)
        share = self.exposed_s / self.step_s if self.step_s else 0.0
        return (
            f"sums between ranks: {self.sent_bytes / steps / 1e6:.2f} MB in {len(self.last)} buckets, "
            f"{1000 * self.seconds / steps:.1f} ms a step; {share:.1%} of the steps' time was not hidden"
        )
