"""The lanes of a rank over a topic in memory, with a clock that the test turns: what is waited for, and how long."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.topics import Message
from headrace.schemas.cursor import Cursor
from headrace.schemas.errors import CheckpointDamaged, RecordsLost, Stalled, TokensInvalid
from headrace.schemas.tokens import encode
from headrace.trainer.lane import WINDOWS
from headrace.trainer.window import MicroBatch
from tests.unit.trainer.made_up import (
    META,
    PLAN,
    Given,
    MemoryTopic,
    beginning,
    drain,
    filled,
    open_stream,
    origins,
    rules,
    token_batches,
)

ROWS = token_batches(0, 40)
ONE_ROW = [token_batches(lane, 20, 1) for lane in range(6)]


def rows_in(micro_batches: list[MicroBatch]) -> list[str]:
    return sorted(name for micro in micro_batches for name in origins(micro.rows))


def names_of(first: int, last: int, lane: int = 0) -> list[str]:
    """The records of token batches `first` up to `last` of a lane, five rows each."""
    return sorted(f"text/{lane}@{offset}" for offset in range(first * 5, last * 5))


# Known failures 9 and 15: a lane without data holds nobody up, and idle is not the end.


def test_an_empty_lane_is_not_waited_for() -> None:
    topic = MemoryTopic(2)
    topic.commit(0, *ROWS[:20])
    with open_stream(topic, beginning([0, 1])) as stream:
        began_s = topic.clock()
        taken = stream.take(2)
        assert topic.clock() - began_s < 1
    assert {micro.lane for micro in taken.micro_batches} == {0}
    assert (taken.lanes_at_end, taken.lanes_ended, taken.waiting) == (1, 0, frozenset())


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 5)), max_size=20))
@settings(max_examples=20)
def test_whatever_trickles_in_no_take_waits_longer_than_flush_s(arrivals: list[tuple[float, int]]) -> None:
    topic = MemoryTopic(6)
    batches = [iter(ONE_ROW[lane]) for lane in range(6)]
    for after_s, lane in arrivals:
        topic.later(after_s, lambda lane=lane: topic.commit(lane, next(batches[lane])))
    given_rows = 0
    with open_stream(topic, beginning(range(6)), rules(flush_s=5.0)) as stream:
        while topic.plans or stream.wait_for_data(0.0):
            began_s = topic.clock()
            taken = stream.take(4)
            assert topic.clock() - began_s <= 5.0 + 0.2
            stream.trained(taken.micro_batches)
            given_rows += len(rows_in(taken.micro_batches))
            if not taken.micro_batches:
                stream.wait_for_data(30.0)
        given_rows += sum(len(step.rows) for round_ in drain(stream) for step in round_)
    assert given_rows == len(arrivals)


def test_rows_at_the_end_of_a_lane_wait_flush_s_and_then_go() -> None:
    topic = MemoryTopic(1)
    topic.commit(0, ROWS[0])
    with open_stream(topic, beginning([0]), rules(flush_s=5.0)) as stream:
        topic.later(2.0, lambda: topic.commit(0, ROWS[1]))  # comes in time
        topic.later(6.0, lambda: topic.commit(0, ROWS[2]))  # too late
        began_s = topic.clock()
        taken = stream.take(100)
        assert 5.0 <= topic.clock() - began_s < 5.2
        assert rows_in(taken.micro_batches) == names_of(0, 2)
        assert rows_in(stream.take(100).micro_batches) == []
        assert stream.wait_for_data(10.0)
        assert rows_in(stream.take(100).micro_batches) == names_of(2, 3)


def test_what_came_before_the_take_does_not_wait_again() -> None:
    topic = MemoryTopic(1)
    with open_stream(topic, beginning([0]), rules(flush_s=5.0)) as stream:
        assert stream.take(1).micro_batches == []
        topic.later(1.0, lambda: topic.commit(0, ROWS[0]))
        assert stream.wait_for_data(60.0)
        topic.clock.now_s += 4.9
        began_s = topic.clock()
        assert rows_in(stream.take(100).micro_batches) == names_of(0, 1)
        assert topic.clock() - began_s < 0.5


def test_over_a_full_topic_time_decides_nothing() -> None:
    """However slowly a lane delivers, the windows are those of a topic that delivers at once."""
    quick = filled(3)
    with open_stream(quick, beginning(range(3))) as stream:
        expected = drain(stream, 2)
    slow = filled(3)
    for pause in range(40):
        slow.later(0.7 * pause, lambda lane=pause % 3: slow.slow.symmetric_difference_update({lane}))
    with open_stream(slow, beginning(range(3))) as stream:
        assert drain(stream, 2) == expected


# A lane that is not at its end is waited for, and a wait in vain has an end.


def test_an_open_transaction_is_waited_for() -> None:
    topic = MemoryTopic(2)
    topic.commit(0, *ROWS[:20])
    topic.commit(1, *token_batches(1, 2))
    topic.held_back.add(1)

    def committed() -> None:
        topic.held_back.clear()
        topic.commit(1, *token_batches(1, 3, from_offset=2))

    topic.later(30.0, committed)
    with open_stream(topic, beginning([0, 1]), rules(flush_s=5.0)) as stream:
        began_s = topic.clock()
        taken = stream.take(50)
        assert topic.clock() - began_s >= 30.0
    assert rows_in([micro for micro in taken.micro_batches if micro.lane == 1]) == names_of(0, 5, lane=1)


def test_a_slow_lane_stalls_by_name_and_only_without_progress() -> None:
    topic = MemoryTopic(2)
    topic.commit(0, *ROWS[:20])
    topic.commit(1, *token_batches(1, 1))
    topic.held_back.add(1)
    for minute in range(1, 4):
        topic.later(50.0 * minute, lambda m=minute: topic.commit(1, *token_batches(1, 1, from_offset=m)))
    with open_stream(topic, beginning([0, 1]), rules(stall_s=60.0)) as stream:
        began_s = topic.clock()
        with pytest.raises(Stalled, match=r"lane 1 has not .* nothing came from offset 7 on for 6\d s"):
            stream.take(50)
        assert 150.0 + 60.0 <= topic.clock() - began_s < 150.0 + 61.0


def test_workers_that_always_have_a_transaction_open_do_not_hold_fresh_rows_back() -> None:
    """The lane is never at its end and a window takes hours to fill: what is published after the start goes by time."""
    topic = MemoryTopic(1)
    topic.held_back.add(0)
    for second in range(12):
        topic.later(second + 0.5, lambda s=second: topic.commit(0, ROWS[s]))
    with open_stream(topic, beginning([0]), rules(replace(PLAN, window_tokens=10**6), flush_s=5.0)) as stream:
        began_s = topic.clock()
        taken = stream.take(1000)
        assert 5.4 < topic.clock() - began_s < 6.0
        assert rows_in(taken.micro_batches) == names_of(0, 6)
        assert taken.micro_batches[0].before.end == 11  # behind the last token batch, before its marker


def test_a_wait_is_interrupted_and_takes_nothing() -> None:
    topic = MemoryTopic(2)
    topic.commit(0, *ROWS[:20])
    topic.slow.add(1)
    stopping = threading.Event()
    topic.later(3.0, stopping.set)
    with open_stream(topic, beginning([0, 1])) as stream:
        taken = stream.take(2, stopping=stopping)
        assert (taken.micro_batches, taken.waiting) == ([], frozenset({1}))
        topic.slow.clear()
        assert len(stream.take(2).micro_batches) == 2  # nothing was lost; lane 1 turned out to be empty


# Held micro-batches count, so that a small batch can wait for more.


def test_micro_batches_that_are_held_count_and_come_back_in_the_order_of_lanes() -> None:
    topic = MemoryTopic(2)
    topic.commit(1, token_batches(1, 1, 1)[0])
    with open_stream(topic, beginning([0, 1])) as stream:
        first = stream.take(3)
        assert [micro.lane for micro in first.micro_batches] == [1]
        assert not stream.wait_for_data(1.0)
        topic.later(1.0, lambda: topic.commit(0, ROWS[0]))
        assert stream.wait_for_data(5.0)
        second = stream.take(3, held=first.micro_batches)
        assert [micro.lane for micro in second.micro_batches][-1] == 1
        assert second.micro_batches[-1] is first.micro_batches[0]
        stream.trained(second.micro_batches)
        assert {lane: cursor.open for lane, cursor in stream.cursors().items()} == {0: False, 1: False}


def test_held_up_to_the_limit_a_lane_gives_no_more_and_is_no_reason_to_look_again() -> None:
    topic = MemoryTopic(1)
    topic.commit(0, *ROWS)
    with open_stream(topic, beginning([0])) as stream:
        first = stream.take(2)
        assert len(stream.take(2, held=first.micro_batches).micro_batches) == 2
        assert not stream.wait_for_data(0.0)


# Resume.


def test_the_open_window_is_read_again_and_no_more_than_that() -> None:
    """Known failure 4: the cost of a resume does not depend on the position."""
    topic = MemoryTopic(1)
    topic.commit(0, *token_batches(0, 400))
    with open_stream(topic, beginning([0])) as stream:
        for _ in range(150):
            stream.trained(stream.take(1).micro_batches)
        cursor = stream.cursors()[0]
    assert cursor.open
    assert cursor.start > 100
    topic.fetched = 0
    with open_stream(topic, {0: cursor}) as stream:
        (micro,) = stream.take(1).micro_batches
    assert micro.before == cursor
    assert topic.fetched <= 64  # a window is about eight token batches; the rest is what one poll reads ahead


def test_a_window_whose_token_batches_are_gone_names_lane_and_offsets() -> None:
    topic = MemoryTopic(1)
    topic.commit(0, *ROWS[:10])
    for end in (3, 30):  # found at the next message, and at the end of the lane
        with (
            open_stream(topic, {0: Cursor(2, end, 9, 1, PLAN)}) as stream,
            pytest.raises(RecordsLost, match=f"lane 0: the open window from offset 2 to {end} had 9 token batches"),
        ):
            stream.take(1)


def test_a_cursor_that_names_too_few_token_batches_is_of_another_topic() -> None:
    topic = MemoryTopic(1)
    topic.commit(0, *ROWS[:10])
    with open_stream(topic, {0: Cursor(0, 8, 4, 0, PLAN)}) as stream, pytest.raises(CheckpointDamaged, match="lane 0"):
        drain(stream)


def test_a_cursor_beyond_the_micro_batches_of_its_window_is_damaged() -> None:
    topic = MemoryTopic(1)
    topic.commit(0, *ROWS[:4])
    with open_stream(topic, {0: Cursor(0, 4, 4, 99, PLAN)}) as stream, pytest.raises(CheckpointDamaged, match="99"):
        stream.take(1)


def test_an_open_window_is_finished_under_its_own_plan_and_the_next_begins_with_the_new_one() -> None:
    topic = MemoryTopic(1)
    topic.commit(0, *ROWS)
    with open_stream(topic, beginning([0])) as stream:
        expected = [step[0] for step in drain(stream)]
    changed = replace(PLAN, seed=99, micro_tokens=256, window_tokens=900)
    with open_stream(topic, beginning([0])) as stream:
        for _ in range(2):
            stream.trained(stream.take(1).micro_batches)
        cursors = stream.cursors()
    with open_stream(topic, cursors, rules(changed)) as stream:
        resumed = [step[0] for step in drain(stream)]
    of_old_window = [step for step in expected[2:] if step.before.start == 0]
    assert of_old_window
    assert resumed[: len(of_old_window)] == of_old_window
    assert {step.before.plan for step in resumed[len(of_old_window) :]} == {changed}
    everything = sorted(name for step in (*expected[:2], *resumed) for name in step.rows)
    assert everything == names_of(0, 40)


# Fixed ends.


@pytest.mark.parametrize("end", [1, 17, 40])
def test_a_record_beyond_a_fixed_end_is_never_taken(end: int) -> None:
    topic = MemoryTopic(1)
    topic.commit(0, *ROWS)
    with open_stream(topic, beginning([0]), rules(flush_s=1e9)) as stream:
        stream.set_ends({0: end, 5: 3})  # lanes of other ranks are no business of this one
        taken = stream.take(1000)
        assert rows_in(taken.micro_batches) == names_of(0, min(end, 40))
        assert (taken.lanes_at_end, taken.lanes_ended) == (1, 1)
        stream.trained(taken.micro_batches)
        assert stream.cursors() == {0: Cursor.at(end)}
        assert not stream.wait_for_data(1.0)


@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("end", [3, 9, 12, 20, 40, 41])
def test_an_end_that_is_fixed_late_takes_back_what_was_read_ahead(end: int, step: int) -> None:
    topic = MemoryTopic(1)
    topic.commit(0, *ROWS)
    taken: list[MicroBatch] = []
    with open_stream(topic, beginning([0]), rules(flush_s=1e9)) as stream:
        for _ in range(step):
            taken += stream.take(1).micro_batches
        stream.set_ends({0: end})
        last = stream.take(1000)
        assert last.lanes_ended == 1
        taken += last.micro_batches
        begun_end = max((micro.before.end for micro in taken[:step]), default=0)
        assert rows_in(taken) == names_of(0, min(40, max(end, begun_end)))
        stream.trained(taken)


def test_a_fixed_end_behind_the_last_marker_is_reached_at_the_end_of_the_lane() -> None:
    topic = MemoryTopic(1)
    topic.commit(0, *ROWS[:3])
    with open_stream(topic, beginning([0]), rules(flush_s=1e9)) as stream:
        stream.set_ends({0: topic.ends_at[0]})
        taken = stream.take(1000)
    assert (rows_in(taken.micro_batches), taken.lanes_ended) == (names_of(0, 3), 1)


def test_an_end_in_an_open_transaction_is_not_reached_before_it_is_over() -> None:
    topic = MemoryTopic(1)
    topic.commit(0, *ROWS[:3])
    topic.held_back.add(0)
    topic.later(20.0, topic.held_back.clear)
    with open_stream(topic, beginning([0])) as stream:
        stream.set_ends({0: 9})
        topic.ends_at[0] = 9  # an aborted transaction took offsets
        began_s = topic.clock()
        assert stream.take(1000).lanes_ended == 1
        assert topic.clock() - began_s >= 20.0


def test_an_idle_lane_s_cursor_follows_over_markers_lest_retention_overtake_it() -> None:
    topic = MemoryTopic(1)
    topic.commit(0, *ROWS[:3])
    with open_stream(topic, beginning([0])) as stream:
        taken = stream.take(1000)
        assert stream.cursors()[0] == Cursor.at(0)  # given is not trained
        stream.trained(taken.micro_batches)
        assert stream.cursors()[0] == Cursor.at(4)
        topic.ends_at[0] = 9
        assert not stream.wait_for_data(1.0)
        assert stream.cursors()[0] == Cursor.at(9)
        topic.commit(0, ROWS[3])
        assert stream.wait_for_data(1.0)
        (micro, *_) = stream.take(1000).micro_batches
        assert micro.before.start == 9


def test_an_end_that_moves_on_gives_what_lay_behind_it() -> None:
    topic = MemoryTopic(1)
    topic.commit(0, *ROWS)
    with open_stream(topic, beginning([0]), rules(flush_s=1e9)) as stream:
        for first, last in ((0, 3), (3, 4), (4, 30), (30, 40)):
            stream.set_ends({0: last})
            taken = stream.take(1000)
            assert (rows_in(taken.micro_batches), taken.lanes_ended) == (names_of(first, last), 1)


def test_a_live_run_is_repeated_from_what_a_ledger_holds_of_its_steps() -> None:
    """Time decided where the windows of the first run ended; the second is told by the cursors and never waits."""
    topic = MemoryTopic(2)
    for moment in range(25):
        lane, count = moment % 2, 1 + moment * 5 % 7
        batches = token_batches(lane, count, from_offset=10 * moment)
        topic.later(2.9 * moment, lambda lane=lane, batches=batches: topic.commit(lane, *batches))
    live: list[list[Given]] = []
    with open_stream(topic, beginning([0, 1])) as stream:
        while (step := stream.take(3).micro_batches) or topic.plans:
            stream.trained(step)
            live += [[Given.of(micro) for micro in step]] if step else []
            stream.wait_for_data(10.0)
    assert len({(micro.lane, micro.before.start) for step in live for micro in step}) > 15
    with open_stream(topic, beginning([0, 1]), rules(flush_s=1e9)) as stream:
        for step in live:
            last = {micro.lane: micro for micro in step}
            ends = {lane: micro.before.end for lane, micro in last.items()}
            stream.set_ends(ends)
            counts = {lane: sum(micro.lane == lane for micro in step) for lane in last}
            again = stream.take(counts).micro_batches
            stream.trained(again)
            assert [Given.of(micro) for micro in again] == step


# Bounds and refusals.


def test_prefetch_is_bounded_however_long_the_topic() -> None:
    """Known failures 11 and 19: a thousand windows lie in the topic, a lane holds two."""
    topic = MemoryTopic(1)
    topic.commit(0, *token_batches(0, 300) * 25)
    with open_stream(topic, beginning([0])) as stream:
        most = 0
        for _ in range(300):
            stream.trained(stream.take(1).micro_batches)
            for _ in range(3):  # a prefetch thread would have had time
                stream._pump(0.0)
            lane = stream._lanes[0]
            assert len(lane._windows) <= WINDOWS
            most = max(most, lane._pending_tokens + sum(batch.tokens for batch in lane._inbox))
        assert most <= PLAN.window_tokens + 33 * 400
        assert topic.fetched < 7500


def test_micro_batches_trained_out_of_order_are_an_error() -> None:
    topic = filled(1)
    with open_stream(topic, beginning([0])) as stream:
        first, second = stream.take(2).micro_batches
        with pytest.raises(ValueError, match="lane 0"):
            stream.trained([second])
        stream.trained([first])
        with pytest.raises(ValueError, match="lane 0"):
            stream.trained([first])
        stream.trained([second])


def test_another_tokenizer_s_batch_names_both_fingerprints_lane_and_offset() -> None:
    topic = MemoryTopic(1)
    topic.commit(0, ROWS[0])
    topic.commit(0, ROWS[1], meta=replace(META, fingerprint="e" * 64))
    for rules_ in (rules(), rules(fingerprint="f" * 64)):
        with (
            open_stream(topic, beginning([0]), rules_) as stream,
            pytest.raises(TokensInvalid, match=r"lane 0, offset 2: made by tokenizer e{16}, .* those of f{16}"),
        ):
            stream.take(1000)


def test_a_damaged_token_batch_names_lane_and_offset() -> None:
    topic = MemoryTopic(1)
    topic.messages[0] = [Message(0, 5, 0, encode(ROWS[0], META)[:100])]
    topic.ends_at[0] = 7
    with open_stream(topic, beginning([0])) as stream, pytest.raises(TokensInvalid, match="lane 0, offset 5"):
        stream.take(1)


def test_every_micro_batch_of_a_drained_topic_is_given_once() -> None:
    topic = filled(4)
    with open_stream(topic, beginning(range(4))) as stream:
        steps: list[list[Given]] = drain(stream, 2)
    for lane in range(4):
        names = sorted(name for step in steps for micro in step if micro.lane == lane for name in micro.rows)
        assert names == names_of(0, 9 + 2 * lane, lane)
