"""Writing local topics, alone or as a member of a consumer group.

An open transaction is a list in its writer's memory. So it holds nobody back, one whose process is killed leaves
nothing, and it costs the memory of its messages. Commit order, repeated as numbered comments below:

    1. wait in the writers' queue, begin
    2. refuse a writer whose name a newer one has taken (epoch)
    3. swap in the positions, if they are still of the version that this member read
    4. number the messages, append them
    5. trim a bounded number of messages that retention has expired
    6. commit: one fsync of the WAL

A member takes and gives up partitions between transactions only. Being right does not rest on who holds which
partition: a worker that was frozen and woken meets step 2 or 3 and is fenced.

Cost: 4 µs a small message; a commit of one message as long as the disk takes for an fsync.
"""

from __future__ import annotations

import itertools
import random
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

from headrace.pipeline import local_log, local_positions
from headrace.pipeline.local_group import Membership
from headrace.pipeline.local_log import Appended
from headrace.pipeline.local_positions import WriterName
from headrace.pipeline.local_reader import LocalReader
from headrace.pipeline.local_store import Store
from headrace.pipeline.topics import CURE_OF_WORKERS, Fetched, Headers, Topic
from headrace.schemas.errors import Fenced, TooLarge
from headrace.schemas.position import Position

Clock = Callable[[], float]  # seconds since 1970

REBALANCE_S: Final = 0.05  # how often a waiting worker looks for members that came or went
TRIM_MESSAGES: Final = 64  # a commit trims up to so many messages, and twice as many as it appends


class LocalWriter:
    """Gathers a transaction in memory and writes it with `commit`."""

    def __init__(self, store: Store, name: WriterName, clock: Clock) -> None:
        self._store = store
        self._name = name
        self._clock = clock
        self._appended: defaultdict[tuple[str, int], list[Appended]] | None = None  # None: no transaction is open
        self._topics: dict[str, Topic] = {}  # as seen in this transaction: a topic may gain partitions
        self._chance = itertools.count(random.randrange(2**16))

    def begin(self) -> None:
        if self._appended is not None:
            raise RuntimeError("a transaction is open already: commit or abort it first")
        self._appended = defaultdict(list)
        self._topics.clear()

    def append(
        self, topic: str, value: bytes, *, partition: int | None = None, key: bytes | None = None, headers: Headers = ()
    ) -> None:
        if self._appended is None:
            raise RuntimeError("no transaction is open: begin one first")
        found = self._topics.get(topic) or self._look_up(topic)
        encoded = local_log.encode_headers(tuple(headers)) if headers else None
        size = len(value) + len(key or b"") + len(encoded or b"")
        if size > found.max_message_bytes:
            raise TooLarge(
                f"a message of {size} bytes is larger than topic {topic!r} takes ({found.max_message_bytes}): "
                "make it smaller, or make the topic with a larger max.message.bytes"
            )
        if partition is None:  # as librdkafka does: by CRC-32, so that both brokers put a key in the same partition
            partition = (zlib.crc32(key) if key else next(self._chance)) % found.partitions
        elif not 0 <= partition < found.partitions:
            raise local_log.no_such_partition(topic, partition, found.partitions)
        self._appended[topic, partition].append((value, key, encoded))

    def commit(self, group: str, topic: str, positions: Mapping[int, Position]) -> None:
        self._commit(group, topic, positions, versions={})

    def abort(self) -> None:
        self._appended = None

    def close(self) -> None:
        self.abort()
        self._store.close()

    def _commit(
        self, group: str, topic: str, positions: Mapping[int, Position], versions: Mapping[int, int]
    ) -> dict[int, int]:
        """Commit in the order of the module's docstring. The new versions of the positions."""
        if self._appended is None:
            raise RuntimeError("no transaction is open: begin one first")
        appended, self._appended = self._appended, None  # whatever comes of it, the transaction is over
        count = sum(map(len, appended.values()))
        with self._store.transaction() as connection:  # 1. wait in the writers' queue, begin
            local_positions.check_name(connection, self._name)  # 2. refuse a writer whose name was taken
            written = local_positions.put(connection, group, topic, positions, versions)  # 3. swap in the positions
            now_ms = int(self._clock() * 1000)
            partitions = {name: local_log.find_partitions(connection, name) for name, _ in appended}
            for (name, number), messages in sorted(appended.items()):  # 4. number the messages, append them
                local_log.append(connection, partitions[name][number].slot, messages, now_ms)
            local_log.trim(connection, 2 * count + TRIM_MESSAGES, now_ms)  # 5. trim what has expired
        return written  # 6. committed on leaving the block

    def _look_up(self, topic: str) -> Topic:
        with self._store.snapshot() as connection:
            found = local_log.find_topic(connection, topic)
        if found is None:
            raise local_log.no_such_topic(topic)
        self._topics[topic] = found
        return found


