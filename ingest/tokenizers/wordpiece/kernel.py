"""The kernel: UTF-8 in Arrow buffers -> ids, in one pass and without Python.

    byte(s) -> code point -> action (tables.py) ─┬─ EMIT    close the word before, write the id
                                                 ├─ LETTER  append to the word
                                                 ├─ SPACE   close the word
                                                 ├─ REMOVE  nothing
                                                 └─ SLOW    give the text up: the reference takes it

Closing a word is one probe where it is short and in the vocabulary, else greedy longest match through the trie. Most
Chinese characters cost a decode, a table look-up and a store. Malformed UTF-8 (Arrow does not promise validity) is
skipped byte by byte, as U+FFFD would be; no byte beyond a text's end is read. Cost: about 3 ns a Chinese character;
nothing is allocated.
"""

from __future__ import annotations

import numpy as np

from headrace.ingest.compiled import compiled, inlined
from headrace.ingest.tokenizers.wordpiece import marks as mark
from headrace.ingest.tokenizers.wordpiece.short_words import MOST_BYTES, number_of
from headrace.ingest.tokenizers.wordpiece.spec import MAX_WORD_CHARS
from headrace.ingest.tokenizers.wordpiece.tables import (
    ACTION_BITS,
    EMIT_CJK,
    EMIT_SYMBOL,
    EXPAND,
    KIND,
    LETTER,
    LITERAL,
    REMOVE,
    SLOW,
    SPACE,
)
from headrace.ingest.tokenizers.wordpiece.trie import child

#: What became of a text.
DONE, TOO_LONG, GIVEN_UP = 0, 1, 2

#: When a text that holds a literal's first character may give a word that is kept (WordPieceSpec.kept_words): never,
#: when something was removed from it or altered, or always.
KEPT_NEVER, KEPT_ALTERED, KEPT_ALWAYS = 0, 1, 2

#: A text is known to be too long when a word too much is written.
SPARE = 2 * MAX_WORD_CHARS

_FIRST, _FOLLOWING = 1, 2  # the trie's roots


@inlined
def _close_word(word, length, edges, values, unknown, out, at, marks, flags):  # type: ignore[no-untyped-def]
    """Write the pieces of word[:length] from out[at] on; where the next token goes."""
    begin = at
    start = 0
    node = _FIRST
    while start < length and length <= MAX_WORD_CHARS:
        best = -1
        end = start
        for i in range(start, length):
            node = child(edges, node, word[i])
            if node < 0:
                break
            if values[node] >= 0:
                best = values[node]
                end = i + 1
        if best < 0:
            break
        if marks is not None:
            marks[at] = flags if at == begin else mark.PIECE
        out[at] = best
        at += 1
        start = end
        node = _FOLLOWING
    if start == length:
        return at
    if marks is not None:
        marks[begin] = flags
    out[begin] = unknown
    return begin + 1


@inlined
def _close(word, length, packed, short, trie, unknown, out, at, marks, flags):  # type: ignore[no-untyped-def]
    """Write the tokens of the word; where the next token goes. `packed`: its bytes, -1 where there are no such."""
    if length <= MOST_BYTES and packed >= 0:
        number = number_of(short[0], short[1], packed)
        if number >= 0:
            if marks is not None:
                marks[at] = flags
            out[at] = number
            return at + 1
    return _close_word(word, length, trie[0], trie[1], unknown, out, at, marks, flags)


@inlined
def _begins_literal(data, at, end, literals, literal_ends, fold):  # type: ignore[no-untyped-def]
    """A literal token stands at data[at]; `fold`: in ASCII letters of any case."""
    begin = 0
    for number in range(literal_ends.shape[0]):
        length = literal_ends[number] - begin
        if at + length <= end:
            same = True
            for i in range(length):
                byte = data[at + i]
                if fold and 65 <= byte <= 90:
                    byte += 32
                if byte != literals[begin + i]:
                    same = False
                    break
            if same:
                return True
        begin = literal_ends[number]
    return False


