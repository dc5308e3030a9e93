"""Ledger, writing: every rank notes what it trained, rank 0 merges the notes and writes them with the checkpoint.

1. After each step a rank calls `LedgerRows.add` with the micro-batches of every lane that it owns.
2. When a checkpoint is due every rank calls `drain`: Arrow IPC bytes that travel to rank 0.
3. Rank 0 calls `merge`: rows sorted by (step, lane), and inside of them in the order of training. A lane belongs to one
   rank at a time, so the result does not depend on the number of ranks.
4. `write` makes two Parquet files of it, which `checkpoint.publish` stores.

The rows of a window are shuffled, so their offsets can be coded no shorter than about the width of a window: integer
columns are delta-coded in bit-packed blocks, which leaves the noise of the shuffle (two bytes and a bit) and nothing of
the columns that hardly change. Cost: O(rows), about 30 bytes of memory per row until the checkpoint.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.schemas.ledger import OUTCOMES, STEPS, Outcome
from headrace.trainer.checkpoint_state import PartitionSummary

if TYPE_CHECKING:
    from headrace.trainer.window import MicroBatch

STEPS_FILE = "steps.parquet"
OUTCOMES_FILE = "outcomes.parquet"

#: Codes of the `outcome` column in memory and on disk: never reorder.
OUTCOME_NAMES = tuple(str(outcome) for outcome in Outcome)

_PLAIN = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
_ROW_GROUP_ROWS = 131_072  # a search by offset skips row groups by their statistics
_DELTA_CODED = {
    STEPS_FILE: ("step", "lane", "micro_batches", "rows", "tokens", "padded_tokens", "oldest", "newest", "stepped"),
    OUTCOMES_FILE: ("step", "lane", "partition", "offset", "row", "part", "pass"),
}


@dataclass(frozen=True, slots=True)
class LedgerTables:
    """Rows of both tables, sorted by step and lane."""

    steps: pa.Table
    outcomes: pa.Table

    @classmethod
    def empty(cls) -> LedgerTables:
        return cls(STEPS.empty_table(), OUTCOMES.empty_table())


@dataclass(frozen=True, slots=True)
class _Noted:
    """Rows of one record batch, as plain arrays: holding on to the batch would hold its tokens too."""

    step: int
    lane: int
    pass_number: int
    outcome: np.ndarray[Any, Any] | int
    reason: np.ndarray[Any, Any] | int  # index into the reasons, -1 for none
    topic: np.ndarray[Any, Any]  # index into the topics
    numbers: tuple[np.ndarray[Any, Any], ...]  # partition, offset, row, part


class LedgerRows:
    """What one rank has noted since the last checkpoint."""

    def __init__(self) -> None:
        self._steps: list[dict[str, Any]] = []
        self._noted: list[_Noted] = []
        self._topics: dict[str, int] = {}
        self._reasons: dict[str, int] = {}

    def add(
        self,
        step: int,
        micro_batches: Sequence[MicroBatch],
        stepped_ms: int,
        outcome: Outcome = Outcome.TRAINED,
        reason: str | None = None,
    ) -> None:
        """Note a step: its micro-batches in the order they were trained, of any number of lanes.

        `outcome` and `reason` are those of the rows that went into the step: a step that was given up is `SKIPPED`.
        Rows that were held out, dropped or excluded carry their own.
        """
        by_lane: dict[int, list[MicroBatch]] = {}
        for micro_batch in micro_batches:
            by_lane.setdefault(micro_batch.lane, []).append(micro_batch)
        code = OUTCOME_NAMES.index(outcome)
        reason_index = -1 if reason is None else _index(self._reasons, reason)
        for lane, taken in sorted(by_lane.items()):
            for _, window in itertools.groupby(taken, key=lambda micro_batch: micro_batch.before.start):
                self._steps.append(_step_row(step, lane, list(window), stepped_ms))
            for micro_batch in taken:
                where = (step, lane, micro_batch.before.pass_number)
                self._note_untrained(where, micro_batch.untrained)
                self._note(where, micro_batch.rows, code, reason_index)

    def drain(self) -> bytes:
        """Everything noted since the last call, as two Arrow IPC streams, one after the other."""
        tables = LedgerTables(pa.Table.from_pylist(self._steps, STEPS), self._outcomes())
        for noted in (self._steps, self._noted, self._topics, self._reasons):
            noted.clear()
        sink = pa.BufferOutputStream()
        for table in (tables.steps, tables.outcomes):
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
        return bytes(sink.getvalue())

    def _note_untrained(self, where: tuple[int, int, int], rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            codes = {name: code for code, name in enumerate(OUTCOME_NAMES)}
            outcome = _coded(rows.column("outcome"), codes)
            self._note(where, rows, outcome, _coded(rows.column("reason"), self._reasons))

    def _note(
        self,
        where: tuple[int, int, int],  # step, lane, pass
        rows: pa.RecordBatch,
        outcome: np.ndarray[Any, Any] | int,
        reason: np.ndarray[Any, Any] | int,
    ) -> None:
        if rows.num_rows:
            numbers = tuple(rows.column(name).to_numpy().copy() for name in ("partition", "offset", "row", "part"))
            topic = _coded(rows.column("topic"), self._topics)
            self._noted.append(_Noted(*where, outcome, reason, topic, numbers))

    def _outcomes(self) -> pa.Table:
        noted = self._noted
        if not noted:
            return OUTCOMES.empty_table()
        counts = [len(rows.topic) for rows in noted]
        lengths = np.array(counts)
        numbers = [np.concatenate(columns) for columns in zip(*(rows.numbers for rows in noted), strict=True)]
        reasons = np.concatenate(
            [np.broadcast_to(rows.reason, count) for rows, count in zip(noted, counts, strict=True)]
        )
        outcomes = np.concatenate(
            [np.broadcast_to(rows.outcome, count) for rows, count in zip(noted, counts, strict=True)]
        )
        columns = [
            pa.array(np.repeat([rows.step for rows in noted], lengths), pa.int64()),
            pa.array(np.repeat([rows.lane for rows in noted], lengths), pa.int32()),
            _dictionary(outcomes, list(OUTCOME_NAMES)),
            _dictionary(reasons, list(self._reasons)),
            _dictionary(np.concatenate([rows.topic for rows in noted]), list(self._topics), pa.int32()),
            *(pa.array(column) for column in numbers),
            pa.array(np.repeat([rows.pass_number for rows in noted], lengths), pa.uint16()),
        ]
        return pa.Table.from_arrays(columns, schema=OUTCOMES)


def _step_row(step: int, lane: int, taken: Sequence[MicroBatch], stepped_ms: int) -> dict[str, Any]:
    published = pa.chunked_array([micro_batch.rows.column("published") for micro_batch in taken])
    span = pc.min_max(published.cast(pa.int64()))
    return {
        "step": step,
        "lane": lane,
        "before": json.dumps(taken[0].before.to_json()),
        "after": json.dumps(taken[-1].after.to_json()),
        "micro_batches": len(taken),
        "rows": len(published),
        "tokens": sum(micro_batch.tokens for micro_batch in taken),
        "padded_tokens": sum(micro_batch.padded_tokens for micro_batch in taken),
        "oldest": span["min"].as_py(),
        "newest": span["max"].as_py(),
        "stepped": stepped_ms,
    }


def _index(known: dict[str, int], text: str) -> int:
    return known.setdefault(text, len(known))


def _coded(column: pa.Array, known: dict[str, int]) -> np.ndarray[Any, Any]:
    """Indices of a text column into `known`, which grows by what is new; -1 for null."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    codes = [-1 if text is None else _index(known, text) for text in column.dictionary.to_pylist()]
    coded: np.ndarray[Any, Any] = np.array([*codes, -1], np.int32)[column.indices.fill_null(len(codes)).to_numpy()]
    return coded


