"""Records: texts with their labels and origin, as ingest holds them between decoding and tokenizing.

`RECORDS` is the Arrow schema of a decoded run of messages. `Origin` names one record for people and for the ledger,
written `topic/partition@offset`, with `+row` inside a bulk message or split and `#part` for a part of a long text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from headrace.schemas.errors import UsageError

JSON_TYPE = "application/json"
TEXT_TYPE = "text/plain"
ARROW_TYPE = "application/vnd.apache.arrow.stream"
SPLIT_TYPE = "application/vnd.headrace.split+json"


class TextFormat(StrEnum):
    """How a message of the text topic holds its records."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"
    ARROW = "arrow"


#: One row, one record. `text` is never null; `row` counts inside a bulk message (0 otherwise).
RECORDS = pa.schema(
    [
        pa.field("text", pa.string(), nullable=False),
        pa.field("pair", pa.string()),
        pa.field("labels", pa.list_(pa.string()), nullable=False),
        pa.field("id", pa.string()),
        pa.field("timestamp", pa.timestamp("ms")),
        pa.field("published", pa.timestamp("ms"), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
    ]
)

_ORIGIN = re.compile(r"(?P<topic>[^/@\s]+)/(?P<partition>\d+)@(?P<offset>\d+)(\+(?P<row>\d+))?(#(?P<part>\d+))?")


@dataclass(frozen=True, slots=True, order=True)
class Origin:
    """Where a record comes from; unique in a broker."""

    topic: str
    partition: int
    offset: int
    row: int = 0
    part: int = 0

    def __str__(self) -> str:
        row = f"+{self.row}" if self.row else ""
        part = f"#{self.part}" if self.part else ""
        return f"{self.topic}/{self.partition}@{self.offset}{row}{part}"

    @classmethod
    def parse(cls, text: str) -> Origin:
        """Read `topic/partition@offset[+row][#part]`. Raises UsageError with the form expected."""
        match = _ORIGIN.fullmatch(text)
        if match is None:
            raise UsageError(
                f"{text!r} does not name a record: write TOPIC/PARTITION@OFFSET, for example orders/0@1234"
            )
        numbers = {key: int(match[key] or 0) for key in ("partition", "offset", "row", "part")}
        return cls(match["topic"], **numbers)
