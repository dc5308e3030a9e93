"""Bounds of bulk messages: what a message would become in memory is known before any of it is converted.

A few hundred bytes of Arrow can stand for gigabytes: a null column has no bytes whatever its length, one dictionary
value or string view counts for any number of rows, a compressed body inflates. So two looks, both before conversion:

    look_ahead(value)   headers of the stream only: rows, values, bodies; refuses what cannot be known from them
    weigh(batch)        a batch that was read: the bytes of every value, dictionaries and views written out

Compressed bodies are refused, not inflated: the topic compresses. So are delta dictionaries, which grow with each
batch, and the layouts that nothing here needs and that share values between rows (list views, unions, run ends).

pyarrow does not show a record batch's header, so its three fields are read from the flatbuffer, which pyarrow has
verified by then. Cost: O(messages in the stream), then O(values).
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.schemas.errors import BadRecord, Reason

#: Every bad row is a dead letter of its own, and all raw values of a message are in memory at once.
MAX_ROWS = 250_000

#: Values of all columns, nested ones too. The widest tables that fit a message have fewer.
MAX_VALUES = 4_000_000

#: The whole message as Python values. A worker has a gigabyte or two, and characters take up to four times their byte.
MAX_BYTES = 256_000_000

_VALUE_BYTES = 64  # what a value costs in Python beside its own bytes
_EXPERIMENTAL = b"ARROW:experimental_compression"  # where Arrow 0.17 named the compression, and readers still look

Sizes = npt.NDArray[np.float64]  # floats: nested dictionaries multiply, and must not wrap around


def look_ahead(value: bytes) -> None:
    """Raises BadRecord for a stream that is not to be read; struct.error or Arrow's errors for one that is damaged."""
    rows = values = body_bytes = 0
    dictionaries: dict[int, tuple[int, int]] = {}  # id -> values, bytes
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(value)):
        if message.type not in ("record batch", "dictionary"):
            continue
        data = message.metadata.to_pybytes()
        header = _Table(data, 0).follow().table(2)
        size = message.body.size if message.body is not None else 0
        batch = header
        if message.type == "dictionary":
            if header.number(2, "?"):
                raise BadRecord(Reason.INVALID_ARROW, "delta dictionaries are not read: write whole ones")
            batch = header.table(1)
            dictionaries[header.number(0, "q")] = (_values(batch), size)
        if batch.has(3) or _EXPERIMENTAL in data:
            raise BadRecord(
                Reason.INVALID_ARROW,
                "the bodies of this Arrow stream are compressed: write it without compression, Kafka's compresses it",
            )
        if message.type == "record batch":
            rows += batch.number(0, "q")
            # A batch is checked together with the dictionaries it refers to, each time.
            values += _values(batch) + sum(count for count, _ in dictionaries.values())
            body_bytes += size + sum(length for _, length in dictionaries.values())
        _refuse_above(rows, MAX_ROWS, "rows")
        _refuse_above(max(values, *(count for count, _ in dictionaries.values()), 0), MAX_VALUES, "values")
        _refuse_above(body_bytes, MAX_BYTES, "bytes")


def weigh(batch: pa.RecordBatch) -> float:
    """Bytes of the values of a validated batch, written out. Raises BadRecord for a layout that is not read."""
    total = 0.0
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            total += float(_sizes(column).sum())
        except _Unread as unread:
            raise BadRecord(Reason.INVALID_ARROW, f"column {name!r} is of type {unread}, which is not read") from unread
    return total


def check_weight(weight: float) -> None:
    _refuse_above(weight, MAX_BYTES, "bytes")


def _refuse_above(count: float, bound: int, what: str) -> None:
    if count > bound:
        raise BadRecord(
            Reason.INVALID_ARROW,
            f"the Arrow stream stands for {count:.0f} {what}, at most {bound} are read: write several messages",
        )


class _Unread(Exception):
    """A type whose values are not counted."""


