"""Messages of local topics, as functions over an open connection (see `local_store` for the tables).

Offsets of a partition are dense from `first` to `next`, and timestamps never fall, so that a moment is found by
bisection and retention cuts at the front.
"""

from __future__ import annotations

import bisect
import functools
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from headrace.pipeline.local_store import OFFSET_BITS
from headrace.pipeline.topics import Message, Topic
from headrace.schemas.errors import TopicError

#: One message before it has an offset: value, key, encoded headers.
Appended = tuple[bytes, bytes | None, bytes | None]


@dataclass(frozen=True, slots=True)
class Partition:
    number: int
    slot: int
    first: int
    next: int


def find_topic(connection: sqlite3.Connection, name: str) -> Topic | None:
    row = connection.execute(
        "SELECT name, id, count(*), max_message_bytes, retention_ms FROM topics JOIN partitions USING (topic) "
        "WHERE name = ? GROUP BY topic",
        (name,),
    ).fetchone()
    return Topic(*row) if row else None


def add_topic(connection: sqlite3.Connection, topic: Topic) -> None:
    connection.execute(
        "INSERT INTO topics (name, id, max_message_bytes, retention_ms) VALUES (?, ?, ?, ?)",
        (topic.name, topic.id, topic.max_message_bytes, topic.retention_ms),
    )
    add_partitions(connection, topic.name, range(topic.partitions))


def add_partitions(connection: sqlite3.Connection, topic: str, partitions: range) -> None:
    connection.executemany(
        "INSERT INTO partitions (topic, partition) SELECT topic, ? FROM topics WHERE name = ?",
        [(partition, topic) for partition in partitions],
    )


def find_partitions(connection: sqlite3.Connection, topic: str) -> dict[int, Partition]:
    """By number. Raises TopicError when there is no such topic."""
    rows = connection.execute(
        "SELECT partition, slot, first, next FROM topics JOIN partitions USING (topic) WHERE name = ? "
        "ORDER BY partition",
        (topic,),
    ).fetchall()
    if not rows:
        raise no_such_topic(topic)
    return {row[0]: Partition(*row) for row in rows}


def no_such_topic(topic: str) -> TopicError:
    return TopicError(f"topic {topic!r} does not exist: make it with `headrace topics create`")


def no_such_partition(topic: str, number: int, partitions: int) -> TopicError:
    return TopicError(f"topic {topic!r} has no partition {number}: it has {partitions}, counted from 0")


def fetch(
    connection: sqlite3.Connection, partition: Partition, offset: int, max_messages: int, max_bytes: int
) -> list[Message]:
    """Messages from `offset` on, until one of the bounds is reached."""
    messages: list[Message] = []
    base = partition.slot << OFFSET_BITS
    rows = connection.execute(
        "SELECT id - ?, timestamp_ms, value, key, headers FROM messages WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
        (base, base + offset, base + partition.next, max_messages),
    )
    number = partition.number
    for at, timestamp_ms, value, key, headers in rows:
        messages.append(Message(number, at, timestamp_ms, value, key, decode_headers(headers) if headers else ()))
        max_bytes -= len(value)
        if max_bytes <= 0:
            break
    rows.close()
    return messages


def append(connection: sqlite3.Connection, slot: int, messages: Sequence[Appended], now_ms: int) -> None:
    """Number `messages` and insert them behind what the partition holds."""
    end, timestamp_ms = connection.execute(
        "UPDATE partitions SET next = next + ?2, last_ms = max(last_ms, ?3), "
        "first_ms = coalesce(first_ms, max(last_ms, ?3)) WHERE slot = ?1 RETURNING next, last_ms",
        (slot, len(messages), now_ms),
    ).fetchall()[0]
    first_id = (slot << OFFSET_BITS) + end - len(messages)
    connection.executemany(
        "INSERT INTO messages (id, timestamp_ms, value, key, headers) VALUES (?, ?, ?, ?, ?)",
        [
            (id_, timestamp_ms, value, key, headers)
            for id_, (value, key, headers) in enumerate(messages, start=first_id)
        ],
    )


def trim(connection: sqlite3.Connection, max_messages: int, now_ms: int) -> None:
    """Delete up to `max_messages` that retention has expired, in whatever topic, the oldest partition first."""
    expired = connection.execute(
        "SELECT slot, first, next, ?1 - retention_ms FROM partitions JOIN topics USING (topic) "
        "WHERE first_ms < ?1 - retention_ms ORDER BY first_ms",
        (now_ms,),
    ).fetchall()
    for slot, old_first, end, keep_ms in expired:
        if max_messages <= 0:
            break
        base = slot << OFFSET_BITS
        rows = connection.execute(
            "SELECT id - ?, timestamp_ms FROM messages WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
            (base, base + old_first, base + end, max_messages + 1),
        ).fetchall()
        beyond = rows[max_messages] if len(rows) > max_messages else (end, None)
        first, first_ms = next((row for row in rows[:max_messages] if row[1] >= keep_ms), beyond)
        connection.execute("DELETE FROM messages WHERE id >= ? AND id < ?", (base + old_first, base + first))
        connection.execute("UPDATE partitions SET first = ?, first_ms = ? WHERE slot = ?", (first, first_ms, slot))
        max_messages -= first - old_first


def first_at(connection: sqlite3.Connection, partition: Partition, time_ms: int) -> int:
    """The first offset published at or after `time_ms`, by bisection."""

    def timestamp_ms(offset: int) -> int:
        id_ = (partition.slot << OFFSET_BITS) + offset
        return int(connection.execute("SELECT timestamp_ms FROM messages WHERE id = ?", (id_,)).fetchone()[0])

    offsets = range(partition.first, partition.next)
    return partition.first + bisect.bisect_left(offsets, time_ms, key=timestamp_ms)


@functools.lru_cache(256)  # most messages of a topic carry the same headers
def encode_headers(headers: tuple[tuple[str, bytes], ...]) -> bytes:
    """As JSON, each byte of a value as the character of its number."""
    return orjson.dumps([(name, value.decode("latin-1")) for name, value in headers])


@functools.lru_cache(256)
def decode_headers(headers: bytes) -> tuple[tuple[str, bytes], ...]:
    return tuple((name, value.encode("latin-1")) for name, value in orjson.loads(headers))
