"""Reading Kafka topics.

A partition's end is learned from PARTITION_EOF. Under `read_committed` the event comes at the last stable offset, once,
and carries it (markers included); so a partition is at its end when nothing came after the event *and* the high
watermark, which each fetch brings along, is the same offset. An open transaction moves only the watermark, and the
partition stops being at its end without any event (all of it proved by tests/integration/test_broker_facts.py).

Cost: 2 µs a message in Python; librdkafka fetches ahead up to 64 MB. A seek takes up to one fetch in flight (100 ms).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka import Message as Event

from headrace.pipeline.kafka_client import ASK_WAIT_S, CONSUMER_DEFAULTS, CONSUMER_FIXED, NO_TOPIC, Link, retriable
from headrace.pipeline.topics import CURE_OF_READERS, Fetched, Message
from headrace.schemas.errors import HeadraceError, RecordsLost, TopicError

MAX_POLL_BYTES: Final = 16 * 2**20  # a poll returns no more messages once it holds so many bytes
CHUNK: Final = 500  # messages taken from librdkafka's queue at once


class Feed:
    """The messages of one consumer and what is known of the ends of its partitions."""

    def __init__(self, link: Link, group: str, topic: str, cure: str) -> None:
        self.consumer: Any = link.client(Consumer, CONSUMER_DEFAULTS, {**CONSUMER_FIXED, "group.id": group})
        self._link = link
        self._topic = topic
        self._cure = cure
        self._partitions: dict[int, TopicPartition] = {}
        self._paused: set[int] = set()
        self._all_paused = False
        self._eof: dict[int, int] = {}  # offset of the last PARTITION_EOF that no message followed
        self._failed: HeadraceError | None = None  # repeated until a seek: librdkafka tells it once
        self._taken_bytes = 0  # by the poll under way

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(self._partitions)

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read exactly these partitions, from these offsets."""
        self.consumer.assign([self._at(partition, offset) for partition, offset in offsets.items()])
        self._partitions = {partition: self._at(partition) for partition in offsets}
        self._eof.clear()
        self._failed = None
        self._pause(offsets if self._all_paused else self._paused & offsets.keys())

    def forget(self) -> None:
        """The group has taken the partitions away."""
        self._partitions = {}
        self._eof.clear()
        self._failed = None

    def seek(self, partition: int, offset: int) -> None:
        """Unassigning drops what was fetched ahead; unlike librdkafka's own seek it needs no running fetch."""
        self.consumer.incremental_unassign([self._at(partition)])
        self.consumer.incremental_assign([self._at(partition, offset)])
        self._eof.pop(partition, None)
        self._failed = None
        self._pause([partition] if self._all_paused else self._paused & {partition})

    def pause(self, partitions: Sequence[int]) -> None:
        self._paused.update(partitions)
        self._pause(partitions)

    def resume(self, partitions: Sequence[int]) -> None:
        self._paused.difference_update(partitions)
        self.consumer.resume([self._at(partition) for partition in partitions])

    def take(self, max_messages: int, wait_s: float) -> Fetched:
        """Return what came first, messages or news of an end, waiting up to `wait_s` for it.

        With `max_messages` 0 every partition is paused: callbacks of the group are served and no message is taken.
        """
        self._pause_all(max_messages == 0)
        self._check()
        fetched = Fetched()
        first = self.consumer.poll(wait_s)
        batch = [] if first is None else [first]
        self._taken_bytes = 0
        while batch:
            if any(map(Event.error, batch)):  # an end or an error among them: one by one, for their order counts
                for event in batch:
                    if event.error() is not None:
                        self._hear(event)
                    else:
                        fetched.messages += self._messages([event])
            else:
                fetched.messages += self._messages(batch)
            room = max_messages - len(fetched.messages)
            batch = (
                self.consumer.consume(min(room, CHUNK), 0) if room > 0 and self._taken_bytes < MAX_POLL_BYTES else []
            )
        if len(fetched.messages) > max_messages:
            raise RuntimeError("the client delivered a message of a paused partition")
        if not fetched.messages:
            self._check()
        if first is None:
            self._link.check(lambda: self.consumer.list_topics(self._topic, timeout=ASK_WAIT_S))
        fetched.at_end = self._at_end()
        return fetched

    def _messages(self, events: Sequence[Any]) -> list[Message]:
        """What was fetched, column by column: no Python code runs for a single message."""
        partitions = list(map(Event.partition, events))
        values: list[bytes] = list(map(Event.value, events))
        if not all(values):
            values = [value or b"" for value in values]
        given = list(map(Event.headers, events))
        headers = [_headers(some) for some in given] if any(given) else repeat((), len(events))
        times_ms = map(itemgetter(1), map(Event.timestamp, events))
        for partition in self._eof.keys() & set(partitions):
            del self._eof[partition]
        self._taken_bytes += sum(map(len, values))
        columns = zip(
            partitions, map(Event.offset, events), times_ms, values, map(Event.key, events), headers, strict=True
        )
        return list(map(tuple.__new__, repeat(Message), columns))  # `Message._make` is Python code

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _at_end(self) -> dict[int, int]:
        """Partitions that nothing lies behind, not even something uncommitted."""
        watermark = self.consumer.get_watermark_offsets
        return {
            partition: offset
            for partition, offset in self._eof.items()
            if watermark(self._partitions[partition], cached=True)[1] == offset
        }

    def _at(self, partition: int, offset: int | None = None) -> Any:
        return (
            TopicPartition(self._topic, partition) if offset is None else TopicPartition(self._topic, partition, offset)
        )

    def _pause(self, partitions: Any) -> None:
        self.consumer.pause([self._at(partition) for partition in partitions])

    def _pause_all(self, pause: bool) -> None:
        """Kept over calls: librdkafka drops what it fetched ahead whenever a pause ends."""
        if pause != self._all_paused:
            self._all_paused = pause
            if pause:
                self._pause(self._partitions)
            else:
                self.consumer.resume([self._at(partition) for partition in self._partitions.keys() - self._paused])

    def _hear(self, event: Any) -> None:
        """Take an event that is no message."""
        error, partition = event.error(), event.partition()
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            if partition in self._partitions:
                self._eof[partition] = event.offset()
        elif code == KafkaError._AUTO_OFFSET_RESET:
            self._failed = self._lost(partition, event.offset())
        elif code in NO_TOPIC:
            self._failed = TopicError(
                f"topic {event.topic() or self._topic!r} or its partition {partition} does not exist on "
                f"{self._link.address}: make it with `headrace topics create`"
            )
        elif code not in (KafkaError._MAX_POLL_EXCEEDED, KafkaError._TRANSPORT) and not retriable(error):
            self._failed = self._link.failure(error, f"read topic {self._topic!r}")

    def _lost(self, partition: int, offset: int) -> RecordsLost:
        """The offset to be read next is not there and will not come."""
        first, end = self.consumer.get_watermark_offsets(self._at(partition), timeout=ASK_WAIT_S)
        name = f"{self._topic}[{partition}]"
        if offset < first:
            return RecordsLost(
                f"retention deleted up to {first - offset} messages of {name} before they were read "
                f"(offsets {offset} to {first - 1}): {self._cure}"
            )
        return RecordsLost(
            f"{name} ends at offset {end}, before the offset {offset} that is to be read next: this is not the topic "
            f"that was read before, or it lost what was not replicated; {self._cure}"
        )


