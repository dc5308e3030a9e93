"""The view: what is known is shown, what is not known is not invented."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from headrace import view
from headrace.pipeline.status import LaneStatus, Rates, Status, TextPartition, TrainerReport, rates

EMPTY = Status(1_000_000, (), (), 0, 0, 0, 0, None)
TRAINER = TrainerReport(999_000, 7, 0.25, 0.5, 0.8, 1.5, 1000, 50_000)
FULL = Status(
    1_000_000,
    (TextPartition(0, 0, 100, 40), TextPartition(1, 0, 90, None)),
    (LaneStatus(0, 0, 10, 8, 4), LaneStatus(1, 0, 12, None, None)),
    70_000,
    50_000,
    1_000,
    3,
    TRAINER,
)


NO_RATES = Rates()


def drawn(status: Status, rates: Rates = NO_RATES) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(view.panel(status, rates))
    return console.export_text()


def test_nothing_is_there_yet() -> None:
    text = drawn(EMPTY)
    assert "has not reported yet" in text and "no text topic yet" in text and "no tokens topic yet" in text


def test_every_number_is_in_panel_line_and_document() -> None:
    moving = Rates(1200.0, 900.0, 15.0, 21.1)
    for text in (drawn(FULL, moving), view.line(FULL, moving)):
        for part in (
            "7",
            "0.2500",
            "0.500",
            "19k",
            "21 s",
            "900",
            "1.2k",
            "15",
            "dead letters 3",
            "p50 0.8 s p99 1.5 s",
        ):
            assert part in text
    document = json.loads(json.dumps(view.document(FULL, moving)))
    assert document["backlog_tokens"] == 19_000 and document["backlog_s"] == 21.1
    assert document["lanes"][0] == {"lane": 0, "first": 0, "end": 10, "trained": 8, "checkpoint": 4}
    assert document["trainer"]["step"] == 7 and document["trainer_runs"] is True


def test_a_trainer_that_is_gone_is_not_shown_as_running() -> None:
    later = replace(FULL, at_ms=FULL.at_ms + 600_000)
    assert "silent for 10 min" in view.line(later, rates(FULL, later))


def test_many_lanes_are_folded() -> None:
    lanes = tuple(LaneStatus(lane, 0, 10, 5, 5) for lane in range(64))
    assert "and 48 more" in drawn(replace(FULL, lanes=lanes))


def test_names_that_look_like_markup_are_text() -> None:
    from headrace.watch import PlainDisplay

    console = Console(width=120, record=True, file=io.StringIO())
    PlainDisplay(console).tell("topic [bold]x[/bold]")
    assert "[bold]x[/bold]" in console.export_text()


def test_rates_are_computed_from_two_looks() -> None:
    after = replace(
        FULL, at_ms=FULL.at_ms + 2000, emitted_tokens=74_000, trained_tokens=53_000,
        trainer=replace(TRAINER, reported_ms=TRAINER.reported_ms + 2000, tokens=53_000, records=1060),
    )  # fmt: skip
    assert rates(FULL, after) == Rates(2000.0, 1500.0, 30.0, 20_000 / 1500)


def test_no_rate_from_one_report_seen_twice() -> None:
    assert rates(FULL, replace(FULL, at_ms=FULL.at_ms + 1000)) == Rates(emitted_tokens=0.0)


def test_a_trainer_that_went_back_to_its_checkpoint_has_no_negative_rate() -> None:
    back = replace(FULL, at_ms=FULL.at_ms + 1000, trainer=replace(TRAINER, reported_ms=1_000_000, tokens=10, records=1))
    assert rates(FULL, back).tokens is None


@given(st.floats(min_value=0, max_value=9e11))
def test_amounts_fit_their_column(value: float) -> None:
    assert len(view.amount(value)) <= 8


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (950, "950"), (12_345, "12.3k"), (4_560_000, "4.56M"), (2.5, "2.5")]
)
def test_amounts(value: float, text: str) -> None:
    assert view.amount(value) == text
