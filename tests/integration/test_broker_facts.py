"""What the design leans on, proved on a real broker, below any code of ours.

Each test states one fact about Kafka and librdkafka that exactly-once, "the lane is empty" or a bound on a stall is
built on. When a broker or client is upgraded and one of these fails, `pipeline/kafka*.py` must change before anything
else. Nothing is asserted about durations: only what happened, and in which order.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

WAIT_S = 30.0  # bound on everything that is waited for; never reached when all is well
SESSION_MS = 1_500  # of group members here: a frozen one is voted out after this


@pytest.fixture
def admin(kafka: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka, "log_level": 0})


@pytest.fixture
def topic(admin: AdminClient) -> str:
    return make_topic(admin)


def make_topic(admin: AdminClient, partitions: int = 1) -> str:
    name = unique("topic")
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(WAIT_S)
    return name


def unique(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:10]}"


def producer(address: str, transactional_id: str | None = None, timeout_ms: int = 60_000) -> Producer:
    """A transactional producer, by default under an id that nobody will ever use again."""
    made = Producer({
        "bootstrap.servers": address,
        "transactional.id": transactional_id or unique("random"),
        "transaction.timeout.ms": timeout_ms,
        "log_level": 0,
    })  # fmt: skip
    made.init_transactions(WAIT_S)
    return made


def consumer(address: str, group: str | None = None) -> Consumer:
    return Consumer({
        "bootstrap.servers": address,
        "group.id": group or unique("group"),
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": SESSION_MS // 5,
        "log_level": 0,
    })  # fmt: skip


def reader(address: str, topic: str, offset: int = 0) -> Consumer:
    made = consumer(address)
    made.assign([TopicPartition(topic, 0, offset)])
    return made


def until(condition: Callable[[], Any], what: str) -> Any:
    """Call `condition` (which waits a little itself) until it is true."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        if found := condition():
            return found
    raise AssertionError(f"{what}: not within {WAIT_S} s")


def read_to_eof(source: Consumer) -> tuple[list[bytes], int]:
    """Messages up to the next PARTITION_EOF, and the offset that the event carries."""
    values: list[bytes] = []

    def at_eof() -> tuple[int] | None:
        message = source.poll(0.2)
        if message is None:
            return None
        error = message.error()
        if error is None:
            values.append(message.value())
            return None
        assert error.code() == KafkaError._PARTITION_EOF, error
        return (message.offset(),)

    (offset,) = until(at_eof, "end of the partition")
    return values, offset


def join(member: Consumer, topic: str) -> list[int]:
    """Subscribe and poll until partitions came; those partitions."""
    assigned: list[TopicPartition] = []
    member.subscribe([topic], on_assign=lambda _, partitions: assigned.extend(partitions))

    def joined() -> list[TopicPartition]:
        member.poll(0.1)
        return assigned

    until(joined, "assignment")
    return sorted(partition.partition for partition in assigned)


def committed(source: Consumer, topic: str) -> TopicPartition:
    return source.committed([TopicPartition(topic, 0)], WAIT_S)[0]


def commit_offset(
    writer: Producer, topic: str, offset: int, metadata: str, group_metadata: object, out: str | None = None
) -> None:
    """One whole transaction that moves the group and, if asked, writes one message."""
    writer.begin_transaction()
    if out:
        writer.produce(out, b"output")
    writer.send_offsets_to_transaction([TopicPartition(topic, 0, offset, metadata)], group_metadata, WAIT_S)
    writer.commit_transaction(WAIT_S)


# ---- (a) the position rides in the offset's metadata ----


# `offset.metadata.max.bytes` is 4096, and confluent-kafka sends the C string's final NUL along.
MAX_METADATA_CHARS = 4_095


@pytest.mark.parametrize("size_chars", [1, 3_000, MAX_METADATA_CHARS])
def test_offset_metadata_survives_a_transaction(kafka: str, topic: str, size_chars: int) -> None:
    member = consumer(kafka)
    join(member, topic)
    metadata = "m" * size_chars
    commit_offset(producer(kafka), topic, 7, metadata, member.consumer_group_metadata())
    found = committed(member, topic)
    assert (found.offset, found.metadata) == (7, metadata)


