"""Columns: the rules of fields.py over whole columns at once, where a column's type makes them simple.

    five raw columns ──> columns of RECORDS, and which rows they are not decided for

A row is decided when each of its fields is of a usual type and acceptable as it stands. Every other row, every bad one
among them, is left to `fields.checker`, which alone knows reasons: so a record becomes the same row whichever way it
takes. Usual are strings, integers, booleans and dictionaries of them, lists of strings for labels, and integers and
timestamps for the time. Cost: some tens of nanoseconds a record.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.blank import blank
from headrace.ingest.fields import FIRST_MS, LAST_MS, MAX_ID_CHARS, MAX_LABEL_CHARS, MAX_LABELS, FieldRules
from headrace.ingest.tokenizers.wordpiece.strings import Strings

#: One field of some records: Arrow where its type is usual, Python values where not, None where no record has it.
Column: TypeAlias = pa.Array | pa.ChunkedArray | list[Any] | None

#: The columns of a record, in the order of `fields.Raw`.
Columns: TypeAlias = tuple[Column, Column, Column, Column, Column]

Mask = npt.NDArray[np.bool_]


class Field(IntEnum):
    """Where each field stands in `fields.Raw`."""

    TEXT, PAIR, LABEL, ID, TIMESTAMP = range(5)


_TICKS_PER_MS = {"ms": 1, "us": 1000, "ns": 1_000_000}
_MANY_TICKS = 2**53  # a thousand times as many are still an int64


def is_usual(kind: pa.DataType, field: Field) -> bool:
    """Whether a column of this type can be decided as a whole."""
    types = pa.types
    if field is Field.TIMESTAMP:
        return bool(types.is_timestamp(kind) or (types.is_integer(kind) and kind != pa.uint64()))
    if field is Field.LABEL and (types.is_list(kind) or types.is_large_list(kind)):
        return _is_string(kind.value_type)
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(_is_string(kind) or types.is_integer(kind) or types.is_boolean(kind))


def check(columns: Columns, count: int, rules: FieldRules) -> tuple[list[pa.Array], Mask]:
    """Text, pair, labels, id and timestamp of `count` rows as RECORDS has them, and the mask of the rows left open."""
    text, pair, label, id_, timestamp = (_whole(column) for column in columns)
    open_ = np.zeros(count, np.bool_)
    arrays = [
        _texts(text, rules.max_text_bytes, open_),
        _pairs(pair, rules.max_text_bytes, open_),
        _labels(label, rules.labels, open_),
        _ids(id_, open_),
        _times(timestamp, open_),
    ]
    return arrays, open_


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _whole(column: Column) -> Column:
    """One array, its dictionary written out."""
    if not isinstance(column, pa.Array | pa.ChunkedArray):
        return column
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _strings(column: Column, open_: Mask) -> pa.StringArray:
    """A scalar field as text; null where it is absent or open."""
    if isinstance(column, pa.Array):
        return column if column.type == pa.string() else column.cast(pa.string())
    if column is not None:
        open_ |= np.fromiter((value is not None for value in column), np.bool_, len(column))
    return pa.nulls(len(open_), pa.string())


def _texts(column: Column, max_bytes: int, open_: Mask) -> pa.StringArray:
    texts = _strings(column, open_)
    empty, lengths = _measured(texts)
    open_ |= empty | (lengths > max_bytes)
    return texts


def _pairs(column: Column, max_bytes: int, open_: Mask) -> pa.StringArray:
    pairs = _strings(column, open_)
    if pairs.null_count == len(pairs):
        return pairs
    empty, lengths = _measured(pairs)
    open_ |= lengths > max_bytes
    return _without(pairs, empty)


def _ids(column: Column, open_: Mask) -> pa.StringArray:
    ids = _strings(column, open_)
    lengths = _lengths(ids)
    open_ |= lengths > MAX_ID_CHARS  # in bytes: where it is not clear, it is open
    return _without(ids, lengths == 0)


def _labels(column: Column, known: frozenset[str] | None, open_: Mask) -> pa.ListArray:
    ends = np.arange(len(open_) + 1, dtype=np.int32)
    if isinstance(column, pa.Array) and (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        counts = np.diff(column.offsets.to_numpy())
        if column.null_count:
            counts[column.is_null().to_numpy(zero_copy_only=False)] = 0
        flat = column.flatten().cast(pa.string())  # without what lies behind null lists
        open_ |= counts > MAX_LABELS
        np.cumsum(counts, out=ends[1:])
    else:
        flat = _strings(column, open_)
        if flat.null_count:
            np.cumsum(flat.is_valid().to_numpy(zero_copy_only=False), out=ends[1:])
            flat = flat.drop_null()
    unclear = _lengths(flat) > MAX_LABEL_CHARS
    if flat.null_count:
        unclear |= flat.is_null().to_numpy(zero_copy_only=False)
    if known is not None:
        unclear |= ~pc.is_in(flat, pa.array(sorted(known), pa.string())).to_numpy(zero_copy_only=False)
    if unclear.any():
        open_ |= np.diff(np.concatenate([[0], np.cumsum(unclear)])[ends]) > 0
    return pa.ListArray.from_arrays(pa.array(ends), flat)


def _times(column: Column, open_: Mask) -> pa.TimestampArray:
    if not isinstance(column, pa.Array):
        _strings(column, open_)
        return pa.nulls(len(open_), pa.timestamp("ms"))
    absent = column.is_null().to_numpy(zero_copy_only=False)
    ticks = column.cast(pa.int64()).fill_null(0).to_numpy()
    if pa.types.is_timestamp(column.type) and column.type.unit == "s":
        times_ms = np.where(abs(ticks // 2) < _MANY_TICKS // 2, ticks, _MANY_TICKS) * 1000
    else:
        times_ms = ticks // (_TICKS_PER_MS[column.type.unit] if pa.types.is_timestamp(column.type) else 1)
    open_ |= (times_ms < FIRST_MS) | (times_ms > LAST_MS)
    return pa.array(times_ms, mask=absent).cast(pa.timestamp("ms"))


def _without(strings: pa.StringArray, gone: Mask) -> pa.StringArray:
    """Null where `gone`."""
    if strings.null_count == np.count_nonzero(gone):  # nulls are gone already
        return strings
    return pc.if_else(pa.array(gone), pa.scalar(None, pa.string()), strings)


def _lengths(strings: pa.StringArray) -> npt.NDArray[np.int64]:
    """Bytes of each string; 0 where it is null."""
    spans = Strings.of(strings)
    return spans.ends - spans.starts


def _measured(strings: pa.StringArray) -> tuple[Mask, npt.NDArray[np.int64]]:
    """Which strings are blank; bytes of each."""
    spans = Strings.of(strings)
    return blank(spans), spans.ends - spans.starts
