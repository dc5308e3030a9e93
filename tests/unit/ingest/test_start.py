"""The start policy: resolved once, never again; what is missing later is an error."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headrace.ingest.start import Beginning, resolve_start
from headrace.pipeline.local import LocalBroker
from headrace.schemas.errors import PositionLost, UsageError
from headrace.schemas.position import Position
from headrace.schemas.settings import AtTime


def resolve(
    broker: LocalBroker, start: object = "earliest", *, group: str = "group", fingerprint: str = "f" * 64
) -> dict[int, Position]:
    return resolve_start(broker, group, "text", "tokens", Beginning(start, fingerprint))  # type: ignore[arg-type]


def first(offset: int) -> Position:
    return Position(offset, notes={"fingerprint": "f" * 64, "start": offset})


def publish(broker: LocalBroker, topic: str, count: int, partition: int = 0) -> None:
    with closing(broker.writer("producer")) as writer:
        writer.begin()
        for _ in range(count):
            writer.append(topic, b"a", partition=partition)
        writer.commit("", "", {})


@pytest.fixture
def topics(broker: LocalBroker) -> LocalBroker:
    broker.create("text", 2)
    broker.create("tokens", 3)
    publish(broker, "text", 5)
    return broker


def test_earliest_and_latest(topics: LocalBroker) -> None:
    assert resolve(topics, "latest") == {0: first(5), 1: first(0)}
    assert resolve(topics, group="other") == {0: first(0), 1: first(0)}


def test_a_moment(tmp_path: Path) -> None:
    now = [1000.0]
    broker = LocalBroker(tmp_path / "timed", clock=lambda: now[0])
    broker.create("text", 2)
    broker.create("tokens", 1)
    publish(broker, "text", 3)
    now[0] = 2000.0
    publish(broker, "text", 3)
    assert resolve(broker, AtTime(time=datetime.fromtimestamp(1500, UTC))) == {0: first(3), 1: first(0)}
    broker.close()


def test_is_resolved_once_whatever_the_policy_says_later(topics: LocalBroker) -> None:
    """Kind 15: the policy decides the first start only."""
    resolve(topics, "latest")
    publish(topics, "text", 5)
    assert resolve(topics, "earliest") == {0: first(5), 1: first(0)}


def test_partitions_with_a_position_are_left_alone_and_new_ones_are_the_workers(topics: LocalBroker) -> None:
    topics.set_positions("group", "text", {0: Position(3, tokens=9), 1: Position(1)})
    topics.add_partitions("text", 3)
    assert resolve(topics, "latest") == {0: Position(3, tokens=9), 1: Position(1)}


def test_positions_lost_while_tokens_are_there_would_repeat_records(topics: LocalBroker) -> None:
    publish(topics, "tokens", 1, partition=2)
    with pytest.raises(PositionLost, match=r"repeat records.*another `name`"):
        resolve(topics)
    assert topics.positions("group", "text") == {}


def test_one_position_lost_of_several(topics: LocalBroker) -> None:
    topics.set_positions("group", "text", {1: Position(1)})
    with pytest.raises(PositionLost, match="none in partition 0"):
        resolve(topics)


def test_another_tokenizer_under_the_same_name_is_refused_with_both_fingerprints_and_the_cure(
    topics: LocalBroker,
) -> None:
    before = resolve(topics)
    with pytest.raises(UsageError, match=r"tokenizer.* gggggggggggg now.* ffffffffffff:.*Restore.*new `name`"):
        resolve(topics, fingerprint="g" * 64)
    assert topics.positions("group", "text") == before == resolve(topics)


def test_a_group_of_an_older_version_has_no_notes_and_is_accepted(topics: LocalBroker) -> None:
    topics.set_positions("group", "text", {0: Position(3), 1: Position(0)})
    assert resolve(topics) == {0: Position(3), 1: Position(0)}