def test_longer_metadata_is_refused_and_the_transaction_can_only_abort(kafka: str, topic: str) -> None:
    member = consumer(kafka)
    join(member, topic)
    writer = producer(kafka)
    with pytest.raises(KafkaException) as refused:
        commit_offset(writer, topic, 7, "m" * (MAX_METADATA_CHARS + 1), member.consumer_group_metadata())
    error = refused.value.args[0]
    assert error.code() == KafkaError.OFFSET_METADATA_TOO_LARGE
    assert error.txn_requires_abort()
    writer.abort_transaction(WAIT_S)
    assert committed(member, topic).offset < 0


def test_an_aborted_transaction_leaves_offset_and_metadata_as_they_were(kafka: str, topic: str) -> None:
    member = consumer(kafka)
    join(member, topic)
    writer = producer(kafka)
    commit_offset(writer, topic, 7, "before", member.consumer_group_metadata())
    writer.begin_transaction()
    offsets = [TopicPartition(topic, 0, 9, "after")]
    writer.send_offsets_to_transaction(offsets, member.consumer_group_metadata(), WAIT_S)
    writer.abort_transaction(WAIT_S)
    found = committed(member, topic)
    assert (found.offset, found.metadata) == (7, "before")


# ---- (b) where a partition ends ----


def test_eof_comes_at_the_last_stable_offset_while_a_transaction_is_open(kafka: str, topic: str) -> None:
    writer = producer(kafka)
    writer.begin_transaction()
    writer.produce(topic, b"committed")
    writer.commit_transaction(WAIT_S)  # offsets 0 and 1: the message and its marker
    writer.begin_transaction()
    writer.produce(topic, b"open")
    writer.flush(WAIT_S)
    plain = Producer({"bootstrap.servers": kafka})
    plain.produce(topic, b"behind")
    plain.flush(WAIT_S)
    source = reader(kafka, topic)
    assert read_to_eof(source) == ([b"committed"], 2)
    partition = TopicPartition(topic, 0)
    # The cached watermark is the high one, the queried one the last stable offset: "empty" is EOF at the cached one.
    assert source.get_watermark_offsets(partition, cached=True) == (0, 4)
    assert source.get_watermark_offsets(partition, timeout=WAIT_S) == (0, 2)
    writer.commit_transaction(WAIT_S)
    assert read_to_eof(source) == ([b"open", b"behind"], 5)
    assert source.get_watermark_offsets(partition, cached=True) == (0, 5)


def test_eof_after_an_abort_has_passed_the_aborted_messages_and_the_marker(kafka: str, topic: str) -> None:
    writer = producer(kafka)
    source = reader(kafka, topic)
    assert read_to_eof(source) == ([], 0)
    writer.begin_transaction()
    writer.produce(topic, b"aborted")
    writer.flush(WAIT_S)
    writer.abort_transaction(WAIT_S)
    assert read_to_eof(source) == ([], 2)
    assert source.get_watermark_offsets(TopicPartition(topic, 0), cached=True) == (0, 2)


def test_the_position_does_not_tell_the_end_where_no_message_was_delivered(kafka: str, topic: str) -> None:
    writer = producer(kafka)
    writer.begin_transaction()
    writer.produce(topic, b"message")
    writer.commit_transaction(WAIT_S)
    source = reader(kafka, topic)
    assert read_to_eof(source) == ([b"message"], 2)
    assert source.position([TopicPartition(topic, 0)])[0].offset == 2
    at_the_end = reader(kafka, topic, 2)
    assert read_to_eof(at_the_end) == ([], 2)
    assert at_the_end.position([TopicPartition(topic, 0)])[0].offset < 0  # only the event knows


def test_an_open_transaction_behind_a_known_eof_moves_only_the_cached_watermark(kafka: str, topic: str) -> None:
    source = reader(kafka, topic)
    assert read_to_eof(source) == ([], 0)
    writer = producer(kafka)
    writer.begin_transaction()
    writer.produce(topic, b"open")
    writer.flush(WAIT_S)

    def watermark_moved() -> bool:
        assert source.poll(0.1) is None  # no second event: EOF is told once per offset
        return bool(source.get_watermark_offsets(TopicPartition(topic, 0), cached=True) == (0, 1))

    until(watermark_moved, "the high watermark")
    writer.abort_transaction(WAIT_S)
    assert read_to_eof(source) == ([], 2)


def test_reading_from_a_marker_goes_on_with_the_next_message(kafka: str, topic: str) -> None:
    writer = producer(kafka)
    for value in (b"first", b"second"):
        writer.begin_transaction()
        writer.produce(topic, value)
        writer.commit_transaction(WAIT_S)
    assert read_to_eof(reader(kafka, topic, 1)) == ([b"second"], 4)


