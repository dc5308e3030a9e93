"""Lanes over a real broker: transaction markers, open transactions, aborted ones, and resume across all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from headrace.pipeline.kafka import KafkaBroker
from headrace.schemas.cursor import Cursor
from headrace.schemas.tokens import encode
from headrace.trainer.stream import LaneStream
from tests.unit.trainer.made_up import META, Given, beginning, drain, origins, publish, rules, token_batches

_TOPICS = (f"lanes-{number}.tokens" for number in itertools.count())
RULES = rules(flush_s=0.2, stall_s=60.0)


@pytest.fixture
def broker(kafka: str) -> Iterator[KafkaBroker]:
    broker = KafkaBroker(kafka, {})
    yield broker
    broker.close()


@pytest.fixture
def topic(broker: KafkaBroker) -> str:
    """Three lanes: one in many transactions, an aborted one among them; one in a single transaction; one empty."""
    topic = next(_TOPICS)
    broker.create(topic, 3)
    writer = broker.writer("ingest")
    for number, batch in enumerate(token_batches(0, 12)):
        writer.begin()
        writer.append(topic, encode(batch, META), partition=0)
        writer.commit("none", topic, {})
        if number % 5 == 2:
            writer.begin()
            writer.append(topic, encode(token_batches(9, 1)[0], META), partition=0)
            writer.abort()
    writer.close()
    publish(broker, topic, {1: token_batches(1, 7)})
    return topic


def test_resume_at_every_step_over_markers_and_aborted_transactions(broker: KafkaBroker, topic: str) -> None:
    whole: list[list[Given]] = []
    with LaneStream(broker, topic, beginning(range(3)), RULES) as stream:
        cursors = [stream.cursors()]
        while step := stream.take(2).micro_batches:
            stream.trained(step)
            whole.append([Given.of(micro) for micro in step])
            cursors.append(stream.cursors())
    names = sorted(name for step in whole for micro in step for name in micro.rows)
    assert names == sorted(f"text/{lane}@{n}" for lane, count in ((0, 12), (1, 7)) for n in range(5 * count))
    for number, saved in enumerate(cursors):
        with LaneStream(broker, topic, saved, RULES) as stream:
            assert drain(stream, 2) == whole[number:]


def test_an_open_transaction_is_waited_for_though_nothing_of_it_can_be_read(broker: KafkaBroker, topic: str) -> None:
    writer = broker.writer("slow")
    writer.begin()
    writer.append(topic, encode(token_batches(2, 1)[0], META), partition=2)
    taken = []
    with LaneStream(broker, topic, {2: Cursor.at(0)}, RULES) as stream:
        # Nothing can be read before the commit, so a lane that counted as empty would have given nothing here.
        writer.commit("none", topic, {})
        while not taken:
            taken = stream.take(10).micro_batches
    writer.close()
    assert sorted(name for micro in taken for name in origins(micro.rows)) == [f"text/2@{n}" for n in range(5)]


def test_ends_fixed_right_behind_a_commit_lose_nothing_of_it(broker: KafkaBroker, topic: str) -> None:
    """`stop: end`: ingest's last commit has been confirmed, the ends of the lanes are looked up at once."""
    for number in range(20):
        publish(broker, topic, {2: token_batches(2, 1, from_offset=number)})
        ends = {2: broker.ends(topic)[2].end}
        with LaneStream(broker, topic, {2: Cursor.at(0)}, RULES) as stream:
            stream.set_ends(ends)
            rows = sum(micro.rows.num_rows for micro in stream.take(1000).micro_batches)
        assert rows == 5 * (number + 1)
