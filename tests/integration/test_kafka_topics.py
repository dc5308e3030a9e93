"""What only Kafka's topics do: generations and time-outs that fence, uncommitted messages behind an end, a broker that
freezes, restarts, or is not there. What every broker does is in tests/contract.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeVar

import pytest
from confluent_kafka import TopicPartition

from headrace.pipeline import kafka as kafka_module
from headrace.pipeline import kafka_client, kafka_reader, kafka_writer
from headrace.pipeline.kafka import KafkaBroker
from headrace.pipeline.kafka_worker import KafkaWorker
from headrace.pipeline.topics import Fetched, Message, Reader, Worker
from headrace.schemas.errors import BrokerAway, Fenced, PositionLost, TooLarge, TopicError, TryAgain, UsageError
from headrace.schemas.position import Position
from tests.services import kafka_broker as services

T = TypeVar("T")

WAIT_S = 60.0
#: Members that are missed soon. The session must not be longer than the poll interval.
QUICK = {"session.timeout.ms": 1_500, "heartbeat.interval.ms": 300, "max.poll.interval.ms": 300_000}


@dataclass(frozen=True)
class Names:
    text: str
    tokens: str
    group: str


@pytest.fixture
def names() -> Names:
    unique = uuid.uuid4().hex[:10]
    return Names(f"text-{unique}", f"tokens-{unique}", f"group-{unique}")


@pytest.fixture
def broker(kafka: str) -> Iterator[KafkaBroker]:
    broker = KafkaBroker(kafka, QUICK)
    yield broker
    broker.close()


def until(attempt: Callable[[], T], what: str) -> T:
    """Call `attempt`, which waits a little itself, until it returns something true."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        if result := attempt():
            return result
    raise AssertionError(f"{what}: not within {WAIT_S} s")


def prepare(broker: KafkaBroker, names: Names, partitions: int = 1, messages: int = 0) -> None:
    """Both topics, `messages` in each partition of the text topic, and the group at their beginning."""
    broker.create(names.text, partitions)
    broker.create(names.tokens, 1)
    broker.set_positions(names.group, names.text, {number: Position(0) for number in range(partitions)})
    writer = broker.writer(f"{names.text}.fill")
    writer.begin()
    for number in range(messages):
        for partition in range(partitions):
            writer.append(names.text, b"%d:%d" % (partition, number), partition=partition)
    writer.commit("", "", {})
    writer.close()


def worker_of(broker: KafkaBroker, names: Names) -> KafkaWorker:
    return broker.worker(f"worker-{uuid.uuid4().hex[:8]}", names.group, names.text)


def next_start(worker: Worker) -> Fetched:
    """Idle until the worker is told where it starts."""
    return until(lambda: [fetched for fetched in [worker.idle(0.2)] if fetched.starts], "a start")[0]


def next_messages(worker: Worker, max_messages: int) -> Fetched:
    """Poll until messages come."""
    found = until(lambda: [fetched for fetched in [worker.poll(max_messages, 0.2)] if fetched.messages], "messages")
    return found[0]


def drain(reader: Reader, count: int = 0) -> list[Message]:
    """Read `count` messages or more, and on until the one partition is at its end: a commit shows a little later."""
    messages: list[Message] = []

    def at_end() -> bool:
        fetched = reader.poll(100, 0.2)
        messages.extend(fetched.messages)
        return len(messages) >= count and 0 in fetched.at_end

    until(at_end, f"{count} messages and the end")
    return messages


def values(messages: list[Message]) -> list[bytes]:
    return [message.value for message in messages]


def copy(worker: Worker, names: Names, fetched: Fetched) -> None:
    """One ingest transaction: append what was fetched, commit with the positions behind it."""
    worker.begin()
    for message in fetched.messages:
        worker.append(names.tokens, message.value, partition=0)
    worker.commit(names.group, names.text, {m.partition: Position(m.offset + 1) for m in fetched.messages})


def copy_all(worker: Worker, names: Names, end: dict[int, int]) -> None:
    """Ingest until every partition's end is passed; whatever can be tried again is."""

    def done() -> bool:
        try:
            fetched = worker.poll(7, 0.2)
            if fetched.messages:
                copy(worker, names, fetched)
        except TryAgain:
            return False
        return all(fetched.at_end.get(partition, -1) >= offset for partition, offset in end.items())

    until(done, "everything copied")


