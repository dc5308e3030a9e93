"""The share of the lanes' range: the same at any number of ranks and after a resume; from 0 to 1 and never back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from headrace.schemas.cursor import Cursor, CuttingPlan
from headrace.trainer.reach import START, Odometer, Range, Reach, Stretch
from headrace.trainer.window import MicroBatch, Window, cut
from tests.unit.trainer.made_up import keep_all, rows_of

PLAN = CuttingPlan(seed=1, micro_tokens=3, window_tokens=64)
ENDS = {0: 10, 1: 6}


def window(lane: int, start: int, end: int, rows: int) -> list[MicroBatch]:
    """One window, a row in each micro-batch."""
    taken = rows_of([[1, 5, 2]] * rows, partition=lane, first_offset=start * 10)
    return cut(Window(start, end, 1, taken), PLAN, lane, keep_all)


#: What the steps take: lane 1 runs dry before lane 0, and one window has a gap before it.
STEPS: Sequence[Sequence[MicroBatch]] = [
    *([a, b] for a, b in zip(window(0, 0, 4, 4), window(1, 0, 5, 4), strict=True)),
    *([each] for each in window(0, 5, 10, 2)),
]


def cursors(lanes: Sequence[int], taken: int = 0) -> dict[int, Cursor]:
    """Of `lanes`, after so many of STEPS."""
    found = {lane: Cursor.at(0) for lane in lanes}
    for step in STEPS[:taken]:
        found |= {each.lane: each.after for each in step if each.lane in found}
    return found


def travel(ranks: Sequence[Sequence[int]], first: int = 0, begun: Reach = START, ends_before: int = 0) -> list[Reach]:
    """Go through STEPS from `first` on; every rank must come to the same."""
    odometers = [Odometer(cursors(lanes, first), begun, measured=True) for lanes in ranks]
    found = []
    for number, step in enumerate(STEPS[first:], first):
        if number >= ends_before:
            for odometer in odometers:
                odometer.set_ends(ENDS)
        mine = [[each for each in step if each.lane in lanes] for lanes in ranks]
        stretches: dict[str, Stretch] = {}
        for odometer, taken in zip(odometers, mine, strict=True):
            stretches |= odometer.stretches(taken)
        reaches = [odometer.reach(number, 3 * len(step), stretches) for odometer in odometers]
        for odometer, taken in zip(odometers, mine, strict=True):
            odometer.stepped(reaches[0], taken)
        assert all(reach == reaches[0] for reach in reaches)
        found.append(reaches[0])
    return found


def test_the_share_rises_from_zero_and_each_step_begins_where_the_last_one_ended() -> None:
    found = travel([[0, 1]])
    shares = [reach.share for reach in found]
    assert shares[0] == 0.0
    assert shares == sorted(shares)
    assert found[-1].share_after == pytest.approx(15 / 16)  # lane 1 ends short of its end
    assert [reach.share for reach in found[1:4]] == [reach.share_after for reach in found[:3]]
    assert [reach.tokens for reach in found] == [0, 6, 12, 18, 24, 27]
    assert found[0].range == Range({0: 0.0, 1: 0.0}, ENDS, whole=True)


def test_ranks_come_to_the_same_bits() -> None:
    assert travel([[0], [1]]) == travel([[0, 1]])


@pytest.mark.parametrize("step", range(1, len(STEPS)))
def test_a_resume_at_any_step_comes_to_the_same_bits(step: int) -> None:
    whole = travel([[0, 1]])
    stored = whole[step - 1]
    assert stored.range is not None
    begun = Reach(step, stored.tokens_after, range=Range.from_json(stored.range.to_json()))
    assert travel([[0], [1]], step, begun) == whole[step:]


def test_a_range_that_is_known_late_begins_where_the_run_is_then() -> None:
    found = travel([[0, 1]], ends_before=2)
    assert [reach.share for reach in found[:3]] == [None, None, 0.0]
    assert found[2].range is not None
    assert not found[2].range.whole
    assert found[2].range.starts == {0: 2.0, 1: 2.5}


def test_a_range_with_another_end_begins_anew() -> None:
    old = Range({0: 0.0, 1: 0.0}, {0: 4, 1: 5}, whole=True)
    found = travel([[0, 1]], 4, Reach(4, 24, range=old))
    assert found[0].share == 0.0
    assert found[0].range == Range({0: 5.0, 1: 5.0}, ENDS, whole=True)


def test_nothing_is_exchanged_where_nobody_asks_for_shares() -> None:
    quiet = Odometer(cursors([0, 1]), START, measured=False)
    quiet.set_ends(ENDS)
    nothing: Mapping[str, Stretch] = quiet.stretches(STEPS[0])
    assert nothing == {}
    assert quiet.reach(0, 6, nothing) == Reach(0, 0, 6)


def test_a_range_in_which_nothing_lies_is_over() -> None:
    assert Range({0: 5.0}, {0: 5}, whole=True).share({0: 5.0}) == 1.0
