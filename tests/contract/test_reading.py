"""Readers: what they see, where they stand, and when they are at the end."""

from __future__ import annotations

import threading

import pytest

from headrace.pipeline.topics import Broker, Reader
from headrace.schemas.errors import RecordsLost
from tests.contract.backends import RETENTION_MS, Backend
from tests.contract.traffic import Names, fill, seen, values, write
from tests.contract.waiting import collect, drain, until


def test_messages_come_in_offset_order_each_once(broker: Broker, names: Names) -> None:
    made = fill(broker, names, partitions=3, per_partition=20)
    messages = collect(broker.reader(names.text, dict.fromkeys(range(3), 0)), len(made), max_messages=7)
    for partition in range(3):
        here = [message for message in messages if message.partition == partition]
        offsets = [message.offset for message in here]
        assert offsets == sorted(set(offsets))
        assert values(here) == [value for number, value in made if number == partition]


def test_only_the_given_partitions_are_read(broker: Broker, names: Names) -> None:
    made = fill(broker, names, partitions=3)
    messages = drain(broker.reader(names.text, {1: 0}), {1})
    assert seen(messages) == sorted(made[1::3])


def test_a_poll_returns_no_more_than_it_was_asked_for(broker: Broker, names: Names) -> None:
    fill(broker, names, partitions=2)
    reader = broker.reader(names.text, {0: 0, 1: 0})
    total = 0
    while total < 10:
        count = len(reader.poll(3, 1).messages)
        assert count <= 3
        total += count
    assert total == 10


def test_one_full_partition_does_not_starve_the_others(broker: Broker, names: Names) -> None:
    fill(broker, names, partitions=2, per_partition=50)
    reader = broker.reader(names.text, {0: 0, 1: 0})
    write(broker.writer(names.writer), names.text, [b"more"] * 500, partition=0)
    total, others = 0, 0
    while others < 50:
        messages = reader.poll(25, 1).messages
        total += len(messages)
        others += sum(message.partition == 1 for message in messages)
    assert total < 550


def test_resuming_at_every_position_gives_the_same_rest(broker: Broker, names: Names) -> None:
    """Every offset is tried, with aborted transactions and markers between the messages."""
    broker.create(names.text, 2)
    writer = broker.writer(names.writer)
    for n in range(4):
        write(writer, names.text, [b"a%d" % n, b"b%d" % n], partition=0)
        writer.begin()
        writer.append(names.text, b"aborted", partition=0)
        writer.abort()
        write(writer, names.text, [b"c%d" % n], partition=1)
    everything = collect(broker.reader(names.text, {0: 0, 1: 0}), 12)
    for message in everything:
        at = message.partition, message.offset
        rest = [other for other in everything if other.partition == at[0] and other.offset >= at[1]]
        reader = broker.reader(names.text, {at[0]: at[1]})
        assert drain(reader, {at[0]}) == rest
        reader.close()


def test_seek_reads_again_and_skips(broker: Broker, names: Names) -> None:
    fill(broker, names, per_partition=6)
    reader = broker.reader(names.text, {0: 0})
    messages = collect(reader, 6)
    reader.seek(0, messages[2].offset)
    assert collect(reader, 4) == messages[2:]
    reader.seek(0, messages[5].offset)
    assert collect(reader, 1) == messages[5:]


def test_seek_of_one_partition_leaves_the_others_where_they_are(broker: Broker, names: Names) -> None:
    fill(broker, names, partitions=2)
    reader = broker.reader(names.text, {0: 0, 1: 0})
    messages = collect(reader, 10)
    reader.seek(1, 0)
    assert collect(reader, 5) == [message for message in messages if message.partition == 1]


def test_a_paused_partition_is_not_read_and_loses_nothing(broker: Broker, names: Names) -> None:
    made = fill(broker, names, partitions=2, per_partition=20)
    reader = broker.reader(names.text, {0: 0, 1: 0})
    first = reader.poll(1, 5).messages  # the client may have fetched more than it returned
    reader.pause([0])
    other = drain(reader, {1})
    assert all(message.partition == 1 for message in other)
    reader.resume([0])
    rest = collect(reader, len(made) - len(first) - len(other))
    assert seen([*first, *other, *rest]) == sorted(made)


def test_a_poll_wakes_when_something_is_committed(broker: Broker, names: Names) -> None:
    broker.create(names.text, 1)
    reader = broker.reader(names.text, {0: 0})
    drain(reader, {0})
    writing = threading.Thread(target=lambda: write(broker.writer(names.writer), names.text, [b"late"]))
    writing.start()
    assert values(reader.poll(10, 60).messages) == [b"late"]
    writing.join()


def test_a_reader_of_an_empty_topic_is_at_the_end(broker: Broker, names: Names) -> None:
    broker.create(names.text, 2)
    reader = broker.reader(names.text, {0: 0, 1: 0})
    assert drain(reader, {0, 1}) == []


