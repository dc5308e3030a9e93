"""Rank 0 watches the loop: keeps the figures, reports them to the broker, and to the parent for the live view."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace.schemas.errors import TryAgain
from headrace.trainer.learner import Score, StepResult
from headrace.trainer.progress import Progress, RankReport, Reporter
from headrace.trainer.reach import Reach

_EVENT_S = 0.5
_EMITTED_S = 1.0


class RootWatcher:
    """Implements `loop.Watcher`. `emitted` asks the broker how many tokens ingest has emitted so far."""

    def __init__(
        self,
        progress: Progress,
        reporter: Reporter,
        report: Callable[[dict[str, Any]], None],
        emitted: Callable[[], int],
        learning_rate: Callable[[Reach], float],
        check: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.progress = progress
        self._reporter = reporter
        self._report = report
        self._emitted = emitted
        self._learning_rate = learning_rate
        self._check = check  # raises what went wrong in the background
        self._clock = clock
        self._now_ms = now_ms
        self._told_at = -_EVENT_S
        self._asked_at = -_EMITTED_S
        self._emitted_before: int | None = None

    def stepped(self, step: int, result: StepResult, reports: Sequence[RankReport], reach: Reach) -> None:
        self._check()
        self._emitted_before = None
        self.progress.stepped(step, result, reports, self._now_ms())
        self.progress.learning_rate = self._learning_rate(reach)
        self.progress.reached(reach)
        self._tell()

    def evaluated(self, step: int, score: Score) -> None:
        self.progress.held_out_accuracy = score.accuracy
        self._report({"event": "evaluated", "step": step, "accuracy": score.accuracy, "loss": score.mean_loss})

    def idle(self) -> None:
        """All lanes are empty. What ingest had emitted before this was seen has left the lanes, or never will."""
        self._check()
        if self._clock() - self._asked_at < _EMITTED_S:
            return
        self._asked_at = self._clock()
        if self._emitted_before is not None:
            self.progress.calibrate(self._emitted_before)
            self._tell()
        try:
            self._emitted_before = self._emitted()
        except TryAgain:
            self._emitted_before = None  # the broker is away; it is asked again in a second

    def finish(self) -> None:
        """The last figures, after the loop."""
        self._reporter.post(self.progress.positions(self._now_ms()))
        self._report(self._event())
        if self.progress.sums.sent_bytes:
            self._report({"event": "sums", "text": self.progress.sums.text()})

    def _event(self) -> dict[str, Any]:
        """The figures, and the buckets of the last step: too long for a note at the broker."""
        return {"event": "progress", **self.progress.figures(self._now_ms()), "buckets": self.progress.sums.last}

    def _tell(self) -> None:
        if self._reporter.wants:
            self._reporter.post(self.progress.positions(self._now_ms()))
        if self._clock() - self._told_at >= _EVENT_S:
            self._told_at = self._clock()
            self._report(self._event())
