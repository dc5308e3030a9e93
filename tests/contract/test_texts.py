"""Looking at the texts of a topic: all that was committed up to now, a fair share of each partition, and no trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
import pytest

from headrace.ingest.sources.texts import of_topic
from headrace.pipeline.topics import Broker
from headrace.schemas.errors import TopicError
from headrace.schemas.record import ARROW_TYPE, TextFormat
from tests.contract.backends import Backend
from tests.contract.traffic import Names, start_at_beginning, write
from tests.unit.ingest.tools import Rules, arrow_stream, rules

PER_PARTITION = (5, 60, 20)


def how(names: Names) -> Rules:
    found = rules(TextFormat.AUTO)
    return Rules(names.text, found.format, found.fields)


@pytest.fixture
def texts(broker: Broker, names: Names) -> Sequence[list[str]]:
    """Partitions of different length, each with a message that is no record, and one that was never committed."""
    broker.create(names.text, len(PER_PARTITION))
    made = [[f"{partition} {number}" for number in range(count)] for partition, count in enumerate(PER_PARTITION)]
    with closing(broker.writer(names.writer)) as writer:
        for partition, mine in enumerate(made):
            write(writer, names.text, [text.encode() for text in mine], partition)
            write(writer, names.text, [b"{broken"], partition)
            writer.begin()
            writer.append(names.text, b"never", partition=partition)
            writer.abort()
    return made


def read(broker: Broker, names: Names, records: int) -> Iterator[str]:
    for some in of_topic(broker, how(names), records):
        assert len(some.texts) == some.records and some.size_bytes is None
        yield from some.texts


@pytest.mark.usefixtures("texts")
def test_everything_committed_is_read(broker: Broker, names: Names, texts: Sequence[list[str]]) -> None:
    assert list(read(broker, names, 1000)) == [*texts[0], *texts[2], *texts[1]]
    skipped = [reason for some in of_topic(broker, how(names), 1000) for reason in some.skipped.elements()]
    assert skipped == ["invalid-json"] * 3


@pytest.mark.usefixtures("texts")
@pytest.mark.parametrize(("records", "shares"), [(30, (5, 12, 13)), (9, (3, 3, 3)), (2, (1, 0, 1)), (84, (5, 59, 20))])
def test_so_many_records_and_no_more(
    records: int, shares: tuple[int, int, int], broker: Broker, names: Names, texts: Sequence[list[str]]
) -> None:
    """What a short partition cannot give, longer ones do; each is read from its start."""
    found = list(read(broker, names, records))
    expected = [text for mine, share in zip(texts, shares, strict=True) for text in mine[:share]]
    assert sorted(found) == sorted(expected) and found == list(read(broker, names, records))


def test_rows_of_bulk_messages_are_records(broker: Broker, names: Names) -> None:
    broker.create(names.text, 1)
    columns = {"text": [str(number) for number in range(5000)], "pair": [None, "pair"] * 2500}
    with closing(broker.writer(names.writer)) as writer:
        writer.begin()
        bulk = arrow_stream(pa.record_batch(columns))
        writer.append(names.text, bulk, partition=0, headers=[("content-type", ARROW_TYPE.encode())])
        writer.commit("", "", {})
    found = list(of_topic(broker, how(names), 4500))
    assert sum(some.records for some in found) == 4500
    assert sum(text == "pair" for some in found for text in some.texts) == 2250


def test_a_worker_is_not_disturbed(broker: Broker, names: Names, texts: Sequence[list[str]]) -> None:
    """The group's member keeps its partitions, its positions and its place while someone looks."""
    start_at_beginning(broker, names)
    before = broker.positions(names.group, names.text)
    with closing(broker.worker(names.writer, names.group, names.text)) as worker:
        seen: list[bytes] = []
        while len(seen) < sum(PER_PARTITION) // 2:
            seen += [message.value for message in worker.poll(10, 1.0).messages]
        mine = worker.assigned()
        assert sum(1 for _ in read(broker, names, 1000)) == sum(PER_PARTITION)
        assert worker.assigned() == mine
        while len(seen) < sum(PER_PARTITION) + len(PER_PARTITION):
            fetched = worker.poll(10, 1.0)
            assert not fetched.starts
            seen += [message.value for message in fetched.messages]
    assert len(set(seen)) == sum(PER_PARTITION) + 1  # the broken record stands in each partition
    assert broker.positions(names.group, names.text) == before


def test_what_comes_later_is_not_waited_for(broker: Broker, names: Names, texts: Sequence[list[str]]) -> None:
    reading = of_topic(broker, how(names), 1000)
    first = next(reading)
    with closing(broker.writer(f"{names.writer}.more")) as writer:
        for partition in range(len(PER_PARTITION)):
            write(writer, names.text, [b"later"], partition)
    assert "later" not in [*first.texts, *(text for some in reading for text in some.texts)]


def test_an_empty_topic_and_none(broker: Broker, backend: Backend, names: Names) -> None:
    with pytest.raises(TopicError, match=rf"topic '{names.text}' does not exist .*publish"):
        next(of_topic(broker, how(names), 10))
    broker.create(names.text, 2)
    assert list(of_topic(broker, how(names), 10)) == []
