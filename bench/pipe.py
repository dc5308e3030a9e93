"""What the benchmarks share: text published to a topic, and one real ingest worker that tokenizes all of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from headrace.ingest import numbers
from headrace.ingest.stage import StageArgs, prepare, work
from headrace.pipeline import names
from headrace.pipeline.broker import open_broker
from headrace.pipeline.child import Channel

PARTITIONS = 4
LANES = 4
TRANSACTION_MESSAGES = 50_000
REPORT_S = 0.05  # more often than a user needs, for a rate over some seconds

#: (moment, records committed so far).
Reports = list[tuple[float, int]]


def publish(address: str, topic: str, messages: Iterable[bytes], kind: str = "") -> None:
    """All messages, spread over the partitions. `kind`: their content type."""
    headers = (("content-type", kind.encode()),) if kind else ()
    with closing(open_broker(address)) as broker:
        broker.create(topic, PARTITIONS)
        with closing(broker.writer(topic)) as writer:
            writer.begin()
            for number, message in enumerate(messages):
                if number and number % TRANSACTION_MESSAGES == 0:
                    writer.commit("bench", topic, {})
                    writer.begin()
                writer.append(topic, message, partition=number % PARTITIONS, headers=headers)
            writer.commit("bench", topic, {})


def ingest(address: str, topic: str, name: str, vocabulary: Path, count: int) -> Reports:
    """Run one worker until it has committed `count` records."""
    args = StageArgs.model_validate(
        {
            "name": name,
            "run": "main",
            "broker": {"broker": address},
            "text": {"topic": topic, "partitions": PARTITIONS},
            "tokens": {"topic": names.tokens_topic(name), "lanes": LANES, "backlog_tokens": 10**12},  # nobody trains it
            "tokenizer": {"path": str(vocabulary), "max_tokens": 128},
            "ingest": {"dead_letters": {"topic": names.dead_letters_topic(name)}},
        }
    )
    with closing(open_broker(address)) as broker:
        broker.create(args.tokens.topic, LANES)
        broker.create(args.ingest.dead_letters.topic, 1)
        prepare(broker, args)
    channel = _Listener(count)
    numbers.EVERY_S = REPORT_S
    work(args.model_dump(mode="json"), channel)
    return channel.reports


class _Listener(Channel):
    """Takes a worker's reports, and stops it when all is read."""

    def __init__(self, count: int) -> None:
        self.stopping = threading.Event()
        self.reports: Reports = []
        self._count = count

    def report(self, event: dict[str, Any]) -> None:
        if event["event"] == "ingest" and not self.stopping.is_set():
            self.reports.append((time.monotonic(), event["records"]))
            if event["records"] >= self._count:
                self.stopping.set()
