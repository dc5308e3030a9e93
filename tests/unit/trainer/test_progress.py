"""What rank 0 reports: sums over ranks, accuracy of the last thousand, and the same after a resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.pipeline.broker import open_broker
from headrace.schemas.errors import HeadraceError, TryAgain
from headrace.schemas.position import Position
from headrace.trainer.learner import Score, StepResult
from headrace.trainer.progress import Progress, RankReport, Reporter


def report(lane: int, offset: int, left: int, rows: int = 10) -> RankReport:
    return RankReport({str(lane): offset}, {str(lane): left}, {"10": rows}, rows, rows * 5, rows * 8, 0.25)


def stepped(progress: Progress, step: int, correct: float, count: int) -> None:
    result = StepResult(Score(count * 0.5, correct, count), 1.0)
    progress.stepped(step, result, [report(0, step * 2, step * 50), report(1, step * 3, step * 50)], now_ms=step * 1000)


def test_ranks_add_up() -> None:
    progress = Progress()
    stepped(progress, 1, 5, 20)
    stepped(progress, 2, 20, 20)
    figures = progress.figures(9000)
    assert (figures["records"], figures["tokens"], figures["step"], figures["loss"]) == (40, 200, 2, 0.5)
    assert figures["first_step_ms"] == 1000
    positions = progress.positions(9000)
    assert {lane: (position.offset, position.tokens) for lane, position in positions.items()} == {
        0: (4, 100),
        1: (6, 100),
    }
    assert positions[0].notes == figures
    assert positions[1].notes == {}


def test_progressive_accuracy_is_of_about_the_last_thousand() -> None:
    progress = Progress()
    for step in range(1, 101):
        stepped(progress, step, 0, 100)
    for step in range(101, 111):
        stepped(progress, step, 90, 100)
    assert progress.accuracy == pytest.approx(0.9)


def test_progressive_macro_f1_is_of_the_classes_that_occur() -> None:
    progress = Progress()
    for by_class in ({0: (3, 4, 5), 1: (0, 1, 0)}, {0: (2, 2, 2), 4: (1, 1, 3)}):
        score = Score(1.0, 4.0, 10, by_class)
        progress.stepped(1, StepResult(score, 1.0), [report(0, 1, 1)], now_ms=1)
    assert progress.macro_f1 == pytest.approx((10 / 13 + 0 + 2 / 4) / 3)
    saved = json.loads(json.dumps(progress.to_json()))
    assert Progress.from_json(1, {}, saved).macro_f1 == progress.macro_f1
    assert Progress().macro_f1 is None


def test_a_resumed_run_goes_on_counting() -> None:
    progress = Progress()
    for step in range(1, 20):
        stepped(progress, step, step, 100)
    progress.calibrate(5000)
    saved = json.loads(json.dumps(progress.to_json()))
    resumed = Progress.from_json(progress.step, progress.offsets, saved)
    for each in (progress, resumed):
        stepped(each, 20, 50, 100)
    now = resumed.figures(0) | {"learning_rate": 0, "wait_s": 0}
    assert now == progress.figures(0) | {"learning_rate": 0, "wait_s": 0}
    assert resumed.left == progress.left


def test_tokens_from_before_the_runs_start_do_not_count_as_backlog() -> None:
    progress = Progress()
    stepped(progress, 1, 1, 1)
    progress.calibrate(1100)
    assert progress.skipped_tokens == 1000


def test_the_report_reaches_the_broker(tmp_path: Path) -> None:
    broker = open_broker(f"local:{tmp_path}")
    broker.create("orders.tokens", 2)
    progress = Progress()
    stepped(progress, 1, 5, 20)
    away: list[TryAgain] = []
    reporter = Reporter(broker, "orders.main.trained", "orders.tokens", away.append)
    reporter.start()
    reporter.post(progress.positions(7000))
    reporter.close()
    assert not away
    assert broker.positions("orders.main.trained", "orders.tokens") == progress.positions(7000)
    broker.close()


def test_what_makes_reporting_impossible_is_raised_to_the_loop(tmp_path: Path) -> None:
    broker = open_broker(f"local:{tmp_path}")
    reporter = Reporter(broker, "orders.main.trained", "no-such-topic", lambda _: None)
    reporter.start()
    reporter.post({0: Position(1)})
    reporter.close()
    with pytest.raises(HeadraceError):
        reporter.post({0: Position(2)})
    broker.close()
