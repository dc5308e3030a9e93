"""Ingest records/s as a share of the rate at which confluent-kafka alone consumes the same topic.

Both read the same partitions of the same broker in one process, one after the other, several times. Ingest is the real
worker with its transactions; its start and its joining of the group are not counted.
"""

from __future__ import annotations

import statistics
import time
import uuid
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from bench import pipe
from bench.reviews import as_json_lines, reviews, write_vocabulary

RUNS = 3


def run(address: str, folder: Path) -> dict[str, Any]:
    """Medians of both rates, and their ratio. `address` is a broker's host:port."""
    rows = reviews()
    write_vocabulary(rows, folder / "vocab.txt")
    messages = as_json_lines(rows)
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    pipe.publish(f"kafka://{address}", topic, messages)
    bare, ingest = [], []
    for number in range(RUNS):
        bare.append(_bare(address, topic, len(messages)))
        reports = pipe.ingest(f"kafka://{address}", topic, f"{topic}-{number}", folder / "vocab.txt", len(messages))
        ingest.append(_rate(reports))
    bare_median, ingest_median = statistics.median(bare), statistics.median(ingest)
    return {
        "records": len(messages),
        "bare_records_s": round(bare_median),
        "ingest_records_s": round(ingest_median),
        "ingest_share_of_bare": round(ingest_median / bare_median, 4),
    }


def _rate(reports: pipe.Reports) -> float:
    """Records/s between the first report that has some and the last."""
    (began, first), (ended, last) = next(report for report in reports if report[1]), reports[-1]
    return (last - first) / (ended - began)


def _bare(address: str, topic: str, count: int) -> float:
    """Records/s of a consumer that does nothing with them."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "bench", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(pipe.PARTITIONS)])
    seen = len(consumer.consume(1, 30))
    began, before = time.monotonic(), seen
    while seen < count:
        seen += sum(1 for message in consumer.consume(2000, 1.0) if not message.error())
    rate = (seen - before) / (time.monotonic() - began)
    consumer.close()
    return rate
