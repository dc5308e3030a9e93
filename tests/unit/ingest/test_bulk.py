"""Bulk messages from anybody: small ones that stand for gigabytes, and values that Python has not."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ingest import bulk_bounds
from headrace.ingest.decode import Decoded, decode
from headrace.schemas.errors import Reason
from headrace.schemas.record import ARROW_TYPE
from tests.unit.ingest.tools import arrow_stream, message, rules

MS_PER_DAY = 86_400_000
SMALL_BYTES = 20_000_000  # of memory that refusing may take


def stream(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def decoded(value: bytes) -> list[Decoded]:
    return list(decode([message(value, kind=ARROW_TYPE), message("after", offset=1)], rules(), {}))


def refused(value: bytes) -> tuple[Reason, str]:
    """The only dead letter of the whole message; the next one is read."""
    pieces = decoded(value)
    (letter,) = [letter for piece in pieces for letter in piece.bad]
    assert letter.value == value
    assert [text for piece in pieces for text in piece.records.column("text").to_pylist()] == ["after"]
    return letter.reason, letter.detail


def nested_nulls(width: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.nulls(width), width)


def one_value_many_times(rows: int, value_bytes: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["x" * value_bytes]))


def one_view_many_times(rows: int, value_bytes: int) -> pa.Array:
    view = pa.array(["x" * value_bytes], pa.string_view()).buffers()
    return pa.Array.from_buffers(pa.string_view(), rows, [None, pa.py_buffer(view[1].to_pybytes() * rows), view[2]])


def dictionary_of_dictionaries(depth: int) -> pa.Array:
    array = pa.array(["x" * 1000])
    for _ in range(depth):
        repeated = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1000, np.int32)), array)
        array = pa.ListArray.from_arrays(pa.array([0, 1000], pa.int32()), repeated)
    return array


BOMBS: dict[str, Callable[[], pa.Table]] = {
    "rows": lambda: pa.table({"text": pa.nulls(20_000_000)}),
    "rows of another column": lambda: pa.table({"text": pa.array([None] * 300_000, pa.string())}),
    "nested values": lambda: pa.table({"text": ["a"], "label": nested_nulls(20_000_000)}),
    "columns": lambda: pa.table({"text": pa.nulls(200_000), **{str(n): pa.nulls(200_000) for n in range(100)}}),
    "a dictionary": lambda: pa.table({"text": one_value_many_times(10_000, 100_000)}),
    "a dictionary in another column": lambda: pa.table(
        {"text": pa.array([None] * 10_000, pa.string()), "other": one_value_many_times(10_000, 100_000)}
    ),
    "views": lambda: pa.table({"text": one_view_many_times(10_000, 100_000)}),
    "dictionaries of dictionaries": lambda: pa.table({"text": ["a"], "label": dictionary_of_dictionaries(8)}),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_message_that_stands_for_gigabytes_is_one_dead_letter(bomb: str) -> None:
    value = stream(BOMBS[bomb]())
    arrow_before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        reason, detail = refused(value)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert reason is Reason.INVALID_ARROW
    assert "at most" in detail and "several messages" in detail
    assert peak + pa.total_allocated_bytes() - arrow_before < SMALL_BYTES + 4 * len(value)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_bodies_are_refused_before_they_are_inflated(codec: str) -> None:
    value = stream(pa.table({"text": ["x" * 50_000_000]}), compression=codec)
    assert len(value) < 300_000
    highest = pa.default_memory_pool().max_memory()
    reason, detail = refused(value)
    assert (reason, "without compression" in detail) == (Reason.INVALID_ARROW, True)
    assert pa.default_memory_pool().max_memory() == highest


def test_a_compressed_dictionary_too() -> None:
    table = pa.table({"text": pa.array(["x" * 5000] * 3).dictionary_encode()})
    assert "without compression" in refused(stream(table, compression="zstd"))[1]


def test_delta_dictionaries_are_refused() -> None:
    words = [pa.array(["a"]), pa.array(["a", "b"])]
    batches = [pa.record_batch({"text": pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), w)}) for w in words]
    whole = stream(pa.Table.from_batches(batches), emit_dictionary_deltas=True, unify_dictionaries=False)
    assert "delta" in refused(whole)[1]


def test_a_dictionary_is_counted_with_every_batch_that_refers_to_it() -> None:
    words = pa.array([str(number) for number in range(20_000)])
    batch = pa.record_batch({"text": pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), words)})
    assert decoded(arrow_stream(*[batch] * 10))[0].records.num_rows == 10
    assert "values" in refused(arrow_stream(*[batch] * 300))[1]


def test_the_bounds_are_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_bounds, "MAX_ROWS", 100)
    batch = pa.record_batch({"text": ["a"] * 50})
    assert decoded(arrow_stream(batch, batch))[0].records.num_rows == 100
    assert "101 rows" in refused(arrow_stream(batch, batch, pa.record_batch({"text": ["a"]})))[1]


@pytest.mark.parametrize("text", [pa.nulls(3), pa.array([{"zh": None}] * 3)])
def test_a_text_column_of_nulls_is_one_dead_letter_as_a_missing_one_is(text: pa.Array) -> None:
    value = stream(pa.table({"text": text}))
    names = rules().fields.names.revised(text="text.zh") if pa.types.is_struct(text.type) else rules().fields.names
    how = rules(names=names)
    (letter,) = [letter for piece in decode([message(value, kind=ARROW_TYPE)], how, {}) for letter in piece.bad]
    assert letter.reason is Reason.MISSING_TEXT


def test_other_columns_of_nulls_are_absent() -> None:
    nulls = dict.fromkeys(("pair", "label", "id", "timestamp"), pa.nulls(1))
    (piece, _) = decoded(stream(pa.table({"text": ["a"], **nulls})))
    (row,) = piece.records.to_pylist()
    assert (row["pair"], row["labels"], row["id"], row["timestamp"]) == (None, [], None, None)


NOWHERE = pa.array([1], pa.timestamp("ms", "Nowhere/City"))
FAR = pa.array([2**62], pa.timestamp("s"))
FOREIGN = [
    NOWHERE,
    FAR,
    pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), NOWHERE),
    pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), FAR),
    pa.StructArray.from_arrays([NOWHERE, FAR], ["a", "b"]),
    pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]),
    NOWHERE.dictionary_encode(),
    pa.array([10**11 * MS_PER_DAY], pa.int64()).cast(pa.date64()),
    pa.array([2**31 - 1], pa.int32()).cast(pa.date32()),
    pa.array([1], pa.duration("ns")),
    pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
    pa.array([1.5], pa.float16()),
    pa.array([b"\xff"]),
]


@pytest.mark.parametrize("column", FOREIGN, ids=lambda column: str(column.type))
@pytest.mark.parametrize("field", ["text", "pair", "label", "id", "timestamp"])
def test_a_value_that_python_has_not_is_a_row_or_a_dead_letter(column: pa.Array, field: str) -> None:
    value = stream(pa.table({"text": ["a"], field: column}))
    (piece, after) = decoded(value)
    assert piece.count == 1
    assert after.records.num_rows == 1
    allowed = {Reason.INVALID_ARROW, Reason.INVALID_FIELD, Reason.INVALID_UTF8}
    assert {letter.reason for letter in piece.bad} <= allowed


@pytest.mark.parametrize("column", FOREIGN, ids=lambda column: str(column.type))
def test_in_another_column_it_spoils_no_dead_letter_and_no_row(column: pa.Array) -> None:
    table = pa.table({"text": pa.array(["a", None]), "other": pa.concat_arrays([column, column])})
    (piece, _) = decoded(stream(table))
    assert piece.records.column("text").to_pylist() == ["a"]
    (letter,) = piece.bad
    assert letter.reason is Reason.MISSING_TEXT
    assert orjson.loads(letter.value).keys() == {"text", "other"}


SCALARS = [
    *(pa.null(), pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.date32()),
    *(pa.string(), pa.large_string(), pa.string_view(), pa.date64()),
    *(pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(16)),
    *(pa.timestamp(unit, zone) for unit in ("s", "ns") for zone in (None, "UTC", "Asia/Shanghai", "Nowhere/City")),
    *(pa.time32("ms"), pa.time64("ns"), pa.duration("s"), pa.duration("ns"), pa.month_day_nano_interval()),
    *(pa.decimal128(38, -20), pa.decimal256(76, 10), pa.decimal32(7, 2), pa.uuid(), pa.json_(), pa.bool8()),
]


def types() -> st.SearchStrategy[pa.DataType]:
    def inside(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
        return st.one_of(
            inner.map(pa.list_),
            inner.map(pa.large_list),
            inner.map(pa.list_view),
            inner.map(lambda kind: pa.list_(kind, 2)),
            inner.map(lambda kind: pa.map_(pa.string(), kind)),
            inner.map(lambda kind: pa.struct([("a", kind), ("b", kind)])),
            inner.map(lambda kind: pa.struct([("a", kind), ("a", kind)])),
            inner.map(lambda kind: pa.run_end_encoded(pa.int32(), kind)),
            inner.map(lambda kind: pa.dictionary(pa.int8(), kind)),
            inner.map(lambda kind: pa.dense_union([pa.field("a", kind), pa.field("b", pa.int8())])),
        )

    return st.recursive(st.sampled_from(SCALARS), inside, max_leaves=3)


def random_array(kind: pa.DataType, rows: int, random: np.random.Generator) -> pa.Array:
    """Any array of a type: random bytes where every byte pattern is allowed, nulls among them."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, random_array(kind.storage_type, rows, random))
    mask = pa.array(random.random(rows) < 0.3)
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(
            pa.array(random.integers(0, 2, rows), pa.int8(), mask=mask.to_numpy(False)),
            random_array(kind.value_type, 2, random),
        )
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays([random_array(f.type, rows, random) for f in fields], fields=fields)
    if pa.types.is_map(kind):
        keys = pa.array([str(number) for number in range(2 * rows)])
        items = random_array(kind.item_type, 2 * rows, random)
        return pa.MapArray.from_arrays(pa.array(range(0, 2 * rows + 1, 2), pa.int32()), keys, items)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(random_array(kind.value_type, 2 * rows, random), 2)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_list_view(kind):
        values = random_array(kind.value_type, 2 * rows, random)
        starts = np.sort(random.integers(0, 2 * rows + 1, rows + 1))
        if pa.types.is_list_view(kind):
            return pa.ListViewArray.from_arrays(pa.array(starts[:-1], pa.int32()), np.diff(starts), values)
        make = pa.ListArray if pa.types.is_list(kind) else pa.LargeListArray
        return make.from_arrays(starts, values)
    if pa.types.is_run_end_encoded(kind):
        return pa.RunEndEncodedArray.from_arrays(pa.array([rows], pa.int32()), random_array(kind.value_type, 1, random))
    if pa.types.is_union(kind):
        children = [random_array(kind.field(number).type, rows, random) for number in range(2)]
        which = random.integers(0, 2, rows).astype(np.int8)
        return pa.UnionArray.from_dense(pa.array(which), pa.array(range(rows), pa.int32()), children, ["a", "b"])
    return _random_scalars(kind, rows, random)


