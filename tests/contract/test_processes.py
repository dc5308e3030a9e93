"""Real processes over one broker: racing, killed, frozen and woken."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.pipeline.topics import Broker
from headrace.schemas.position import Position
from tests.contract.backends import Backend
from tests.contract.traffic import Names, fill, seen, start_at_beginning, values
from tests.contract.waiting import collect, drain, until

ROOT = Path(__file__).parents[2]
Member = subprocess.Popen[str]
Start = Callable[..., Member]


@pytest.fixture
def start(backend: Backend) -> Iterator[Start]:
    """Start `tests.contract.member` with these arguments over the test's broker."""
    running: list[Member] = []

    def start(what: str, *arguments: str) -> Member:
        command = [sys.executable, "-m", "tests.contract.member", what, backend.address, *arguments]
        member = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.append(member)
        return member

    yield start
    for member in running:
        member.kill()
        member.communicate()


def line(member: Member) -> str:
    assert member.stdout is not None
    return member.stdout.readline().strip()


def go_on(member: Member) -> None:
    assert member.stdin is not None
    member.stdin.write("\n")
    member.stdin.flush()


def test_racing_processes_get_one_topic(names: Names, start: Start) -> None:
    members = [start("create", names.text, "3") for _ in range(4)]
    assert [line(member) for member in members] == ["ready"] * 4
    for member in members:
        go_on(member)
    ids = [line(member) for member in members]
    assert ids[0] and len(set(ids)) == 1


def test_many_processes_writing_at_once_lose_nothing_and_double_nothing(
    broker: Broker, names: Names, start: Start
) -> None:
    broker.create(names.text, 2)
    members = [start("write", f"{names.writer}.{n}", names.text, "40", "2") for n in range(4)]
    assert [line(member) for member in members] == ["done"] * 4
    got = values(collect(broker.reader(names.text, {0: 0, 1: 0}), 4 * 40 * 5))
    assert len(set(got)) == 4 * 40 * 5


def test_a_process_killed_in_an_open_transaction_leaves_nothing(broker: Broker, names: Names, start: Start) -> None:
    """Its successor, of the same name, copies everything, once."""
    made = fill(broker, names)
    broker.create(names.tokens, 1)
    start_at_beginning(broker, names)
    member = start("hold", names.writer, names.group, names.text, names.tokens)
    assert line(member) == "open"
    member.send_signal(signal.SIGKILL)
    member.wait()
    assert broker.positions(names.group, names.text) == {0: Position(0)}
    worker = broker.worker(names.writer, names.group, names.text)
    messages = collect(worker, len(made))
    worker.begin()
    for message in messages:
        worker.append(names.tokens, message.value, partition=0)
    worker.commit(names.group, names.text, {0: Position(messages[-1].offset + 1)})
    assert values(drain(broker.reader(names.tokens, {0: 0}), {0})) == [value for _, value in made]


def test_partitions_of_a_killed_process_are_taken_over(broker: Broker, names: Names, start: Start) -> None:
    made = fill(broker, names, partitions=2, per_partition=20)
    broker.create(names.tokens, 1)
    start_at_beginning(broker, names)
    first = start("stay", f"{names.writer}.0", names.group, names.text)
    assert line(first) == "assigned"
    second = start("copy", f"{names.writer}.1", names.group, names.text, names.tokens)
    assert line(second).startswith("committed")  # it has its share; the rest is held by the first
    first.send_signal(signal.SIGKILL)
    first.wait()
    got = collect(broker.reader(names.tokens, {0: 0}), len(made))
    assert sorted(values(got)) == sorted(value for _, value in made)


def test_a_process_frozen_until_its_name_was_taken_is_fenced(broker: Broker, names: Names, start: Start) -> None:
    made = fill(broker, names)
    broker.create(names.tokens, 1)
    start_at_beginning(broker, names)
    frozen = start("hold", names.writer, names.group, names.text, names.tokens)
    assert line(frozen) == "open"
    frozen.send_signal(signal.SIGSTOP)
    successor = broker.worker(names.writer, names.group, names.text)
    frozen.send_signal(signal.SIGCONT)
    go_on(frozen)
    assert line(frozen) == "fenced"
    frozen.wait()
    assert seen(collect(successor, len(made))) == sorted(made)
    assert drain(broker.reader(names.tokens, {0: 0}), {0}) == []


def test_any_number_of_kills_copies_each_message_once(broker: Broker, names: Names, start: Start) -> None:
    """Three members, killed and started again under their names, as a supervisor would."""
    made = fill(broker, names, partitions=3, per_partition=60)
    broker.create(names.tokens, 1)
    start_at_beginning(broker, names)
    chance = random.Random(5)
    slots = [f"{names.writer}.{n}" for n in range(3)]
    members = {slot: start("copy", slot, names.group, names.text, names.tokens) for slot in slots}
    reader = broker.reader(names.tokens, {0: 0})
    got: list[bytes] = []
    kills_at = [20, 60, 90, 130]

    def all_copied() -> bool:
        got.extend(values(reader.poll(10, 0.2).messages))
        if kills_at and len(got) >= kills_at[0]:
            kills_at.pop(0)
            slot = chance.choice(slots)
            members[slot].send_signal(signal.SIGKILL)
            members[slot].wait()
            members[slot] = start("copy", slot, names.group, names.text, names.tokens)
        return len(got) >= len(made)

    until(all_copied, "everything is copied")
    assert not kills_at
    assert Counter(got) == Counter(value for _, value in made)
    assert len(values(drain(broker.reader(names.tokens, {0: 0}), {0}))) == len(made)


def test_a_broker_opened_by_a_child_process_is_independent_of_the_parents(
    broker: Broker, names: Names, start: Start
) -> None:
    """Clients are created after the spawn: nothing open is inherited."""
    broker.create(names.text, 1)
    writer = broker.writer(names.writer)
    writer.begin()
    writer.append(names.text, b"parent", partition=0)
    child = start("write", f"{names.writer}.child", names.text, "1", "1")
    assert line(child) == "done"
    writer.commit("", "", {})
    assert len(collect(broker.reader(names.text, {0: 0}), 6)) == 6
    assert os.getpid() != child.pid
