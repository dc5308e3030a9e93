"""Exclusions: records that a run goes on without, named by ranges of offsets of the text topic.

Written `topic/partition@first..last`, both offsets included, as `headrace ledger ranges` prints them; one offset alone
names one message. A message of many records is excluded as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.schemas.errors import UsageError

_RANGE = re.compile(r"(?P<topic>[^/@\s]+)/(?P<partition>\d+)@(?P<first>\d+)(\.\.(?P<last>\d+))?")


@dataclass(frozen=True, slots=True, order=True)
class Exclusion:
    """A range of one partition of a text topic, both ends included."""

    topic: str
    partition: int
    first: int
    last: int

    def __str__(self) -> str:
        span = f"{self.first}..{self.last}" if self.last > self.first else str(self.first)
        return f"{self.topic}/{self.partition}@{span}"

    @classmethod
    def parse(cls, text: str) -> Exclusion:
        """Read `topic/partition@first..last` or `topic/partition@offset`. Raises UsageError with the form expected."""
        match = _RANGE.fullmatch(text)
        if match is None:
            raise UsageError(
                f"{text!r} does not name records: write TOPIC/PARTITION@FIRST..LAST, both included, for example "
                "orders/0@1200..1699"
            )
        first = int(match["first"])
        last = int(match["last"] or first)
        if last < first:
            raise UsageError(f"{text!r} ends before it begins: write TOPIC/PARTITION@FIRST..LAST, both included")
        return cls(match["topic"], int(match["partition"]), first, last)


def excluded_rows(rows: pa.RecordBatch, exclusions: Sequence[Exclusion]) -> npt.NDArray[np.bool_]:
    """Which rows (with the columns of an origin) one of the exclusions names. O(rows * exclusions)."""
    found = np.zeros(rows.num_rows, bool)
    if not exclusions:
        return found
    topics = rows.column("topic")
    names = np.array([*topics.dictionary.to_pylist(), ""], object)[topics.indices.to_numpy()]
    partition, offset = (rows.column(name).to_numpy() for name in ("partition", "offset"))
    for each in exclusions:
        here = (names == each.topic) & (partition == each.partition)
        found |= here & (offset >= each.first) & (offset <= each.last)
    return found