def test_an_offset_that_retention_deleted_is_an_error_and_no_jump(kafka: str, topic: str, admin: AdminClient) -> None:
    plain = Producer({"bootstrap.servers": kafka})
    for _ in range(3):
        plain.produce(topic, b"message")
    plain.flush(WAIT_S)
    partition = TopicPartition(topic, 0, 2)
    admin.delete_records([partition])[partition].result(WAIT_S)
    source = reader(kafka, topic, 1)
    message = until(lambda: source.poll(0.2), "an event")
    assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
    assert (message.topic(), message.partition()) == (topic, 0)


def test_list_offsets_tells_first_stable_and_high_offsets(kafka: str, topic: str, admin: AdminClient) -> None:
    writer = producer(kafka)
    writer.begin_transaction()
    writer.produce(topic, b"open")
    writer.flush(WAIT_S)
    partition = TopicPartition(topic, 0)

    def offset(spec: OffsetSpec, isolation: IsolationLevel) -> int:
        return int(admin.list_offsets({partition: spec}, isolation_level=isolation)[partition].result(WAIT_S).offset)

    assert offset(OffsetSpec.earliest(), IsolationLevel.READ_COMMITTED) == 0
    assert offset(OffsetSpec.latest(), IsolationLevel.READ_COMMITTED) == 0
    assert offset(OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED) == 1
    writer.abort_transaction(WAIT_S)
    # Commit and abort return when the decision is safe; the markers follow, and with them the last stable offset.
    until(lambda: offset(OffsetSpec.latest(), IsolationLevel.READ_COMMITTED) == 2, "the marker")


# ---- (c) fencing by group generation ----


def _frozen_worker(address: str, topic: str, group: str, out: str, commands: Connection) -> None:
    """A child process: a group member inside a transaction, told over a pipe what to do next."""
    member = consumer(address, group)
    join(member, topic)
    writer = producer(address)
    generation = member.consumer_group_metadata()
    writer.begin_transaction()
    writer.produce(out, b"zombie")
    writer.flush(WAIT_S)
    steps: dict[str, Callable[[], object]] = {
        "send": lambda: writer.send_offsets_to_transaction([TopicPartition(topic, 0, 3, "zombie")], generation, WAIT_S),
        "commit": lambda: writer.commit_transaction(WAIT_S),
        "abort": lambda: writer.abort_transaction(WAIT_S),
    }
    commands.send("open")
    while (command := commands.recv()) != "end":
        try:
            steps[command]()
            commands.send("done")
        except KafkaException as refused:
            commands.send(refused.args[0].name())


