"""The ledger gives back what was noted, in the order of training, at any number of ranks and checkpoints."""

from __future__ import annotations

import hashlib
import json
import struct
from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schemas.cursor import Cursor
from headrace.schemas.errors import CheckpointDamaged, Stop, UsageError
from headrace.schemas.ledger import OUTCOMES, STEPS, Outcome
from headrace.schemas.record import Origin
from headrace.trainer.checkpoint import folder_of, publish
from headrace.trainer.checkpoint_store import Store
from headrace.trainer.ledger import OUTCOMES_FILE, LedgerRows, LedgerTables, merge, write
from headrace.trainer.ledger_read import Ledger
from tests.unit.trainer.checkpoint_samples import Step, checkpoint, memory_store, micro_batch, noted

LANES = 5
EXAMPLES = 30  # each writes files
origins = st.builds(
    Origin,
    st.sampled_from(["orders", "reviews", "文本"]),
    st.integers(0, 3),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.integers(0, 2**16 - 1),
)
batches = st.lists(st.lists(origins, max_size=4), min_size=1, max_size=3)
steps_of_a_run = st.lists(st.dictionaries(st.integers(0, LANES - 1), batches, max_size=LANES), min_size=1, max_size=8)


def run_of(steps: list[Step]) -> dict[int, Step]:
    return dict(enumerate(steps, start=1))


def written(run: dict[int, Step], boundaries: set[int], ranks: int) -> Store:
    """A run with a checkpoint after each of the steps in `boundaries`, and at its end."""
    store = memory_store()
    parent: int | None = None
    for last in sorted(boundaries & run.keys() | {max(run)}):
        since = {step: lanes for step, lanes in run.items() if (parent or 0) < step <= last}
        publish(store, checkpoint(last, parent, noted(since, ranks)))
        parent = last
    return store


def trained(run: dict[int, Step]) -> list[tuple[int, int, Origin]]:
    """Every trained row in the order of training."""
    return [
        (step, lane, origin)
        for step, lanes in run.items()
        for lane, taken in sorted(lanes.items())
        for rows in taken
        for origin in rows
    ]


def expected_hash(run: dict[int, Step]) -> str:
    """The hash once more, the slow way: this format is a promise."""
    digest = hashlib.sha256()
    for step, lane, origin in trained(run):
        topic = hashlib.sha256(origin.topic.encode()).digest()[:8]
        digest.update(struct.pack("<qi", step, lane) + topic)
        digest.update(struct.pack("<iqqHH", origin.partition, origin.offset, origin.row, origin.part, 1))
    return digest.hexdigest()


def rows_of(ledger: Ledger) -> list[tuple[int, int, Origin]]:
    rows = pa.Table.from_batches(list(ledger.outcomes(OUTCOMES.names)), OUTCOMES).to_pylist()
    names = ("topic", "partition", "offset", "row", "part")
    return [(row["step"], row["lane"], Origin(*(row[name] for name in names))) for row in rows]


@settings(max_examples=EXAMPLES, deadline=None)
@given(steps_of_a_run, st.sets(st.integers(1, 8)), st.sampled_from([1, 2, 3]))
def test_round_trip_keeps_every_row_in_the_order_of_training(
    steps: list[Step], boundaries: set[int], ranks: int
) -> None:
    run = run_of(steps)
    ledger = Ledger.open(written(run, boundaries, ranks))
    assert rows_of(ledger) == trained(run)
    table = pa.concat_tables(ledger.steps())
    assert table.schema.equals(STEPS)
    taken = [(step, lane, batches) for step, lanes in run.items() for lane, batches in sorted(lanes.items())]
    assert table["step"].to_pylist() == [step for step, _, _ in taken]
    assert table["lane"].to_pylist() == [lane for _, lane, _ in taken]
    assert table["micro_batches"].to_pylist() == [len(batches) for _, _, batches in taken]
    assert table["rows"].to_pylist() == [sum(map(len, batches)) for _, _, batches in taken]


@settings(max_examples=EXAMPLES, deadline=None)
@given(steps_of_a_run, st.sets(st.integers(1, 8)), st.sampled_from([1, 2, 3]))
def test_hash_depends_on_neither_ranks_nor_checkpoints(steps: list[Step], boundaries: set[int], ranks: int) -> None:
    run = run_of(steps)
    assert Ledger.open(written(run, boundaries, ranks)).hash() == expected_hash(run)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(origins, min_size=2, max_size=6, unique=True), st.data())
