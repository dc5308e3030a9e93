"""Rank 0 watches the loop: keeps the figures and the history, and reports them to the broker and to the parent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.schemas.errors import TryAgain
from headrace.trainer.balance import Balance
from headrace.trainer.best import Best
from headrace.trainer.freshness import Ages
from headrace.trainer.history import History, score_json
from headrace.trainer.learner import Score, StepResult
from headrace.trainer.progress import Progress, RankReport, Reporter
from headrace.trainer.reach import Reach
from headrace.trainer.visual import VisualLog

_EVENT_S = 0.5
_EMITTED_S = 1.0


@dataclass(slots=True)
class Notes:
    """What is noted of a run beside its figures."""

    history: History = field(default_factory=History)
    visual: VisualLog | None = None
    keep_best: bool = False
    balance_steps: int = 100
    skew_warning: float = 1.5


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
        notes: Notes,
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
        self._notes = notes
        self._clock = clock
        self._now_ms = now_ms
        self._told_at = -_EVENT_S
        self._asked_at = -_EMITTED_S
        self._emitted_before: int | None = None
        self._stepped_at: float | None = None
        self._steps = 0  # since this start
        self._balance = Balance()
        self._skewed = False

    def stepped(self, step: int, result: StepResult, reports: Sequence[RankReport], reach: Reach) -> None:
        self._check()
        self._emitted_before = None
        now, now_ms = self._clock(), self._now_ms()
        step_s = now - self._stepped_at if self._stepped_at is not None else None
        self._stepped_at = now
        self._steps += 1
        self.progress.stepped(step, result, reports, now_ms, step_s)
        self.progress.learning_rate = self._learning_rate(reach)
        self.progress.reached(reach)
        line = history_line(step, result, reports, step_s)
        line |= {"time_ms": now_ms, "learning_rate": self.progress.learning_rate}
        self._notes.history.stepped(line)
        if self._notes.visual is not None:
            self._notes.visual.stepped(line)
        self._weigh(reports, step_s)
        self._tell()

    def evaluated(self, step: int, scores: Mapping[str, Score]) -> bool:
        self.progress.scores = {name: score_json(score) for name, score in scores.items()}
        self._notes.history.evaluated(step, scores)
        if self._notes.visual is not None:
            self._notes.visual.evaluated(step, scores)
        for name, score in scores.items():
            figures = {"accuracy": score.accuracy, "macro_f1": score.macro_f1, "loss": score.mean_loss}
            self._report({"event": "evaluated", "step": step, "of": name, "records": score.count, **figures})
        if not self._notes.keep_best:
            return False
        found, best = Best.of(step, scores), Best.from_json(self.progress.best)
        if found is None or not found.beats(best):
            return False
        self.progress.best = found.to_json()
        return True

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

    def _weigh(self, reports: Sequence[RankReport], step_s: float | None) -> None:
        """Tell how equal lanes and ranks are: after the first step of a start, and then once a period."""
        self._balance.add(reports, step_s)
        if self._steps > 1 and self._balance.steps < self._notes.balance_steps:
            return
        self._report(self._balance.event())
        if self._steps > 1:
            skewed = self._balance.warnings(self._notes.skew_warning)
            for warning in skewed if not self._skewed else ():
                self._report({"event": "warning", "text": f"warning: {warning}"})
            self._skewed = bool(skewed)  # told again once it has been even
        self._balance.clear()

    def _tell(self) -> None:
        if self._reporter.wants:
            self._reporter.post(self.progress.positions(self._now_ms()))
        if self._clock() - self._told_at >= _EVENT_S:
            self._told_at = self._clock()
            self._report(self._event())


def history_line(step: int, result: StepResult, reports: Sequence[RankReport], step_s: float | None) -> dict[str, Any]:
    """A step's line of the history, without what only the watcher knows. Scores were taken before training."""
    score = result.score
    tokens = sum(report.tokens for report in reports)
    padded_tokens = sum(report.padded_tokens for report in reports)
    wait_s = max(report.wait_s for report in reports)
    ages = Ages()
    for report in reports:
        ages.merge(Ages({int(bucket): count for bucket, count in report.ages.items()}))
    return {
        "step": step,
        "loss": score.mean_loss if score.count else None,
        "accuracy": score.accuracy if score.count else None,
        "macro_f1": score.macro_f1,
        "count": score.count,
        "grad_norm": result.grad_norm,
        "rows": sum(report.rows for report in reports),
        "tokens": tokens,
        "padding": 1 - tokens / padded_tokens if padded_tokens else None,
        "step_s": step_s,
        "tokens_s": tokens / step_s if step_s else None,
        "wait_share": min(1.0, wait_s / step_s) if step_s else None,
        "freshness_p50_s": ages.quantile_s(0.5),
        "freshness_p99_s": ages.quantile_s(0.99),
    }