# ---- fencing ----


def _frozen_member(address: str, names: Names, commands: Connection) -> None:
    """A child process: takes a message into a transaction, and commits when told to."""
    worker = worker_of(KafkaBroker(address, QUICK), names)
    fetched = next_messages(worker, 1)
    worker.begin()
    worker.append(names.tokens, b"zombie", partition=0)
    commands.send("open")
    commands.recv()
    try:
        worker.commit(names.group, names.text, {0: Position(fetched.messages[0].offset + 1)})
        commands.send("committed")
    except Fenced:
        commands.send("fenced")
    commands.recv()
    again = next_start(worker)
    commands.send(again.starts[0].offset)


def test_a_worker_frozen_until_its_partition_was_taken_is_fenced_and_goes_on_from_there(
    kafka: str, broker: KafkaBroker, names: Names
) -> None:
    prepare(broker, names, messages=5)
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    child = spawn.Process(target=_frozen_member, args=(kafka, names, theirs), daemon=True)
    child.start()
    assert child.pid is not None
    assert ours.poll(WAIT_S) and ours.recv() == "open"
    os.kill(child.pid, signal.SIGSTOP)
    heir = worker_of(broker, names)
    end = {0: broker.ends(names.text)[0].end}
    copy_all(heir, names, end)
    os.kill(child.pid, signal.SIGCONT)
    ours.send("commit")
    assert ours.poll(WAIT_S) and ours.recv() == "fenced"
    heir.close()
    ours.send("go on")
    assert ours.poll(WAIT_S) and ours.recv() == 5
    child.kill()
    child.join()
    assert values(drain(broker.reader(names.tokens, {0: 0}), 5)) == [b"0:%d" % number for number in range(5)]


def test_a_rebalance_in_the_middle_of_a_transaction_aborts_it(broker: KafkaBroker, names: Names) -> None:
    prepare(broker, names, partitions=2, messages=3)
    first = worker_of(broker, names)
    assert next_start(first).starts.keys() == {0, 1}
    first.begin()
    first.append(names.tokens, b"half a transaction", partition=0)
    second = worker_of(broker, names)

    def shared() -> bool:
        first.idle(0.1)
        second.idle(0.1)
        return len(first.assigned()) == len(second.assigned()) == 1

    until(shared, "a partition each")
    with pytest.raises(RuntimeError, match="no transaction is open"):
        first.commit(names.group, names.text, {})
    end = {partition: ends.end for partition, ends in broker.ends(names.text).items()}
    copy_all(first, names, {partition: end[partition] for partition in first.assigned()})
    copy_all(second, names, {partition: end[partition] for partition in second.assigned()})
    copied = values(drain(broker.reader(names.tokens, {0: 0}), 6))
    assert sorted(copied) == sorted(b"%d:%d" % (partition, number) for partition in (0, 1) for number in range(3))


def test_positions_of_a_partition_that_was_lost_cannot_be_committed(broker: KafkaBroker, names: Names) -> None:
    prepare(broker, names, messages=3)
    worker = worker_of(broker, names)
    next_start(worker)
    worker.begin()
    worker.append(names.tokens, b"not ours", partition=0)
    with pytest.raises(Fenced, match=r"does not read .*\[1\]"):
        worker.commit(names.group, names.text, {1: Position(3)})
    assert next_start(worker).starts == {0: Position(0)}


def test_a_transaction_that_timed_out_is_fenced_and_the_worker_goes_on(kafka: str, names: Names) -> None:
    broker = KafkaBroker(kafka, {**QUICK, "transaction.timeout.ms": 1_000})
    prepare(broker, names, messages=3)
    worker = worker_of(broker, names)
    end = {0: broker.ends(names.text)[0].end}
    next_start(worker)
    worker.begin()
    worker.append(names.tokens, b"too slow", partition=0)
    reader = broker.reader(names.tokens, {0: 0})
    until(lambda: reader.poll(1, 0.2).at_end.get(0, 0) >= 2, "the broker's abort")
    with pytest.raises(Fenced):
        worker.commit(names.group, names.text, {0: Position(1)})
    copy_all(worker, names, end)
    assert values(drain(reader, 3)) == [b"0:0", b"0:1", b"0:2"]