@contextmanager
def frozen_worker(address: str, topic: str, group: str, out: str) -> Iterator[tuple[BaseProcess, Connection]]:
    """The child of `_frozen_worker`, with its transaction open and not frozen yet."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    child = spawn.Process(target=_frozen_worker, args=(address, topic, group, out, theirs), daemon=True)
    child.start()
    try:
        assert ask(ours) == "open"
        yield child, ours
    finally:
        child.kill()
        child.join()


def ask(commands: Connection, command: str | None = None) -> str:
    if command:
        commands.send(command)
    assert commands.poll(WAIT_S), f"no answer to {command}"
    answer: str = commands.recv()
    return answer


def signal_child(child: BaseProcess, what: signal.Signals) -> None:
    assert child.pid is not None
    os.kill(child.pid, what)


def test_a_worker_that_was_frozen_and_lost_its_partition_cannot_commit(
    kafka: str, topic: str, admin: AdminClient
) -> None:
    group, out = unique("group"), make_topic(admin)
    with frozen_worker(kafka, topic, group, out) as (child, commands):
        signal_child(child, signal.SIGSTOP)
        heir = consumer(kafka, group)
        assert join(heir, topic) == [0]  # the session of the frozen one has run out
        commit_offset(producer(kafka), topic, 1, "heir", heir.consumer_group_metadata(), out)
        signal_child(child, signal.SIGCONT)
        assert ask(commands, "send") in ("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION")
        assert ask(commands, "abort") == "done"
    found = committed(heir, topic)
    assert (found.offset, found.metadata) == (1, "heir")
    assert read_to_eof(reader(kafka, out))[0] == [b"output"]


def test_offsets_that_are_inside_an_open_transaction_hold_the_next_owner_back(
    kafka: str, topic: str, admin: AdminClient
) -> None:
    """Frozen between steps 5 and 6 the old worker may still commit: nobody may start from the old position before."""
    group, out = unique("group"), make_topic(admin)
    with frozen_worker(kafka, topic, group, out) as (child, commands):
        assert ask(commands, "send") == "done"
        signal_child(child, signal.SIGSTOP)
        heir = consumer(kafka, group)
        assert join(heir, topic) == [0]
        with pytest.raises(KafkaException) as held:
            heir.committed([TopicPartition(topic, 0)], 1.0)
        assert held.value.args[0].code() == KafkaError._TIMED_OUT
        signal_child(child, signal.SIGCONT)
        assert ask(commands, "commit") == "done"
        found = committed(heir, topic)
        assert (found.offset, found.metadata) == (3, "zombie")
        assert read_to_eof(reader(kafka, out))[0] == [b"zombie"]


def test_without_a_generation_nothing_is_fenced(kafka: str, topic: str) -> None:
    """The trap: metadata of a consumer that is no member moves the offsets of a group that has members.

    So a worker must commit with the metadata that it took when it was given its partitions.
    """
    group = unique("group")
    member = consumer(kafka, group)
    join(member, topic)
    stranger = consumer(kafka, group)
    commit_offset(producer(kafka), topic, 5, "stranger", stranger.consumer_group_metadata())
    found = committed(member, topic)
    assert (found.offset, found.metadata) == (5, "stranger")


def test_the_metadata_in_the_assignment_callback_is_already_the_new_generation(kafka: str, topic: str) -> None:
    group = unique("group")
    seen: list[bytes] = []
    member = consumer(kafka, group)
    member.subscribe([topic], on_assign=lambda consumer, _: seen.append(consumer.consumer_group_metadata()))

    def assigned() -> bool:
        member.poll(0.1)
        return bool(seen)

    until(assigned, "assignment")
    assert seen[-1] == member.consumer_group_metadata() != consumer(kafka, group).consumer_group_metadata()
    commit_offset(producer(kafka), topic, 2, "", seen[-1])
    assert committed(member, topic).offset == 2


# ---- (d) how long a dead worker's transaction holds readers back ----


def _die_in_transaction(address: str, topic: str, transactional_id: str, timeout_ms: int, ready: Connection) -> None:
    writer = producer(address, transactional_id, timeout_ms)
    writer.begin_transaction()
    writer.produce(topic, b"dead")
    writer.flush(WAIT_S)
    ready.send("open")
    ready.recv()


def killed_worker(address: str, topic: str, transactional_id: str, timeout_ms: int) -> None:
    """Leave a transaction open on `topic` whose process is gone, and one plain message behind it."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    child = spawn.Process(
        target=_die_in_transaction, args=(address, topic, transactional_id, timeout_ms, theirs), daemon=True
    )
    child.start()
    assert ask(ours) == "open"
    child.kill()
    child.join()
    plain = Producer({"bootstrap.servers": address})
    plain.produce(topic, b"behind")
    plain.flush(WAIT_S)


def test_a_killed_workers_transaction_is_aborted_when_its_timeout_has_passed(kafka: str, topic: str) -> None:
    """At most its time-out plus the broker's `transaction.abort.timed.out.transaction.cleanup.interval.ms`."""
    killed_worker(kafka, topic, unique("random"), timeout_ms=1_000)
    source = reader(kafka, topic)
    message = until(lambda: next((m for m in [source.poll(0.2)] if m and not m.error()), None), "the message behind")
    assert message.value() == b"behind"


def test_a_successor_with_the_same_transactional_id_aborts_it_at_once(kafka: str, topic: str) -> None:
    transactional_id = unique("stable")
    killed_worker(kafka, topic, transactional_id, timeout_ms=600_000)
    assert read_to_eof(reader(kafka, topic)) == ([], 0)
    producer(kafka, transactional_id)
    source = reader(kafka, topic)
    message = until(lambda: next((m for m in [source.poll(0.2)] if m and not m.error()), None), "the message behind")
    assert message.value() == b"behind"


def test_a_transaction_that_timed_out_is_fatal_for_its_producer(kafka: str, topic: str) -> None:
    """Not abortable: the broker raised the epoch, and only a new producer can go on."""
    writer = producer(kafka, timeout_ms=1_000)
    writer.begin_transaction()
    writer.produce(topic, b"slow")
    writer.flush(WAIT_S)
    source = reader(kafka, topic)
    until(lambda: read_to_eof(source)[1] == 2, "the broker's abort")
    with pytest.raises(KafkaException) as fenced:
        writer.commit_transaction(WAIT_S)
    assert fenced.value.args[0].code() == KafkaError._FENCED
    assert fenced.value.args[0].fatal()
    with pytest.raises(KafkaException):
        writer.abort_transaction(WAIT_S)


