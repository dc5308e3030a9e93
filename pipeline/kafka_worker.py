"""A member of a consumer group that commits outputs and positions in one transaction.

What makes it exactly once (KIP-447; each proved by tests/integration/test_broker_facts.py):

- The group's generation is taken in the callback that assigns the partitions, and every commit names it. Who has lost
  the partitions since is refused. It must not be asked for at the commit: a client that was thrown out of its group
  would then name no generation at all, and the broker accepts that.
- Committed positions are read as "stable": while a predecessor, frozen inside its commit, can still move them, the next
  owner waits. The wait is bounded by the predecessor's `transaction.timeout.ms` plus the broker's 10 s.
- Revoking aborts, before the revocation is confirmed.

Between an assignment (or an abort) and the moment when the committed positions are known the client is assigned
nothing, so that no message can come from anywhere else. Fetching pauses in `idle`; the group is served all the same.

A stable name lets a restarted worker abort its predecessor at once. A worker whose producer was fenced goes on under
another transactional id, so that two of one name do not fence each other for ever.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaException, TopicPartition

from headrace.pipeline.kafka_client import ASK_WAIT_S, Link
from headrace.pipeline.kafka_reader import Feed
from headrace.pipeline.kafka_writer import Describe, KafkaWriter
from headrace.pipeline.topics import CURE_OF_WORKERS, Fetched
from headrace.schemas.errors import BrokerAway, Fenced, HeadraceError, PositionLost, TryAgain
from headrace.schemas.position import Position

SLICE_S: Final = 0.5  # the longest that the group is not served while positions are waited for

Positions = Callable[[str, str], Mapping[int, Position]]


class KafkaWorker(KafkaWriter):
    """A writer that is also one member of `group` on `topic`. It joins with its first poll."""

    def __init__(self, link: Link, name: str, group: str, topic: str, describe: Describe, positions: Positions) -> None:
        super().__init__(link, name, describe)
        self._name = name
        self._group = group
        self._topic = topic
        self._positions = positions
        self._generation: object = None  # of the group, as of the assignment
        self._given: frozenset[int] = frozenset()  # partitions that the group gave us
        self._rewind = False  # they have yet to be started from their committed positions
        self._moved = False  # the group called back: what was taken meanwhile belongs to the old assignment
        self._feed = Feed(link.another(), group, topic, CURE_OF_WORKERS)
        self._known_ends: dict[int, int] = {}
        self._feed.consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def poll(self, max_messages: int, wait_s: float) -> Fetched:
        deadline_s = time.monotonic() + wait_s
        while True:
            starts = self._start(deadline_s) if self._rewind else {}
            left_s = max(0.0, deadline_s - time.monotonic())
            fetched = self._feed.take(max_messages, 0.0 if starts else min(left_s, SLICE_S))
            moved, self._moved = self._moved, False
            if moved:
                starts, fetched = {}, Fetched()
            fetched.starts = starts
            news = fetched.messages or starts or fetched.at_end != self._known_ends
            if news or (moved and not self._given) or time.monotonic() >= deadline_s:
                self._known_ends = fetched.at_end
                return fetched

    def idle(self, wait_s: float) -> Fetched:
        return self.poll(0, wait_s)

    def assigned(self) -> frozenset[int]:
        """Empty from a rebalance or abort on until `starts` is given: what was read before counts no more."""
        return self._feed.partitions

    def commit(self, group: str, topic: str, positions: Mapping[int, Position]) -> None:
        if (group, topic) != (self._group, self._topic):
            super().commit(group, topic, positions)
            return
        lost = sorted(positions.keys() - self._feed.partitions)
        if lost:
            self.abort()
            raise Fenced(f"this member does not read {topic}[{lost[0]}] any more: drop the buffers and poll again")
        self._commit(topic, positions, lambda: self._generation)

    def abort(self) -> None:
        super().abort()
        self._start_again()

    def close(self) -> None:
        super().close()
        self._feed.consumer.close()

    def _on_assign(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        """Called inside a poll, with the new generation."""
        consumer.assign([])  # until the positions are known
        self._generation = consumer.consumer_group_metadata()
        self._given = frozenset(given.partition for given in partitions)
        self._rewind = bool(self._given)
        self._moved = True

    def _on_revoke(self, consumer: Any, _: list[TopicPartition]) -> None:
        """Called inside a poll or `close`, also when the partitions are lost already."""
        super().abort()
        consumer.unassign()
        self._feed.forget()
        self._generation = None
        self._given = frozenset()
        self._rewind = False
        self._moved = True

    def _start_again(self) -> None:
        self._rewind = bool(self._given)
        if self._feed.partitions:
            self._feed.assign({})

    def _failed(self, failure: KafkaException, doing: str) -> HeadraceError:
        raised = super()._failed(failure, doing)
        self._start_again()
        return raised

    def _fenced_for_good(self, raised: HeadraceError) -> None:
        """The group decides who may commit, not the name."""
        self._transactional_id = f"{self._name}.{uuid.uuid4().hex[:8]}"

    def _gave_up(self, what: str) -> BrokerAway:
        raised = super()._gave_up(what)
        self._start_again()
        return raised

    def _start(self, deadline_s: float) -> dict[int, Position]:
        """Go on from the committed positions; nothing yet while these cannot be told."""
        wanted = [TopicPartition(self._topic, partition) for partition in sorted(self._given)]
        wait_s = min(SLICE_S, max(0.05, deadline_s - time.monotonic()))
        try:
            committed = self._feed.consumer.committed(wanted, wait_s)
        except KafkaException as error:
            failure = self._link.failure(error.args[0], f"read the positions of group {self._group!r}")
            if isinstance(failure, TryAgain):
                return {}
            raise failure from error
        if any(found.error is not None for found in committed):
            return {}
        starts = {
            found.partition: Position.parse(found.offset, found.metadata) for found in committed if found.offset >= 0
        }
        for partition in self._given - starts.keys():
            starts[partition] = self._first_position(partition)
        self._feed.assign({partition: position.offset for partition, position in starts.items()})
        self._rewind = False
        return dict(sorted(starts.items()))

    def _first_position(self, partition: int) -> Position:
        """Position of a partition that has none: 0 when it was added to the topic since, and still is whole."""
        others = self._positions(self._group, self._topic)
        try:
            first, _ = self._feed.consumer.get_watermark_offsets(TopicPartition(self._topic, partition), ASK_WAIT_S)
        except KafkaException as error:
            raise self._link.failure(error.args[0], f"read the ends of topic {self._topic!r}") from error
        if others and partition > max(others) and first == 0:
            return Position(0)
        raise PositionLost(
            f"group {self._group!r} has no position in {self._topic}[{partition}]: "
            + ("it has lost it, or retention deleted the first messages" if others else "it was never started")
            + f"; {CURE_OF_WORKERS}"
        )