def test_a_writer_whose_transaction_timed_out_stays_fenced(kafka: str, names: Names) -> None:
    broker = KafkaBroker(kafka, {"transaction.timeout.ms": 1_000})
    broker.create(names.tokens, 1)
    writer = broker.writer("timed-out")
    writer.begin()
    writer.append(names.tokens, b"too slow", partition=0)
    reader = broker.reader(names.tokens, {0: 0})
    until(lambda: reader.poll(1, 0.2).at_end.get(0, 0) >= 2, "the broker's abort")
    with pytest.raises(Fenced):
        writer.commit("", "", {})
    with pytest.raises(Fenced):
        writer.begin()


def test_a_group_with_members_is_not_moved_from_outside(broker: KafkaBroker, names: Names) -> None:
    prepare(broker, names, messages=1)
    worker = worker_of(broker, names)
    next_start(worker)
    with pytest.raises(Fenced, match="it has members"):
        broker.set_positions(names.group, names.text, {0: Position(1)})
    worker.close()
    broker.set_positions(names.group, names.text, {0: Position(1)})
    assert broker.positions(names.group, names.text) == {0: Position(1)}


def test_a_partition_between_others_that_lost_its_position_is_an_error(broker: KafkaBroker, names: Names) -> None:
    """Read again from 0 it would repeat what its lost position had passed."""
    broker.create(names.text, 2)
    broker.set_positions(names.group, names.text, {1: Position(0)})
    worker = worker_of(broker, names)
    with pytest.raises(PositionLost, match=r"no position in .*\[0\]"):
        next_start(worker)


# ---- ends and positions that are still moving ----


def test_an_open_transaction_behind_the_end_takes_the_end_away(broker: KafkaBroker, names: Names) -> None:
    broker.create(names.tokens, 1)
    reader = broker.reader(names.tokens, {0: 0})
    assert drain(reader) == []
    writer = broker.writer("behind")
    writer.begin()
    writer.append(names.tokens, b"open", partition=0)
    until(lambda: reader.poll(1, 0.2).at_end == {}, "the open message to be seen")
    assert broker.ends(names.tokens)[0].end == 1
    writer.commit("", "", {})
    assert values(drain(reader, 1)) == [b"open"]


def test_positions_inside_a_commit_are_waited_for(kafka: str, broker: KafkaBroker, names: Names) -> None:
    prepare(broker, names)
    writer = broker.writer("half-way")
    writer.begin()
    # Between steps 5 and 6 of a commit; only the client itself can stop there.
    writer._producer.send_offsets_to_transaction(
        [TopicPartition(names.text, 0, 4, "")], writer._anonymous(names.group), 10.0
    )
    found: list[dict[int, Position]] = []
    asking = threading.Thread(target=lambda: found.append(KafkaBroker(kafka, {}).positions(names.group, names.text)))
    asking.start()
    writer.commit("", "", {})
    asking.join(WAIT_S)
    assert found == [{0: Position(4)}]


def test_a_partition_whose_position_is_inside_a_commit_is_not_read_before(broker: KafkaBroker, names: Names) -> None:
    prepare(broker, names, messages=3)
    worker = worker_of(broker, names)
    next_start(worker)
    predecessor = broker.writer("predecessor")
    predecessor.begin()
    # Between steps 5 and 6 of a commit; only the client itself can stop there.
    predecessor._producer.send_offsets_to_transaction(
        [TopicPartition(names.text, 0, 2, "")], predecessor._anonymous(names.group), 10.0
    )
    worker.abort()
    for _ in range(3):
        fetched = worker.poll(10, 0.1)
        assert (fetched.messages, fetched.starts, worker.assigned()) == ([], {}, frozenset())
    predecessor.commit("", "", {})
    assert next_start(worker).starts == {0: Position(2)}
    assert worker.assigned() == {0}


# ---- sizes ----