def _sizes(array: pa.Array) -> Sizes:
    """Bytes of each row as Python values."""
    sizes: Sizes = np.full(len(array), _VALUE_BYTES, np.float64)
    if len(array):
        sizes += _below(array)
    return sizes


def _below(array: pa.Array) -> Sizes | float:
    """Bytes of each row beside those of any value: its characters, and the values inside it."""
    kind, count, types = array.type, len(array), pa.types
    below: Sizes | float = 0.0
    if isinstance(kind, pa.BaseExtensionType):
        below = _below(array.storage)
    elif types.is_dictionary(kind):
        below = _of_dictionary(array)
    elif types.is_struct(kind):
        below = sum((_sizes(array.field(number)) for number in range(kind.num_fields)), np.zeros(count))
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        before = np.concatenate([[0.0], np.cumsum(_sizes(array.values))])
        below = np.diff(before[array.offsets.to_numpy()])
    elif types.is_fixed_size_list(kind):
        width = kind.list_size
        inside = _sizes(array.values)[array.offset * width :][: count * width]
        below = inside.reshape(count, width).sum(axis=1)
    elif types.is_string(kind) or types.is_binary(kind):
        below = np.diff(_numbers(array, np.int32, 1)[: count + 1]).astype(np.float64)
    elif types.is_large_string(kind) or types.is_large_binary(kind):
        below = np.diff(_numbers(array, np.int64, 1)[: count + 1]).astype(np.float64)
    elif types.is_string_view(kind) or types.is_binary_view(kind):
        below = np.maximum(_numbers(array, np.int32, 4)[: 4 * count : 4], 0).astype(np.float64)
    elif types.is_fixed_size_binary(kind):
        below = float(kind.byte_width)
    elif not (types.is_null(kind) or types.is_primitive(kind) or types.is_decimal(kind) or types.is_interval(kind)):
        raise _Unread(str(kind))
    return below


def _of_dictionary(array: pa.DictionaryArray) -> Sizes:
    values = _sizes(array.dictionary)
    if not len(values):
        return np.zeros(len(array))
    indices = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
    chosen: Sizes = values[indices.astype(np.int64)]
    return chosen


def _numbers(array: pa.Array, kind: type[Any], per_row: int) -> npt.NDArray[Any]:
    """The offsets or views of an array, from its first row on."""
    numbers: npt.NDArray[Any] = np.frombuffer(array.buffers()[1], kind)
    return numbers[array.offset * per_row :]


def _values(batch: _Table) -> int:
    """Values of all columns of a record batch, by its header."""
    return sum(max(0, length) for length in batch.lengths(1))


class _Table:
    """A table of a flatbuffer: fields by number."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def follow(self) -> _Table:
        return _Table(self._data, self._at + self._read("I", self._at))

    def has(self, field: int) -> bool:
        return self._place(field) is not None

    def table(self, field: int) -> _Table:
        place = self._place(field)
        if place is None:
            raise ValueError("a message without its header")
        return _Table(self._data, place).follow()

    def number(self, field: int, form: str) -> int:
        place = self._place(field)
        return 0 if place is None else self._read(form, place)

    def lengths(self, field: int) -> list[int]:
        """First members of a vector of pairs of 64-bit numbers."""
        if not self.has(field):
            return []
        vector = self.table(field)._at
        count = self._read("I", vector)
        pairs = np.frombuffer(self._data, "<i8", 2 * count, vector + 4)
        return [int(length) for length in pairs[::2]]

    def _place(self, field: int) -> int | None:
        """Where a field is; None where it has its default."""
        names = self._at - self._read("i", self._at)
        entry = 4 + 2 * field
        if entry >= self._read("H", names):
            return None
        offset = self._read("H", names + entry)
        return self._at + offset if offset else None

    def _read(self, form: str, at: int) -> int:
        if at < 0:
            raise ValueError("a message whose header points outside it")
        return int(struct.unpack_from("<" + form, self._data, at)[0])
