"""The held-out rows that are kept for evaluation: the newest of each lane, saved with checkpoints.

The bound is per lane, so what is kept depends neither on the number of ranks nor on restarts. Saved rows that the run
excludes since are left out: what is wrong to train on is wrong to be measured by.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from headrace.schemas.cursor import CuttingPlan
from headrace.schemas.exclusion import Exclusion, excluded_rows
from headrace.trainer.collate import Batch, Collate
from headrace.trainer.window import MicroBatch, Window, cut

_LANE = pa.field("lane", pa.int32(), nullable=False)  # saved beside the columns of a token batch


class HeldOut:
    """Rows of the lanes that a rank owns, in the order in which their windows were begun."""

    def __init__(
        self,
        lanes: Collection[int],
        rows_per_lane: int,
        saved: pa.Table | None = None,
        exclusions: Sequence[Exclusion] = (),
    ) -> None:
        self._rows_per_lane = rows_per_lane
        self._rows: dict[int, deque[pa.RecordBatch]] = {lane: deque() for lane in sorted(lanes)}
        if saved is not None:
            for lane in self._rows:
                mine = saved.filter(pc.equal(saved.column("lane"), lane)).drop_columns(["lane"])
                kept = (rows.filter(pa.array(~excluded_rows(rows, exclusions))) for rows in mine.to_batches())
                self._rows[lane].extend(rows for rows in kept if len(rows))

    def add(self, micro_batches: Sequence[MicroBatch]) -> None:
        for micro_batch in micro_batches:
            if len(micro_batch.held_out):
                # A copy: the rows are a slice, and would keep the whole window in memory.
                rows = micro_batch.held_out.take(pa.array(range(len(micro_batch.held_out))))
                self._rows[micro_batch.lane].append(rows)
                self._trim(self._rows[micro_batch.lane])

    def table(self) -> pa.Table | None:
        """All rows, with their lane; None where there are none."""
        tables = [
            pa.Table.from_batches(list(rows)).append_column(_LANE, pa.array([lane] * sum(map(len, rows)), pa.int32()))
            for lane, rows in self._rows.items()
            if rows
        ]
        return pa.concat_tables(tables).unify_dictionaries() if tables else None

    def batches(self, plan: CuttingPlan, collate: Collate) -> Iterable[Batch]:
        """The rows as collated micro-batches, made as they are asked for.

        They passed the task's screen before they were held out.
        """
        kept = [batch for rows in self._rows.values() for batch in rows]
        if not kept:
            return []
        keep_all = replace(plan, hold_out_share=0.0)
        micro_batches = cut(Window.of(0, 0, kept), keep_all, 0, lambda rows: pa.nulls(len(rows), pa.string()))
        return map(collate, micro_batches)

    def _trim(self, rows: deque[pa.RecordBatch]) -> None:
        surplus = sum(map(len, rows)) - self._rows_per_lane
        while surplus > 0:
            oldest = rows.popleft()
            if len(oldest) > surplus:
                rows.appendleft(oldest.slice(surplus))
            surplus -= len(oldest)
