"""The positions of a consumer group, read and set from outside it.

A consumer that joins nothing asks for them. The admin client's own calls are not used: while a broker shuts down,
librdkafka 2.16 ends the process in ListConsumerGroupOffsets (librdkafka#5397; tests/integration/test_kafka_topics.py
keeps asking through restarts).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from headrace.pipeline.kafka_client import CONSUMER_DEFAULTS, CONSUMER_FIXED, COORDINATOR_DEFAULTS, REQUEST_WAIT_S, Link
from headrace.pipeline.kafka_writer import COMMIT_WAIT_S
from headrace.schemas.errors import BrokerAway, Fenced, TryAgain
from headrace.schemas.position import Position

_STABLE_WAIT_S: Final = 0.2  # for one look at whether a partition is outside a transaction


class KafkaPositions:
    """One group, seen by somebody who is no member of it."""

    def __init__(self, link: Link, group: str) -> None:
        self._link = link
        self._group = group
        self._opened: dict[str, Any] = {}

    def read(self, topic: str, partitions: Sequence[int], *, settled: bool) -> dict[int, Position]:
        """Positions of those partitions that have one.

        With `settled` one that an open transaction may still change is waited for. Raises BrokerAway when it is not
        ended within COMMIT_WAIT_S, or the broker does not answer.
        """
        if settled:
            deadline_s = time.monotonic() + COMMIT_WAIT_S
            found = {partition: self._settled(topic, partition, deadline_s) for partition in partitions}
        else:
            found = self._latest(topic, partitions)
        return {number: Position.parse(at.offset, at.metadata) for number, at in found.items() if at.offset >= 0}

    def write(self, topic: str, positions: Mapping[int, Position]) -> None:
        """Set positions. Raises Fenced when the group has members."""
        offsets = [TopicPartition(topic, number, at.offset, at.metadata()) for number, at in positions.items()]
        self._latest(topic, list(positions))  # a commit waits for the broker without a bound
        consumer = self._consumer("read_uncommitted")
        try:
            self._ask("set", consumer, lambda: consumer.commit(offsets=offsets, asynchronous=False))
        except Fenced as error:
            raise Fenced(
                f"{self._link.address}: the positions of group {self._group!r} cannot be set while it has members: "
                "stop them first, or leave it to them"
            ) from error

    def close(self) -> None:
        for consumer in self._opened.values():
            consumer.close()
        self._opened.clear()

    def _latest(self, topic: str, partitions: Sequence[int]) -> dict[int, TopicPartition]:
        """What was committed last."""
        consumer = self._consumer("read_uncommitted")
        wanted = [TopicPartition(topic, partition) for partition in partitions]
        found = self._ask("read", consumer, lambda: _checked(consumer.committed(wanted, REQUEST_WAIT_S)))
        return {at.partition: at for at in found}

    def _settled(self, topic: str, partition: int, deadline_s: float) -> TopicPartition:
        """The position that no open transaction can change any more."""
        consumer = self._consumer("read_committed")
        while True:
            try:
                return _checked(consumer.committed([TopicPartition(topic, partition)], _STABLE_WAIT_S))[0]
            except KafkaException as error:
                failure = self._link.failure(error.args[0], f"read the positions of group {self._group!r}")
                if not isinstance(failure, TryAgain):
                    raise failure from error
            self._latest(topic, [partition])  # raises when it is the broker that does not answer
            if time.monotonic() > deadline_s:
                raise BrokerAway(
                    f"{self._link.address}: the position of group {self._group!r} in {topic}[{partition}] is inside a "
                    f"transaction that was not ended within {COMMIT_WAIT_S:.0f} s: is the worker that opened it frozen?"
                )

    def _ask(self, doing: str, consumer: Any, request: Callable[[], Any]) -> Any:
        return self._link.ask(f"{doing} the positions of group {self._group!r}", request, lambda: consumer.poll(0))

    def _consumer(self, isolation: str) -> Any:
        """Reading what is committed makes librdkafka ask for stable positions only."""
        if isolation not in self._opened:
            defaults = {**CONSUMER_DEFAULTS, **COORDINATOR_DEFAULTS}
            fixed = {**CONSUMER_FIXED, "group.id": self._group, "isolation.level": isolation}
            self._opened[isolation] = self._link.client(Consumer, defaults, fixed)
        return self._opened[isolation]


def _checked(found: list[TopicPartition]) -> list[TopicPartition]:
    """Raise the first error that an answer carries for one of its partitions."""
    for at in found:
        if at.error is not None:
            raise KafkaException(at.error)
    return found
