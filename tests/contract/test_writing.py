"""Writers: what goes in comes out, whole transactions or nothing, and one writer to a name."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.pipeline.broker import open_broker
from headrace.pipeline.topics import Broker
from headrace.schemas.errors import Fenced, TooLarge
from headrace.schemas.position import Position
from tests.contract.backends import Backend
from tests.contract.traffic import Names, values, write
from tests.contract.waiting import collect, drain, until

bodies = st.binary(max_size=200)
header_names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
messages = st.tuples(
    bodies, st.none() | bodies, st.lists(st.tuples(header_names, bodies), max_size=4).map(tuple)
)  # value, key, headers


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(messages, min_size=1, max_size=5))
def test_values_keys_and_headers_come_back_as_they_were_appended(
    broker: Broker, names: Names, batch: list[tuple[bytes, bytes | None, tuple[tuple[str, bytes], ...]]]
) -> None:
    if broker.describe(names.text) is None:
        broker.create(names.text, 1)
    reader = broker.reader(names.text, {0: broker.ends(names.text)[0].end})
    writer = broker.writer(names.writer)
    writer.begin()
    for value, key, headers in batch:
        writer.append(names.text, value, partition=0, key=key, headers=headers)
    writer.commit("", "", {})
    got = collect(reader, len(batch))
    assert [(message.value, message.key, message.headers) for message in got] == batch
    assert all(message.timestamp_ms > 0 for message in got)
    writer.close()
    reader.close()
    until(lambda: broker.ends(names.text)[0].end > got[-1].offset, "the ends have moved")


def test_a_key_goes_to_the_same_partition_for_every_writer(broker: Broker, names: Names) -> None:
    broker.create(names.text, 5)
    keys = [b"key-%d" % n for n in range(40)]
    for opened in range(2):
        other = open_broker(broker.address)
        writer = other.writer(f"{names.writer}.{opened}")
        writer.begin()
        for key in keys if opened else reversed(keys):
            writer.append(names.text, b"", key=key)
        writer.commit("", "", {})
        writer.close()
        other.close()
    got = collect(broker.reader(names.text, dict.fromkeys(range(5), 0)), 80)
    where = {key: {message.partition for message in got if message.key == key} for key in keys}
    assert all(len(partitions) == 1 for partitions in where.values())
    assert len(set.union(*where.values())) == 5


def test_messages_without_key_and_partition_all_arrive(broker: Broker, names: Names) -> None:
    broker.create(names.text, 3)
    made = [b"%d" % n for n in range(100)]
    writer = broker.writer(names.writer)
    writer.begin()
    for value in made:
        writer.append(names.text, value)
    writer.commit("", "", {})
    got = collect(broker.reader(names.text, dict.fromkeys(range(3), 0)), 100)
    assert sorted(values(got)) == sorted(made)


def test_an_aborted_transaction_leaves_nothing_in_any_topic(broker: Broker, names: Names) -> None:
    broker.create(names.text, 2)
    broker.create(names.tokens, 1)
    writer = broker.writer(names.writer)
    writer.begin()
    writer.append(names.text, b"dropped", partition=0)
    writer.append(names.text, b"dropped", partition=1)
    writer.append(names.tokens, b"dropped", partition=0)
    writer.abort()
    writer.abort()  # no harm where none is open
    write(writer, names.text, [b"kept"], partition=1)
    assert values(drain(broker.reader(names.text, {0: 0, 1: 0}), {0, 1})) == [b"kept"]
    assert drain(broker.reader(names.tokens, {0: 0}), {0}) == []


def test_a_commit_writes_all_topics_and_positions_together(broker: Broker, names: Names) -> None:
    broker.create(names.text, 3)
    broker.create(names.tokens, 2)
    positions = {0: Position(4, row=2, tokens=99, notes={"file": "a"}), 2: Position(1)}
    writer = broker.writer(names.writer)
    writer.begin()
    writer.append(names.tokens, b"out", partition=0)
    writer.append(names.tokens, b"out", partition=1)
    writer.append(names.text, b"dead", partition=1)
    writer.commit(names.group, names.text, positions)
    assert values(collect(broker.reader(names.tokens, {0: 0, 1: 0}), 2)) == [b"out", b"out"]
    assert values(collect(broker.reader(names.text, {1: 0}), 1)) == [b"dead"]
    assert broker.positions(names.group, names.text) == positions


def test_a_transaction_of_positions_alone_is_committed(broker: Broker, names: Names) -> None:
    broker.create(names.text, 1)
    writer = broker.writer(names.writer)
    for n in range(3):
        writer.begin()
        writer.commit(names.group, names.text, {0: Position(n)})
        assert broker.positions(names.group, names.text) == {0: Position(n)}


def test_an_empty_transaction_is_no_error(broker: Broker, names: Names) -> None:
    broker.create(names.text, 1)
    writer = broker.writer(names.writer)
    write(writer, names.text, [])
    write(writer, names.text, [b"one"])
    assert values(collect(broker.reader(names.text, {0: 0}), 1)) == [b"one"]


def test_a_message_larger_than_its_topic_takes_is_refused_and_the_transaction_goes_on(
    broker: Broker, names: Names
) -> None:
    broker.create(names.text, 1, max_message_bytes=100_000)
    writer = broker.writer(names.writer)
    writer.begin()
    writer.append(names.text, b"before", partition=0)
    with pytest.raises(TooLarge, match=names.text):
        writer.append(names.text, os.urandom(100_001), partition=0)
    with pytest.raises(TooLarge, match=names.text):
        writer.append(names.text, os.urandom(60_000), partition=0, key=os.urandom(60_000))
    writer.append(names.text, os.urandom(90_000), partition=0)
    writer.commit("", "", {})
    got = collect(broker.reader(names.text, {0: 0}), 2)
    assert [len(value) for value in values(got)] == [6, 90_000]


def test_a_message_of_megabytes_comes_back_whole(broker: Broker, names: Names) -> None:
    broker.create(names.text, 1, max_message_bytes=6_000_000)
    large = os.urandom(5_000_000)
    write(broker.writer(names.writer), names.text, [b"small", large, b"small"])
    assert values(collect(broker.reader(names.text, {0: 0}), 3)) == [b"small", large, b"small"]


def test_a_second_writer_of_the_same_name_fences_the_first(broker: Broker, names: Names) -> None:
    broker.create(names.text, 1)
    broker.create(names.tokens, 1)
    first = broker.writer(names.writer)
    write(first, names.text, [b"in time"])
    first.begin()
    first.append(names.text, b"late", partition=0)
    first.append(names.tokens, b"late", partition=0)
    second = broker.writer(names.writer)
    with pytest.raises(Fenced):
        first.commit(names.group, names.text, {0: Position(1)})
    write(second, names.text, [b"second"])
    got = drain(broker.reader(names.text, {0: 0}), {0})
    assert values(got) == [b"in time", b"second"]
    assert drain(broker.reader(names.tokens, {0: 0}), {0}) == []
    assert broker.positions(names.group, names.text) == {}
    first.close()
    write(second, names.text, [b"still there"])


def test_many_writers_at_once_lose_nothing_and_double_nothing(backend: Backend, broker: Broker, names: Names) -> None:
    broker.create(names.text, 2)
    made = {(w, n): [b"%d.%d.%d" % (w, n, m) for m in range(5)] for w in range(4) for n in range(10)}

    def run(w: int) -> None:
        mine = open_broker(backend.address)
        writer = mine.writer(f"{names.writer}.{w}")
        for n in range(10):
            write(writer, names.text, made[w, n], partition=n % 2)
        writer.close()
        mine.close()

    threads = [threading.Thread(target=run, args=(w,)) for w in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = values(collect(broker.reader(names.text, {0: 0, 1: 0}), 200))
    assert sorted(got) == sorted(value for batch in made.values() for value in batch)
    for w in range(4):
        for partition in range(2):
            mine = [value for n in range(partition, 10, 2) for value in made[w, n]]
            assert [value for value in got if value in set(mine)] == mine
