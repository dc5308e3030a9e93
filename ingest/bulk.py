"""Bulk messages: an Arrow IPC stream of many records -> raw values by row.

The stream is read to its end mark, validated in full and converted before any row is used, so a truncated or damaged
message is one dead letter, always the same one, and never some rows and a dead letter. Columns are named as JSON
fields are; a dotted name reaches into structs. Cost: O(message); values pass through Python, as those of JSON do.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.fields import Raw
from headrace.pipeline.config import FieldNames
from headrace.schemas.errors import BadRecord, Reason

_END_MARK_BYTES = 8
_TICKS_PER_MS = {"us": 1000, "ns": 1_000_000}
_MS_PER_DAY = 86_400_000
_EXACT = 2.0**53  # floats from here on are spelt out as the number they are


@dataclass(frozen=True, slots=True)
class Bulk:
    """A whole message, valid in every byte."""

    table: pa.Table
    raws: list[Raw]  # one per row

    def row_json(self, row: int) -> bytes:
        """One row as a JSON object, for its dead letter."""
        try:
            fields = self.table.slice(row, 1).to_pylist()[0]
        except (ValueError, OverflowError):  # a date that Python has no year for
            raw = dict(zip(("text", "pair", "label", "id", "timestamp"), self.raws[row], strict=True))
            fields = {name: str(value) if isinstance(value, int) else value for name, value in raw.items()}
        return orjson.dumps(fields, default=_json_default, option=orjson.OPT_NON_STR_KEYS)


def read(value: bytes, names: FieldNames) -> Bulk:
    """Read and validate a message. Raises BadRecord for the message as a whole."""
    table = _read_stream(value)
    if not table.num_rows:
        raise BadRecord(Reason.INVALID_ARROW, "the Arrow stream holds no rows")
    text = _column(table, names.text)
    if text is None:
        raise BadRecord(
            Reason.MISSING_TEXT,
            f"the Arrow stream has no column {names.text!r} (text.fields.text), it has {table.schema.names}",
        )
    try:
        columns = [
            _plain(text),
            *(_plain(_column(table, name)) for name in (names.pair, names.label, names.id)),
            _times(_column(table, names.timestamp)),
        ]
    except (pa.ArrowException, ValueError, OverflowError, TypeError) as error:
        raise BadRecord(Reason.INVALID_ARROW, f"a column cannot be read: {str(error)[:200]}") from error
    absent = [None] * table.num_rows
    return Bulk(table, list(zip(*(column or absent for column in columns), strict=True)))


def _read_stream(value: bytes) -> pa.Table:
    """Arrow takes a stream that ends between two batches for complete: the end mark must be there, and be the end."""
    source = pa.BufferReader(value)
    batches = []
    try:
        stream = pa.ipc.open_stream(source)
        behind_batches = source.tell()
        for batch in stream:
            batch.validate(full=True)
            batches.append(batch)
            behind_batches = source.tell()
        table = pa.Table.from_batches(batches, stream.schema)
        names = table.schema.names  # raises UnicodeDecodeError, a ValueError
    except (pa.ArrowException, OSError, ValueError) as error:
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


def _plain(column: pa.ChunkedArray | None) -> list[Any] | None:
    """Python values that `fields.check` knows."""
    if column is None:
        return None
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


def _times(column: pa.ChunkedArray | None) -> list[Any] | None:
    """Milliseconds since 1970; what is not a point in time by its type is left to `fields.check`."""
    if column is None:
        return None
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


def _json_default(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
