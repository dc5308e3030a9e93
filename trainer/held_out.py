"""The held-out rows that a rank keeps for evaluation: the newest, up to a bound, saved with checkpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from headrace.schemas.cursor import CuttingPlan
from headrace.trainer.collate import Batch, Collate
from headrace.trainer.window import MicroBatch, Window, cut


class HeldOut:
    """Rows in the order in which their windows were begun."""

    def __init__(self, most_rows: int, saved: pa.Table | None = None) -> None:
        self._most_rows = most_rows
        self._rows: deque[pa.RecordBatch] = deque(saved.to_batches() if saved is not None else ())
        self._count = sum(len(rows) for rows in self._rows)

    def add(self, micro_batches: Sequence[MicroBatch]) -> None:
        for micro_batch in micro_batches:
            rows = micro_batch.held_out
            if len(rows):
                # A copy: the rows are a slice, and would keep the whole window in memory.
                self._rows.append(rows.take(pa.array(range(len(rows)))))
                self._count += len(rows)
        while self._rows and self._count - len(self._rows[0]) >= self._most_rows:
            self._count -= len(self._rows.popleft())

    def table(self) -> pa.Table | None:
        """All rows; None where there are none."""
        return pa.Table.from_batches(list(self._rows)).unify_dictionaries() if self._rows else None

    def batches(self, plan: CuttingPlan, collate: Collate) -> list[Batch]:
        """The rows as collated micro-batches. They passed the task's screen before they were held out."""
        if not self._rows:
            return []
        window = Window.of(0, 0, list(self._rows))
        keep_all = replace(plan, hold_out_share=0.0)
        micro_batches = cut(window, keep_all, 0, lambda rows: pa.nulls(len(rows), pa.string()))
        return [collate(micro_batch) for micro_batch in micro_batches]
