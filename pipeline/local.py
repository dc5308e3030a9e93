"""Topics in a folder: the embedded broker, for one machine. `broker: local:DIR`.

One SQLite file holds every topic, because what is committed together must lie together. Its tables:

    topics      name, id, limits
    partitions  first and next offset of each partition
    messages    slot << 40 | offset -> timestamp, key, headers, value
    positions   (consumer group, partition) -> offset, metadata, version
    writers     name -> epoch

`local_store` holds the file and the queue of its writers, `local_writer` the order of a commit, `local_group` how the
members of a group share partitions out, `local_log` and `local_positions` the SQL.

Cost on one core: more than 200k small messages/s written in bulk and 500k/s read; token batches of 130 KB at about
200 MB/s and 900 MB/s; some 1000 one-message commits/s. A waiting reader looks 200 times a second whether something was
committed (5 µs each). Expired messages leave pages that later ones fill: the file keeps its largest size.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace.pipeline import local_log, local_positions
from headrace.pipeline.local_group import Membership
from headrace.pipeline.local_positions import WriterName
from headrace.pipeline.local_reader import LocalReader
from headrace.pipeline.local_store import Store
from headrace.pipeline.local_writer import Clock, LocalWorker, LocalWriter
from headrace.pipeline.topics import Ends, Topic, with_partitions
from headrace.schemas.errors import TopicError
from headrace.schemas.position import Position

DEFAULT_MAX_MESSAGE_BYTES: Final = 10 * 2**20


class LocalBroker:
    """The topics in one folder. Opened at first use; `clock` gives messages their time, in seconds since 1970."""

    def __init__(self, path: str | Path, clock: Clock = time.time) -> None:
        self.address = f"local:{path}"
        self._folder = Path(path)
        self._clock = clock
        self._store = Store(self._folder)

    def describe(self, topic: str) -> Topic | None:
        with self._store.snapshot() as connection:
            return local_log.find_topic(connection, topic)

    def create(
        self, topic: str, partitions: int, *, retention_ms: int | None = None, max_message_bytes: int | None = None
    ) -> Topic:
        found = self.describe(topic) or self._make(topic, partitions, retention_ms, max_message_bytes)
        return with_partitions(found, partitions)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Let a topic grow to `partitions`. Never for a tokens topic: its lanes are fixed."""
        with self._store.transaction() as connection:
            have = len(local_log.find_partitions(connection, topic))
            local_log.add_partitions(connection, topic, range(have, partitions))

    def ends(self, topic: str) -> dict[int, Ends]:
        with self._store.snapshot() as connection:
            partitions = local_log.find_partitions(connection, topic)
        return {number: Ends(partition.first, partition.next) for number, partition in partitions.items()}

    def offsets_at(self, topic: str, time_ms: int) -> dict[int, int]:
        with self._store.snapshot() as connection:
            partitions = local_log.find_partitions(connection, topic)
            return {number: local_log.first_at(connection, found, time_ms) for number, found in partitions.items()}

    def positions(self, group: str, topic: str, *, settled: bool = True) -> dict[int, Position]:
        with self._store.snapshot() as connection:
            committed = local_positions.read(connection, group, topic)
        return {number: found.position for number, found in committed.items()}

    def set_positions(self, group: str, topic: str, positions: Mapping[int, Position]) -> None:
        """As the protocol says; a member that the group has all the same is fenced at its next commit."""
        with self._store.transaction() as connection:
            local_positions.put(connection, group, topic, positions, versions={})

    def reader(self, topic: str, offsets: Mapping[int, int]) -> LocalReader:
        return LocalReader(Store(self._folder), topic, offsets)

    def writer(self, name: str) -> LocalWriter:
        return LocalWriter(Store(self._folder), self._take_name(name), self._clock)

    def worker(self, name: str, group: str, topic: str) -> LocalWorker:
        membership = Membership(self._folder, group, topic)
        return LocalWorker(Store(self._folder), self._take_name(name), self._clock, membership)

    def close(self) -> None:
        self._store.close()

    def _make(self, topic: str, partitions: int, retention_ms: int | None, max_message_bytes: int | None) -> Topic:
        if partitions < 1:
            raise TopicError(f"topic {topic!r} cannot have {partitions} partitions: give it one or more")
        with self._store.transaction() as connection:
            found = local_log.find_topic(connection, topic)  # another process may have been quicker
            if found is None:
                found = Topic(
                    topic, uuid.uuid4().hex, partitions, max_message_bytes or DEFAULT_MAX_MESSAGE_BYTES, retention_ms
                )
                local_log.add_topic(connection, found)
            return found

    def _take_name(self, name: str) -> WriterName:
        with self._store.transaction() as connection:
            return local_positions.take_name(connection, name)
