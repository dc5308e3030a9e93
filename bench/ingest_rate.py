"""Ingest records/s of one worker, as a share of the rate at which confluent-kafka alone consumes the same topic.

Twice: the reviews as JSON records, and as Arrow messages of thousands of them, each many times over under other ids.
All sides read the same partitions of the same broker in one process, in turn, several times. A bare consumer looks at
nothing but how many messages there are; one has the client's defaults, as people write it (librdkafka pauses for a
second whenever its queue is full), one the worker's own options. Ingest is the real worker with its transactions; its
start and its joining of the group are not counted.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from bench import pipe
from bench.reviews import as_arrow_stream, as_json_lines, reviews, write_vocabulary
from headrace.pipeline.kafka_client import CONSUMER_DEFAULTS
from headrace.schemas.record import ARROW_TYPE

RUNS = 5
REPEATS = 30  # of the 35 000 reviews: a run lasts some seconds
SILENT_S = 60
BULK_ROWS = 2500  # a message stays below Kafka's default limit


def run(address: str, folder: Path) -> dict[str, Any]:
    """Medians of the rates, and their ratios. `address` is a broker's host:port."""
    rows = reviews()
    write_vocabulary(rows, folder / "vocab.txt")
    json_ = _rates(address, folder, _json(rows), records_a_message=1.0)
    messages = -(-len(rows) // BULK_ROWS)
    arrow = _rates(address, folder, _arrow(rows), ARROW_TYPE, records_a_message=len(rows) / messages)
    return {"records": REPEATS * len(rows), "json": json_, "arrow": arrow}


def _json(rows: list[tuple[str, str]]) -> Iterator[bytes]:
    for repeat in range(REPEATS):
        yield from as_json_lines(rows, repeat * len(rows))


def _arrow(rows: list[tuple[str, str]]) -> Iterator[bytes]:
    for repeat in range(REPEATS):
        for start in range(0, len(rows), BULK_ROWS):
            yield as_arrow_stream(rows[start : start + BULK_ROWS], repeat * len(rows) + start)


def _rates(
    address: str, folder: Path, messages: Iterator[bytes], kind: str = "", *, records_a_message: float
) -> dict[str, float]:
    """Records/s of the bare consumer and of the worker, in turn."""
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    counted = _Counted(messages)
    pipe.publish(f"kafka://{address}", topic, counted, kind)
    records = round(counted.count * records_a_message)
    bare, tuned, ingest = [], [], []
    for number in range(RUNS):
        bare.append(_bare(address, topic, counted.count, {}) * records_a_message)
        tuned.append(_bare(address, topic, counted.count, CONSUMER_DEFAULTS) * records_a_message)
        reports = pipe.ingest(f"kafka://{address}", topic, f"{topic}-{number}", folder / "vocab.txt", records)
        ingest.append(_rate(reports))
    rate = statistics.median(ingest)
    return {
        "bare_records_s": round(statistics.median(bare)),
        "tuned_bare_records_s": round(statistics.median(tuned)),
        "ingest_records_s": round(rate),
        "ingest_share_of_bare": round(rate / statistics.median(bare), 3),
        "ingest_share_of_tuned_bare": round(rate / statistics.median(tuned), 3),
    }


class _Counted:
    """Messages, and how many there were."""

    def __init__(self, messages: Iterator[bytes]) -> None:
        self._messages = messages
        self.count = 0

    def __iter__(self) -> Iterator[bytes]:
        for message in self._messages:
            self.count += 1
            yield message


def _rate(reports: pipe.Reports) -> float:
    """Records/s between the first commit and the last but one: the last waits for records that do not come."""
    (began, first) = next(report for report in reports if report[1])
    most = max(count for _, count in reports if count < reports[-1][1])
    (ended, last) = next(report for report in reports if report[1] == most)
    return (last - first) / (ended - began)


def _bare(address: str, topic: str, count: int, options: Mapping[str, Any]) -> float:
    """Messages/s of a consumer that does nothing with them."""
    fixed = {"bootstrap.servers": address, "group.id": "bench", "isolation.level": "read_committed"}
    consumer = Consumer({**options, **fixed})
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(pipe.PARTITIONS)])
    seen = len(_some(consumer, 1))
    began, before = time.monotonic(), seen
    while seen < count:
        seen += sum(1 for message in _some(consumer, min(2000, count - seen)) if not message.error())
    rate = (seen - before) / (time.monotonic() - began)
    consumer.close()
    return rate


def _some(consumer: Consumer, most: int) -> list[Any]:
    """Messages as soon as there are any. Raises SystemExit when none come."""
    deadline_s = time.monotonic() + SILENT_S
    while time.monotonic() < deadline_s:
        found: list[Any] = consumer.consume(most, 1.0)
        if found:
            return found
    raise SystemExit(f"the bare consumer got nothing for {SILENT_S} s: run it again")
