"""Waiting: poll until something holds, with a deadline. Nothing else in these tests waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.pipeline.topics import Fetched, Message, Reader, Worker

T = TypeVar("T")

WITHIN_S = 90.0  # a broker on two busy cores; a killed member of a Kafka group is missed only after its session


def until(attempt: Callable[[], T], what: str) -> T:
    """Call `attempt` until it returns something true."""
    deadline_s = time.monotonic() + WITHIN_S
    while True:
        result = attempt()
        if result:
            return result
        assert time.monotonic() < deadline_s, f"waited {WITHIN_S} s in vain until {what}"
        time.sleep(0.01)


def collect(reader: Reader | Worker, count: int, max_messages: int = 100) -> list[Message]:
    """Poll until `count` messages have come, and fail when there are more."""
    messages: list[Message] = []

    def enough() -> bool:
        messages.extend(reader.poll(max_messages, 0.2).messages)
        return len(messages) >= count

    until(enough, f"{count} messages came, not {len(messages)}")
    assert len(messages) == count
    return messages


def drain(reader: Reader | Worker, partitions: set[int]) -> list[Message]:
    """Poll a reader that is new here until all its partitions are at the end."""
    messages: list[Message] = []

    def at_end() -> bool:
        fetched = reader.poll(100, 0.2)
        messages.extend(fetched.messages)
        return partitions <= fetched.at_end.keys()

    until(at_end, f"{partitions} are at the end")
    return messages


def started(worker: Worker) -> Fetched:
    """Poll no messages until the worker has been told where it starts."""

    def starts() -> Fetched | None:
        fetched = worker.idle(0.2)
        return fetched if fetched.starts else None

    return until(starts, "the worker is given partitions")


def shared_out(workers: Sequence[Worker], partitions: int) -> None:
    """Keep all `workers` in the group until every partition has exactly one of them, shared out evenly."""
    least = partitions // len(workers)

    def even() -> bool:
        for worker in workers:
            worker.idle(0.05)
        held = [worker.assigned() for worker in workers]
        return (
            sum(map(len, held)) == partitions
            and frozenset().union(*held) == frozenset(range(partitions))
            and all(least <= len(one) <= least + 1 for one in held)
        )

    until(even, f"{partitions} partitions are shared out among {len(workers)} workers")