# ---- positions from outside a transaction, and the admin client ----


@pytest.mark.parametrize("assign", [False, True])
def test_a_consumer_that_never_subscribed_can_commit_a_group_in_a_transaction(
    kafka: str, topic: str, assign: bool
) -> None:
    source = consumer(kafka)
    if assign:
        source.assign([TopicPartition(topic, 0, 0)])
    commit_offset(producer(kafka), topic, 9, "anonymous", source.consumer_group_metadata())
    found = committed(source, topic)
    assert (found.offset, found.metadata) == (9, "anonymous")


def alter(admin: AdminClient, group: str, topic: str, offset: int, metadata: str) -> TopicPartition:
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, offset, metadata)])
    return admin.alter_consumer_group_offsets([wanted])[group].result(WAIT_S).topic_partitions[0]


def listed(admin: AdminClient, group: str, topic: str, require_stable: bool = False) -> TopicPartition:
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    listing = admin.list_consumer_group_offsets([wanted], require_stable=require_stable, request_timeout=1.0)
    return listing[group].result(WAIT_S).topic_partitions[0]


def test_the_admin_client_sets_and_tells_metadata_of_a_group_without_members(
    kafka: str, topic: str, admin: AdminClient
) -> None:
    group = unique("group")
    assert listed(admin, group, topic).offset < 0
    assert alter(admin, group, topic, 20, "altered").error is None
    found = listed(admin, group, topic)
    assert (found.offset, found.metadata) == (20, "altered")


def test_the_admin_client_can_refuse_to_tell_an_offset_that_may_still_change(
    kafka: str, topic: str, admin: AdminClient
) -> None:
    """Without `require_stable` it tells the old offset, and for a moment even after the commit has returned."""
    group = unique("group")
    generation = consumer(kafka, group).consumer_group_metadata()
    writer = producer(kafka)
    commit_offset(writer, topic, 1, "old", generation)
    until(lambda: listed(admin, group, topic).offset == 1, "the first commit")
    writer.begin_transaction()
    writer.send_offsets_to_transaction([TopicPartition(topic, 0, 2, "new")], generation, WAIT_S)
    assert listed(admin, group, topic).offset == 1
    unstable = listed(admin, group, topic, require_stable=True).error
    assert unstable is not None and unstable.code() == KafkaError.UNSTABLE_OFFSET_COMMIT
    writer.commit_transaction(WAIT_S)
    until(lambda: listed(admin, group, topic).offset == 2, "the second commit")


def test_outside_a_transaction_a_group_with_members_is_not_moved_by_others(
    kafka: str, topic: str, admin: AdminClient
) -> None:
    group = unique("group")
    member = consumer(kafka, group)
    join(member, topic)
    refused = alter(admin, group, topic, 20, "altered").error
    assert refused is not None and refused.code() == KafkaError.UNKNOWN_MEMBER_ID
    with pytest.raises(KafkaException) as also_refused:
        consumer(kafka, group).commit(offsets=[TopicPartition(topic, 0, 21, "simple")], asynchronous=False)
    assert also_refused.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
    member.close()
    assert alter(admin, group, topic, 22, "altered").error is None


def test_a_consumer_that_never_subscribed_can_commit_metadata_plainly(kafka: str, topic: str) -> None:
    source = consumer(kafka)
    source.commit(offsets=[TopicPartition(topic, 0, 21, "simple")], asynchronous=False)
    found = committed(source, topic)
    assert (found.offset, found.metadata) == (21, "simple")


def test_a_topic_that_was_deleted_and_made_again_has_another_id(kafka: str, topic: str, admin: AdminClient) -> None:
    """Creating returns before every request sees the new topic, so asking for it must be repeated."""

    def topic_id() -> str | None:
        try:
            return str(admin.describe_topics(TopicCollection([topic]))[topic].result(WAIT_S).topic_id)
        except KafkaException as error:
            assert error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            return None

    def made_again() -> bool:
        try:
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(WAIT_S)
        except KafkaException as error:
            assert error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
            return False
        return True

    before = until(topic_id, "the new topic")
    assert topic_id() == before
    admin.delete_topics([topic])[topic].result(WAIT_S)
    until(made_again, "the deletion")
    until(lambda: topic_id() not in (None, before), "the topic made again")
