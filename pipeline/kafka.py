"""Topics on Kafka: the distributed engine. `broker: kafka://host:9092`.

`kafka_client` holds what the clients have in common, `kafka_reader` how the end of a partition is known,
`kafka_writer` the order of a commit, `kafka_worker` what makes it exactly once. Here: looking at topics and positions.

Kafka answers before everything it did can be seen: a new topic may be unknown for a moment, and what readers see of a
partition, and a group's positions, follow a commit by some milliseconds. So `create` waits until the topic is there,
`positions` waits for those that may still change, and `ends` are those of everything appended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from headrace.pipeline.kafka_client import ASK_WAIT_S, COORDINATOR_DEFAULTS, NO_TOPIC, REQUEST_WAIT_S, Link
from headrace.pipeline.kafka_reader import KafkaReader
from headrace.pipeline.kafka_worker import KafkaWorker
from headrace.pipeline.kafka_writer import COMMIT_WAIT_S, KafkaWriter
from headrace.pipeline.topics import Ends, Topic, with_partitions
from headrace.schemas.errors import BrokerAway, Fenced, TopicError
from headrace.schemas.position import Position

RETRY_S: Final = 0.05
DEFAULT_MAX_MESSAGE_BYTES: Final = 1_000_000  # where we may not read a topic's settings: below Kafka's own default
SETTLING: Final = {
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}


class KafkaBroker:
    """The topics of one Kafka cluster. Talks to it at first use."""

    def __init__(self, servers: str, options: Mapping[str, Any]) -> None:
        self._link = Link(servers, options)
        self.address = self._link.address
        self._opened: Any = None

    def describe(self, topic: str) -> Topic | None:
        found = self._look_at(topic)
        if found is None:
            return None
        settings = self._settings(topic)
        retention_ms = int(settings.get("retention.ms", -1))
        return Topic(
            name=topic,
            id=str(found.topic_id),
            partitions=len(found.partitions),
            max_message_bytes=int(settings.get("max.message.bytes", DEFAULT_MAX_MESSAGE_BYTES)),
            retention_ms=None if retention_ms < 0 else retention_ms,
        )

    def create(
        self, topic: str, partitions: int, *, retention_ms: int | None = None, max_message_bytes: int | None = None
    ) -> Topic:
        found = self.describe(topic) or self._make(topic, partitions, retention_ms, max_message_bytes)
        return with_partitions(found, partitions)

    def ends(self, topic: str) -> dict[int, Ends]:
        partitions = self._partitions(topic)
        first = self._offsets(topic, partitions, OffsetSpec.earliest())
        end = self._offsets(topic, partitions, OffsetSpec.latest())
        return {partition: Ends(first[partition], end[partition]) for partition in partitions}

    def offsets_at(self, topic: str, time_ms: int) -> dict[int, int]:
        partitions = self._partitions(topic)
        end = self._offsets(topic, partitions, OffsetSpec.latest())
        found = self._offsets(topic, partitions, OffsetSpec.for_timestamp(time_ms))
        return {partition: end[partition] if offset < 0 else offset for partition, offset in found.items()}

    def positions(self, group: str, topic: str, *, settled: bool = True) -> dict[int, Position]:
        deadline_s = time.monotonic() + COMMIT_WAIT_S
        known: dict[int, Position] = {}
        while True:
            moving = []
            for found in self._listed(group, topic, settled):
                if found.error is not None:
                    moving.append(found.partition)
                else:
                    known.setdefault(found.partition, Position.parse(found.offset, found.metadata))
            moving = [partition for partition in moving if partition not in known]  # one answer each is enough
            if not moving:
                return known
            if time.monotonic() > deadline_s:
                raise BrokerAway(
                    f"{self.address}: the position of group {group!r} in {topic}[{moving[0]}] is inside a transaction "
                    f"that was not ended within {COMMIT_WAIT_S:.0f} s: is the worker that opened it frozen?"
                )
            time.sleep(RETRY_S)

    def set_positions(self, group: str, topic: str, positions: Mapping[int, Position]) -> None:
        """As the protocol says. Raises Fenced when the group has members."""
        if not positions:
            return
        offsets = [
            TopicPartition(topic, partition, position.offset, position.metadata())
            for partition, position in positions.items()
        ]
        wanted = [ConsumerGroupTopicPartitions(group, offsets)]

        def ask() -> None:
            asked = self._admin.alter_consumer_group_offsets(wanted, request_timeout=REQUEST_WAIT_S)
            _raise_first(asked[group].result().topic_partitions)

        try:
            self._ask(f"set the positions of group {group!r}", ask)
        except Fenced as error:
            raise Fenced(
                f"{self.address}: the positions of group {group!r} cannot be set while it has members: "
                "stop them first, or leave it to them"
            ) from error

    def reader(self, topic: str, offsets: Mapping[int, int]) -> KafkaReader:
        missing = sorted(offsets.keys() - set(self._partitions(topic)))
        if missing:
            raise TopicError(f"topic {topic!r} has no partition {missing[0]}: it was made with fewer")
        return KafkaReader(self._link.another(), topic, offsets)

    def writer(self, name: str) -> KafkaWriter:
        # Opening waits longer than this for a predecessor's transaction; first see whether there is anybody at all.
        self._ask(
            f"open the writer {name!r}", lambda: self._admin.describe_cluster(request_timeout=REQUEST_WAIT_S).result()
        )
        return KafkaWriter(self._link.another(), name, self.describe)

    def worker(self, name: str, group: str, topic: str) -> KafkaWorker:
        self._partitions(topic)
        return KafkaWorker(self._link.another(), name, group, topic, self.describe, self.positions)

    def close(self) -> None:
        self._opened = None

    @property
    def _admin(self) -> Any:
        if self._opened is None:
            self._opened = self._link.client(AdminClient, COORDINATOR_DEFAULTS, {})
        return self._opened

    def _make(self, topic: str, partitions: int, retention_ms: int | None, max_message_bytes: int | None) -> Topic:
        config = {
            "cleanup.policy": "delete",
            "message.timestamp.type": "LogAppendTime",  # freshness is measured from the broker's time
            "retention.ms": str(-1 if retention_ms is None else retention_ms),
        }
        if max_message_bytes is not None:
            config["max.message.bytes"] = str(max_message_bytes)
        wanted = [NewTopic(topic, num_partitions=partitions, config=config)]
        self._ask(
            f"make topic {topic!r}",
            lambda: self._admin.create_topics(wanted, request_timeout=REQUEST_WAIT_S)[topic].result(),
            none_for={KafkaError.TOPIC_ALREADY_EXISTS},  # another process was quicker
        )
        deadline_s = time.monotonic() + ASK_WAIT_S
        while (found := self.describe(topic)) is None:
            if time.monotonic() > deadline_s:
                raise BrokerAway(f"{self.address}: topic {topic!r} was made and is not there after {ASK_WAIT_S:.0f} s")
            time.sleep(RETRY_S)
        return found

    def _look_at(self, topic: str) -> Any:
        wanted = TopicCollection([topic])
        return self._ask(
            f"describe topic {topic!r}",
            lambda: self._admin.describe_topics(wanted, request_timeout=REQUEST_WAIT_S)[topic].result(),
            none_for=NO_TOPIC,
        )

    def _partitions(self, topic: str) -> list[int]:
        found = self._look_at(topic)
        if found is None:
            raise TopicError(f"there is no topic {topic!r} on {self.address}: make it with `headrace topics create`")
        return sorted(partition.id for partition in found.partitions)

    def _settings(self, topic: str) -> dict[str, str]:
        """The topic's settings; empty where the user may not read them."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found = self._ask(
            f"read the settings of topic {topic!r}",
            lambda: self._admin.describe_configs([resource], request_timeout=REQUEST_WAIT_S)[resource].result(),
            none_for=NO_TOPIC | {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED},
        )
        return {} if found is None else {name: entry.value for name, entry in found.items()}

    def _offsets(self, topic: str, partitions: list[int], spec: OffsetSpec) -> dict[int, int]:
        """One offset of each partition. Ends are those of everything appended, not of what readers see by now.

        A commit is confirmed before its markers lie in every partition: the last *stable* offset may still lie before
        what it wrote.
        """
        wanted = {TopicPartition(topic, partition): spec for partition in partitions}

        def ask() -> dict[int, int]:
            asked = self._admin.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=REQUEST_WAIT_S
            )
            return {at.partition: future.result().offset for at, future in asked.items()}

        found: dict[int, int] = self._ask(f"read the ends of topic {topic!r}", ask)
        return found

    def _listed(self, group: str, topic: str, settled: bool) -> list[TopicPartition]:
        """The group's positions in the topic; with `settled`, one that may still change has an error, no offset."""
        wanted = [ConsumerGroupTopicPartitions(group)]

        def ask() -> list[TopicPartition]:
            asked = self._admin.list_consumer_group_offsets(
                wanted, require_stable=settled, request_timeout=REQUEST_WAIT_S
            )
            listed = [found for found in asked[group].result().topic_partitions if found.topic == topic]
            _raise_first(listed, but=KafkaError.UNSTABLE_OFFSET_COMMIT)
            return [found for found in listed if found.error is not None or found.offset >= 0]

        listed: list[TopicPartition] = self._ask(f"read the positions of group {group!r}", ask)
        return listed

    def _ask(self, doing: str, request: Callable[[], Any], none_for: Collection[int] = ()) -> Any:
        """Send a request until it is answered. Answers whose code is in `none_for` are None."""
        deadline_s = time.monotonic() + ASK_WAIT_S
        while True:
            try:
                return request()
            except KafkaException as error:
                code = error.args[0].code()
                if code in none_for:
                    return None
                if code not in SETTLING or time.monotonic() > deadline_s:
                    self._admin.poll(0)  # hear why
                    raise self._link.failure(error.args[0], doing) from error
                if code == KafkaError._TIMED_OUT:
                    self._opened = None  # a new client knows nothing of brokers that were there before
            time.sleep(RETRY_S)


def _raise_first(partitions: list[TopicPartition], but: int | None = None) -> None:
    """Raise the first error that an answer carries for one of its partitions."""
    for partition in partitions:
        if partition.error is not None and partition.error.code() != but:
            raise KafkaException(partition.error)
