"""Columns: a bulk message gives the same rows and dead letters whether columns or single values are decided."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ingest import bulk as bulk_module
from headrace.ingest import columns
from headrace.ingest.decode import Rules, decode
from headrace.ingest.fields import FIRST_MS, LAST_MS, MAX_ID_CHARS, MAX_LABEL_CHARS, MAX_LABELS
from headrace.pipeline.topics import Message
from headrace.schemas.record import ARROW_TYPE
from tests.unit.ingest.tools import arrow_stream, message, rules

TEXTS = [
    "",
    "a",
    "交通拥堵",
    " ",
    "\n\t\x1c",
    "\u3000\u00a0",
    "、逗号",
    "\u3000x",
    "é",
    "x" * 40,
    "中" * 11,
    "true",
    "5",
]
LONG = ["x" * MAX_ID_CHARS, "x" * (MAX_ID_CHARS + 1), "中" * 400, "中" * MAX_LABEL_CHARS]
EDGES = [0, -1, FIRST_MS - 1, FIRST_MS, LAST_MS, LAST_MS + 1, 2**53, -(2**63), 2**63 - 1, 1_700_000_000_123]
STRINGS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
NUMBERS = [pa.int8(), pa.int64(), pa.uint64(), pa.float64(), pa.bool_(), pa.dictionary(pa.int8(), pa.int64())]
LISTS = [pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.list_(pa.int64())]
TIMES = [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "Asia/Shanghai")]
RULES = [rules(max_text_bytes=32), rules(max_text_bytes=32, labels=["a", "5", "true", "交通拥堵"])]


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values that the type holds, and None."""
    types = pa.types
    if types.is_dictionary(kind):
        return values(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind):
        short = st.lists(values(kind.value_type), max_size=3)
        return (
            st.none()
            | short
            | st.integers(MAX_LABELS - 1, MAX_LABELS + 1).map(
                lambda count: ["5"] * count if (not types.is_integer(kind.value_type)) else [5] * count
            )
        )
    if types.is_timestamp(kind):
        return st.none() | st.sampled_from(EDGES)
    if types.is_boolean(kind):
        return st.none() | st.booleans()
    if types.is_floating(kind):
        return st.none() | st.sampled_from([float("nan"), 0.0, -0.0, 5.0, 0.25, 1e20, 1e-7, float("inf")])
    if types.is_integer(kind):
        low, high = (0, 2**64 - 1) if types.is_unsigned_integer(kind) else (-(2 ** (kind.bit_width - 1)), 2**63 - 1)
        return st.none() | st.sampled_from(
            [n for n in [*EDGES, 2**64 - 1] if low <= n <= high and n < 2**kind.bit_width]
        )
    return st.none() | st.sampled_from([*TEXTS, *LONG, "2026-11-23T08:00:00Z", "1700000000000"])


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    count = draw(st.integers(1, 12))
    arrays = {}
    for name in draw(st.sets(st.sampled_from(["pair", "label", "id", "timestamp", "other"]))) | {"text"}:
        kinds = (
            STRINGS + (NUMBERS + TIMES if name != "text" else NUMBERS) + (LISTS if name in ("label", "text") else [])
        )
        kind = draw(st.sampled_from(STRINGS if draw(st.booleans()) else kinds))
        found = draw(st.lists(values(kind), min_size=count, max_size=count))
        if pa.types.is_int8(kind):
            found = [value if value is None or abs(value) < 128 else None for value in found]
        arrays[name] = array(found, kind)
    table = pa.table(arrays)
    start = draw(st.integers(0, count - 1))
    return table.slice(start) if draw(st.booleans()) else table


def array(found: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(found, kind.value_type).dictionary_encode().cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(found, pa.int64()).cast(kind)
    return pa.array(found, kind)


def outcome(messages: list[Message], how: Rules) -> list[Any]:
    return [(piece.records, piece.bad, piece.next) for piece in decode(messages, how, {})]


@settings(max_examples=400, deadline=None)
@given(tables(), st.sampled_from(RULES), st.integers(1, 5))
def test_as_columns_and_one_by_one_are_the_same(table: pa.Table, how: Rules, rows_a_batch: int) -> None:
    value = arrow_stream(*table.to_batches(max_chunksize=rows_a_batch))
    bulk = [message(value, kind=ARROW_TYPE)]
    as_columns = outcome(bulk, how)
    for records, _, _ in as_columns:
        records.validate(full=True)
    with patch.object(bulk_module, "is_usual", lambda kind, field: False):  # every column as Python values
        assert as_columns == outcome(bulk, how)


USUAL = {
    "text": pa.array(["a", "交通"]),
    "pair": pa.array(["b", None], pa.large_string()),
    "label": pa.array([["x", "y"], None]),
    "id": pa.array([7, 8]),
    "timestamp": pa.array([5, None], pa.timestamp("us", "UTC")),
}


def test_usual_columns_leave_no_row_open() -> None:
    table = pa.table(USUAL)
    fields = bulk_module.read(arrow_stream(*table.to_batches()), rules().fields.names).columns(0, 2)
    arrays, left_open = columns.check(fields, 2, rules().fields)
    assert left_open.tolist() == [False, False]
    assert [column.to_pylist() for column in arrays[:4]] == [["a", "交通"], ["b", None], [["x", "y"], []], ["7", "8"]]


@pytest.mark.parametrize("name", USUAL)
def test_a_row_is_left_open_by_itself(name: str) -> None:
    bad = {
        "text": pa.array(["a", " "]),
        "pair": pa.array(["b", "x" * 2_000_000]),
        "label": pa.array([["x"], ["y"] * 100]),
        "id": pa.array(["a", "x" * 2000]),
        "timestamp": pa.array([0, 2**62]),
    }
    table = pa.table({**USUAL, name: bad[name]})
    fields = bulk_module.read(arrow_stream(*table.to_batches()), rules().fields.names).columns(0, 2)
    assert columns.check(fields, 2, rules().fields)[1].tolist() == [False, True]


def test_white_space_is_what_python_takes_for_it() -> None:
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    fields = (pa.array(characters), None, None, None, None)
    _, left_open = columns.check(fields, len(characters), rules().fields)
    assert left_open.tolist() == [character.isspace() for character in characters]
    assert np.count_nonzero(left_open) > 20


def test_a_row_json_of_a_row_that_was_left_open() -> None:
    table = pa.table({"text": ["a", None], "label": [1, 2]})
    (piece,) = decode([message(arrow_stream(*table.to_batches()), kind=ARROW_TYPE)], rules(), {})
    assert orjson.loads(piece.bad[0].value) == {"text": None, "label": 2}
    assert piece.records.column("labels").to_pylist() == [["1"]]
