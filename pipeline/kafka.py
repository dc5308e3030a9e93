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

from confluent_kafka import IsolationLevel, KafkaError, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from headrace.pipeline.kafka_client import ASK_WAIT_S, COORDINATOR_DEFAULTS, NO_TOPIC, REQUEST_WAIT_S, RETRY_S, Link
from headrace.pipeline.kafka_positions import KafkaPositions
from headrace.pipeline.kafka_reader import KafkaReader
from headrace.pipeline.kafka_worker import KafkaWorker
from headrace.pipeline.kafka_writer import KafkaWriter
from headrace.pipeline.topics import Ends, Topic, with_partitions
from headrace.schemas.errors import BrokerAway, TopicError
from headrace.schemas.position import Position

DEFAULT_MAX_MESSAGE_BYTES: Final = 1_000_000  # where we may not read a topic's settings: below Kafka's own default


class KafkaBroker:
    """The topics of one Kafka cluster. Talks to it at first use."""

    def __init__(self, servers: str, options: Mapping[str, Any]) -> None:
        self._link = Link(servers, options)
        self.address = self._link.address
        self._opened: Any = None
        self._groups: dict[str, KafkaPositions] = {}

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
        return self._group(group).read(topic, self._partitions(topic), settled=settled)

    def set_positions(self, group: str, topic: str, positions: Mapping[int, Position]) -> None:
        """As the protocol says. Raises Fenced when the group has members."""
        if positions:
            self._group(group).write(topic, positions)

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
        for positions in self._groups.values():
            positions.close()
        self._groups.clear()
        self._opened = None

    def _group(self, group: str) -> KafkaPositions:
        return self._groups.setdefault(group, KafkaPositions(self._link.another(), group))

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

    def _ask(self, doing: str, request: Callable[[], Any], none_for: Collection[int] = ()) -> Any:
        return self._link.ask(doing, request, lambda: self._admin.poll(0), none_for)
