"""Topics must have the shape that the configuration says; who may make them depends on the broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.pipeline.local import LocalBroker
from headrace.pipeline.shape import TopicPlan, ensure_topics
from headrace.schemas.errors import TopicError

PLAN = TopicPlan("text", 2, "tokens", 4, 1.5, "text.dead")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    broker = LocalBroker(tmp_path)
    yield broker
    broker.close()


def remote(broker: LocalBroker) -> LocalBroker:
    """What Kafka looks like to `ensure_topics`."""
    broker.address = "kafka://host:9092"
    return broker


def test_a_local_broker_gets_its_topics_by_itself(broker: LocalBroker) -> None:
    shape = ensure_topics(broker, PLAN)
    assert (shape.text.partitions, shape.tokens.partitions, shape.dead_letters.partitions) == (2, 4, 1)
    assert shape.tokens.retention_ms == 5_400_000
    assert shape.dead_letters.retention_ms is None
    assert shape.dead_letters.max_message_bytes == shape.text.max_message_bytes
    assert ensure_topics(broker, PLAN) == shape


@pytest.mark.parametrize("missing", ["text", "tokens", "text.dead"])
def test_elsewhere_a_missing_topic_is_an_error_that_names_the_command(broker: LocalBroker, missing: str) -> None:
    for topic, partitions in (("text", 2), ("tokens", 4), ("text.dead", 1)):
        if topic != missing:
            broker.create(topic, partitions)
    with pytest.raises(TopicError, match=rf"'{missing}'.*headrace topics create"):
        ensure_topics(remote(broker), PLAN)
    assert broker.describe(missing) is None


def test_elsewhere_topics_are_made_when_asked_for(broker: LocalBroker) -> None:
    ensure_topics(remote(broker), PLAN, create=True)
    assert broker.describe("tokens") is not None


def test_another_number_of_lanes_is_refused_with_both_numbers(broker: LocalBroker) -> None:
    ensure_topics(broker, PLAN)
    with pytest.raises(TopicError, match=r"4 partitions and tokens\.lanes is 8"):
        ensure_topics(broker, replace(PLAN, lanes=8))


def test_the_text_topic_may_have_any_number_of_partitions(broker: LocalBroker) -> None:
    broker.create("text", 7)
    assert ensure_topics(broker, PLAN).text.partitions == 7
