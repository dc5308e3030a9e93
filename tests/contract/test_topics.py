"""The broker's own methods: topics, their ends, and positions."""

from __future__ import annotations

import threading
import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.pipeline.broker import open_broker
from headrace.pipeline.topics import Broker, Topic
from headrace.schemas.errors import TopicError
from headrace.schemas.position import Position
from tests.contract.backends import RETENTION_MS, Backend
from tests.contract.traffic import Names, fill, write
from tests.contract.waiting import collect, until


def test_a_missing_topic_is_described_as_none(broker: Broker, names: Names) -> None:
    assert broker.describe(names.text) is None


def test_a_topic_is_described_as_it_was_created(broker: Broker, names: Names) -> None:
    made = broker.create(names.text, 3, retention_ms=RETENTION_MS, max_message_bytes=2_000_000)
    assert (made.name, made.partitions, made.retention_ms) == (names.text, 3, RETENTION_MS)
    assert made.max_message_bytes == 2_000_000
    assert made.id
    assert broker.describe(names.text) == made


def test_creating_again_returns_the_same_topic(broker: Broker, names: Names) -> None:
    assert broker.create(names.text, 2) == broker.create(names.text, 2)


def test_creating_with_another_number_of_partitions_is_refused(broker: Broker, names: Names) -> None:
    broker.create(names.text, 2)
    with pytest.raises(TopicError, match=names.text):
        broker.create(names.text, 3)
    assert broker.create(names.text, 2).partitions == 2


def test_racing_creators_get_one_topic(backend: Backend, names: Names) -> None:
    topics: list[Topic] = []

    def create() -> None:
        broker = open_broker(backend.address)
        topics.append(broker.create(names.text, 2))
        broker.close()

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(topics) == 4
    assert len({topic.id for topic in topics}) == 1


def test_an_empty_topic_ends_where_it_begins(broker: Broker, names: Names) -> None:
    broker.create(names.text, 2)
    ends = broker.ends(names.text)
    assert ends.keys() == {0, 1}
    assert all(partition.first == partition.end for partition in ends.values())


def test_ends_follow_commits_of_their_own_partition(broker: Broker, names: Names) -> None:
    broker.create(names.text, 2)
    before = broker.ends(names.text)
    write(broker.writer(names.writer), names.text, [b"a", b"b"], partition=1)
    after = until(lambda: (now := broker.ends(names.text)) != before and now, "the ends have moved")
    assert after[0] == before[0]
    assert after[1].first == before[1].first
    assert after[1].end > before[1].end


def test_a_missing_topic_has_no_ends(broker: Broker, names: Names) -> None:
    with pytest.raises(TopicError, match=names.text):
        broker.ends(names.text)
    with pytest.raises(TopicError, match=names.text):
        broker.offsets_at(names.text, 0)


def test_offsets_at_a_time_are_the_first_published_then_or_later(broker: Broker, names: Names) -> None:
    broker.create(names.text, 2)
    writer = broker.writer(names.writer)
    for n in range(4):
        write(writer, names.text, [b"%d" % n, b"and again"], partition=0)
    messages = collect(broker.reader(names.text, {0: 0}), 8)
    times = {message.timestamp_ms for message in messages}
    end = until(lambda: broker.offsets_at(names.text, max(times) + 86_400_000), "the ends are known")
    assert end == {partition: ends.end for partition, ends in broker.ends(names.text).items()}
    for time_ms in sorted(times | {time + 1 for time in times} | {0}):
        offsets = broker.offsets_at(names.text, time_ms)  # may be that of a marker: what is read from there counts
        assert [message for message in messages if message.offset >= offsets[0]] == [
            message for message in messages if message.timestamp_ms >= time_ms
        ]
        assert offsets[1] == end[1]


def test_offsets_at_passes_over_what_retention_has_deleted(broker: Broker, backend: Backend, names: Names) -> None:
    broker.create(names.text, 1, retention_ms=RETENTION_MS)
    write(broker.writer(names.writer), names.text, [b"old"])
    backend.expire(names.text)
    assert broker.offsets_at(names.text, 0) == {0: broker.ends(names.text)[0].end}


def test_a_group_that_committed_nothing_has_no_positions(broker: Broker, names: Names) -> None:
    broker.create(names.text, 2)
    assert broker.positions(names.group, names.text) == {}


def test_positions_of_groups_and_partitions_are_kept_apart(broker: Broker, names: Names) -> None:
    fill(broker, names, partitions=3)
    broker.set_positions(names.group, names.text, {0: Position(2)})
    broker.set_positions(names.group, names.text, {2: Position(1, row=7)})
    broker.set_positions(f"{names.group}.other", names.text, {0: Position(3)})
    assert broker.positions(names.group, names.text) == {0: Position(2), 2: Position(1, row=7)}
    assert broker.positions(f"{names.group}.other", names.text) == {0: Position(3)}


notes = st.dictionaries(
    st.text(max_size=20), st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=50), max_size=4
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**40 - 1), st.integers(0, 2**40), st.integers(0, 2**60), notes)
def test_positions_come_back_as_they_were_committed(
    broker: Broker, names: Names, offset: int, row: int, tokens: int, notes: dict[str, object]
) -> None:
    if broker.describe(names.text) is None:
        broker.create(names.text, 1)
    group = f"{names.group}.{uuid.uuid4().hex[:8]}"
    position = Position(offset, row, tokens, notes)
    broker.set_positions(group, names.text, {0: position})
    assert broker.positions(group, names.text) == {0: position}
    reopened = open_broker(broker.address)
    assert reopened.positions(group, names.text) == {0: position}
    reopened.close()