def test_another_order_is_another_hash(rows: list[Origin], data: st.DataObject) -> None:
    other = data.draw(st.permutations(rows).filter(lambda order: order != rows))
    hashes = [Ledger.open(written({1: {0: [order]}}, set(), 1)).hash() for order in (rows, other)]
    assert hashes[0] != hashes[1]


def test_rows_of_another_step_or_lane_are_another_hash() -> None:
    batch = [[Origin("orders", 0, 1)]]
    runs: list[dict[int, Step]] = [
        {1: {0: batch}, 2: {}},
        {1: {}, 2: {0: batch}},
        {1: {1: batch}, 2: {}},
        {1: {}, 2: {}},
    ]
    hashes = {Ledger.open(written(run, set(), 1)).hash() for run in runs}
    assert len(hashes) == len(runs)


def test_outcomes_carry_their_reasons_and_only_trained_rows_are_hashed() -> None:
    held, dropped, kept, given_up = (Origin("orders", 0, offset) for offset in range(4))
    rows = LedgerRows()
    aside = [(held, Outcome.HELD_OUT, None), (dropped, Outcome.DROPPED, "unknown-label")]
    rows.add(1, [micro_batch(0, [kept], aside)], 5)
    rows.add(2, [micro_batch(0, [given_up])], 6, Outcome.SKIPPED, "loss-scale")
    store = memory_store()
    publish(store, checkpoint(2, None, merge([rows.drain()])))
    ledger = Ledger.open(store)
    found = [row for origin in (held, dropped, kept, given_up) for row in ledger.find(origin)]
    became = {row.origin: (row.outcome, row.reason) for row in found}
    assert became == {
        held: ("held_out", None),
        dropped: ("dropped", "unknown-label"),
        kept: ("trained", None),
        given_up: ("skipped", "loss-scale"),
    }
    assert ledger.hash() == expected_hash({1: {0: [[kept]]}})
    seen = ledger.ranges()["orders", 0]
    assert seen.ranges.tolist() == [[0, 3]]
    assert seen.rows == Counter(held_out=1, dropped=1, trained=1, skipped=1)


def test_steps_hold_cursors_token_counts_and_the_age_of_the_rows() -> None:
    rows = LedgerRows()
    rows.add(3, [micro_batch(1, [Origin("orders", 0, 7), Origin("orders", 0, 2)]), micro_batch(1, [])], stepped_ms=99)
    step = merge([rows.drain()]).steps.cast(STEPS).to_pylist()[0]
    one = micro_batch(1, [])
    assert Cursor.from_json(json.loads(step["before"])) == one.before
    assert Cursor.from_json(json.loads(step["after"])) == one.after
    assert (step["rows"], step["tokens"], step["padded_tokens"], step["micro_batches"]) == (2, 8, 16, 2)
    times = [np.datetime64(step[name], "ms").astype(int) for name in ("oldest", "newest", "stepped")]
    assert times == [2000, 7000, 99]


def test_a_step_without_rows_is_recorded() -> None:
    rows = LedgerRows()
    rows.add(1, [micro_batch(0, [])], 5)
    tables = merge([rows.drain(), LedgerRows().drain()])
    assert tables.steps["rows"].to_pylist() == [0]
    assert tables.steps["oldest"].to_pylist() == [None]
    assert tables.outcomes.num_rows == 0


def test_draining_forgets() -> None:
    rows = LedgerRows()
    rows.add(1, [micro_batch(0, [Origin("orders", 0, 1)])], 5)
    assert merge([rows.drain()]).outcomes.num_rows == 1
    again = merge([rows.drain()])
    assert again.outcomes.equals(LedgerTables.empty().outcomes)
    assert again.steps.equals(LedgerTables.empty().steps)


def test_notes_do_not_hold_on_to_tokens() -> None:
    rows = LedgerRows()
    before = pa.total_allocated_bytes()
    for step in range(20):
        batch = micro_batch(0, [Origin("orders", 0, offset) for offset in range(1000)])
        rows.add(step, [batch], 5)
        del batch
    assert pa.total_allocated_bytes() - before < 20_000


