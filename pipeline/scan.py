"""Scan: committed messages of a topic between two offsets of each partition, read once, without a consumer group."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping

from headrace.pipeline.topics import Broker, Message, Reader
from headrace.schemas.errors import Stalled

Spans = Mapping[int, tuple[int, int]]  # partition -> first offset, end

POLL_MESSAGES = 5000
POLL_S = 1.0
STALL_S = 60.0


def messages(
    broker: Broker, topic: str, spans: Spans, clock: Callable[[], float] = time.monotonic
) -> Generator[list[Message]]:
    """Committed messages from the first offset of each partition up to its end. Raises Stalled when none come."""
    left = {partition: end for partition, (first, end) in spans.items() if first < end}
    if not left:
        return
    reader = broker.reader(topic, {partition: spans[partition][0] for partition in left})
    try:
        came_at = clock()
        while left:
            fetched = reader.poll(POLL_MESSAGES, POLL_S)
            wanted = [m for m in fetched.messages if m.offset < left.get(m.partition, 0)]
            if wanted:
                came_at = clock()
                yield wanted
            elif clock() - came_at > STALL_S:
                raise Stalled(
                    f"{topic} gave nothing for {STALL_S:.0f} s, partitions {sorted(left)} are not at their end"
                )
            passed = {m.partition: m.offset + 1 for m in fetched.messages} | fetched.at_end
            _finish(reader, left, passed)
    finally:
        reader.close()


def _finish(reader: Reader, left: dict[int, int], passed: Mapping[int, int]) -> None:
    done = [partition for partition, at in passed.items() if partition in left and at >= left[partition]]
    reader.pause(done)
    for partition in done:
        del left[partition]
