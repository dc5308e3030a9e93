"""Topics: the one protocol behind which Kafka and the local store stand.

What a stage needs of a broker, and no more:

- `Broker`  looks at topics and positions, and opens the three below.
- `Reader`  reads given partitions from given offsets (trainer, tools). It belongs to no consumer group.
- `Writer`  appends in transactions, and can commit positions in the same transaction (publish).
- `Worker`  is a `Writer` that is also one member of a consumer group (ingest): it is given partitions, reads them
            from their committed positions, and commits outputs and positions together.

Rules that both implementations keep, and `tests/contract` checks:

1. Readers and workers see committed messages only, in offset order.
2. Offsets grow, but need not be dense: never subtract them. "At the end" is what `Fetched.at_end` says.
3. A commit is all or nothing: every append and every position, or none.
4. A worker that lost its partitions cannot commit: `Fenced`.
5. After `abort`, `Fenced` or a rebalance, the next `poll` starts again from the committed positions and says so in
   `Fetched.starts`; the caller has dropped its buffers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from headrace.schemas.errors import TopicError
from headrace.schemas.position import Position

#: What to do when retention has deleted what was to be read next, by who reads.
CURE_OF_READERS: Final = "start again with `train.start: latest` or with a new `run`"
CURE_OF_WORKERS: Final = "start again with another `name`, where `ingest.start` says from where"

Headers = Sequence[tuple[str, bytes]]


class Message(NamedTuple):
    """One message as fetched. `timestamp_ms` is the broker's. A tuple, because they are made by the million."""

    partition: int
    offset: int
    timestamp_ms: int
    value: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()

    def header(self, name: str) -> bytes | None:
        """The last header of that name."""
        return next((value for key, value in reversed(self.headers) if key == name), None)


@dataclass(slots=True)
class Fetched:
    """What one `poll` brought.

    `messages` are in offset order inside each partition. `at_end` names partitions whose reader has passed everything
    committed (transaction markers included) and the offset it stands at. `starts` (workers only) gives the position
    of each partition that was newly assigned or rewound before these messages: buffers of it must be dropped.
    """

    messages: list[Message] = field(default_factory=list)
    at_end: dict[int, int] = field(default_factory=dict)
    starts: dict[int, Position] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the broker describes it. `id` changes when a topic is deleted and made again."""

    name: str
    id: str
    partitions: int
    max_message_bytes: int
    retention_ms: int | None = None  # None: for ever


def with_partitions(topic: Topic, partitions: int) -> Topic:
    """The topic, if it has so many partitions. Raises TopicError otherwise: what exists is never reshaped."""
    if topic.partitions != partitions:
        raise TopicError(
            f"topic {topic.name!r} has {topic.partitions} partitions, not {partitions}: "
            "configure what it has, or use another topic"
        )
    return topic


@dataclass(frozen=True, slots=True)
class Ends:
    """Offsets of a partition: the first message that retention has left, and the end of what was appended.

    Nothing whose commit was confirmed before the look lies at or behind `end`. What is open, or aborted, may lie before
    it: `end` says where to stop reading, not that there is anything to read.
    """

    first: int
    end: int


class Reader(Protocol):
    def poll(self, max_messages: int, wait_s: float) -> Fetched:
        """Return up to `max_messages`, waiting up to `wait_s` for the first; `at_end` is repeated on every poll.

        Raises RecordsLost when retention has deleted the offset to be read next.
        """

    def pause(self, partitions: Sequence[int]) -> None:
        """Fetch no more of these partitions until `resume`; what was fetched and not polled is kept or refetched."""

    def resume(self, partitions: Sequence[int]) -> None: ...

    def seek(self, partition: int, offset: int) -> None:
        """Read `partition` from `offset` next."""

    def close(self) -> None: ...


class Writer(Protocol):
    def begin(self) -> None:
        """Open a transaction. It holds readers of what it wrote back until it is committed or aborted."""

    def append(
        self, topic: str, value: bytes, *, partition: int | None = None, key: bytes | None = None, headers: Headers = ()
    ) -> None:
        """Append one message; without `partition` the key (or chance) chooses one.

        Raises TooLarge when the topic does not take a message of this size. May block while buffers are full.
        """

    def commit(self, group: str, topic: str, positions: Mapping[int, Position]) -> None:
        """Commit the transaction together with `group`'s positions in `topic` (may be empty).

        Returns when the broker has confirmed all of it. Raises Fenced (aborted, nothing was written) or BrokerAway.
        """

    def abort(self) -> None:
        """Drop the open transaction, if one is open."""

    def close(self) -> None: ...


class Worker(Writer, Protocol):
    def poll(self, max_messages: int, wait_s: float) -> Fetched:
        """As `Reader.poll`, for the partitions that the group gave this member.

        A rebalance in here aborts an open transaction, and `starts` says what is read next (empty when nothing was
        assigned). Raises PositionLost when an assigned partition has no position and is not new.
        """

    def idle(self, wait_s: float) -> Fetched:
        """Stay in the group for `wait_s` without taking messages; `starts` as in `poll`."""

    def assigned(self) -> frozenset[int]:
        """Partitions that this member reads now."""


class Broker(Protocol):
    address: str

    def describe(self, topic: str) -> Topic | None:
        """None when there is no such topic. Raises BrokerAway naming the address."""

    def create(
        self, topic: str, partitions: int, *, retention_ms: int | None = None, max_message_bytes: int | None = None
    ) -> Topic:
        """Make a topic (`cleanup.policy=delete`); one that exists with the same partitions is returned as it is.

        Raises TopicError when it exists with another number of partitions.
        """

    def ends(self, topic: str) -> dict[int, Ends]: ...

    def offsets_at(self, topic: str, time_ms: int) -> dict[int, int]:
        """Per partition the first offset published at or after `time_ms`; the end where there is none."""

    def positions(self, group: str, topic: str, *, settled: bool = True) -> dict[int, Position]:
        """Committed positions; partitions without one are left out.

        `settled` waits for commits that are under way: for whoever goes on from a position. Whoever only looks should
        not wait for them, nor for a frozen worker's: `settled=False` gives what was committed last.
        """

    def set_positions(self, group: str, topic: str, positions: Mapping[int, Position]) -> None:
        """Commit positions outside any transaction, for a group that has no members (start policy, progress)."""

    def reader(self, topic: str, offsets: Mapping[int, int]) -> Reader:
        """Open a reader of exactly these partitions, from these offsets."""

    def writer(self, name: str) -> Writer:
        """Open a writer. A second writer of the same `name` fences the first and aborts what it had open."""

    def worker(self, name: str, group: str, topic: str) -> Worker:
        """Join `group` on `topic`. `name` as for `writer`."""

    def close(self) -> None: ...