def _headers(given: Sequence[tuple[str, bytes | None]] | None) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, value or b"") for name, value in given) if given else ()


class KafkaReader:
    """Reads given partitions, outside any group."""

    def __init__(self, link: Link, topic: str, offsets: Mapping[int, int]) -> None:
        # librdkafka wants a group's name; nothing is ever committed to it and nobody joins it.
        self._feed = Feed(link, "headrace.reader", topic, CURE_OF_READERS)
        self._feed.assign(offsets)
        self._known_ends: dict[int, int] = {}  # as the last poll told them: news of an end need not wait

    def poll(self, max_messages: int, wait_s: float) -> Fetched:
        deadline_s = time.monotonic() + wait_s
        while True:
            fetched = self._feed.take(max_messages, max(0.0, deadline_s - time.monotonic()))
            if fetched.messages or fetched.at_end != self._known_ends or time.monotonic() >= deadline_s:
                self._known_ends = fetched.at_end
                return fetched

    def pause(self, partitions: Sequence[int]) -> None:
        self._feed.pause(partitions)

    def resume(self, partitions: Sequence[int]) -> None:
        self._feed.resume(partitions)

    def seek(self, partition: int, offset: int) -> None:
        self._feed.seek(partition, offset)

    def close(self) -> None:
        self._feed.consumer.close()
