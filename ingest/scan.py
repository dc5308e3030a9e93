"""Scan: bodies of JSON and plain text messages -> the columns of their fields, in one compiled pass.

    bodies ── scan ──> columns                 flat objects of strings, plain numbers, booleans, nulls; lists of labels
               └─ all others are left open ──> orjson (formats.py), one by one

The scan takes a record only where it is certain of what orjson would say: it checks UTF-8, escapes and grammar of the
whole body, and gives up at whatever is rare: nested values, exponents, long numbers, a field that stands twice. It
never refuses a record. Why not orjson alone: an object for every record, key and value costs as much as all the
rest of ingest. Cost: 1 ns a byte, without the GIL.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.ingest.columns import Columns, Field, Mask
from headrace.ingest.compiled import compiled, inlined
from headrace.ingest.fields import MAX_LABELS
from headrace.ingest.iso_time import iso_ms
from headrace.ingest.scan_text import copy, copy_string, is_utf8
from headrace.ingest.tokenizers.wordpiece.strings import pooled
from headrace.pipeline.config import FieldNames

#: What a body is taken for. GUESS: JSON where it begins with a brace. OTHER is left open.
JSON, PLAIN, GUESS, OTHER = range(4)

_TEXT, _PAIR, _LABEL, _ID, _TIMESTAMP = (int(field) for field in Field)
_UNSEEN, _NULL, _VALUE = range(3)
_MAX_DIGITS = 18  # any such number is an int64
_QUOTE, _COMMA, _MINUS, _POINT, _COLON, _OPEN, _CLOSE, _BEGIN, _END = (ord(char) for char in '",-.:[]{}')
_ZERO, _NINE = ord("0"), ord("9")
_BOM = b"\xef\xbb\xbf"


def can_scan(names: FieldNames) -> bool:
    """Whether each field is a key of its own at the top of the record."""
    wanted = _wanted(names)
    return len(set(wanted)) == len(wanted) and not any("." in name for name in wanted)


def scan(
    bodies: bytes, bounds: npt.NDArray[np.int64], forms: npt.NDArray[np.uint8], names: FieldNames
) -> tuple[Columns, Mask]:
    """The five columns, and which rows are left open (their values there are nobody's).

    Body i is bodies[bounds[i]:bounds[i + 1]], and taken for forms[i].
    """
    count, size = len(forms), len(bodies)
    keys = [name.encode() for name in _wanted(names)]
    strings = pooled(_TIMESTAMP * size, np.uint8)[: _TIMESTAMP * size].reshape(_TIMESTAMP, size)
    string_ends = np.zeros((_TIMESTAMP, count + 1), np.int32)
    label_ends = np.zeros(size // 2 + 2, np.int32)  # of single labels, which have two quotes or a digit and a comma
    times_ms = np.zeros(count, np.int64)
    seen = np.zeros((count, len(Field)), np.uint8)
    left_open = np.zeros(count, np.bool_)
    _scan(
        (np.frombuffer(bodies, np.uint8), bounds[:-1], bounds[1:], forms),
        (np.frombuffer(b"".join(keys), np.uint8), np.cumsum([len(key) for key in keys])),
        (strings, string_ends, label_ends, times_ms, seen, left_open),
        np.zeros(len(Field), np.int64),
    )
    valid = (seen == _VALUE).T
    text, pair, id_ = (_strings(strings[field], string_ends[field], valid[field]) for field in (_TEXT, _PAIR, _ID))
    rows = string_ends[_LABEL]  # labels before each row
    labels = _strings(strings[_LABEL], label_ends[: rows[-1] + 1], np.ones(rows[-1], np.bool_))
    label = None if labels is None else pa.ListArray.from_arrays(pa.array(rows), labels)
    timestamp = pa.array(times_ms, mask=~valid[_TIMESTAMP]) if valid[_TIMESTAMP].any() else None
    return (text, pair, label, id_, timestamp), left_open


def _wanted(names: FieldNames) -> list[str]:
    return [names.text, names.pair, names.label, names.id, names.timestamp]


def _strings(data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int32], valid: Mask) -> pa.StringArray | None:
    """None where no row has a value."""
    if not valid.any():
        return None
    nulls = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.StringArray.from_buffers(len(valid), pa.py_buffer(ends), pa.py_buffer(data[: ends[-1]]), nulls)


@compiled
def _scan(bodies, keys, found, at):  # type: ignore[no-untyped-def]
    """Fill `found` row by row.

    bodies    (data, starts, ends, forms)
    keys      (bytes of the five names, their ends)
    at        bytes written of each string field; last, labels written
    found     (strings, string_ends, label_ends, times_ms, seen, left_open): per field the bytes of its values one
              behind the other and their ends; under `label`, string_ends counts labels and label_ends is theirs
    """
    data, starts, ends, forms = bodies
    strings, string_ends, label_ends, _, seen, left_open = found
    for row in range(starts.shape[0]):
        i, end, form = starts[row], ends[row], forms[row]
        if form == GUESS:
            form = JSON if i < end and data[i] == _BEGIN else PLAIN
        known = False
        if form == JSON:
            known = _record(data, i, end, keys, found, row, at)
        elif form == PLAIN and not _follows(data, i, end, _BOM):
            known = is_utf8(data, i, end)
            at[_TEXT] = copy(data, i, end, strings[_TEXT], at[_TEXT])
            seen[row, _TEXT] = _VALUE
        if not known:
            left_open[row] = True
            for field in range(_TIMESTAMP + 1):
                seen[row, field] = _UNSEEN
                at[field] = string_ends[min(field, _ID), row]
            at[_TIMESTAMP] = string_ends[_LABEL, row]
            at[_LABEL] = label_ends[at[_TIMESTAMP]]
        for field in range(_TIMESTAMP):
            string_ends[field, row + 1] = at[field] if field != _LABEL else at[_TIMESTAMP]


@inlined
def _record(data, i, end, keys, found, row, at):  # type: ignore[no-untyped-def]
    """Take one object; whether all of it was certain."""
    strings = found[0]
    i = _space(data, i, end)
    if i >= end or data[i] != _BEGIN:
        return False
    i = _space(data, i + 1, end)
    if i < end and data[i] == _END:
        return _space(data, i + 1, end) == end
    while i < end and data[i] == _QUOTE:
        i, behind_key = copy_string(
            data, i + 1, end, strings[_TEXT], at[_TEXT]
        )  # where the next text will be: no value yet
        if i < 0:
            return False
        field = _field(strings[_TEXT], at[_TEXT], behind_key, keys)
        i = _space(data, i, end)
        if i >= end or data[i] != _COLON:
            return False
        i = _space(data, i + 1, end)
        if i >= end:
            return False
        i = _value(data, i, end, field, found, row, at)
        if i < 0:
            return False
        i = _space(data, i, end)
        if i >= end:
            return False
        if data[i] == _END:
            return _space(data, i + 1, end) == end
        if data[i] != _COMMA:
            return False
        i = _space(data, i + 1, end)
    return False


@inlined
def _field(key, begin, behind, keys):  # type: ignore[no-untyped-def]
    """Which field has this key; -1: none."""
    names, name_ends = keys
    name_begin = 0
    for field in range(name_ends.shape[0]):
        length = name_ends[field] - name_begin
        if behind - begin == length:
            same = True
            for k in range(length):
                same = same and key[begin + k] == names[name_begin + k]
            if same:
                return field
        name_begin = name_ends[field]
    return -1


@inlined
def _value(data, i, end, field, found, row, at):  # type: ignore[no-untyped-def]
    """Take the value at i; where it ends, or -1."""
    strings, _, label_ends, times_ms, seen, _ = found
    if field >= 0:
        if seen[row, field] != _UNSEEN:
            return -1
        seen[row, field] = _NULL
    column = field if 0 <= field < _TIMESTAMP else _TEXT  # others are written where the next text will be
    if data[i] == _OPEN:
        return _labels(data, i + 1, end, found, row, at) if field == _LABEL else -1
    if data[i] == ord("n"):
        return i + 4 if _follows(data, i, end, b"null") else -1
    begin = i
    if data[i] == _QUOTE:
        i, behind = copy_string(data, i + 1, end, strings[column], at[column])
    elif data[i] == ord("t") or data[i] == ord("f"):
        word = b"true" if data[i] == ord("t") else b"false"
        if field == _TIMESTAMP or not _follows(data, i, end, word):
            return -1
        i += len(word)
        behind = copy(data, begin, i, strings[column], at[column])
    else:
        i, number = _number(data, i, end, field >= 0)
        if i < 0:
            return -1
        behind = copy(data, begin, i, strings[column], at[column])
    if i < 0 or field < 0:
        return i
    seen[row, field] = _VALUE
    if field != _TIMESTAMP:
        at[field] = behind
        if field == _LABEL:
            at[_TIMESTAMP] += 1
            label_ends[at[_TIMESTAMP]] = behind
    elif data[begin] != _QUOTE:
        times_ms[row] = number
    elif behind == at[_TEXT]:  # an empty string is an absent time
        seen[row, field] = _NULL
    else:
        certain, times_ms[row] = iso_ms(strings[_TEXT], at[_TEXT], behind)
        if not certain:
            return -1
    return i


@inlined
def _labels(data, i, end, found, row, at):  # type: ignore[no-untyped-def]
    """Take a list of strings, from behind its bracket on; where it ends, or -1."""
    strings, _, label_ends, _, _, _ = found
    i = _space(data, i, end)
    if i < end and data[i] == _CLOSE:
        return i + 1
    count = 0
    while i < end and data[i] == _QUOTE and count < MAX_LABELS:
        i, behind = copy_string(data, i + 1, end, strings[_LABEL], at[_LABEL])
        if i < 0:
            return -1
        at[_LABEL] = behind
        at[_TIMESTAMP] += 1
        label_ends[at[_TIMESTAMP]] = behind
        count += 1
        i = _space(data, i, end)
        if i < end and data[i] == _CLOSE:
            return i + 1
        if i >= end or data[i] != _COMMA:
            return -1
        i = _space(data, i + 1, end)
    return -1


@inlined
def _space(data, i, end):  # type: ignore[no-untyped-def]
    while i < end and (data[i] == 32 or data[i] == 10 or data[i] == 13 or data[i] == 9):
        i += 1
    return i


@inlined
def _follows(data, i, end, word):  # type: ignore[no-untyped-def]
    if i + len(word) > end:
        return False
    same = True
    for k in range(len(word)):
        same = same and data[i + k] == word[k]
    return same


@inlined
def _number(data, i, end, whole):  # type: ignore[no-untyped-def]
    """Where a number without exponent ends (-1: not certain), and its value where it is to be whole."""
    negative = data[i] == _MINUS
    if negative:
        i += 1
    begin = i
    number = np.int64(0)
    while i < end and _ZERO <= data[i] <= _NINE and i - begin <= _MAX_DIGITS:
        number = number * 10 + (data[i] - _ZERO)
        i += 1
    if not 0 < i - begin <= _MAX_DIGITS or (data[begin] == _ZERO and (i - begin > 1 or (negative and whole))):
        return -1, number
    if i < end and data[i] == _POINT:
        begin = i + 1
        i = begin
        while i < end and _ZERO <= data[i] <= _NINE:
            i += 1
        if whole or not 0 < i - begin <= _MAX_DIGITS:
            return -1, number
    if i < end and (data[i] == ord("e") or data[i] == ord("E")):
        return -1, number
    return i, -number if negative else number
