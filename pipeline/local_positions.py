"""Positions of consumer groups and names of writers in local topics: what fences those who come too late.

Functions over an open connection (see `local_store` for the tables). Each commit of a position raises its version, and
a commit that names the version it started from succeeds only from there: compare-and-swap, whatever the offsets are.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from headrace.pipeline.local_log import find_partitions, no_such_partition
from headrace.schemas.errors import Fenced, PositionLost
from headrace.schemas.position import Position


@dataclass(frozen=True, slots=True)
class WriterName:
    """A writer's name; `epoch` counts those who took it."""

    name: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A position with the number of commits it took; version 0 is a position that nobody has committed."""

    position: Position
    version: int


def take_name(connection: sqlite3.Connection, name: str) -> WriterName:
    """Fence whoever had the name before."""
    rows = connection.execute(
        "INSERT INTO writers VALUES (?, 1) ON CONFLICT DO UPDATE SET epoch = epoch + 1 RETURNING epoch", (name,)
    ).fetchall()
    return WriterName(name, rows[0][0])


def check_name(connection: sqlite3.Connection, writer: WriterName) -> None:
    """Raise Fenced when somebody else has taken the name."""
    (epoch,) = connection.execute("SELECT epoch FROM writers WHERE name = ?", (writer.name,)).fetchone()
    if epoch != writer.epoch:
        raise Fenced(
            f"another writer was opened under the name {writer.name!r}, so this one may not commit any more: "
            "stop one of the two, or give them different names"
        )


def read(connection: sqlite3.Connection, group: str, topic: str) -> dict[int, Committed]:
    rows = connection.execute(
        "SELECT partition, offset, metadata, version FROM topics JOIN partitions USING (topic) "
        "JOIN positions USING (slot) WHERE name = ? AND consumer_group = ? ORDER BY partition",
        (topic, group),
    ).fetchall()
    return {number: Committed(Position.parse(offset, metadata), version) for number, offset, metadata, version in rows}


def put(
    connection: sqlite3.Connection,
    group: str,
    topic: str,
    positions: Mapping[int, Position],
    versions: Mapping[int, int],
) -> dict[int, int]:
    """Write `positions` and return their new versions.

    Raises Fenced when one of them is not of the version given in `versions`; those not named there are not compared.
    """
    if not positions:
        return {}
    partitions = find_partitions(connection, topic)
    written = {}
    for number, position in positions.items():
        if number not in partitions:
            raise no_such_partition(topic, number, len(partitions))
        (version,) = connection.execute(
            "INSERT INTO positions VALUES (?, ?, ?, ?, 1) ON CONFLICT DO UPDATE SET "
            "offset = excluded.offset, metadata = excluded.metadata, version = version + 1 RETURNING version",
            (group, partitions[number].slot, position.offset, position.metadata()),
        ).fetchall()[0]
        if number in versions and version != versions[number] + 1:
            raise Fenced(
                f"the position of group {group!r} in {topic}[{number}] was moved by another member since this one read "
                "it: drop the buffers and poll again"
            )
        written[number] = version
    return written


def starts(connection: sqlite3.Connection, group: str, topic: str, held: Collection[int]) -> dict[int, Committed]:
    """Where a member goes on in the partitions it holds.

    A partition without a position is read from 0 when it is new: the group has positions in others, and the first
    message is still there. Otherwise records would be lost or repeated: PositionLost.
    """
    committed = read(connection, group, topic)
    partitions = find_partitions(connection, topic)
    missing = [number for number in sorted(held) if number not in committed]
    for number in missing:
        if not committed or partitions[number].first > 0:
            raise PositionLost(
                f"group {group!r} has no position in {topic}[{number}]: "
                + ("retention deleted the first messages of this partition" if committed else "it was never started")
                + "; start again with another `name`, where `ingest.start` says from where"
            )
    return {number: committed.get(number, Committed(Position(0), 0)) for number in sorted(held)}
