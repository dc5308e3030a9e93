"""The stream of a rank over real local topics: resume, ranks, the prefetch thread, errors and their way out."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.pipeline.local import LocalBroker
from headrace.pipeline.topics import Broker, Fetched
from headrace.schemas.cursor import Cursor
from headrace.schemas.errors import BrokerAway, RecordsLost, Stalled, TokensInvalid, TopicError
from headrace.trainer.batch import owned
from headrace.trainer.lane import LaneRules
from headrace.trainer.stream import LaneStream
from tests.unit.trainer.made_up import (
    META,
    PLAN,
    Given,
    MemoryTopic,
    beginning,
    drain,
    filled,
    open_stream,
    publish,
    rules,
    token_batches,
)

TOPIC = "demo.tokens"
LANES = 6
BATCHES = {0: 22, 1: 13, 2: 0, 3: 4, 4: 17, 5: 1}  # lanes are uneven, and one is empty
QUICK = rules(replace(PLAN, hold_out_share=0.2), flush_s=0.01, stall_s=30.0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    """A broker with a full topic."""
    broker = LocalBroker(tmp_path)
    broker.create(TOPIC, LANES)
    publish(broker, TOPIC, {lane: token_batches(lane, count) for lane, count in BATCHES.items()})
    yield broker
    broker.close()


def opened(
    broker: Broker, lanes: Sequence[int], cursors: dict[int, Cursor] | None = None, rules_: LaneRules = QUICK
) -> LaneStream:
    return LaneStream(broker, TOPIC, cursors or beginning(lanes), rules_)


def global_steps(broker: Broker, ranks: int, accumulate: int = 2) -> list[list[Given]]:
    """The steps that all ranks together take, in lock-step, until nothing is left."""
    streams = [opened(broker, owned(LANES, rank, ranks)) for rank in range(ranks)]
    steps: list[list[Given]] = []
    for stream in streams:
        stream.__enter__()
    try:
        while True:
            parts = [stream.take(accumulate).micro_batches for stream in streams]
            for stream, part in zip(streams, parts, strict=True):
                stream.trained(part)
            step = sorted((micro for part in parts for micro in part), key=lambda micro: micro.lane)
            if not step:
                return steps
            steps.append([Given.of(micro) for micro in step])
    finally:
        for stream in streams:
            stream.close()


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_any_number_of_ranks_trains_the_same_global_sequence(broker: LocalBroker, ranks: int) -> None:
    alone = global_steps(broker, 1)
    assert len(alone) > 8
    assert global_steps(broker, ranks) == alone


def test_every_record_once_and_disjoint_between_ranks(broker: LocalBroker) -> None:
    """Known failure 8."""
    micro_batches = [micro for step in global_steps(broker, 3) for micro in step]
    assert any(micro.untrained for micro in micro_batches)
    names = [name for micro in micro_batches for name in (*micro.rows, *micro.untrained)]
    assert sorted(names) == sorted(f"text/{lane}@{n}" for lane, count in BATCHES.items() for n in range(5 * count))


@pytest.mark.parametrize("accumulate", [1, 3])
def test_resume_at_every_step_gives_the_same_remaining_micro_batches(broker: LocalBroker, accumulate: int) -> None:
    """Known failures 1, 2 and 3, over every cursor of the run: none lost, none repeated, order kept."""
    with opened(broker, range(LANES)) as stream:
        whole: list[list[Given]] = []
        cursors = [stream.cursors()]
        while step := stream.take(accumulate).micro_batches:
            stream.trained(step)
            whole.append([Given.of(micro) for micro in step])
            cursors.append(stream.cursors())
    for number, saved in enumerate(cursors):
        restored = {lane: Cursor.from_json(cursor.to_json()) for lane, cursor in saved.items()}
        with opened(broker, range(LANES), restored) as stream:
            assert drain(stream, accumulate) == whole[number:]


def test_resumed_after_every_single_step_again_and_again_with_other_ranks(broker: LocalBroker) -> None:
    """Known failures 1 and 6: kill after kill, at another number of ranks each time, the sequence stays."""
    alone = global_steps(broker, 1)
    cursors = beginning(range(LANES))
    for number, expected in enumerate(alone):
        ranks = (1, 2, 3, 6)[number % 4]
        step: list[Given] = []
        for rank in range(ranks):
            lanes = owned(LANES, rank, ranks)
            with opened(broker, lanes, {lane: cursors[lane] for lane in lanes}) as stream:
                given = stream.take(2).micro_batches
                stream.take(2)  # prefetched, given, and never trained: lost with the process
                stream.trained(given)
                cursors.update(stream.cursors())
                step += [Given.of(micro) for micro in given]
        assert sorted(step, key=lambda micro: micro.lane) == expected


def test_resume_at_every_micro_batch_over_sparse_offsets() -> None:
    """Transaction markers take offsets too: the same over a topic whose offsets have holes."""
    topic = filled(3, {0: 4, 1: 11, 2: 17})
    with open_stream(topic, beginning(range(3))) as stream:
        whole = drain(stream)
    for stop_after in range(len(whole)):
        cursors = beginning(range(3))
        steps: list[list[Given]] = []
        for most in (stop_after, 2, 1, 10**6):
            with open_stream(topic, cursors) as stream:
                while len(steps) < len(whole) and most:
                    step = stream.take(1).micro_batches
                    stream.trained(step)
                    steps.append([Given.of(micro) for micro in step])
                    most -= 1
                cursors = stream.cursors()
        assert steps == whole


def test_records_published_while_it_waits_are_given(broker: LocalBroker) -> None:
    with opened(broker, [2]) as stream:
        assert stream.take(1).micro_batches == []
        assert not stream.wait_for_data(0.0)
        publish(broker, TOPIC, {2: token_batches(2, 1)})
        assert stream.wait_for_data(30.0)
        taken = stream.take(100)
        assert sum(micro.rows.num_rows + micro.untrained.num_rows for micro in taken.micro_batches) == 5


def test_a_stop_interrupts_the_wait(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path)
    broker.create(TOPIC, 1)
    publish(broker, TOPIC, {0: token_batches(0, 1)})
    stopping = threading.Event()
    with opened(broker, [0], rules_=rules(flush_s=3600.0)) as stream:
        threading.Timer(0.05, stopping.set).start()
        assert stream.take(1, stopping=stopping).waiting == frozenset({0})
        assert stream.cursors() == {0: Cursor.at(0)}
    with opened(broker, [0], {0: Cursor.at(1)}) as stream:
        assert not stream.take(1).micro_batches
        assert not stream.wait_for_data(3600.0, stopping=stopping)
    broker.close()


def test_closing_wakes_a_take_in_another_thread_and_ends_the_prefetch_thread(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path)
    broker.create(TOPIC, 1)
    publish(broker, TOPIC, {0: token_batches(0, 1)})
    stream = opened(broker, [0], rules_=rules(flush_s=3600.0))
    found: list[frozenset[int]] = []
    with stream:
        taker = threading.Thread(target=lambda: found.append(stream.take(1).waiting))
        taker.start()
    taker.join(30.0)
    assert found == [frozenset({0})]
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]
    broker.close()


def test_an_error_in_the_prefetch_thread_surfaces_in_take(broker: LocalBroker) -> None:
    with opened(broker, [0], rules_=rules(fingerprint="0" * 64)) as stream:
        for _ in range(2):  # and again: it does not go away
            with pytest.raises(TokensInvalid, match="lane 0, offset 0"):
                stream.take(1)
    with pytest.raises(TopicError, match=r"no\.such"), LaneStream(broker, "no.such", beginning([0]), QUICK) as stream:
        stream.take(1)


def test_what_retention_deleted_before_it_was_trained_is_an_error(tmp_path: Path) -> None:
    now_s = [1000.0]
    broker = LocalBroker(tmp_path, clock=lambda: now_s[0])
    broker.create(TOPIC, 1, retention_ms=1000)
    publish(broker, TOPIC, {0: token_batches(0, 5)})
    now_s[0] = 5000.0
    publish(broker, TOPIC, {0: token_batches(0, 1, from_offset=5)})
    with opened(broker, [0]) as stream, pytest.raises(RecordsLost, match="deleted 5 messages"):
        stream.take(1)
    broker.close()


def test_a_broker_that_is_away_for_a_while_is_waited_for_and_no_longer_than_stall_s() -> None:
    topic = filled(1)
    away_until_s = topic.clock() + 30.0

    class Flaky(MemoryTopic):
        def reader(self, name: str, offsets: object) -> object:
            reader = super().reader(name, offsets)  # type: ignore[arg-type]
            poll = reader.poll

            def flaky(max_messages: int, wait_s: float) -> Fetched:
                if topic.clock() < away_until_s:
                    topic.clock.now_s += 5.0
                    raise BrokerAway("broker 127.0.0.1:9092 does not answer")
                return poll(max_messages, wait_s)

            reader.poll = flaky  # type: ignore[method-assign]
            return reader

    flaky = Flaky(1, topic.clock, topic.messages, topic.ends_at)
    with open_stream(flaky, beginning([0]), rules(stall_s=60.0)) as stream:
        assert stream.take(1).micro_batches
    away_until_s = topic.clock() + 300.0
    with (
        open_stream(flaky, beginning([0]), rules(stall_s=60.0)) as stream,
        pytest.raises(Stalled, match=r"the broker is away: broker 127\.0\.0\.1:9092 does not answer"),
    ):
        stream.take(1)


def test_a_thousand_windows_do_not_fill_memory_while_the_loop_is_busy(broker: LocalBroker) -> None:
    """Known failures 11 and 19, with the real thread: the reader is paused once two windows lie ready."""
    plan = replace(PLAN, window_tokens=60)  # a window is one token batch
    publish(broker, TOPIC, {2: token_batches(2, 250) * 4})
    with opened(broker, [2], rules_=rules(plan, flush_s=0.01)) as stream:
        windows = set()
        for _ in range(50):
            taken = stream.take(1).micro_batches
            stream.trained(taken)
            windows |= {micro.before.start for micro in taken}
            lane = stream._lanes[2]
            assert len(lane._windows) <= 2
            assert len(lane._inbox) <= 32
        assert len(windows) > 5


def test_meta_of_the_token_batches_is_known_once_one_has_come(broker: LocalBroker) -> None:
    with opened(broker, [0]) as stream:
        stream.take(1)
        assert stream.meta == META
