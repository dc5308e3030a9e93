"""Writing Kafka topics in transactions.

The commit is two numbered calls, numbered as in the ingest protocol:

    5. put the positions into the transaction (the row inside a message rides in the offset's metadata)
    6. commit

A call that times out may have taken effect. Nobody needs to know: the producer is thrown away, and the next one under
the same transactional id first learns from the broker how that transaction ended. A producer that the broker has
fenced, be it by a newer one of the same id or because its transaction timed out, is dead (librdkafka calls both fatal).

No delivery callbacks: a message that was not delivered fails the commit, and a callback that runs beside a fatal error
crashes inside confluent-kafka.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from headrace.pipeline.kafka_client import CONSUMER_FIXED, PRODUCER_DEFAULTS, Link, retriable
from headrace.pipeline.topics import Headers, Topic
from headrace.schemas.errors import BrokerAway, Fenced, HeadraceError, TooLarge, TopicError
from headrace.schemas.position import Position

# For one call, which is repeated when it needs longer. Short, because a call that races with the registration of a
# partition sometimes sleeps out its time although all is done, and its repetition returns at once.
CALL_WAIT_S: Final = 1.0
POSITIONS_WAIT_S: Final = 10.0  # for step 5, which cannot be repeated
COMMIT_WAIT_S: Final = 40.0  # for a whole step, longer than the broker keeps a transaction of ours
BATCH_BYTES: Final = 131_072  # of small messages that travel together; one token batch is larger and travels alone
OVERHEAD_BYTES: Final = 120  # of a message and its batch on the wire, headers aside

Describe = Callable[[str], Topic | None]


class KafkaWriter:
    """One transactional producer. Opening it fences and aborts what an earlier one of its name had open."""

    def __init__(self, link: Link, name: str, describe: Describe) -> None:
        self._link = link
        self._transactional_id = name
        self._describe = describe
        self._topics: dict[str, Topic] = {}
        self._unflushed_bytes = 0  # in topics whose limit is below the size of a batch
        self._open = False
        self._fenced: Fenced | None = None
        self._producer: Any = self._connect()

    def begin(self) -> None:
        if self._open:
            raise RuntimeError("a transaction is open already: commit or abort it first")
        if self._fenced is not None:
            raise self._fenced
        if self._producer is None:
            self._producer = self._connect()
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise self._failed(error, "begin a transaction") from error
        self._open = True
        self._unflushed_bytes = 0

    def append(
        self, topic: str, value: bytes, *, partition: int | None = None, key: bytes | None = None, headers: Headers = ()
    ) -> None:
        self._check_open()
        found = self._topics.get(topic) or self._look_up(topic)
        if partition is not None and not 0 <= partition < found.partitions:
            found = self._look_up(topic)  # it may have gained partitions
            if not 0 <= partition < found.partitions:
                raise TopicError(f"topic {topic!r} has no partition {partition}: it has {found.partitions}")
        size = len(value) + len(key or b"") + sum(len(name) + len(text) + 10 for name, text in headers)
        if size + OVERHEAD_BYTES > found.max_message_bytes:
            raise TooLarge(
                f"a message of {size} bytes is larger than topic {topic!r} takes ({found.max_message_bytes}, of which "
                f"{OVERHEAD_BYTES} are for its envelope): make it smaller, or raise the topic's max.message.bytes"
            )
        try:
            self._make_room(found, size)
            self._produce(topic, value, partition=-1 if partition is None else partition, key=key, headers=[*headers])
        except KafkaException as error:
            raise self._failed(error, f"append to topic {topic!r}") from error

    def commit(self, group: str, topic: str, positions: Mapping[int, Position]) -> None:
        self._commit(topic, positions, lambda: self._anonymous(group))

    def abort(self) -> None:
        if self._open:
            self._open = False
            self._roll_back()

    def close(self) -> None:
        self.abort()
        self._producer = None

    def _commit(self, topic: str, positions: Mapping[int, Position], member: Callable[[], object]) -> None:
        """Commit in the order of the module's docstring, as the member of a group that `member` describes."""
        self._check_open()
        try:
            if positions:  # 5. put the positions into the transaction
                offsets = [
                    TopicPartition(topic, partition, position.offset, position.metadata())
                    for partition, position in positions.items()
                ]
                metadata = member()
                producer = self._producer
                _repeat(
                    lambda: _within(lambda: producer.send_offsets_to_transaction(offsets, metadata, POSITIONS_WAIT_S))
                )
            _repeat(lambda: self._producer.commit_transaction(CALL_WAIT_S))  # 6. commit
        except KafkaException as error:
            raise self._failed(error, "commit a transaction") from error
        except TimeoutError:
            raise self._gave_up(f"the positions in topic {topic!r} were not taken") from None
        self._open = False

    def _connect(self) -> Any:
        """Make a producer. Its transactional id is taken over, and what was open under it is finished or aborted."""
        fixed = {"transactional.id": self._transactional_id, "batch.size": BATCH_BYTES}
        producer: Any = self._link.client(Producer, PRODUCER_DEFAULTS, fixed)
        try:
            _repeat(lambda: producer.init_transactions(CALL_WAIT_S))
        except KafkaException as error:
            raise self._link.failure(error.args[0], f"open the writer {self._transactional_id!r}") from error
        return producer

    def _failed(self, failure: KafkaException, doing: str) -> HeadraceError:
        """End the transaction that failed, as far as that is possible; the error to raise."""
        error = failure.args[0]
        self._open = False
        if error.txn_requires_abort():
            self._roll_back()
        else:
            self._drop_producer()
        raised = self._link.failure(error, doing)
        if error.fatal():
            self._fenced_for_good(raised)
        return raised

    def _gave_up(self, what: str) -> BrokerAway:
        """End a transaction whose producer does not get on."""
        self._open = False
        self._drop_producer()
        return BrokerAway(f"{self._link.address}: {what} in time: is the broker up and reachable?")

    def _fenced_for_good(self, raised: HeadraceError) -> None:
        """Somebody else may have the name now. Taking it back would fence them in turn, and so on for ever."""
        self._fenced = Fenced(f"{raised} (open a new writer to go on)")

    def _roll_back(self) -> None:
        """Abort. Where the broker does not answer, the next producer of this id, or the time-out, aborts for us."""
        try:
            _repeat(lambda: self._producer.abort_transaction(CALL_WAIT_S))
        except KafkaException:
            self._drop_producer()

    def _drop_producer(self) -> None:
        self._producer = None

    def _check_open(self) -> None:
        if not self._open:
            raise RuntimeError("no transaction is open: begin one first")

    def _look_up(self, topic: str) -> Topic:
        found = self._describe(topic)
        if found is None:
            raise TopicError(
                f"there is no topic {topic!r} on {self._link.address}: make it with `headrace topics create`"
            )
        self._topics[topic] = found
        return found

    def _make_room(self, topic: Topic, size: int) -> None:
        """Keep batches below a limit that is smaller than a batch: the broker refuses the batch, not the message."""
        if topic.max_message_bytes > BATCH_BYTES + OVERHEAD_BYTES:
            return
        if self._unflushed_bytes + size + OVERHEAD_BYTES > topic.max_message_bytes:
            self._producer.flush(COMMIT_WAIT_S)
            self._unflushed_bytes = 0
        self._unflushed_bytes += size + OVERHEAD_BYTES

    def _produce(self, topic: str, value: bytes, **where: Any) -> None:
        """Hand one message over, waiting while the client's buffer is full."""
        deadline_s = time.monotonic() + COMMIT_WAIT_S
        while True:
            try:
                self._producer.produce(topic, value, **where)
            except BufferError:
                if time.monotonic() > deadline_s:
                    raise self._gave_up(f"nothing was taken while messages for topic {topic!r} were waiting") from None
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return

    def _anonymous(self, group: str) -> object:
        """Metadata of no member: it moves a group's positions whatever members it has (see test_broker_facts)."""
        consumer: Any = self._link.another().client(Consumer, {}, {**CONSUMER_FIXED, "group.id": group})
        try:
            return consumer.consumer_group_metadata()
        finally:
            consumer.close()


def _within(call: Callable[[], object]) -> None:
    """Make a call that should time out by itself and does not always: `send_offsets_to_transaction` (librdkafka#5456).

    Raises TimeoutError. The thread then stays behind, asleep, and with it the producer, which must not be used again.
    """
    outcome: list[KafkaException | None] = []

    def run() -> None:
        try:
            call()
        except KafkaException as error:
            outcome.append(error)
        else:
            outcome.append(None)

    thread = threading.Thread(target=run, name="headrace-positions", daemon=True)
    thread.start()
    thread.join(POSITIONS_WAIT_S + 1.0)
    if not outcome:
        raise TimeoutError
    if outcome[0] is not None:
        raise outcome[0]


def _repeat(call: Callable[[], object]) -> None:
    """Make a call of the transactional API again for as long as it says that it can go on."""
    deadline_s = time.monotonic() + COMMIT_WAIT_S
    while True:
        try:
            call()
        except KafkaException as error:
            if not retriable(error.args[0]) or time.monotonic() > deadline_s:
                raise
        else:
            return