def test_an_oversized_message_is_an_error_and_the_transaction_goes_on(broker: KafkaBroker, names: Names) -> None:
    broker.create(names.tokens, 1, max_message_bytes=2_000)
    writer = broker.writer("large")
    writer.begin()
    with pytest.raises(TooLarge, match=r"2500 bytes is larger than .* takes \(2000"):
        writer.append(names.tokens, os.urandom(2_500), partition=0)
    largest = os.urandom(2_000 - kafka_writer.OVERHEAD_BYTES)
    writer.append(names.tokens, largest, partition=0)
    writer.commit("", "", {})
    assert values(drain(broker.reader(names.tokens, {0: 0}), 1)) == [largest]


def test_small_messages_do_not_add_up_to_a_batch_that_the_topic_refuses(broker: KafkaBroker, names: Names) -> None:
    broker.create(names.tokens, 1, max_message_bytes=2_000)
    sent = [os.urandom(300) for _ in range(40)]
    writer = broker.writer("small")
    writer.begin()
    for value in sent:
        writer.append(names.tokens, value, partition=0)
    writer.commit("", "", {})
    assert values(drain(broker.reader(names.tokens, {0: 0}), 40)) == sent


def test_notes_that_do_not_fit_an_offset_are_an_error_and_nothing_is_written(broker: KafkaBroker, names: Names) -> None:
    prepare(broker, names)
    writer = broker.writer("notes")
    writer.begin()
    writer.append(names.tokens, b"with notes", partition=0)
    with pytest.raises(TooLarge, match=r"offset\.metadata\.max\.bytes"):
        writer.commit(names.group, names.text, {0: Position(1, notes={"long": "n" * 5_000})})
    assert broker.positions(names.group, names.text) == {0: Position(0)}
    writer.begin()
    writer.append(names.tokens, b"without", partition=0)
    writer.commit(names.group, names.text, {0: Position(1, notes={"short": "n" * 3_000})})
    assert broker.positions(names.group, names.text)[0].notes == {"short": "n" * 3_000}
    assert values(drain(broker.reader(names.tokens, {0: 0}), 1)) == [b"without"]


# ---- a broker that is slow, away, or not there ----


def test_a_busy_worker_with_paused_partitions_stays_in_its_group(kafka: str, names: Names) -> None:
    interval_s = 2.0
    broker = KafkaBroker(kafka, {**QUICK, "max.poll.interval.ms": int(interval_s * 1_000)})
    prepare(broker, names, messages=20)
    worker = worker_of(broker, names)
    fetched = next_messages(worker, 5)
    worker.begin()
    for message in fetched.messages:
        worker.append(names.tokens, message.value, partition=0)
    busy_until_s = time.monotonic() + 2 * interval_s
    while time.monotonic() < busy_until_s:
        assert not worker.idle(0.1).starts
    worker.commit(names.group, names.text, {0: Position(fetched.messages[-1].offset + 1)})
    copy_all(worker, names, {0: broker.ends(names.text)[0].end})
    copied = values(drain(broker.reader(names.tokens, {0: 0}), 20))
    assert copied == [b"0:%d" % number for number in range(20)]


NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(
    "call",
    [
        lambda broker: broker.describe("text"),
        lambda broker: broker.create("text", 1),
        lambda broker: broker.ends("text"),
        lambda broker: broker.positions("group", "text"),
        lambda broker: broker.set_positions("group", "text", {0: Position(0)}),
        lambda broker: broker.reader("text", {0: 0}),
        lambda broker: broker.writer("name"),
        lambda broker: broker.worker("name", "group", "text"),
    ],
    ids=["describe", "create", "ends", "positions", "set_positions", "reader", "writer", "worker"],
)
def test_a_broker_that_is_not_there_is_an_error_that_names_it(
    call: Callable[[KafkaBroker], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_module, "ASK_WAIT_S", 1.0)
    monkeypatch.setattr(kafka_module, "REQUEST_WAIT_S", 1.0)
    with pytest.raises(BrokerAway, match=r"kafka://127\.0\.0\.1:1: .*refused"):
        call(KafkaBroker(NOWHERE, {}))


def test_an_option_that_the_client_does_not_know_is_named(names: Names) -> None:
    with pytest.raises(UsageError, match=r"sasl\.pasword"):
        KafkaBroker(NOWHERE, {"sasl.pasword": "secret"}).describe(names.text)


def test_a_topic_that_is_not_there_is_an_error_that_names_it(broker: KafkaBroker, names: Names) -> None:
    assert broker.describe(names.text) is None
    with pytest.raises(TopicError, match=names.text):
        broker.reader(names.text, {0: 0})
    with pytest.raises(TopicError, match=names.text):
        broker.worker("worker", names.group, names.text)
    broker.create(names.text, 1)
    with pytest.raises(TopicError, match="no partition 1"):
        broker.reader(names.text, {0: 0, 1: 0})


def test_readers_and_workers_say_when_the_broker_stays_away(
    kafka_broker: services.KafkaBroker, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_client, "AWAY_WAIT_S", 0.5)
    monkeypatch.setattr(kafka_reader, "ASK_WAIT_S", 1.0)
    broker = KafkaBroker(kafka_broker.address, QUICK)
    prepare(broker, names, messages=1)
    reader = broker.reader(names.text, {0: 0})
    worker = worker_of(broker, names)
    drain(reader)
    next_start(worker)
    kafka_broker.kill()
    with pytest.raises(BrokerAway, match=kafka_broker.address):
        until(lambda: reader.poll(1, 0.2).messages, "an error")
    with pytest.raises(BrokerAway, match=kafka_broker.address):
        until(lambda: worker.idle(0.2).messages, "an error")


def test_nothing_is_lost_or_doubled_when_the_broker_restarts_in_the_middle(
    kafka_broker: services.KafkaBroker, names: Names
) -> None:
    broker = KafkaBroker(kafka_broker.address, QUICK)
    prepare(broker, names, messages=30)
    end = {0: broker.ends(names.text)[0].end}
    worker = worker_of(broker, names)
    reader = broker.reader(names.tokens, {0: 0})
    fetched = next_messages(worker, 5)
    copy(worker, names, fetched)
    worker.begin()
    worker.append(names.tokens, fetched.messages[0].value, partition=0)
    kafka_broker.restart()
    worker.abort()
    copy_all(worker, names, end)
    kafka_broker.kill()
    kafka_broker.start()
    assert values(drain(reader, 30)) == [b"0:%d" % number for number in range(30)]
    assert broker.positions(names.group, names.text)[0].offset == 30


def ask_for_ever(address: str, names: Names, answers: Connection) -> None:
    """Another process: looks at positions without a pause, sends how many answers it had."""
    broker = KafkaBroker(address, QUICK)
    for count in itertools.count(1):
        with suppress(BrokerAway):  # a busy machine takes longer to restart it than a question waits
            broker.positions(names.group, names.text, settled=False)
            answers.send(count)


def test_whoever_looks_at_positions_outlives_a_restart_of_the_broker(
    kafka_broker: services.KafkaBroker, names: Names
) -> None:
    """The admin client does not: it ends its process when the group's coordinator shuts down."""
    prepare(KafkaBroker(kafka_broker.address, QUICK), names, messages=1)
    answers, theirs = multiprocessing.Pipe(duplex=False)
    looker = multiprocessing.get_context("spawn").Process(
        target=ask_for_ever, args=(kafka_broker.address, names, theirs), daemon=True
    )
    looker.start()
    theirs.close()
    try:
        for _ in range(3):
            count = answers.recv()  # EOFError: it is gone
            kafka_broker.restart()
            while answers.poll():
                count = answers.recv()
            assert answers.recv() > count
    finally:
        looker.kill()
        looker.join()


def test_a_commit_that_a_frozen_broker_does_not_answer_is_settled_later(
    kafka_broker: services.KafkaBroker, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it took effect is not known, and need not be: what is read next follows from what was committed."""
    broker = KafkaBroker(kafka_broker.address, QUICK)
    prepare(broker, names, messages=10)
    end = {0: broker.ends(names.text)[0].end}
    worker = worker_of(broker, names)
    fetched = next_messages(worker, 5)
    kafka_broker.pause()
    with monkeypatch.context() as impatient:
        impatient.setattr(kafka_writer, "COMMIT_WAIT_S", 1.0)
        impatient.setattr(kafka_writer, "POSITIONS_WAIT_S", 1.0)
        with pytest.raises(BrokerAway, match=kafka_broker.address):
            copy(worker, names, fetched)
    kafka_broker.resume()
    copy_all(worker, names, end)
    assert values(drain(broker.reader(names.tokens, {0: 0}), 10)) == [b"0:%d" % number for number in range(10)]
