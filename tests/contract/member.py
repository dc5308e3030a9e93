"""A process that writes or copies, to be killed, frozen and woken: `python -m tests.contract.member WHAT ADDRESS …`.

It says on stdout what it has done, one line each, and ends when its stdin does: with the test that started it.
"""

from __future__ import annotations

import os
import sys
import threading

from headrace.pipeline.broker import open_broker
from headrace.pipeline.topics import Broker, Message, Worker
from headrace.schemas.errors import Fenced
from headrace.schemas.position import Position


def say(line: str) -> None:
    print(line, flush=True)


def create(broker: Broker, topic: str, partitions: str) -> None:
    """Make a topic, and print its id."""
    say("ready")
    sys.stdin.readline()
    say(broker.create(topic, int(partitions)).id)


def write(broker: Broker, name: str, topic: str, transactions: str, partitions: str) -> None:
    """Commit so many transactions of five messages each."""
    writer = broker.writer(name)
    for n in range(int(transactions)):
        writer.begin()
        for m in range(5):
            writer.append(topic, f"{name}.{n}.{m}".encode(), partition=(n + m) % int(partitions))
        writer.commit("", "", {})
    say("done")


def copy(broker: Broker, name: str, group: str, text: str, tokens: str) -> None:
    """Copy text to tokens, a few messages to a transaction, until the end of this process."""
    _die_with_parent()
    worker = broker.worker(name, group, text)
    while True:
        messages = worker.poll(3, 0.2).messages
        if not messages:
            continue
        try:
            _append(worker, messages, tokens)
            worker.commit(group, text, _behind(messages))
            say(f"committed {len(messages)}")
        except Fenced:
            say("fenced")


def hold(broker: Broker, name: str, group: str, text: str, tokens: str) -> None:
    """Open a transaction over what is polled first, and commit it when a line comes in."""
    worker = broker.worker(name, group, text)
    messages: list[Message] = []
    while not messages:
        messages = worker.poll(3, 0.2).messages
    _append(worker, messages, tokens)
    say("open")
    sys.stdin.readline()
    try:
        worker.commit(group, text, _behind(messages))
        say("committed")
    except Fenced:
        say("fenced")


def stay(broker: Broker, name: str, group: str, text: str) -> None:
    """Hold partitions and read nothing, until the end of this process."""
    _die_with_parent()
    worker = broker.worker(name, group, text)
    while not worker.assigned():
        worker.idle(0.2)
    say("assigned")
    while True:
        worker.idle(0.2)


def _append(worker: Worker, messages: list[Message], tokens: str) -> None:
    worker.begin()
    for message in messages:
        worker.append(tokens, message.value, partition=0)


def _behind(messages: list[Message]) -> dict[int, Position]:
    return {message.partition: Position(message.offset + 1) for message in messages}


def _die_with_parent() -> None:
    def watch() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    what, address, *rest = sys.argv[1:]
    {"create": create, "write": write, "copy": copy, "hold": hold, "stay": stay}[what](open_broker(address), *rest)