def test_at_end_is_repeated_on_every_poll(broker: Broker, names: Names) -> None:
    fill(broker, names)
    reader = broker.reader(names.text, {0: 0})
    drain(reader, {0})
    stands = reader.poll(10, 0).at_end
    assert stands == reader.poll(10, 0.1).at_end == {0: broker.ends(names.text)[0].end}


def test_no_reader_is_at_the_end_before_it_has_given_out_everything(broker: Broker, names: Names) -> None:
    fill(broker, names, partitions=2, per_partition=10)
    reader = broker.reader(names.text, {0: 0, 1: 0})
    got = {0: 0, 1: 0}

    def both_at_end() -> bool:
        fetched = reader.poll(3, 0.2)
        for message in fetched.messages:
            got[message.partition] += 1
        assert all(got[partition] == 10 for partition in fetched.at_end)
        return len(fetched.at_end) == 2

    until(both_at_end, "both partitions are at the end")


def test_where_a_reader_stands_at_the_end_is_where_it_goes_on(broker: Broker, names: Names) -> None:
    """The offset in `at_end` is a place to resume from: nothing before it is unread, nothing after it is skipped."""
    fill(broker, names)
    reader = broker.reader(names.text, {0: 0})
    drain(reader, {0})
    stands = reader.poll(10, 0).at_end[0]
    write(broker.writer(names.writer), names.text, [b"next"])
    assert values(collect(broker.reader(names.text, {0: stands}), 1)) == [b"next"]
    assert values(collect(reader, 1)) == [b"next"]


def test_an_open_transaction_is_not_seen_and_ends_with_abort(broker: Broker, names: Names) -> None:
    broker.create(names.text, 1)
    writer = broker.writer(names.writer)
    writer.begin()
    writer.append(names.text, b"not yet", partition=0)
    reader = broker.reader(names.text, {0: 0})
    assert _poll_some(reader) == []
    writer.abort()
    assert drain(reader, {0}) == []


def test_an_open_transaction_is_seen_whole_once_it_is_committed(broker: Broker, names: Names) -> None:
    broker.create(names.text, 1)
    writer = broker.writer(names.writer)
    writer.begin()
    writer.append(names.text, b"not", partition=0)
    writer.append(names.text, b"yet", partition=0)
    reader = broker.reader(names.text, {0: 0})
    assert _poll_some(reader) == []
    writer.commit("", "", {})
    assert values(collect(reader, 2)) == [b"not", b"yet"]


def test_what_is_committed_behind_an_open_transaction_is_read_before_the_end(broker: Broker, names: Names) -> None:
    """Where an open transaction holds readers back, they must not take its place for the end."""
    broker.create(names.text, 1)
    holding = broker.writer(f"{names.writer}.holding")
    holding.begin()
    holding.append(names.text, b"open", partition=0)
    write(broker.writer(names.writer), names.text, [b"behind"])
    reader = broker.reader(names.text, {0: 0})
    got: list[bytes] = []
    for _ in range(10):
        fetched = reader.poll(10, 0.2)
        got += values(fetched.messages)
        assert got == [b"behind"] or 0 not in fetched.at_end
    holding.abort()

    def at_end() -> bool:
        fetched = reader.poll(10, 0.2)
        got.extend(values(fetched.messages))
        return 0 in fetched.at_end and got == [b"behind"]

    until(at_end, "the reader has passed the aborted transaction")


def test_messages_deleted_before_they_were_read_are_an_error_that_names_them(
    broker: Broker, backend: Backend, names: Names
) -> None:
    broker.create(names.text, 2, retention_ms=RETENTION_MS)
    write(broker.writer(names.writer), names.text, [b"old"] * 3, partition=1)
    backend.expire(names.text)
    reader = broker.reader(names.text, {0: 0, 1: 0})
    with pytest.raises(RecordsLost, match=rf"{names.text}\[1\].*train\.start"):
        until(lambda: reader.poll(1, 0.2).messages, "it is noticed")


def test_a_reader_behind_what_retention_deleted_goes_on(broker: Broker, backend: Backend, names: Names) -> None:
    broker.create(names.text, 1, retention_ms=RETENTION_MS)
    writer = broker.writer(names.writer)
    write(writer, names.text, [b"old"] * 3)
    reader = broker.reader(names.text, {0: 0})
    collect(reader, 3)
    backend.expire(names.text)
    ends = until(lambda: (found := broker.ends(names.text)[0]).first == found.end and found, "the topic is empty")
    assert drain(broker.reader(names.text, {0: ends.end}), {0}) == []
    write(writer, names.text, [b"new"])
    assert values(collect(reader, 1)) == [b"new"]


def _poll_some(reader: Reader) -> list[bytes]:
    return [message.value for _ in range(5) for message in reader.poll(10, 0.1).messages]
