"""Matching: the tokens of one word, and literal tokens in a text."""

from __future__ import annotations

from headrace.ingest.compiled import inlined
from headrace.ingest.tokenizers.wordpiece import marks as mark
from headrace.ingest.tokenizers.wordpiece.short_words import MOST_BYTES, number_of
from headrace.ingest.tokenizers.wordpiece.spec import MAX_WORD_CHARS
from headrace.ingest.tokenizers.wordpiece.trie import child

_FIRST, _FOLLOWING = 1, 2  # the trie's roots


@inlined
def close_word(word, length, ascii_, short, trie, unknown, out, at, marks, flags):  # type: ignore[no-untyped-def]
    """Write the tokens of the word; where the next token goes. `ascii_`: whether its letters are, and the last 16."""
    only_ascii, last, before = ascii_
    if length <= MOST_BYTES and only_ascii:
        number = number_of(short[0], short[1], last, before)
        if number >= 0:
            if marks is not None:
                marks[at] = flags
            out[at] = number
            return at + 1
    return _match_longest(word, length, trie[0], trie[1], unknown, out, at, marks, flags)


@inlined
def _match_longest(word, length, edges, values, unknown, out, at, marks, flags):  # type: ignore[no-untyped-def]
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
def begins_literal(data, at, end, literals, literal_ends, fold):  # type: ignore[no-untyped-def]
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