class LocalWorker(LocalWriter):
    """A writer that is also a member of a group, on one connection."""

    def __init__(self, store: Store, name: WriterName, clock: Clock, membership: Membership) -> None:
        super().__init__(store, name, clock)
        self._membership = membership
        self._group = membership.group
        self._topic = membership.topic
        self._reader = LocalReader(store, membership.topic, {}, CURE_OF_WORKERS)
        self._versions: dict[int, int] = {}  # of the committed positions, by partition: what compare-and-swap expects
        self._rewind = False  # the next poll starts again from the committed positions

    def poll(self, max_messages: int, wait_s: float) -> Fetched:
        deadline_s = time.monotonic() + wait_s
        while True:
            version = self._store.version()
            before = self.assigned()
            starts = self._settle()
            fetched = self._reader.fetch(max_messages)
            fetched.starts = starts
            self._rewind = False  # not before: had the fetch failed, nobody would have been told of `starts`
            now_s = time.monotonic()
            if fetched.messages or starts or self.assigned() != before or now_s >= deadline_s:
                return fetched
            self._store.changed(version, min(deadline_s, now_s + REBALANCE_S))

    def idle(self, wait_s: float) -> Fetched:
        return self.poll(0, wait_s)

    def assigned(self) -> frozenset[int]:
        return self._reader.partitions

    def commit(self, group: str, topic: str, positions: Mapping[int, Position]) -> None:
        own = (group, topic) == (self._group, self._topic)
        try:
            lost = sorted(positions.keys() - self._versions.keys()) if own else []
            if lost:
                raise Fenced(f"this member does not read {topic}[{lost[0]}] any more: drop the buffers and poll again")
            written = self._commit(group, topic, positions, self._versions if own else {})
        except BaseException:
            self.abort()
            raise
        if own:
            self._versions.update(written)

    def abort(self) -> None:
        super().abort()
        self._rewind = True

    def close(self) -> None:
        self._membership.leave()
        super().close()

    def _settle(self) -> dict[int, Position]:
        """Take part in the sharing out, between transactions; where to start again, when that is due."""
        try:
            with self._store.snapshot() as connection:
                local_positions.check_name(connection, self._name)
                partitions = local_log.find_partitions(connection, self._topic)
        except Fenced:
            self._leave()
            raise
        if self._appended is None and self._membership.rebalance(len(partitions)):
            self._rewind = True
        if not self._rewind:
            return {}
        # The locks are held now, so whoever had them has committed for the last time: what is read here stays.
        with self._store.snapshot() as connection:
            found = local_positions.starts(connection, self._group, self._topic, self._membership.held)
        self._versions = {number: committed.version for number, committed in found.items()}
        self._reader.restart({number: committed.position.offset for number, committed in found.items()})
        return {number: committed.position for number, committed in found.items()}

    def _leave(self) -> None:
        """Whoever has our name now is to have our partitions too."""
        self.abort()
        self._membership.leave()
        self._versions = {}
        self._reader.restart({})