@inlined
def _run(data, start, end, actions, out, at, stop, marks, flags):  # type: ignore[no-untyped-def]
    """Write ids while three-byte characters follow that are words of their own; where text and output stand, and flags.

    The same as the loop that calls it does, one branch a condition: most of a Chinese text ends here. Unsigned
    indices spare Numba's test for negative ones.
    """
    i = np.uint64(start)
    to = np.uint64(at)
    one, two, three = np.uint64(1), np.uint64(2), np.uint64(3)
    last = np.uint64(max(end - 2, 0))
    full = np.uint64(stop + 1)
    while i < last and to < full:
        first, second, third = np.uint32(data[i]), np.uint32(data[i + one]), np.uint32(data[i + two])
        code_point = (
            (first & np.uint32(15)) << np.uint32(12)
            | (second & np.uint32(63)) << np.uint32(6)
            | (third & np.uint32(63))
        )
        if (
            first & np.uint32(0xF0) != np.uint32(0xE0)
            or (second | third << np.uint32(8)) & np.uint32(0xC0C0) != np.uint32(0x8080)
            or code_point < np.uint32(0x800)
        ):
            break
        action = actions[code_point]
        if action & KIND > EMIT_SYMBOL:
            break
        if marks is not None:
            marks[to] = flags | np.int64(code_point) | (mark.CJK if action & KIND == EMIT_CJK else 0)
            flags = 0
        out[to] = action >> ACTION_BITS
        to += one
        i += three
    return np.int64(i), np.int64(to), flags


@inlined
def _letters(data, start, end, actions, word, length, packed):  # type: ignore[no-untyped-def]
    """Append ASCII letters and digits to the word while they follow; where text and word stand then."""
    i = np.uint64(start)
    to = np.uint64(length)
    one = np.uint64(1)
    last = np.uint64(end)
    full = np.uint64(MAX_WORD_CHARS + 1)
    while i < last:
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
        packed = packed << 8 | value
        i += one
    return np.int64(i), np.int64(to), packed


