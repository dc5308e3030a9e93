"""Where a run ends: fixed once, in an order that loses nothing, and kept in the checkpoint."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.topics import Ends
from headrace.schemas.position import Position
from headrace.trainer.ends import RunEnd

TEXT = {0: Ends(0, 100), 1: Ends(5, 60), 2: Ends(7, 7)}
offsets = st.none() | st.dictionaries(st.integers(0, 64), st.integers(0, 2**40))


def _positions(*pairs: tuple[int, int]) -> dict[int, Position]:
    return {partition: Position(offset) for partition, offset in pairs}


def test_stop_end_waits_until_ingest_has_passed_every_partition() -> None:
    end = RunEnd("end")
    assert end.needs_text
    assert not end.lanes_due(now_ms=0, positions=_positions((0, 999), (1, 999)))
    end = end.fix_text(TEXT)
    assert end.text == {0: 100, 1: 60}  # nobody will ever commit a position in a partition without records
    assert not end.lanes_due(now_ms=0, positions={})
    assert not end.lanes_due(now_ms=0, positions=_positions((0, 100)))
    assert not end.lanes_due(now_ms=0, positions=_positions((0, 100), (1, 59)))
    assert not end.lanes_due(now_ms=0, positions={0: Position(100), 1: Position(59, row=10_000)})
    assert end.lanes_due(now_ms=0, positions=_positions((0, 100), (1, 61)))
    end = end.fix_lanes({0: 40, 1: 41})
    assert not end.lanes_due(now_ms=0, positions=_positions((0, 100), (1, 61)))
    assert [end.reached(step=1, lanes_ended=ended) for ended in (0, 1, 2)] == [False, False, True]


def test_ends_are_fixed_once_however_often_a_run_is_resumed() -> None:
    end = RunEnd("end").fix_text(TEXT).fix_lanes({0: 4})
    later = {partition: Ends(0, 10_000) for partition in range(9)}
    assert end.fix_text(later).fix_lanes({0: 9}) == end
    assert RunEnd.from_json(json.loads(json.dumps(end.to_json()))).fix_text(later) == end


def test_an_empty_text_topic_ends_at_once() -> None:
    assert RunEnd("end").fix_text({0: Ends(3, 3)}).lanes_due(now_ms=0, positions={})


def test_stop_time_fixes_the_lanes_once_the_moment_has_passed() -> None:
    end = RunEnd("time", time_ms=1000)
    assert not end.needs_text
    assert not end.lanes_due(now_ms=999)
    assert end.lanes_due(now_ms=1000)
    assert end.fix_lanes({0: 5}).reached(step=0, lanes_ended=1)


def test_stop_steps_and_never() -> None:
    assert [RunEnd("steps", steps=3).reached(step=step, lanes_ended=0) for step in (2, 3)] == [False, True]
    never = RunEnd()
    assert not never.reached(step=10**9, lanes_ended=10**6)
    assert not never.lanes_due(now_ms=10**15, positions={})


def test_a_run_without_fixed_lanes_is_not_over_because_all_are_idle() -> None:
    assert not RunEnd("end").fix_text(TEXT).reached(step=5, lanes_ended=2)


@pytest.mark.parametrize("other", [RunEnd(), RunEnd("steps", steps=4), RunEnd("time", time_ms=5)])
def test_another_stop_after_a_resume_starts_from_its_beginning(other: RunEnd) -> None:
    saved = RunEnd("end").fix_text(TEXT).fix_lanes({0: 4})
    assert saved.resumed_with(RunEnd("end")) == saved
    assert saved.resumed_with(other) == other
    assert RunEnd("steps", steps=3).resumed_with(RunEnd("steps", steps=4)) == RunEnd("steps", steps=4)


@given(st.sampled_from(["never", "steps", "time", "end"]), st.none() | st.integers(1), offsets, offsets)
def test_json_round_trip(
    rule: str, number: int | None, text: dict[int, int] | None, lanes: dict[int, int] | None
) -> None:
    end = RunEnd(rule, number, number, text, lanes)  # type: ignore[arg-type]
    assert RunEnd.from_json(json.loads(json.dumps(end.to_json()))) == end
