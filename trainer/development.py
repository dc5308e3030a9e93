"""The development set: labelled records of a file, tokenized once by the parent, scored by all ranks together.

The parent writes them as one token batch (`schemas.tokens`), the ranks read that. A record that the task cannot use is
an error here, and not dropped as in a stream: a score over part of a set would be compared with scores over all of it.
Each rank takes every W-th micro-batch of the same cut, and makes arrays of them when they are scored, so the set takes
its tokens in memory and not its padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from headrace.schemas.cursor import CuttingPlan
from headrace.schemas.errors import UsageError
from headrace.schemas.tokens import TokensMeta, decode
from headrace.trainer.collate import Batch, Collate
from headrace.trainer.window import MicroBatch, Screen, Window, cut


@dataclass(frozen=True, slots=True)
class Development:
    """This rank's part."""

    micro_batches: tuple[MicroBatch, ...]
    collate: Collate

    def batches(self) -> Iterator[Batch]:
        return map(self.collate, self.micro_batches)


def load_development(path: str, meta: TokensMeta) -> pa.RecordBatch:
    """The rows. Raises UsageError where they were made by another tokenizer than the lanes' token batches."""
    rows, own = decode(Path(path).read_bytes())
    if own.fingerprint != meta.fingerprint:
        raise UsageError(
            "evaluate.data was tokenized with other settings than the token batches of this run: set `tokenizer` as it "
            "was when ingest wrote them"
        )
    return rows


def development(
    rows: pa.RecordBatch, plan: CuttingPlan, screen: Screen, collate: Collate, share: tuple[int, int]
) -> Development:
    """`share` is (rank, ranks). Raises UsageError naming the first line that the task cannot use."""
    reasons = screen(rows)
    if reasons.null_count < len(rows):
        first = next(number for number, reason in enumerate(reasons) if reason.is_valid)
        line, bad = rows.column("offset")[first].as_py(), len(rows) - reasons.null_count
        raise UsageError(
            f"evaluate.data: line {line}: {reasons[first].as_py()} ({bad} of {len(rows)} records): "
            "the task cannot use it; correct the file"
        )
    rank, ranks = share
    keep_all = replace(plan, hold_out_share=0.0)
    micro_batches = cut(Window.of(0, 0, [rows]), keep_all, 0, lambda every: pa.nulls(len(every), pa.string()))
    return Development(tuple(micro_batches[rank::ranks]), collate)
