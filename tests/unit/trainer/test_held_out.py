"""Held-out rows are bounded per lane, and the same at any number of ranks and after any restart."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.schemas.cursor import CuttingPlan
from headrace.trainer.collate import classification_collate
from headrace.trainer.held_out import HeldOut
from headrace.trainer.window import MicroBatch, Window, cut
from tests.unit.trainer.made_up import keep_all, origins, rows_of

PLAN = CuttingPlan(seed=1, micro_tokens=64, window_tokens=64, hold_out_share=0.5)


def held_out(lane: int, number: int, rows: int) -> MicroBatch:
    batch = rows_of([[1, 5, 2]] * rows, partition=lane, first_offset=number * 100, buckets=[0] * rows)
    return cut(Window(number, number + 1, 1, batch), PLAN, lane, keep_all)[0]


def kept(table: pa.Table | None) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for batch in [] if table is None else table.to_batches():
        for lane, origin in zip(batch.column("lane").to_pylist(), origins(batch), strict=True):
            found.setdefault(lane, []).append(origin)
    return found


def test_the_newest_rows_of_each_lane_are_kept() -> None:
    rows = HeldOut([0, 3], 5)
    for number in range(4):
        rows.add([held_out(0, number, 2), held_out(3, number, 1)])
    assert kept(rows.table()) == {
        0: ["text/0@101", "text/0@200", "text/0@201", "text/0@300", "text/0@301"],
        3: ["text/3@0", "text/3@100", "text/3@200", "text/3@300"],
    }


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_any_number_of_ranks_and_restarts_keeps_the_same(ranks: int) -> None:
    saved = None
    for number in range(6):
        parts = [HeldOut(range(rank, 4, ranks), 5, saved) for rank in range(ranks)]
        for rank, part in enumerate(parts):
            part.add([held_out(lane, number, 1 + lane) for lane in range(rank, 4, ranks)])
        tables = [table for part in parts if (table := part.table()) is not None]
        saved = pa.concat_tables(tables).unify_dictionaries()
    whole = HeldOut(range(4), 5)
    for number in range(6):
        whole.add([held_out(lane, number, 1 + lane) for lane in range(4)])
    assert kept(saved) == kept(whole.table())


def test_all_rows_are_evaluated_once() -> None:
    rows = HeldOut([0, 1], 100)
    rows.add([held_out(0, 0, 30), held_out(1, 0, 25)])
    batches = list(rows.batches(PLAN, classification_collate(("a", "b"), 0)))
    assert sum(batch.count for batch in batches) == 55


def test_nothing_held_out_is_nothing() -> None:
    rows = HeldOut([0], 5)
    assert rows.table() is None
    assert list(rows.batches(PLAN, classification_collate(("a", "b"), 0))) == []
