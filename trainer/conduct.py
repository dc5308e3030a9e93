"""Rank 0's decisions: what one clock and one look at the broker must decide for all ranks.

Asked by `source.StepSource` before every agreement, in its thread; the broker is looked at once a second at most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.pipeline.topics import Broker
from headrace.schemas.errors import TryAgain
from headrace.trainer.cadence import Cadence
from headrace.trainer.ends import RunEnd

_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Topics:
    """Where ends are looked up."""

    broker: Broker
    text: str
    tokens: str
    ingest_group: str


class Conductor:
    """Decides for all ranks.

    `text_complete` is set when the ends of the text topic may be fixed (at once, unless the end comes by command).
    """

    def __init__(
        self,
        cadence: Cadence,
        end: RunEnd,
        topics: Topics,
        text_complete: threading.Event,
        *,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.cadence = cadence
        self.end = end
        self._topics = topics
        self._text_complete = text_complete
        self._clock = clock
        self._now_ms = now_ms
        self._looked_at: float | None = None
        self._told = end.lanes is not None  # every rank has ends that lie in the checkpoint

    def due(self, step: int, *, idle: bool) -> bool:
        return self.cadence.due(step, idle=idle)

    def release(self) -> bool:
        return self.cadence.release()

    def agreed(self, *, stepped: bool, due: bool) -> None:
        self.cadence.agreed(stepped=stepped, due=due)

    def lane_ends(self) -> Mapping[int, int] | None:
        """The ends of the lanes, once, as soon as they are known."""
        if self._told or self.end.rule not in {"end", "time"}:
            return None
        now = self._clock()
        if self._looked_at is not None and now - self._looked_at < _LOOK_S:
            return None
        self._looked_at = now
        try:
            self.end = advance(self.end, self._topics, self._text_complete, self._now_ms)
        except TryAgain:
            return None  # the broker is away; the lanes will notice if it stays so
        self._told = self.end.lanes is not None
        return self.end.lanes


def advance(
    end: RunEnd,
    topics: Topics,
    text_complete: threading.Event,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> RunEnd:
    """Look whether the end of a bounded run can be fixed further."""
    if end.lanes is not None or end.rule not in {"end", "time"}:
        return end
    if end.needs_text and text_complete.is_set():
        end = end.fix_text(topics.broker.ends(topics.text))
    positions = topics.broker.positions(topics.ingest_group, topics.text, settled=False)  # before the ends of the lanes
    if not end.lanes_due(now_ms=now_ms(), positions=positions):
        return end
    if end.rule == "time" and end.time_ms is not None:
        return end.fix_lanes(topics.broker.offsets_at(topics.tokens, end.time_ms))
    return end.fix_lanes({lane: each.end for lane, each in topics.broker.ends(topics.tokens).items()})


def emitted_tokens(topics: Topics) -> int:
    """How many tokens ingest has ever emitted; none where this broker has no such text topic."""
    if topics.broker.describe(topics.text) is None:
        return 0
    positions = topics.broker.positions(topics.ingest_group, topics.text, settled=False)
    return sum(position.tokens for position in positions.values())
