"""Agreement on steps: held small batches, idle streams, stops, ends; every rank decides the same."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from headrace.schemas.cursor import Cursor, CuttingPlan
from headrace.trainer.agree import Line, Meeting, meet
from headrace.trainer.collate import classification_collate
from headrace.trainer.lanes import Taken
from headrace.trainer.source import Agreed, StepRules, StepSource
from headrace.trainer.window import MicroBatch, Window, cut
from tests.services.ports import free_port
from tests.unit.trainer.made_up import keep_all, rows_of

PLAN = CuttingPlan(seed=1, micro_tokens=64, window_tokens=64)


def micro_batch(lane: int, rows: int, number: int = 0) -> MicroBatch:
    window = Window(number, number + 1, 1, rows_of([[1, 5, 2]] * rows, partition=lane, first_offset=number * 10))
    return cut(window, PLAN, lane, keep_all)[0]


@dataclass
class ScriptedLanes:
    """Gives what the script says at each `take`; `None` in `ended` keeps the lanes alive."""

    owned: int
    script: list[list[MicroBatch]]
    ended_after: int | None = None
    takes: int = 0
    waits: int = 0
    ends: dict[int, int] = field(default_factory=dict)

    def take(self, accumulate: int, *, held: Sequence[MicroBatch], stopping: threading.Event) -> Taken:
        fresh = self.script[self.takes] if self.takes < len(self.script) else []
        self.takes += 1
        ended = self.owned if self.ended_after is not None and self.takes > self.ended_after else 0
        return Taken([*held, *fresh], self.owned, ended, frozenset())

    def wait_for_data(self, timeout_s: float, *, stopping: threading.Event) -> bool:
        self.waits += 1
        return False

    def set_ends(self, ends: Mapping[int, int]) -> None:
        self.ends.update(ends)


@dataclass
class ScriptedConductor:
    """Releases a held batch at the n-th question; saves at the steps named."""

    release_at: int = 10**9
    due_at: Sequence[int] = ()
    ends: Mapping[int, int] | None = None
    asked: int = 0
    decided: list[tuple[bool, bool]] = field(default_factory=list)

    def due(self, step: int, *, idle: bool) -> bool:
        return not idle and step in self.due_at

    def release(self) -> bool:
        self.asked += 1
        return self.asked >= self.release_at

    def lane_ends(self) -> Mapping[int, int] | None:
        ends, self.ends = self.ends, None
        return ends

    def agreed(self, *, stepped: bool, due: bool) -> None:
        self.decided.append((stepped, due))


def agree(
    lanes: Sequence[ScriptedLanes],
    conductor: ScriptedConductor,
    turns: int,
    *,
    min_tokens: int = 0,
    last_step: int | None = None,
    stop_on: int | None = None,
    step: int = 0,
) -> list[list[Agreed]]:
    """Let one rank per element of `lanes` agree `turns` times."""
    port, ranks = free_port(), len(lanes)
    rules = StepRules(sum(each.owned for each in lanes), 1, min_tokens, last_step)

    def one(rank: int) -> list[Agreed]:
        meeting = Meeting(rank, ranks, "127.0.0.1", port, b"k")
        line: Line = meet(meeting, ["steps"], connect_s=20, wait_s=20)["steps"]
        stopping = threading.Event()
        if rank == stop_on:
            stopping.set()
        collate = classification_collate(("a", "b"), 0)
        root = conductor if rank == 0 else None
        source = StepSource(lanes[rank], collate, line, rules, stopping, step=step, conductor=root)
        try:
            return [source.next() for _ in range(turns)]
        finally:
            line.close()

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(one, range(ranks)))


def test_a_rank_without_data_takes_part_in_the_step_and_delays_nobody() -> None:
    lanes = [ScriptedLanes(1, [[micro_batch(0, 3)]]), ScriptedLanes(1, [])]
    (first,), (second,) = agree(lanes, ScriptedConductor(), 1)
    assert (first.step, first.count, first.global_micro_batches) == (
        second.step,
        second.count,
        second.global_micro_batches,
    )
    assert (first.count, len(first.batches), len(second.batches)) == (3, 1, 0)
    assert lanes[1].waits == 0


def test_the_loss_count_is_that_of_all_ranks() -> None:
    lanes = [ScriptedLanes(2, [[micro_batch(0, 3), micro_batch(2, 1)]]), ScriptedLanes(1, [[micro_batch(1, 2)]])]
    agreed = agree(lanes, ScriptedConductor(), 1)
    assert [rank[0].count for rank in agreed] == [6, 6]


def test_an_idle_stream_is_no_step_and_no_end() -> None:
    agreed = agree([ScriptedLanes(1, []), ScriptedLanes(1, [])], ScriptedConductor(), 5)
    for rank in agreed:
        assert [(each.step, each.global_micro_batches, each.ended) for each in rank] == [(0, 0, None)] * 5


def test_all_lanes_ended_is_the_end_on_every_rank() -> None:
    lanes = [ScriptedLanes(1, [[micro_batch(0, 1)]], 1), ScriptedLanes(1, [], 0)]
    agreed = agree(lanes, ScriptedConductor(), 2)
    assert [[each.ended for each in rank] for rank in agreed] == [[None, "end"]] * 2


def test_a_small_batch_is_held_until_more_comes() -> None:
    lanes = [ScriptedLanes(1, [[micro_batch(0, 1)], [], []]), ScriptedLanes(1, [[], [], [micro_batch(1, 7)]])]
    conductor = ScriptedConductor()
    agreed = agree(lanes, conductor, 1, min_tokens=64)
    assert [rank[0].count for rank in agreed] == [8, 8]
    assert conductor.asked == 2


def test_a_small_batch_is_released_when_its_time_has_come() -> None:
    lanes = [ScriptedLanes(1, [[micro_batch(0, 1)]]), ScriptedLanes(1, [])]
    agreed = agree(lanes, ScriptedConductor(release_at=3), 1, min_tokens=64)
    assert [(rank[0].step, rank[0].count) for rank in agreed] == [(1, 1)] * 2
    assert lanes[0].takes == lanes[1].takes == 4


def test_a_small_batch_at_the_very_end_is_not_held() -> None:
    lanes = [ScriptedLanes(1, [[micro_batch(0, 1)]], 0), ScriptedLanes(1, [], 0)]
    agreed = agree(lanes, ScriptedConductor(), 1, min_tokens=64)
    assert [rank[0].count for rank in agreed] == [1, 1]


@pytest.mark.parametrize("stop_on", [0, 1])
def test_a_stop_on_any_rank_stops_all_before_the_step(stop_on: int) -> None:
    lanes = [ScriptedLanes(1, [[micro_batch(0, 1)]]), ScriptedLanes(1, [[micro_batch(1, 1)]])]
    agreed = agree(lanes, ScriptedConductor(), 1, stop_on=stop_on)
    assert [(rank[0].ended, rank[0].step, rank[0].micro_batches) for rank in agreed] == [("stopped", 0, ())] * 2


def test_the_last_step_ends_the_run_on_every_rank() -> None:
    lanes = [ScriptedLanes(1, [[micro_batch(0, 1)]]), ScriptedLanes(1, [[micro_batch(1, 1)]])]
    agreed = agree(lanes, ScriptedConductor(), 2, last_step=1)
    assert [[each.ended for each in rank] for rank in agreed] == [[None, "steps"]] * 2


def test_a_run_that_is_past_its_last_step_already_is_over() -> None:
    agreed = agree([ScriptedLanes(1, [[micro_batch(0, 1)]] * 3)], ScriptedConductor(), 1, last_step=5, step=7)
    assert [(each.step, each.ended) for each in agreed[0]] == [(7, "steps")]


def test_ends_and_saves_are_rank_zeros_word() -> None:
    lanes = [ScriptedLanes(1, [[micro_batch(0, 1)]] * 3), ScriptedLanes(1, [])]
    conductor = ScriptedConductor(due_at=[2], ends={0: 7, 1: 9})
    agreed = agree(lanes, conductor, 3)
    assert [[each.due for each in rank] for rank in agreed] == [[False, True, False]] * 2
    assert lanes[0].ends == lanes[1].ends == {0: 7, 1: 9}
    assert conductor.decided == [(True, False), (True, True), (True, False)]


def test_a_micro_batch_without_rows_moves_the_cursor_in_a_step_of_its_own() -> None:
    empty = cut(Window(0, 1, 1, rows_of([[1, 5, 2]], buckets=[0])), CuttingPlan(1, 64, 64, 0.5), 0, keep_all)[0]
    assert len(empty.rows) == 0
    ((agreed,),) = agree([ScriptedLanes(1, [[empty]])], ScriptedConductor(), 1)
    assert (agreed.step, agreed.count, agreed.micro_batches) == (1, 0, (empty,))
    assert agreed.micro_batches[0].after == Cursor.at(1)