def test_find_names_all_rows_and_parts_or_just_the_one() -> None:
    bulk = [Origin("orders", 0, 5, row, part) for row in (0, 1) for part in (0, 1)]
    run = {1: {0: [bulk[:3]]}, 2: {0: [bulk[3:], [Origin("other", 0, 5)], [Origin("orders", 1, 5)]]}}
    ledger = Ledger.open(written(run, {1}, 1))
    assert [found.origin for found in ledger.find(Origin("orders", 0, 5))] == bulk
    assert [found.origin for found in ledger.find(Origin("orders", 0, 5, 1))] == bulk[2:]
    assert [(f.step, f.lane, f.checkpoint) for f in ledger.find(Origin("orders", 0, 5, 1, 1))] == [(2, 0, 2)]
    assert ledger.find(Origin("orders", 0, 6)) == []
    assert ledger.find(Origin("nobody", 0, 5)) == []


def test_find_opens_only_the_ledgers_that_can_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    run = {step: {0: [[Origin("orders", 0, step)]]} for step in range(1, 6)}
    store = written(run, set(run), 1)
    ledger = Ledger.open(store)
    opened: list[str] = []
    read = store.read

    def note(folder: str, name: str) -> bytes:
        opened.append(f"{folder}/{name}")
        return read(folder, name)

    monkeypatch.setattr(store, "read", note)
    assert [found.checkpoint for found in ledger.find(Origin("orders", 0, 3))] == [3]
    assert opened == [f"{folder_of(3)}/{OUTCOMES_FILE}"]


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.lists(st.integers(0, 60), max_size=30), min_size=1, max_size=5))
def test_ranges_cover_exactly_what_was_seen(offsets: list[list[int]]) -> None:
    run = {step: {0: [[Origin("orders", 0, offset) for offset in some]]} for step, some in enumerate(offsets, start=1)}
    seen = Ledger.open(written(run, set(run), 1)).ranges()
    expected = {offset for some in offsets for offset in some}
    if not expected:
        assert seen == {}
        return
    ranges = seen["orders", 0].ranges.tolist()
    assert {offset for first, last in ranges for offset in range(first, last + 1)} == expected
    assert all(later[0] > earlier[1] + 1 for earlier, later in pairwise(ranges))
    assert seen["orders", 0].rows["trained"] == sum(map(len, offsets))


def test_the_ledger_of_an_earlier_checkpoint_is_what_that_one_had_seen() -> None:
    run = {step: {0: [[Origin("orders", 0, step)]]} for step in range(1, 4)}
    store = written(run, set(run), 1)
    assert Ledger.open(store, 2).hash() == expected_hash({1: run[1], 2: run[2]})
    assert Ledger.open(store, 2).find(Origin("orders", 0, 3)) == []
    with pytest.raises(UsageError, match="newest are 1, 2, 3"):
        Ledger.open(store, 4)


def test_a_hole_in_the_line_and_a_damaged_ledger_are_named() -> None:
    run = {step: {0: [[Origin("orders", 0, step)]]} for step in range(1, 4)}
    store = written(run, set(run), 1)
    store.write(folder_of(2), OUTCOMES_FILE, [b"PAR1"])
    with pytest.raises(CheckpointDamaged, match=rf"{folder_of(2)}/{OUTCOMES_FILE}"):
        Ledger.open(store).hash()
    store.remove_folder(folder_of(2))
    with pytest.raises(CheckpointDamaged, match="the parent of step 3"):
        Ledger.open(store)


def test_a_run_without_checkpoints_has_no_ledger() -> None:
    with pytest.raises(Stop, match="no checkpoint"):
        Ledger.open(memory_store())


def test_an_outcome_takes_about_three_bytes() -> None:
    """Four partitions, eight lanes, windows of 20 000 shuffled rows, as a million tokens of short texts give."""
    random = np.random.default_rng(0)
    count, window = 200_000, 20_000
    offsets = np.arange(count)
    for start in range(0, count, window):
        random.shuffle(offsets[start : start + window])
    columns = {
        "step": np.arange(count) // 1280,
        "lane": np.arange(count) // 160 % 8,
        "outcome": pa.array(["trained"] * count),
        "reason": pa.nulls(count, pa.string()),
        "topic": pa.array(["orders"] * count),
        "partition": offsets % 4,
        "offset": offsets * 8,  # neighbours went to the other lanes
        "row": np.zeros(count),
        "part": np.zeros(count),
        "pass": np.ones(count),
    }
    arrays = [pa.array(columns[each.name]).cast(each.type) for each in OUTCOMES]
    tables = LedgerTables(STEPS.empty_table(), pa.Table.from_arrays(arrays, schema=OUTCOMES))
    data = write(tables)[OUTCOMES_FILE]
    assert len(data) / count < 3.0
    assert pq.read_table(pa.BufferReader(data)).cast(OUTCOMES).equals(tables.outcomes)
