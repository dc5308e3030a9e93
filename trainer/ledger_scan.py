"""What topics say about records, as plain arrays: the text topic, the dead letters, and the lanes.

Each function reads committed messages between two offsets once and keeps a few numbers of each, never its value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.pipeline.scan import Spans, messages
from headrace.pipeline.topics import Broker, Message
from headrace.schemas import tokens
from headrace.schemas.record import ARROW_TYPE, JSON_TYPE, TextFormat

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Names:
    """Records of a text topic by partition, offset, row and part."""

    partition: Integers
    offset: Integers
    row: Integers
    part: Integers

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Self:
        """From tuples of the four numbers."""
        columns = np.array(rows, np.int64).reshape(-1, 4)
        return cls(*(columns[:, number].copy() for number in range(4)))

    @classmethod
    def concatenated(cls, several: Sequence[Names]) -> Self:
        if not several:
            return cls.of([])
        return cls(*(np.concatenate([getattr(one, name) for one in several]) for name in cls.__slots__))

    @classmethod
    def in_rows(cls, rows: pa.RecordBatch) -> Self:
        """Of token rows or ledger rows."""
        return cls(*(rows.column(name).to_numpy().astype(np.int64) for name in cls.__slots__))

    def of_partition(self, partition: int) -> Self:
        return self.where(self.partition == partition)

    def where(self, chosen: npt.NDArray[Any]) -> Self:
        return type(self)(self.partition[chosen], self.offset[chosen], self.row[chosen], self.part[chosen])

    def __len__(self) -> int:
        return len(self.offset)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Records that were dead-lettered; `whole` where one letter stands for a message of many records."""

    names: Names
    whole: npt.NDArray[np.bool_]


def of_topic(rows: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    """The rows that come from a text topic."""
    topics = rows.column("topic")
    wanted = np.array([*(name == topic for name in topics.dictionary.to_pylist()), False])
    return rows.filter(pa.array(wanted[topics.indices.to_numpy()]))


def text_records(
    broker: Broker, topic: str, spans: Spans, text_format: TextFormat
) -> dict[int, tuple[Integers, Integers]]:
    """By partition: the offsets of the messages, and how many records each of them holds."""
    offsets: dict[int, list[Integers]] = {partition: [] for partition in spans}
    counts: dict[int, list[Integers]] = {partition: [] for partition in spans}
    for fetched in messages(broker, topic, spans):
        for partition in {message.partition for message in fetched}:
            here = [message for message in fetched if message.partition == partition]
            offsets[partition].append(np.array([message.offset for message in here], np.int64))
            counts[partition].append(np.array([record_count(message, text_format) for message in here], np.int64))
    nothing = [np.empty(0, np.int64)]
    return {p: (np.concatenate(offsets[p] or nothing), np.concatenate(counts[p] or nothing)) for p in spans}


def record_count(message: Message, text_format: TextFormat) -> int:
    """Rows of an Arrow stream, by its batches' headers; one for any other message, and for a stream that is broken."""
    kind = (message.header("content-type") or b"").partition(b";")[0].strip().lower()
    if text_format is TextFormat.AUTO:
        text_format = TextFormat.ARROW if kind == ARROW_TYPE.encode() else TextFormat.JSON
    if text_format is not TextFormat.ARROW:
        return 1
    try:
        with pa.ipc.open_stream(message.value) as stream:
            rows = sum(int(batch.num_rows) for batch in stream)
            return max(1, rows)
    except (pa.ArrowException, OSError, ValueError):
        return 1


def dead_letters(broker: Broker, topic: str, text_topic: str) -> DeadLetters:
    """Origins of all dead letters of a text topic that retention has left. None when there is no such topic."""
    found: list[tuple[int, int, int, int]] = []
    whole: list[bool] = []
    ends = broker.ends(topic) if broker.describe(topic) is not None else {}
    for fetched in messages(broker, topic, {p: (end.first, end.end) for p, end in ends.items()}):
        for message in fetched:
            if message.header("topic") == text_topic.encode():
                partition, offset, row = (int(message.header(name) or b"0") for name in ("partition", "offset", "row"))
                found.append((partition, offset, row, 0))
                whole.append(message.header("content-type") != JSON_TYPE.encode())
    return DeadLetters(Names.of(found), np.array(whole, bool))


def lane_records(broker: Broker, topic: str, spans: Spans, text_topic: str, ahead: Mapping[int, int]) -> list[Names]:
    """Rows of token batches that come from `text_topic`: those before the offsets in `ahead`, and those from there."""
    parts: tuple[list[Names], list[Names]] = ([], [])
    for fetched in messages(broker, topic, spans):
        for message in fetched:
            rows, _ = tokens.decode(message.value)
            parts[message.offset >= ahead[message.partition]].append(Names.in_rows(of_topic(rows, text_topic)))
    return [Names.concatenated(part) for part in parts]
