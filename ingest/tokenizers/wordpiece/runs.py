"""Runs: the tight loops in which most of a text is done, and one character of UTF-8 for the rest.

Unsigned indices spare Numba's test for negative ones.
"""

from __future__ import annotations

import numpy as np

from headrace.ingest.compiled import inlined
from headrace.ingest.tokenizers.wordpiece import marks as mark
from headrace.ingest.tokenizers.wordpiece.spec import MAX_WORD_CHARS
from headrace.ingest.tokenizers.wordpiece.tables import ACTION_BITS, EMIT_CJK, EMIT_SYMBOL, KIND, LETTER, SPACE

MALFORMED = -1


@inlined
def ideographs(data, start, end, direct, actions, out, at, stop, marks, flags):  # type: ignore[no-untyped-def]
    """Write ids while characters follow that are words of their own; where text, output and flags stand then.

    Characters of three bytes, and ASCII between them. The same as the loop that calls it does, with one test a
    condition: most of a Chinese text ends here.
    """
    i, to = np.uint64(start), np.uint64(at)
    one, two, three = np.uint64(1), np.uint64(2), np.uint64(3)
    last, most = np.uint64(max(np.int64(2), end) - 2), np.uint64(stop)
    while True:
        while i < last and to <= most:
            first = np.uint32(data[i])
            second = np.uint32(data[i + one]) ^ np.uint32(0x80)  # a byte that continues a character is now below 0x40
            third = np.uint32(data[i + two]) ^ np.uint32(0x80)
            # 0xE0 may begin what is longer than it need be: not here.
            if first - np.uint32(0xE1) > np.uint32(0x0E) or second | third > np.uint32(0x3F):
                break
            code_point = (first & np.uint32(0x0F)) << np.uint32(12) | second << np.uint32(6) | third
            number = direct[code_point]
            if number == 0:
                break
            if marks is not None:
                is_cjk = actions[code_point] & KIND == EMIT_CJK
                marks[to] = flags | np.int64(code_point) | (mark.CJK if is_cjk else 0)
                flags = 0
            out[to] = number
            to += one
            i += three
        if np.int64(i) >= end or np.int64(to) > stop or data[i] >= 0x80:
            return np.int64(i), np.int64(to), flags
        if data[i] == 0x20 and actions[0x20] & KIND == SPACE:
            flags |= mark.GAP
            i += one
            continue
        if direct[data[i]] == 0:
            return np.int64(i), np.int64(to), flags
        if marks is not None:
            marks[to] = flags | np.int64(data[i])
            flags = 0
        out[to] = direct[data[i]]
        to += one
        i += one


@inlined
def letters(data, start, end, actions, word, length, last, before):  # type: ignore[no-untyped-def]
    """Append ASCII letters and digits to the word while they follow; where text and word stand then."""
    i = np.uint64(start)
    to = np.uint64(length)
    one = np.uint64(1)
    behind = np.uint64(end)
    full = np.uint64(MAX_WORD_CHARS + 1)
    while i < behind:
        first = data[i]
        if first >= 0x80:
            break
        action = actions[first]
        if action & KIND != LETTER:
            break
        value = np.int64(action >> ACTION_BITS)
        if to < full:
            word[to] = value
            to += one
        before = before << 8 | np.int64(np.uint64(last) >> np.uint64(56))
        last = last << 8 | value
        i += one
    return np.int64(i), np.int64(to), last, before


@inlined
def ends_word(data, at, end, actions, direct):  # type: ignore[no-untyped-def]
    """White space, or a character that is a word of its own, stands at data[at]; only the frequent ones are known."""
    first = np.uint32(data[at])
    if first < np.uint32(0x80):
        kind = actions[first] & KIND
        return kind in (SPACE, EMIT_SYMBOL)
    if first - np.uint32(0xE1) > np.uint32(0x0E) or at + 2 >= end:
        return False
    second = np.uint32(data[at + 1]) ^ np.uint32(0x80)
    third = np.uint32(data[at + 2]) ^ np.uint32(0x80)
    if second | third > np.uint32(0x3F):
        return False
    return direct[(first & np.uint32(0x0F)) << np.uint32(12) | second << np.uint32(6) | third] != 0


@inlined
def code_point_at(data, i, end):  # type: ignore[no-untyped-def]
    """The code point at data[i] and where the next begins; MALFORMED, and the next byte, where there is none."""
    first = data[i]
    if first < 0x80:
        return np.int32(first), i + 1
    if 0xC2 <= first < 0xE0:
        if i + 1 < end and data[i + 1] & 0xC0 == 0x80:
            return np.int32(first & 0x1F) << 6 | np.int32(data[i + 1] & 0x3F), i + 2
    elif 0xE0 <= first < 0xF0:
        if i + 2 < end and data[i + 1] & 0xC0 == 0x80 and data[i + 2] & 0xC0 == 0x80:
            code_point = np.int32(first & 0x0F) << 12 | np.int32(data[i + 1] & 0x3F) << 6 | np.int32(data[i + 2] & 0x3F)
            if code_point >= 0x800:  # else longer than it need be
                return code_point, i + 3
    elif 0xF0 <= first < 0xF5:
        continues = i + 3 < end and data[i + 1] & 0xC0 == 0x80
        if continues and data[i + 2] & 0xC0 == 0x80 and data[i + 3] & 0xC0 == 0x80:
            high = np.int32(first & 0x07) << 18 | np.int32(data[i + 1] & 0x3F) << 12
            code_point = high | np.int32(data[i + 2] & 0x3F) << 6 | np.int32(data[i + 3] & 0x3F)
            if 0x10000 <= code_point <= 0x10FFFF:
                return code_point, i + 4
    return np.int32(MALFORMED), i + 1
