"""Numbers of one worker: what it has committed, reported once a second.

What is read is counted at once, by text partition, and becomes official with the commit: a record that is read again
after a rewind counts once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.ingest.dead_letters import DeadLetter

EVERY_S = 1.0

Report = Callable[[dict[str, Any]], None]


@dataclass(slots=True)
class _Counts:
    records: int = 0
    tokens: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)


class Numbers:
    """Counters since the worker's start."""

    def __init__(self, report: Report, clock: Callable[[], float]) -> None:
        self._report = report
        self._clock = clock
        self._reported_at = clock()
        self._committed = _Counts()
        self._pending: defaultdict[int, _Counts] = defaultdict(_Counts)  # by text partition
        self._commits = 0
        self._commit_s = 0.0  # all of them together
        self._backlog_wait_s = 0.0

    def read(self, good: Mapping[int, tuple[int, int]], bad: Sequence[DeadLetter]) -> None:
        """Count what the next commit will hold: rows and tokens by text partition, and dead letters."""
        for partition, (rows, tokens) in good.items():
            counts = self._pending[partition]
            counts.records += rows
            counts.tokens += tokens
        for letter in bad:
            counts = self._pending[letter.origin.partition]
            counts.records += 1
            counts.dead_letters[letter.reason.value] += 1

    def committed(self, commit_s: float) -> None:
        for counts in self._pending.values():
            self._committed.records += counts.records
            self._committed.tokens += counts.tokens
            self._committed.dead_letters.update(counts.dead_letters)
        self._pending.clear()
        self._commits += 1
        self._commit_s += commit_s

    def dropped(self, partitions: Collection[int]) -> None:
        """Forget what was read of these partitions: it will be read again, here or elsewhere."""
        for partition in partitions:
            self._pending.pop(partition, None)

    def waited(self, wait_s: float) -> None:
        self._backlog_wait_s += wait_s

    def report_when_due(self, backlog_tokens: int) -> None:
        if self._clock() - self._reported_at >= EVERY_S:
            self.report(backlog_tokens)

    def report(self, backlog_tokens: int) -> None:
        """Send the counters; they only grow while the process lives, so that rates need two of them."""
        self._reported_at = self._clock()
        self._report(
            {
                "event": "ingest",
                "records": self._committed.records,
                "tokens": self._committed.tokens,
                "dead_letters": dict(self._committed.dead_letters),
                "commits": self._commits,
                "commit_s": self._commit_s,
                "backlog_wait_s": self._backlog_wait_s,
                "backlog_tokens": backlog_tokens,
            }
        )
