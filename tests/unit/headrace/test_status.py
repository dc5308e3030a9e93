"""Status is derived from the broker alone: topics, positions of the groups, dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.pipeline import names
from headrace.pipeline.local import LocalBroker
from headrace.pipeline.status import StatusReader, Watched
from headrace.schemas.position import Position

WATCHED = Watched("orders", "main", "orders", "orders.tokens", "orders.dead")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    opened = LocalBroker(tmp_path)
    yield opened
    opened.close()


def publish(broker: LocalBroker, topic: str, count: int) -> None:
    writer = broker.writer(f"test-{topic}")
    writer.begin()
    for number in range(count):
        writer.append(topic, b"x", partition=number % 2)
    writer.commit("test", topic, {})
    writer.close()


def test_a_broker_without_topics_is_empty(broker: LocalBroker) -> None:
    status = StatusReader(broker, WATCHED).look()
    assert (status.text, status.lanes, status.backlog_tokens, status.trainer) == ((), (), 0, None)


def test_a_look_at_everything(broker: LocalBroker) -> None:
    for topic in ("orders", "orders.tokens", "orders.dead"):
        broker.create(topic, 2)
    publish(broker, "orders", 10)
    publish(broker, "orders.tokens", 4)
    broker.set_positions(names.ingest_group("orders"), "orders", {0: Position(3, tokens=700)})
    notes: dict[str, object] = {"reported_ms": 5000, "step": 2, "loss": 0.5, "records": 9, "skipped_tokens": 100}
    trained = {0: Position(1, tokens=250, notes=notes), 1: Position(0, tokens=50)}
    broker.set_positions(names.trained_group("orders", "main"), "orders.tokens", trained)
    broker.set_positions(names.checkpoint_group("orders", "main"), "orders.tokens", {0: Position(0)})

    status = StatusReader(broker, WATCHED, clock=lambda: 6.0).look()

    assert [(part.end, part.read) for part in status.text] == [(5, 3), (5, None)]
    assert [(lane.end, lane.trained, lane.checkpoint) for lane in status.lanes] == [(2, 1, 0), (2, 0, None)]
    assert (status.emitted_tokens, status.trained_tokens, status.backlog_tokens) == (700, 300, 300)
    assert status.trainer is not None and status.trainer.step == 2 and status.trainer.accuracy is None
    assert status.trainer_runs


def test_each_dead_letter_is_counted_once(broker: LocalBroker) -> None:
    reader = StatusReader(broker, WATCHED)
    assert reader.look().dead_letters == 0
    broker.create("orders.dead", 2)
    assert reader.look().dead_letters == 0
    publish(broker, "orders.dead", 5)
    assert reader.look().dead_letters == 5
    publish(broker, "orders.dead", 3)
    assert [reader.look().dead_letters for _ in range(2)] == [8, 8]
    reader.close()