def _random_scalars(kind: pa.DataType, rows: int, random: np.random.Generator) -> pa.Array:
    types = pa.types
    if types.is_null(kind):
        return pa.nulls(rows)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.array(random.choice(np.array(["", "a", "交通", "1e400", "{", " " * 20]), rows).tolist(), kind)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.array([random.bytes(random.integers(0, 20)) for _ in range(rows)], kind)
    if types.is_boolean(kind):
        return pa.array(random.random(rows) < 0.5)
    if types.is_decimal(kind):
        if kind.scale < 0:
            return pa.nulls(rows, kind)
        return pa.array([int(number) for number in random.integers(-99, 100, rows)], pa.int8()).cast(kind)
    if types.is_time(kind) or types.is_date64(kind):
        numbers = random.integers(0, 86_400, rows) * (MS_PER_DAY if types.is_date64(kind) else 1)
        return pa.array(numbers).cast(pa.int32() if types.is_time32(kind) else pa.int64()).cast(kind)
    width = kind.bit_width // 8
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(random.bytes(width * rows))])


@settings(max_examples=150)
@given(
    st.dictionaries(st.sampled_from(["text", "pair", "label", "id", "timestamp", "other"]), types(), max_size=4),
    st.integers(1, 6),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_any_table_gives_rows_and_dead_letters_and_no_exception(
    columns: dict[str, pa.DataType], rows: int, seed: int, with_text: bool
) -> None:
    random = np.random.default_rng(seed)
    arrays = {name: random_array(kind, rows, random) for name, kind in columns.items()}
    if with_text:
        arrays["text"] = pa.array(["a"] * rows)
    value = stream(pa.table(arrays)) if arrays else stream(pa.table({"x": pa.nulls(rows)}))
    pieces = decoded(value)
    bad = [letter for piece in pieces for letter in piece.bad]
    good = sum(piece.records.num_rows for piece in pieces) - 1
    assert good + len(bad) == rows or (good, len(bad)) == (0, 1)
    assert [piece.bad for piece in decoded(value)] == [piece.bad for piece in pieces]
    for letter in bad:
        assert letter.value == value or orjson.loads(letter.value).keys() == arrays.keys()
