"""Workers: members of a group, what they are given, and when they may not commit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.pipeline.topics import Broker, Message, Worker
from headrace.schemas.errors import Fenced, PositionLost, RecordsLost
from headrace.schemas.position import Position
from tests.contract.backends import RETENTION_MS, Backend
from tests.contract.traffic import Names, fill, seen, start_at_beginning, values, write
from tests.contract.waiting import collect, drain, shared_out, started, until


def copy(worker: Worker, names: Names, messages: Sequence[Message], row: int = 0) -> dict[int, Position]:
    """One transaction: `messages` to the tokens topic, and the positions behind them. Returns those."""
    worker.begin()
    positions = {}
    for message in messages:
        worker.append(names.tokens, message.value, partition=0)
        positions[message.partition] = Position(message.offset + 1, row)
    worker.commit(names.group, names.text, positions)
    return positions


def rest_of(worker: Worker, names: Names, count: int) -> list[Message]:
    """Poll and copy until `count` messages were committed."""
    done: list[Message] = []

    def enough() -> bool:
        messages = worker.poll(100, 0.2).messages
        if messages:
            copy(worker, names, messages)
            done.extend(messages)
        return len(done) >= count

    until(enough, f"{count} messages were copied")
    return done


def test_a_lone_worker_is_given_everything_and_told_where_it_starts(broker: Broker, names: Names) -> None:
    made = fill(broker, names, partitions=3)
    start_at_beginning(broker, names)
    worker = broker.worker(names.writer, names.group, names.text)
    assert started(worker).starts == dict.fromkeys(range(3), Position(0))
    assert worker.assigned() == {0, 1, 2}
    assert seen(collect(worker, len(made))) == sorted(made)


def test_a_worker_starts_at_the_committed_position_and_is_given_what_rides_with_it(
    broker: Broker, names: Names
) -> None:
    fill(broker, names)
    offsets = [message.offset for message in collect(broker.reader(names.text, {0: 0}), 5)]
    position = Position(offsets[2], row=3, tokens=17, notes={"seen": [1]})
    broker.set_positions(names.group, names.text, {0: position})
    worker = broker.worker(names.writer, names.group, names.text)
    assert started(worker).starts == {0: position}
    assert [message.offset for message in collect(worker, 3)] == offsets[2:]


def test_a_worker_at_the_end_says_so(broker: Broker, names: Names) -> None:
    fill(broker, names, partitions=2)
    start_at_beginning(broker, names)
    worker = broker.worker(names.writer, names.group, names.text)
    assert len(drain(worker, {0, 1})) == 10


def test_idle_takes_no_messages(broker: Broker, names: Names) -> None:
    fill(broker, names)
    start_at_beginning(broker, names)
    worker = broker.worker(names.writer, names.group, names.text)
    started(worker)
    assert all(worker.idle(0.1).messages == [] for _ in range(3))
    assert len(collect(worker, 5)) == 5


def test_outputs_and_positions_are_committed_together(broker: Broker, names: Names) -> None:
    made = fill(broker, names, partitions=2)
    broker.create(names.tokens, 1)
    start_at_beginning(broker, names)
    worker = broker.worker(names.writer, names.group, names.text)
    messages = collect(worker, len(made))
    positions = copy(worker, names, messages, row=5)
    assert broker.positions(names.group, names.text) == positions
    assert sorted(values(collect(broker.reader(names.tokens, {0: 0}), 10))) == sorted(values(messages))


def test_a_position_behind_what_was_polled_rewinds_nothing(broker: Broker, names: Names) -> None:
    fill(broker, names)
    broker.create(names.tokens, 1)
    start_at_beginning(broker, names)
    worker = broker.worker(names.writer, names.group, names.text)
    messages = collect(worker, 5)
    copy(worker, names, messages[:2])
    write(broker.writer(f"{names.writer}.more"), names.text, [b"more"])
    assert values(collect(worker, 1)) == [b"more"]


def test_after_an_abort_polling_starts_again_from_the_committed_position(broker: Broker, names: Names) -> None:
    fill(broker, names, per_partition=6)
    broker.create(names.tokens, 1)
    start_at_beginning(broker, names)
    worker = broker.worker(names.writer, names.group, names.text)
    messages = collect(worker, 6)
    committed = copy(worker, names, messages[:2])
    worker.begin()
    for message in messages[2:]:
        worker.append(names.tokens, message.value, partition=0)
    worker.abort()
    again = until(lambda: (fetched := worker.poll(1, 0.2)).starts and fetched, "the worker says where it starts")
    assert again.starts == committed
    rest = [*again.messages, *collect(worker, 4 - len(again.messages))]
    assert rest == messages[2:]
    copy(worker, names, rest)
    assert values(collect(broker.reader(names.tokens, {0: 0}), 6)) == values(messages)


def test_aborting_at_every_position_copies_each_message_once(broker: Broker, names: Names) -> None:
    """Where an abort falls does not matter: the copy is the same."""
    made = fill(broker, names, per_partition=6)
    broker.create(names.tokens, 1)
    start_at_beginning(broker, names)
    worker = broker.worker(names.writer, names.group, names.text)
    for n in range(6):
        message = until(lambda: worker.poll(1, 0.2).messages, "a message comes")[0]
        worker.begin()
        worker.append(names.tokens, b"aborted", partition=0)
        worker.abort()
        again = until(lambda: worker.poll(1, 0.2).messages, "it comes again")
        assert again == [message]
        assert message.value == made[n][1]
        copy(worker, names, again)
    assert values(collect(broker.reader(names.tokens, {0: 0}), 6)) == [value for _, value in made]


def test_a_group_that_was_never_started_is_an_error(broker: Broker, names: Names) -> None:
    fill(broker, names, partitions=2)
    worker = broker.worker(names.writer, names.group, names.text)
    with pytest.raises(PositionLost, match=names.group):
        until(lambda: worker.poll(1, 0.2).messages, "the missing position is noticed")


def test_a_partition_that_is_new_is_read_from_its_first_message(broker: Broker, backend: Backend, names: Names) -> None:
    made = fill(broker, names, partitions=2)
    broker.create(names.tokens, 1)
    start_at_beginning(broker, names)
    backend.grow(names.text, 3)
    until(lambda: len(broker.ends(names.text)) == 3, "the topic has grown")
    write(broker.writer(f"{names.writer}.new"), names.text, [b"new", b"newer"], partition=2)
    worker = broker.worker(names.writer, names.group, names.text)
    assert started(worker).starts == dict.fromkeys(range(3), Position(0))
    done = rest_of(worker, names, len(made) + 2)
    assert seen(done) == sorted([*made, (2, b"new"), (2, b"newer")])
    assert broker.positions(names.group, names.text).keys() == {0, 1, 2}


def test_a_new_partition_whose_first_message_is_gone_is_an_error(
    broker: Broker, backend: Backend, names: Names
) -> None:
    broker.create(names.text, 1, retention_ms=RETENTION_MS)
    start_at_beginning(broker, names)
    backend.grow(names.text, 2)
    until(lambda: len(broker.ends(names.text)) == 2, "the topic has grown")
    write(broker.writer(f"{names.writer}.new"), names.text, [b"gone"], partition=1)
    backend.expire(names.text)
    worker = broker.worker(names.writer, names.group, names.text)
    with pytest.raises(PositionLost, match=rf"{names.text}\[1\]"):
        until(lambda: worker.poll(1, 0.2).messages, "the missing position is noticed")


def test_messages_deleted_before_a_worker_read_them_are_an_error(
    broker: Broker, backend: Backend, names: Names
) -> None:
    broker.create(names.text, 1, retention_ms=RETENTION_MS)
    start_at_beginning(broker, names)
    write(broker.writer(f"{names.writer}.old"), names.text, [b"old"] * 3)
    backend.expire(names.text)
    worker = broker.worker(names.writer, names.group, names.text)
    with pytest.raises(RecordsLost, match=rf"{names.text}\[0\]"):
        until(lambda: worker.poll(1, 0.2).messages, "it is noticed")


@pytest.mark.parametrize("members", [2, 3])
def test_members_share_partitions_so_that_each_has_one_reader(broker: Broker, names: Names, members: int) -> None:
    made = fill(broker, names, partitions=6)
    broker.create(names.tokens, 1)
    start_at_beginning(broker, names)
    workers = [broker.worker(f"{names.writer}.{n}", names.group, names.text) for n in range(members)]
    shared_out(workers, 6)
    done: list[Message] = []

    def all_copied() -> bool:
        for worker in workers:
            messages = worker.poll(3, 0.1).messages
            if messages:
                copy(worker, names, messages)
                done.extend(messages)
        return len(done) >= len(made)

    until(all_copied, "everything is copied")
    assert seen(done) == sorted(made)
    assert sorted(values(collect(broker.reader(names.tokens, {0: 0}), 30))) == sorted(value for _, value in made)


def test_more_members_than_partitions_leave_some_without_work_and_without_error(broker: Broker, names: Names) -> None:
    fill(broker, names, partitions=1)
    start_at_beginning(broker, names)
    workers = [broker.worker(f"{names.writer}.{n}", names.group, names.text) for n in range(2)]
    shared_out(workers, 1)
    spare = next(worker for worker in workers if not worker.assigned())
    assert spare.poll(10, 0.1).messages == []


def test_partitions_of_a_member_that_left_are_taken_over_at_its_position(broker: Broker, names: Names) -> None:
    made = fill(broker, names, partitions=2)
    broker.create(names.tokens, 1)
    start_at_beginning(broker, names)
    first = broker.worker(f"{names.writer}.0", names.group, names.text)
    second = broker.worker(f"{names.writer}.1", names.group, names.text)
    shared_out([first, second], 2)
    done = until(lambda: first.poll(2, 0.2).messages, "the first has messages")
    copy(first, names, done)
    first.close()
    done += rest_of(second, names, len(made) - len(done))
    assert second.assigned() == {0, 1}
    assert seen(done) == sorted(made)


def test_a_member_gives_up_partitions_to_one_that_joins_and_starts_again(broker: Broker, names: Names) -> None:
    """What it had polled and not committed comes again: to it, or to the member that has the partition now."""
    made = fill(broker, names, partitions=2)
    broker.create(names.tokens, 1)
    start_at_beginning(broker, names)
    first = broker.worker(f"{names.writer}.0", names.group, names.text)
    collect(first, len(made))
    second = broker.worker(f"{names.writer}.1", names.group, names.text)
    shared_out([first, second], 2)
    done = [*rest_of(first, names, 5), *rest_of(second, names, 5)]
    assert seen(done) == sorted(made)


def test_a_worker_cannot_commit_a_partition_that_it_lost(broker: Broker, names: Names) -> None:
    fill(broker, names, partitions=2)
    broker.create(names.tokens, 1)
    start_at_beginning(broker, names)
    first = broker.worker(f"{names.writer}.0", names.group, names.text)
    messages = collect(first, 10)
    second = broker.worker(f"{names.writer}.1", names.group, names.text)
    shared_out([first, second], 2)
    (lost,) = second.assigned()
    with pytest.raises(Fenced):
        copy(first, names, [message for message in messages if message.partition == lost])
    assert broker.positions(names.group, names.text) == {0: Position(0), 1: Position(0)}
    done = [*rest_of(first, names, 5), *rest_of(second, names, 5)]
    assert sorted(values(collect(broker.reader(names.tokens, {0: 0}), 10))) == sorted(values(done))


def test_a_worker_whose_name_was_taken_cannot_commit(broker: Broker, names: Names) -> None:
    fill(broker, names)
    broker.create(names.tokens, 1)
    start_at_beginning(broker, names)
    first = broker.worker(names.writer, names.group, names.text)
    messages = collect(first, 5)
    first.begin()
    first.append(names.tokens, messages[0].value, partition=0)
    second = broker.worker(names.writer, names.group, names.text)
    with pytest.raises(Fenced):
        first.commit(names.group, names.text, {0: Position(messages[0].offset + 1)})
    assert broker.positions(names.group, names.text) == {0: Position(0)}
    first.close()
    assert rest_of(second, names, 5) == messages
    assert values(collect(broker.reader(names.tokens, {0: 0}), 5)) == values(messages)


def test_several_groups_read_the_same_topic_without_knowing_of_each_other(broker: Broker, names: Names) -> None:
    made = fill(broker, names, partitions=2)
    for n in range(2):
        broker.set_positions(f"{names.group}.{n}", names.text, dict.fromkeys(range(2), Position(0)))
    workers = [broker.worker(f"{names.writer}.{n}", f"{names.group}.{n}", names.text) for n in range(2)]
    assert [seen(collect(worker, len(made))) for worker in workers] == [sorted(made)] * 2