def _dictionary(codes: np.ndarray[Any, Any], values: list[Any], index_type: pa.DataType | None = None) -> pa.Array:
    indices = pa.array(codes, index_type or pa.int8(), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(values, pa.string()))


def merge(parts: Iterable[bytes]) -> LedgerTables:
    """What all ranks drained, in the one order: by step, by lane, then as it was trained."""
    steps: list[pa.Table] = []
    outcomes: list[pa.Table] = []
    for part in parts:
        source = pa.BufferReader(part)
        for tables in (steps, outcomes):
            with pa.ipc.open_stream(source) as stream:
                tables.append(stream.read_all())
    return LedgerTables(_sorted(steps, STEPS), _sorted(outcomes, OUTCOMES))


def _sorted(tables: list[pa.Table], schema: pa.Schema) -> pa.Table:
    table = pa.concat_tables(tables).unify_dictionaries() if tables else schema.empty_table()
    order = np.lexsort((table["lane"].to_numpy(), table["step"].to_numpy()))  # stable: keeps the order of training
    return table.take(pa.array(order)).combine_chunks()


def summarize(tables: LedgerTables) -> tuple[PartitionSummary, ...]:
    """Which offsets of which partitions the outcomes name; goes into the manifest."""
    plain = tables.outcomes.select(["topic", "partition", "offset"]).cast(_PLAIN)
    found = plain.group_by(["topic", "partition"]).aggregate(
        [("offset", "min"), ("offset", "max"), ("offset", "count")]
    )
    columns = ("topic", "partition", "offset_min", "offset_max", "offset_count")
    return tuple(sorted(map(PartitionSummary, *(found[column].to_pylist() for column in columns))))


def write(tables: LedgerTables) -> dict[str, bytes]:
    """Both tables as Parquet files, by name."""
    return {STEPS_FILE: _parquet(tables.steps, STEPS_FILE), OUTCOMES_FILE: _parquet(tables.outcomes, OUTCOMES_FILE)}


def _parquet(table: pa.Table, name: str) -> bytes:
    delta_coded = _DELTA_CODED[name]
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        row_group_size=_ROW_GROUP_ROWS,
        use_dictionary=[column for column in table.column_names if column not in delta_coded],
        column_encoding=dict.fromkeys(delta_coded, "DELTA_BINARY_PACKED"),
    )
    return bytes(sink.getvalue())
