"""The kernel: UTF-8 in Arrow buffers -> ids, in one pass and without Python.

    byte(s) -> code point -> action (tables.py) ─┬─ EMIT    close the word before, write the id
                                                 ├─ LETTER  append to the word
                                                 ├─ SPACE   close the word
                                                 ├─ REMOVE  nothing
                                                 └─ SLOW    give the text up: the reference takes it

Closing a word is one probe where it is short and in the vocabulary, else greedy longest match through the trie. Most
Chinese characters cost a decode, a table look-up and a store. Malformed UTF-8 (Arrow does not promise validity) is
skipped byte by byte, as U+FFFD would be; no byte beyond a text's end is read. Cost: about 2 ns a Chinese character;
nothing is allocated.
"""

from __future__ import annotations

import numpy as np

from headrace.ingest.compiled import compiled
from headrace.ingest.tokenizers.wordpiece import marks as mark
from headrace.ingest.tokenizers.wordpiece.matching import begins_literal, close_word
from headrace.ingest.tokenizers.wordpiece.runs import MALFORMED, code_point_at, ends_word, ideographs, letters
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

#: What became of a text.
DONE, TOO_LONG, GIVEN_UP = 0, 1, 2

#: When a text that holds a literal's first character may give a word that is kept (WordPieceSpec.kept_words): never,
#: when something was removed from it or altered, or always.
KEPT_NEVER, KEPT_ALTERED, KEPT_ALWAYS = 0, 1, 2

#: A text is known to be too long when a word too much is written.
SPARE = 2 * MAX_WORD_CHARS


@compiled
def encode(data, starts, ends, tables, short, trie, literal, settings, word, out, out_ends, outcomes, marks):  # type: ignore[no-untyped-def]
    """Encode texts data[starts[i]:ends[i]] one behind the other into `out`; their ends there, and outcomes.

    tables    (actions, expansions, direct)
    short     (keys, numbers)
    trie      (edges, values)
    literal   (bytes of all literal tokens, their ends)
    settings  (unknown, lead, trail, limit, fold, kept): ids to write around each text (-1: none), the most tokens
              between them, whether literals are compared in lower case, and when a text may hold a kept word
    marks     beside `out`, or None

    A text that is given up writes nothing. One that is too long may write SPARE items more than it keeps.
    """
    actions, expansions, direct = tables
    literals, literal_ends = literal
    unknown, lead, trail, limit, fold, kept = settings
    at = 0
    for number in range(starts.shape[0]):
        text_begin = at
        i = starts[number]
        end = ends[number]
        if i < 0 or end > data.shape[0] or at < 0:  # not so; to know it spares a test at each byte
            end = i
        if lead >= 0:
            if marks is not None:
                marks[at] = 0
            out[at] = lead
            at += 1
        begin = at
        length = 0  # of the word at hand
        only_ascii = True
        last = before = np.int64(0)  # its bytes, where it is ASCII (short_words.py)
        flags = 0  # of the token to come
        altered = False
        suspicious = False
        outcome = DONE
        stop = begin + limit
        while i < end:
            if length == 0:
                i, at, flags = ideographs(data, i, end, direct, actions, out, at, stop, marks, flags)
                if at > stop or i >= end:
                    break
            i, length, last, before = letters(data, i, end, actions, word, length, last, before)
            if i >= end:
                break
            first = data[i]
            here = i
            if length > 0 and ends_word(data, i, end, actions, direct):  # most words end so
                at = close_word(word, length, (only_ascii, last, before), short, trie, unknown, out, at, marks, flags)
                length = 0
                last = before = np.int64(0)
                only_ascii = True
                flags = 0
                if at > stop:
                    break
                continue
            if first < 0x80 and length == 0:  # most of what is left between Chinese characters and words
                action = actions[first]
                kind = action & KIND
                if kind == SPACE:
                    i += 1
                    flags |= mark.GAP | (action >> ACTION_BITS) * mark.LINE
                    continue
                if kind == EMIT_SYMBOL:
                    i += 1
                    if marks is not None:
                        marks[at] = flags | first
                    flags = 0
                    out[at] = action >> ACTION_BITS
                    at += 1
                    if at > stop:
                        break
                    continue
            code_point, i = code_point_at(data, i, end)
            if code_point == MALFORMED:
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
                    if begins_literal(data, here, end, literals, literal_ends, fold):
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
                    before = before << 8 | np.int64(np.uint64(last) >> np.uint64(56))
                    last = last << 8 | np.int64(value)
                    only_ascii = only_ascii and value < 0x80
                    continue
                if action == REMOVE:
                    altered = True
                    continue
                if length > 0:
                    at = close_word(
                        word, length, (only_ascii, last, before), short, trie, unknown, out, at, marks, flags
                    )
                    length = 0
                    last = before = np.int64(0)
                    only_ascii = True
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
            at = close_word(word, length, (only_ascii, last, before), short, trie, unknown, out, at, marks, flags)
        cut_off = i < end  # what follows was not looked at
        if suspicious and (kept == KEPT_ALWAYS or (kept == KEPT_ALTERED and (altered or cut_off))):
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
