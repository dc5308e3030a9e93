"""What rank 0 knows of the run while it goes on, and how it tells the others outside.

After every step all ranks send rank 0 a `RankReport`. From them `Progress` keeps the figures that people look at, and
`Reporter` commits them once a second, in a thread of its own, as the positions of the run's *trained* group on the
tokens topic: what lies before a lane's position is trained, and lane 0's notes carry the figures. So ingest (for the
backlog) and `headrace status` need nothing but the broker.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.pipeline.topics import Broker
from headrace.schemas.errors import HeadraceError, TryAgain
from headrace.schemas.position import Position
from headrace.trainer.communication import SumCosts
from headrace.trainer.freshness import Ages
from headrace.trainer.learner import Score, StepResult, macro_f1
from headrace.trainer.reach import Range, Reach

#: Progressive accuracy is that of the last so many scored terms (records; masked tokens).
ACCURACY_TERMS = 1000
REPORT_S = 1.0
RECENT_STEPS = 50


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank's part of one step. Lanes are keyed by text, as JSON has it."""

    offsets: dict[str, int]  # next unread offset of each owned lane
    left: dict[str, int]  # tokens that have left each owned lane since the topic began: trained, held out or dropped
    ages: dict[str, int]  # freshness of this step's records, by bucket of `freshness.Ages`
    rows: int
    tokens: int
    padded_tokens: int
    wait_s: float  # this rank waited so long for the step's data, idle time included
    step_s: float = 0.0  # the step itself
    sent: list[list[float]] = field(default_factory=list)  # as `communication.Traffic.to_json`
    lanes: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # rows, tokens, padded tokens of each lane

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class Progress:
    """Figures of the run, on rank 0. `rows`, `tokens` and `ages` count from the run's first step, over all resumes."""

    step: int = 0
    rows: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    loss: float | None = None  # of the last step since this start
    learning_rate: float = 0.0
    ages: Ages = field(default_factory=Ages)
    offsets: dict[int, int] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    skipped_tokens: int = 0
    taken_tokens: int = 0  # of all steps, skipped ones included: what schedules by tokens go by
    range: Range | None = None  # what schedules by share go by
    first_step_ms: int | None = None
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)  # the last evaluation, by what was scored
    best: dict[str, Any] | None = None  # as `best.Best`, where the best checkpoint is kept
    wait_s: float = 0.0
    sums: SumCosts = field(default_factory=SumCosts)
    recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    scored: deque[Score] = field(default_factory=deque)
    scored_terms: int = 0

    def stepped(
        self, step: int, result: StepResult, reports: Sequence[RankReport], now_ms: int, step_s: float | None = None
    ) -> None:
        """`step_s` is the time since the step before, where there was one."""
        self.step = step
        self.first_step_ms = now_ms if self.first_step_ms is None else self.first_step_ms
        for report in reports:
            self.rows += report.rows
            self.tokens += report.tokens
            self.padded_tokens += report.padded_tokens
            self.ages.merge(Ages({int(bucket): count for bucket, count in report.ages.items()}))
            self.offsets.update({int(lane): offset for lane, offset in report.offsets.items()})
            self.left.update({int(lane): tokens for lane, tokens in report.left.items()})
        waited_s = max(report.wait_s for report in reports)
        self.wait_s += waited_s
        self.sums.add([(report.step_s, report.sent) for report in reports])
        if step_s is not None:
            self.recent.append((waited_s, step_s))
        if result.score.count:
            self.loss = result.score.mean_loss
            self._score(result.score)

    def reached(self, reach: Reach) -> None:
        """The step that `reach` stood before has been made."""
        self.taken_tokens = reach.tokens_after
        self.range = reach.range

    def _score(self, score: Score) -> None:
        self.scored.append(score)
        self.scored_terms += score.count
        while self.scored_terms - self.scored[0].count >= ACCURACY_TERMS:
            self.scored_terms -= self.scored.popleft().count

    @property
    def accuracy(self) -> float | None:
        """Progressive: scored before training, over about the last `ACCURACY_TERMS` terms."""
        return sum(score.correct for score in self.scored) / self.scored_terms if self.scored_terms else None

    @property
    def macro_f1(self) -> float | None:
        """Progressive, over the same terms; None for a task without classes."""
        sums: dict[int, tuple[int, int, int]] = {}
        for score in self.scored:
            for number, counts in score.by_class.items():
                right, given, own = sums.get(number, (0, 0, 0))
                sums[number] = (right + counts[0], given + counts[1], own + counts[2])
        return macro_f1(sums)

    @property
    def held_out_accuracy(self) -> float | None:
        accuracy: float | None = self.scores.get("held_out", {}).get("accuracy")
        return accuracy

    @property
    def wait_share(self) -> float | None:
        """Share of the last `RECENT_STEPS` steps' time that was spent waiting for data."""
        all_s = sum(step_s for _, step_s in self.recent)
        return min(1.0, sum(wait_s for wait_s, _ in self.recent) / all_s) if all_s else None

    def calibrate(self, emitted_tokens: int) -> None:
        """All lanes were seen empty after ingest had emitted this much: what did not leave a lane never will."""
        self.skipped_tokens = emitted_tokens - sum(self.left.values())

    def figures(self, now_ms: int) -> dict[str, object]:
        """What lane 0's notes carry."""
        return {
            "step": self.step,
            "loss": self.loss,
            "accuracy": self.accuracy,
            "macro_f1": self.macro_f1,
            "held_out_accuracy": self.held_out_accuracy,
            "development_accuracy": self.scores.get("development", {}).get("accuracy"),
            "freshness_p50_s": self.ages.quantile_s(0.5),
            "freshness_p99_s": self.ages.quantile_s(0.99),
            "learning_rate": self.learning_rate,
            "records": self.rows,
            "tokens": self.tokens,
            "padded_tokens": self.padded_tokens,
            "wait_s": round(self.wait_s, 3),
            "wait_share": self.wait_share,
            **self.sums.figures(),
            "first_step_ms": self.first_step_ms,
            "skipped_tokens": self.skipped_tokens,
            "reported_ms": now_ms,
        }

    def positions(self, now_ms: int) -> dict[int, Position]:
        """Positions of the trained group."""
        figures = self.figures(now_ms)
        return {
            lane: Position(offset, tokens=self.left.get(lane, 0), notes=figures if lane == 0 else {})
            for lane, offset in self.offsets.items()
        }

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint keeps, so that a resumed run goes on counting."""
        return {
            "rows": self.rows,
            "tokens": self.tokens,
            "padded_tokens": self.padded_tokens,
            "ages": {str(bucket): count for bucket, count in self.ages.counts.items()},
            "left": {str(lane): tokens for lane, tokens in self.left.items()},
            "skipped_tokens": self.skipped_tokens,
            "taken_tokens": self.taken_tokens,
            "range": self.range.to_json() if self.range is not None else None,
            "first_step_ms": self.first_step_ms,
            "scores": self.scores,
            "best": self.best,
            "scored": [
                [score.correct, score.count, [[number, *counts] for number, counts in score.by_class.items()]]
                for score in self.scored
            ],
        }

    @classmethod
    def from_json(cls, step: int, offsets: Mapping[int, int], fields: Mapping[str, Any]) -> Progress:
        scored = deque(_scored(*saved) for saved in fields["scored"])
        return cls(
            step=step,
            rows=fields["rows"],
            tokens=fields["tokens"],
            padded_tokens=fields["padded_tokens"],
            ages=Ages(Counter({int(bucket): count for bucket, count in fields["ages"].items()})),
            offsets=dict(offsets),
            left={int(lane): tokens for lane, tokens in fields["left"].items()},
            skipped_tokens=fields["skipped_tokens"],
            taken_tokens=fields.get("taken_tokens", fields["tokens"]),  # an older headrace skipped no step
            range=Range.from_json(fields["range"]) if fields.get("range") is not None else None,
            first_step_ms=fields["first_step_ms"],
            scores=fields.get("scores", {}),  # not in older checkpoints
            best=fields.get("best"),
            scored=scored,
            scored_terms=sum(score.count for score in scored),
        )


def _scored(correct: float, count: int, by_class: Sequence[tuple[int, int, int, int]] = ()) -> Score:
    """Of an older checkpoint without the counts by class."""
    counts = {number: (right, given, own) for number, right, given, own in by_class}
    return Score(0.0, float(correct), int(count), counts)


class Reporter:
    """Commits the newest positions once a second. A broker that is away costs reports, never a step."""

    def __init__(self, broker: Broker, group: str, topic: str, on_away: Callable[[TryAgain], None]) -> None:
        self._broker = broker
        self._group = group
        self._topic = topic
        self._on_away = on_away
        self._newest: Mapping[int, Position] | None = None
        self._failure: HeadraceError | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def wants(self) -> bool:
        """Whether to post: the last one has been reported (building one costs a little), or it cannot be."""
        return self._newest is None

    def post(self, positions: Mapping[int, Position]) -> None:
        """Replace what the next report will say. Raises what made reporting impossible, if anything did."""
        if self._failure is not None:
            raise self._failure
        self._newest = positions

    def close(self) -> None:
        """Report once more and end."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(REPORT_S):
            self._report()
        self._report()

    def _report(self) -> None:
        newest, self._newest = self._newest, None
        if newest is None:
            return
        try:
            self._broker.set_positions(self._group, self._topic, newest)
        except TryAgain as error:
            self._on_away(error)
        except HeadraceError as error:  # without reports ingest would wait for ever: the loop must hear of it
            self._failure = error
