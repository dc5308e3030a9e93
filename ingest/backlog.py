"""Backlog: the tokens that lie between what ingest has emitted and what the trainer has trained.

    emitted   sum of `Position.tokens` over the text topic's partitions, of the ingest group
    trained   sum of `Position.tokens` and of the note `skipped_tokens` over the lanes, of the run's trained group
    backlog   emitted - trained

`skipped_tokens` are tokens that no one will train: emitted before the run's start, or lost to it. Counters are
committed with the positions, so the number is exact after any restart. The trainer reports every second; from
checkpoints alone ingest and trainer could wait for each other for ever. Cost: two requests, at most once a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.pipeline.topics import Broker
from headrace.schemas.position import Position

EVERY_S = 1.0


def backlog_tokens(emitted: Mapping[int, Position], trained: Mapping[int, Position]) -> int:
    """Tokens emitted and not trained, from the positions of the two groups."""
    skipped = sum(_count(position.notes.get("skipped_tokens", 0)) for position in trained.values())
    return _tokens(emitted) - _tokens(trained) - skipped


def _tokens(positions: Mapping[int, Position]) -> int:
    return sum(position.tokens for position in positions.values())


def _count(note: object) -> int:
    return note if isinstance(note, int) else 0


@dataclass(frozen=True, slots=True)
class BacklogGroups:
    """Whose positions are compared."""

    text_topic: str
    ingest_group: str
    tokens_topic: str
    trained_group: str


class Backlog:
    """The backlog as of at most a second ago."""

    def __init__(
        self, broker: Broker, groups: BacklogGroups, limit_tokens: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._broker = broker
        self._groups = groups
        self._limit_tokens = limit_tokens
        self._clock = clock
        self._read_at: float | None = None
        self.tokens = 0  # as last read

    def full(self) -> bool:
        """Whether ingest must wait for the trainer. Reads the groups again when the last look is a second old."""
        now = self._clock()
        if self._read_at is None or now - self._read_at >= EVERY_S:
            groups = self._groups
            self.tokens = backlog_tokens(
                self._broker.positions(groups.ingest_group, groups.text_topic, settled=False),
                self._broker.positions(groups.trained_group, groups.tokens_topic, settled=False),
            )
            self._read_at = now
        return self.tokens >= self._limit_tokens
