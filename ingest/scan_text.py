"""What the scan copies: strings of JSON. It takes only what orjson and Python would.

No position is ever negative. Where that is said (`i < 0`), compiled code leaves the look for a position counted from
the end out of its loops: a copy is thirty times as fast.
"""

from __future__ import annotations

from headrace.ingest.compiled import inlined

_QUOTE, _BACKSLASH = ord('"'), ord("\\")


@inlined
def copy_string(data, i, end, out, at):  # type: ignore[no-untyped-def]
    """Copy a JSON string, from behind its quote on, without its escapes; where both go on, -1 for an invalid one."""
    if i < 0 or at < 0:
        return -1, at
    while i < end:
        begin = i
        i = _plain(data, i, end)
        if i < 0:
            return -1, at
        at = copy(data, begin, i, out, at)
        if i >= end or data[i] < 0x20:
            return -1, at
        if data[i] == _QUOTE:
            return i + 1, at
        i, at = _copy_escaped(data, i + 1, end, out, at)
        if i < 0:
            return -1, at
    return -1, at


@inlined
def _plain(data, i, end):  # type: ignore[no-untyped-def]
    """Where a run of characters that stand for themselves ends; -1 where it is not UTF-8."""
    while True:
        while i + 2 < end and _is_common(data[i], data[i + 1], data[i + 2]):
            i += 3
        while i < end and 0x20 <= data[i] < 0x80 and data[i] != _QUOTE and data[i] != _BACKSLASH:
            i += 1
        if i >= end or data[i] < 0x80:
            return i
        i = _behind(data, i, end)
        if i < 0:
            return -1


@inlined
def copy(data, begin, end, out, at):  # type: ignore[no-untyped-def]
    """Copy bytes; where the next goes."""
    if begin < 0 or at < 0:
        return at
    for k in range(end - begin):
        out[at + k] = data[begin + k]
    return at + (end - begin)


@inlined
def is_utf8(data, i, end):  # type: ignore[no-untyped-def]
    """As Python has it: no longer form than needed, no surrogates, nothing above U+10FFFF."""
    if i < 0:
        return False
    while i < end:
        while i < end and data[i] < 0x80:
            i += 1
        while i + 2 < end and _is_common(data[i], data[i + 1], data[i + 2]):
            i += 3
        if i < end and data[i] >= 0x80:
            i = _behind(data, i, end)
            if i < 0:
                return False
    return True


@inlined
def _is_common(first, second, third):  # type: ignore[no-untyped-def]
    """Whether these bytes are one character, as nearly all between U+1000 and the emoji are."""
    return 0xE0 < first < 0xF0 and first != 0xED and second & 0xC0 == 0x80 and third & 0xC0 == 0x80


@inlined
def _behind(data, i, end):  # type: ignore[no-untyped-def]
    """Where the character at i ends, which is not ASCII; -1 where it is none."""
    first = data[i]
    if 0xE0 <= first <= 0xEF:
        if i + 2 >= end or data[i + 1] & 0xC0 != 0x80 or data[i + 2] & 0xC0 != 0x80:
            return -1
        if (first == 0xE0 and data[i + 1] < 0xA0) or (first == 0xED and data[i + 1] > 0x9F):
            return -1
        return i + 3
    if 0xC2 <= first <= 0xDF:
        return -1 if i + 1 >= end or data[i + 1] & 0xC0 != 0x80 else i + 2
    if not 0xF0 <= first <= 0xF4:
        return -1
    if (
        i + 3 >= end
        or data[i + 1] & 0xC0 != 0x80
        or data[i + 2] & 0xC0 != 0x80
        or data[i + 3] & 0xC0 != 0x80
        or (first == 0xF0 and data[i + 1] < 0x90)
        or (first == 0xF4 and data[i + 1] > 0x8F)
    ):
        return -1
    return i + 4


@inlined
def _copy_escaped(data, i, end, out, at):  # type: ignore[no-untyped-def]
    """Copy what stands behind a backslash."""
    if i >= end:
        return -1, at
    kind = data[i]
    i += 1
    if kind == ord("u"):
        i, code_point = _hex(data, i, end)
        if 0xD800 <= code_point < 0xDC00:  # the first half of a pair
            if i + 1 >= end or data[i] != _BACKSLASH or data[i + 1] != ord("u"):
                return -1, at
            i, second = _hex(data, i + 2, end)
            if not 0xDC00 <= second < 0xE000:
                return -1, at
            code_point = 0x10000 + ((code_point - 0xD800) << 10) + (second - 0xDC00)
        elif code_point < 0 or 0xDC00 <= code_point < 0xE000:
            return -1, at
        return i, _write(code_point, out, at)
    if kind == ord("n"):
        kind = 10
    elif kind == ord("t"):
        kind = 9
    elif kind == ord("r"):
        kind = 13
    elif kind == ord("b"):
        kind = 8
    elif kind == ord("f"):
        kind = 12
    elif kind != _QUOTE and kind != _BACKSLASH and kind != ord("/"):
        return -1, at
    out[at] = kind
    return i, at + 1


@inlined
def _hex(data, i, end):  # type: ignore[no-untyped-def]
    """Four hexadecimal digits: where they end, and their number; -1 where they are not."""
    if i + 4 > end:
        return i, -1
    number = 0
    for k in range(i, i + 4):
        digit = data[k]
        if 48 <= digit <= 57:
            number = number * 16 + (digit - 48)
        elif 65 <= digit <= 70 or 97 <= digit <= 102:
            number = number * 16 + ((digit & 0x0F) + 9)
        else:
            return i, -1
    return i + 4, number


@inlined
def _write(code_point, out, at):  # type: ignore[no-untyped-def]
    """A code point as UTF-8; where the next goes."""
    if code_point < 0x80:
        out[at] = code_point
        return at + 1
    if code_point < 0x800:
        out[at] = 0xC0 | code_point >> 6
        out[at + 1] = 0x80 | code_point & 0x3F
        return at + 2
    if code_point < 0x10000:
        out[at] = 0xE0 | code_point >> 12
        out[at + 1] = 0x80 | code_point >> 6 & 0x3F
        out[at + 2] = 0x80 | code_point & 0x3F
        return at + 3
    out[at] = 0xF0 | code_point >> 18
    out[at + 1] = 0x80 | code_point >> 12 & 0x3F
    out[at + 2] = 0x80 | code_point >> 6 & 0x3F
    out[at + 3] = 0x80 | code_point & 0x3F
    return at + 4
