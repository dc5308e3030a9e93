"""Sending: lines as messages, in transactions, at no more than a given rate.

    1. take a line; wait until the rate allows it
    2. begin a transaction when none is open; append the line to the next partition in turn
    3. commit, with the position behind the line, after `TRANSACTION_LINES`, `TRANSACTION_BYTES` or `TRANSACTION_S`, and
       when the source has nothing for now

An open transaction holds readers back, so no wait keeps one open for longer than `TRANSACTION_S`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from headrace.ingest.sources.lines import Line, Place
from headrace.pipeline.topics import Headers, Topic, Writer

TRANSACTION_LINES = 10_000
TRANSACTION_BYTES = 16_000_000
TRANSACTION_S = 0.2

_SHORTEST_WAIT_S = 0.005  # shorter ones add up first: waiting costs more than a line
_CATCH_UP_S = 1.0  # a source that fell behind its rate makes up for so much of it


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a publication is; after each commit."""

    source: str
    lines: int  # published by this call
    empty: int  # skipped by this call
    done_bytes: int  # of the file, with what earlier calls published
    size_bytes: int | None  # None: a pipe


@dataclass(frozen=True, slots=True)
class Published:
    """What one call did, confirmed by the broker."""

    source: str
    lines: int
    empty: int
    earlier_lines: int  # done by earlier calls, so left out by this one
    finished: bool  # False: stopped before the end


def _silent(progress: Progress) -> None:
    """Report to nobody."""


@dataclass(frozen=True, slots=True)
class Control:
    """How a publication is paced, watched and stopped."""

    rate: float | None = None  # lines a second
    stopping: threading.Event = field(default_factory=threading.Event)
    progress: Callable[[Progress], None] = _silent
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], object] | None = None  # None: wait on `stopping`


class Sending:
    """One publication. `commit` commits the open transaction together with the place behind its last line."""

    def __init__(
        self, writer: Writer, topic: Topic, headers: Headers, commit: Callable[[Place], None], control: Control
    ) -> None:
        self._writer = writer
        self._topic = topic
        self._headers = headers
        self._commit_at = commit
        self._control = control
        self._begun_at: float | None = None  # None: no transaction is open
        self._open_lines = 0
        self._open_bytes = 0
        self._next_at = control.clock()  # when the rate allows the next line
        self._sent = 0
        self._empty = 0

    def run(self, source: str, read: Iterator[Line | None], start: Place, size_bytes: int | None) -> Published:
        """Send every line, or what comes before `control.stopping`; the end is committed either way."""
        end = committed = start
        finished = False

        def commit() -> Place:
            self._commit(end)
            self._control.progress(Progress(source, self._sent, self._empty, end.position, size_bytes))
            return end

        for line in read:
            if self._control.stopping.is_set():
                break
            if line is not None and line.text.strip():
                if self._begun_at is not None and self._due(after_s=self._wait_s()):
                    committed = commit()
                if not self._wait():  # 1. wait until the rate allows the line
                    break
                self._append(line.text, (start.lines + self._sent) % self._topic.partitions)
            elif line is not None:
                self._empty += 1
            if line is not None:
                end = Place(line.number, line.end)
            if self._begun_at is not None and (line is None or self._due()):
                committed = commit()
        else:
            finished = True
        if end != committed:
            commit()
        return Published(source, self._sent, self._empty, start.lines, finished)

    def _append(self, text: bytes, partition: int) -> None:
        if self._begun_at is None:
            self._writer.begin()  # 2. begin when none is open, append
            self._begun_at = self._control.clock()
        self._writer.append(self._topic.name, text, partition=partition, headers=self._headers)
        self._sent += 1
        self._open_lines += 1
        self._open_bytes += len(text)

    def _due(self, after_s: float = 0.0) -> bool:
        """Whether the open transaction is large or old enough to be committed, in `after_s` at the latest."""
        return (
            self._open_lines >= TRANSACTION_LINES
            or self._open_bytes >= TRANSACTION_BYTES
            or self._control.clock() + after_s - (self._begun_at or 0.0) >= TRANSACTION_S
        )

    def _commit(self, end: Place) -> None:
        if self._begun_at is None:
            self._writer.begin()
        self._commit_at(end)  # 3. commit, with the position
        self._begun_at, self._open_lines, self._open_bytes = None, 0, 0

    def _wait_s(self) -> float:
        """How long the rate makes the next line wait; waits too short to be worth it are none."""
        wait_s = self._next_at - self._control.clock()
        return wait_s if self._control.rate is not None and wait_s >= _SHORTEST_WAIT_S else 0.0

    def _wait(self) -> bool:
        """Wait for the rate, and count the line; False when told to stop meanwhile."""
        if self._control.rate is None:
            return True
        wait_s = self._wait_s()
        if wait_s > 0:
            (self._control.wait or self._control.stopping.wait)(wait_s)
        self._next_at = max(self._next_at, self._control.clock() - _CATCH_UP_S) + 1 / self._control.rate
        return not self._control.stopping.is_set()