@compiled
def encode(data, starts, ends, tables, short, trie, literal, settings, word, out, out_ends, outcomes, marks):  # type: ignore[no-untyped-def]
    """Encode texts data[starts[i]:ends[i]] one behind the other into `out`; their ends there, and outcomes.

    tables    (actions, expansions)
    short     (keys, numbers)
    trie      (edges, values)
    literal   (bytes of all literal tokens, their ends)
    settings  (unknown, lead, trail, limit, fold, kept): ids to write around each text (-1: none), the most tokens
              between them, whether literals are compared in lower case, and when a text may hold a kept word
    marks     beside `out`, or None

    A text that is given up writes nothing. One that is too long may write SPARE items more than it keeps.
    """
    actions, expansions = tables
    literals, literal_ends = literal
    unknown, lead, trail, limit, fold, kept = settings
    at = 0
    for number in range(starts.shape[0]):
        text_begin = at
        i = starts[number]
        end = ends[number]
        if lead >= 0:
            if marks is not None:
                marks[at] = 0
            out[at] = lead
            at += 1
        begin = at
        length = 0  # of the word at hand
        packed = np.int64(0)  # its bytes
        flags = 0  # of the token to come
        altered = False
        suspicious = False
        outcome = DONE
        stop = begin + limit
        while i < end:
            if length == 0:
                i, at, flags = _run(data, i, end, actions, out, at, stop, marks, flags)
                if at > stop or i >= end:
                    break
            i, length, packed = _letters(data, i, end, actions, word, length, packed)
            if i >= end:
                break
            first = data[i]
            here = i
            if first < 0x80:  # most of what is left between Chinese characters and words
                action = actions[first]
                kind = action & KIND
                if kind in (SPACE, EMIT_SYMBOL):
                    if length > 0:
                        at = _close(word, length, packed, short, trie, unknown, out, at, marks, flags)
                        length = 0
                        packed = np.int64(0)
                        flags = 0
                    i += 1
                    if kind == SPACE:
                        flags |= mark.GAP | (action >> ACTION_BITS) * mark.LINE
                    else:
                        if marks is not None:
                            marks[at] = flags | first
                        flags = 0
                        out[at] = action >> ACTION_BITS
                        at += 1
                    if at > stop:
                        break
                    continue
            if first < 0x80:
                code_point = np.int32(first)
                i += 1
            elif 0xE0 <= first < 0xF0:
                if i + 2 >= end or data[i + 1] & 0xC0 != 0x80 or data[i + 2] & 0xC0 != 0x80:
                    i += 1
                    altered = True
                    continue
                code_point = (
                    np.int32(first & 0x0F) << 12 | np.int32(data[i + 1] & 0x3F) << 6 | np.int32(data[i + 2] & 0x3F)
                )
                i += 3
                if code_point < 0x800:  # longer than it need be
                    altered = True
                    continue
            elif 0xC2 <= first < 0xE0:
                if i + 1 >= end or data[i + 1] & 0xC0 != 0x80:
                    i += 1
                    altered = True
                    continue
                code_point = np.int32(first & 0x1F) << 6 | np.int32(data[i + 1] & 0x3F)
                i += 2
            elif 0xF0 <= first < 0xF5:
                if (
                    i + 3 >= end
                    or data[i + 1] & 0xC0 != 0x80
                    or data[i + 2] & 0xC0 != 0x80
                    or data[i + 3] & 0xC0 != 0x80
                ):
                    i += 1
                    altered = True
                    continue
                code_point = (
                    np.int32(first & 0x07) << 18
                    | np.int32(data[i + 1] & 0x3F) << 12
                    | np.int32(data[i + 2] & 0x3F) << 6
                    | np.int32(data[i + 3] & 0x3F)
                )
                i += 4
                if code_point < 0x10000 or code_point > 0x10FFFF:
                    altered = True
                    continue
            else:
                i += 1
                altered = True
                continue

            action = actions[code_point]
            kind = action & KIND
            count = 1
            item = 0
            if kind >= EXPAND:
                if kind == SLOW:
                    outcome = GIVEN_UP
                    break
                if kind == LITERAL:
                    suspicious = True
                    if _begins_literal(data, here, end, literals, literal_ends, fold):
                        outcome = GIVEN_UP
                        break
                item = action >> ACTION_BITS
                count = expansions[item]
            for _ in range(count):
                if kind >= EXPAND:
                    item += 1
                    action = expansions[item]
                value = action >> ACTION_BITS
                action = action & KIND
                if action == LETTER:
                    altered |= value != code_point
                    if length <= MAX_WORD_CHARS:
                        word[length] = value
                        length += 1
                    packed = packed << 8 | value if value < 0x80 else np.int64(-1)
                    continue
                if action == REMOVE:
                    altered = True
                    continue
                if length > 0:
                    at = _close(word, length, packed, short, trie, unknown, out, at, marks, flags)
                    length = 0
                    packed = np.int64(0)
                    flags = 0
                if action == SPACE:
                    flags |= mark.GAP
                    if value:
                        flags |= mark.LINE
                    continue
                if marks is not None:
                    marks[at] = flags | code_point | (mark.CJK if action == EMIT_CJK else 0)
                flags = 0
                out[at] = value
                at += 1
            if at > stop:
                break

        if length > 0 and outcome == DONE and at - begin <= limit:
            at = _close(word, length, packed, short, trie, unknown, out, at, marks, flags)
        if suspicious and (kept == KEPT_ALWAYS or (kept == KEPT_ALTERED and altered)):
            outcome = GIVEN_UP
        if outcome == GIVEN_UP:
            at = text_begin
        else:
            if at - begin > limit:
                at = begin + limit
                outcome = TOO_LONG
            if trail >= 0:
                if marks is not None:
                    marks[at] = 0
                out[at] = trail
                at += 1
        outcomes[number] = outcome
        out_ends[number + 1] = at
