"""What the contract's tests need of a backend beside the protocol: more partitions, and retention at work."""

from __future__ import annotations

import time
from dataclasses import dataclass

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from headrace.pipeline.local import LocalBroker

RETENTION_MS = 3_600_000  # of topics that `expire` is used on


@dataclass(frozen=True)
class Local:
    address: str
    name: str = "local"

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions up to so many."""
        broker = LocalBroker(self.address.removeprefix("local:"))
        broker.add_partitions(topic, partitions)
        broker.close()

    def expire(self, topic: str) -> None:
        """Let retention delete everything that lies in the topic: commits of a writer whose clock is a day ahead."""
        broker = LocalBroker(self.address.removeprefix("local:"), clock=lambda: time.time() + 86_400)
        writer = broker.writer("a day ahead")
        while any(ends.first < ends.end for ends in broker.ends(topic).values()):
            writer.begin()
            writer.commit("", "", {})
        writer.close()
        broker.close()


@dataclass(frozen=True)
class Kafka:
    address: str
    name: str = "kafka"

    def grow(self, topic: str, partitions: int) -> None:
        admin = self._admin()  # named, so that it outlives its requests
        for future in admin.create_partitions([NewPartitions(topic, partitions)]).values():
            future.result()

    def expire(self, topic: str) -> None:
        admin = self._admin()
        found = admin.list_topics(topic, timeout=30).topics[topic]
        everything = [TopicPartition(topic, number, -1) for number in found.partitions]
        for future in admin.delete_records(everything).values():
            future.result()

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address.removeprefix("kafka://")})


Backend = Local | Kafka
