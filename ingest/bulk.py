"""Bulk messages: an Arrow IPC stream of many records -> raw values by row.

The stream is read to its end mark and validated in full before any row is used, so a truncated or damaged message is
one dead letter, always the same one, and never some rows and a dead letter. Columns are named as JSON fields are; a
dotted name reaches into structs. Cost: O(message). Columns of the usual types stay in Arrow (columns.py); the values of
others pass through Python, all of them before any row is used.

Bounds (bulk_bounds.py, with their reasons), checked before anything is converted: 250 000 rows, 4 000 000 values and
256 MB written out in a message, bodies not compressed. Whatever a column holds, it gives values or a dead letter: a
value that Python cannot hold refuses the message when one of the five fields has it, and is named by its type in a bad
row's JSON when another column has it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.bulk_bounds import check_weight, look_ahead, weigh
from headrace.ingest.columns import Column, Columns, Field, is_usual
from headrace.ingest.fields import Raw
from headrace.pipeline.config import FieldNames
from headrace.schemas.errors import BadRecord, Reason

#: What Arrow and Python raise for values that the one has and the other has not: unknown zones, years, encodings.
FOREIGN = (
    pa.ArrowException,
    struct.error,
    ArithmeticError,
    AttributeError,
    LookupError,
    NotImplementedError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)

_END_MARK_BYTES = 8
_TICKS_PER_MS = {"us": 1000, "ns": 1_000_000}
_MS_PER_DAY = 86_400_000
_NAMED = 20  # columns that a detail lists
_EXACT = 2.0**53  # floats from here on are spelt out as the number they are


@dataclass(frozen=True, slots=True)
class Bulk:
    """A whole message, valid in every byte."""

    table: pa.Table
    fields: Columns

    def columns(self, start: int, stop: int) -> Columns:
        """The five fields of rows `start` to `stop`."""
        text, pair, label, id_, timestamp = (_part(column, start, stop) for column in self.fields)
        return text, pair, label, id_, timestamp

    def raws(self, rows: Sequence[int]) -> list[Raw]:
        """The values of these rows as `fields.check` knows them."""
        columns = [_of_rows(column, rows, field) for field, column in zip(Field, self.fields, strict=True)]
        return list(zip(*columns, strict=True))

    def row_json(self, row: int) -> bytes:
        """One row as a JSON object, for its dead letter. Never raises: what has no JSON form is told by its type."""
        names = self.table.schema.names
        return orjson.dumps({name: _json(column, row) for name, column in zip(names, self.table.columns, strict=True)})


def read(value: bytes, names: FieldNames) -> Bulk:
    """Read and validate a message. Raises BadRecord for the message as a whole."""
    table = _read_stream(value)
    if not table.num_rows:
        raise BadRecord(Reason.INVALID_ARROW, "the Arrow stream holds no rows")
    text = _field(table, names.text, Field.TEXT)
    if text is None:
        raise BadRecord(
            Reason.MISSING_TEXT,
            f"the Arrow stream has no column {names.text!r} (text.fields.text) with values, it has "
            f"{table.schema.names[:_NAMED]}",
        )
    pair = _field(table, names.pair, Field.PAIR)
    label = _field(table, names.label, Field.LABEL)
    id_ = _field(table, names.id, Field.ID)
    return Bulk(table, (text, pair, label, id_, _field(table, names.timestamp, Field.TIMESTAMP)))


def _field(table: pa.Table, name: str, field: Field) -> Column:
    """A field as columns.py takes it; None where there is no such column, or one of nulls only."""
    try:
        column = _column(table, name)
        if column is None or pa.types.is_null(column.type):
            return None
        return column if is_usual(column.type, field) else _values(column, field)
    except FOREIGN as error:
        raise BadRecord(
            Reason.INVALID_ARROW, f"column {name!r} cannot be read: {type(error).__name__}: {str(error)[:200]}"
        ) from error


def _values(column: pa.ChunkedArray, field: Field) -> list[Any]:
    """Values as `fields.check` knows them."""
    return _times(column) if field is Field.TIMESTAMP else _plain(column)


def _part(column: Column, start: int, stop: int) -> Column:
    if isinstance(column, pa.ChunkedArray):
        return column.slice(start, stop - start)
    return None if column is None else column[start:stop]


def _read_stream(value: bytes) -> pa.Table:
    """Arrow takes a stream that ends between two batches for complete: the end mark must be there, and be the end."""
    source = pa.BufferReader(value)
    batches = []
    weight = 0.0
    try:
        look_ahead(value)
        stream = pa.ipc.open_stream(source)
        behind_batches = source.tell()
        for batch in stream:
            batch.validate(full=True)
            weight += weigh(batch)
            check_weight(weight)
            batches.append(batch)
            behind_batches = source.tell()
        table = pa.Table.from_batches(batches, stream.schema)
        names = table.schema.names  # raises UnicodeDecodeError, a ValueError
    except FOREIGN as error:
        raise BadRecord(Reason.INVALID_ARROW, f"not a whole Arrow stream: {str(error)[:200]}") from error
    if not behind_batches + _END_MARK_BYTES == source.tell() == len(value):
        raise BadRecord(Reason.INVALID_ARROW, "the Arrow stream lacks its end mark, or something follows it")
    if len(set(names)) < len(names):
        raise BadRecord(Reason.INVALID_ARROW, "two columns have the same name")
    return table


def _column(table: pa.Table, name: str) -> pa.ChunkedArray | None:
    first, *path = name.split(".")
    if first not in table.schema.names:
        return None
    column = table.column(first)
    for key in path:
        if not pa.types.is_struct(column.type) or column.type.get_field_index(key) < 0:
            return None
        column = pc.struct_field(column, key)
    return column


def _plain(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts: list[Any] = column.to_numpy().tolist()
        return texts
    if pa.types.is_temporal(kind):
        column = column.cast(pa.string())
    return [_exact(value) for value in column.to_pylist()]


def _exact(value: Any) -> Any:
    if isinstance(value, float) and abs(value) >= _EXACT:
        return Decimal(value)
    return [_exact(item) for item in value] if isinstance(value, list) else value


def _times(column: pa.ChunkedArray) -> list[Any]:
    """Milliseconds since 1970; what is not a point in time by its type is left to `fields.check`."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        ticks = column.cast(pa.int64()).to_pylist()
        if kind.unit == "s":
            return [None if tick is None else tick * 1000 for tick in ticks]
        per_ms = _TICKS_PER_MS.get(kind.unit, 1)
        return [None if tick is None else tick // per_ms for tick in ticks]
    if pa.types.is_date32(kind):
        return [None if day is None else day * _MS_PER_DAY for day in column.cast(pa.int32()).to_pylist()]
    if pa.types.is_date64(kind):
        times: list[Any] = column.cast(pa.int64()).to_pylist()
        return times
    return _plain(column)


def _of_rows(column: Column, rows: Sequence[int], field: Field) -> list[Any]:
    """Values of some rows."""
    if column is None:
        return [None] * len(rows)
    if isinstance(column, list):
        return [column[row] for row in rows]
    return _values(column.take(pa.array(rows, pa.int64())), field)


def _json(column: pa.ChunkedArray, row: int) -> orjson.Fragment:
    scalar = None
    try:
        scalar = column[row]
        return orjson.Fragment(orjson.dumps(scalar.as_py(), _json_default, orjson.OPT_NON_STR_KEYS))
    except FOREIGN:
        ticks = getattr(scalar, "value", None)  # a date that Python has no year for, a zone that it does not know
        return orjson.Fragment(orjson.dumps(str(ticks) if type(ticks) is int else f"unreadable: {column.type}"))


def _json_default(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
