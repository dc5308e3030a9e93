"""Sentences: where a long text is cut into parts.

The last sentence end that leaves a part within its bound; where no sentence ends, the last word that punctuation does
not follow; where one word fills the part, the bound. A sentence ends behind 。！？!?；;… and the quotes and brackets
that close behind them, at a line break, and at a full stop with white space behind it.
"""

from __future__ import annotations

from headrace.ingest.compiled import inlined
from headrace.ingest.tokenizers.wordpiece import marks as mark

_ENDS = tuple(map(ord, "。！？…；!?;｡"))
_CLOSERS = tuple(map(ord, "”’」』）》】)]\"'"))
_PAUSES = tuple(map(ord, "，、,：:"))
_FULL_STOP = ord(".")


@inlined
def next_cut(ids, marks, begin, end, room, words):  # type: ignore[no-untyped-def]
    """Where the part that starts at token `begin` ends: at most `room` further, or at `end` where that is nearer."""
    if end - begin <= room:
        return end
    for at in range(begin + room, begin, -1):
        if _sentence_begins(marks, begin, at):
            return at
    for at in range(begin + room, begin, -1):
        word_begins = marks[at] & mark.PIECE == 0 and (not words or ids[at] & mark.WORD != 0)
        if word_begins and not _belongs_before(marks[at]) and not _is_in(marks[at] & mark.CODE_POINT, _PAUSES):
            return at
    return begin + room


@inlined
def _sentence_begins(marks, begin, at):  # type: ignore[no-untyped-def]
    if marks[at] & mark.LINE != 0:
        return True
    if _belongs_before(marks[at]):
        return False
    before = at - 1
    while before > begin and _is_in(marks[before] & mark.CODE_POINT, _CLOSERS):
        before -= 1
    last = marks[before] & mark.CODE_POINT
    return _is_in(last, _ENDS) or (last == _FULL_STOP and marks[before + 1] & mark.GAP != 0)


@inlined
def _belongs_before(marked):  # type: ignore[no-untyped-def]
    """Ends the sentence before it, or closes what encloses that."""
    here = marked & mark.CODE_POINT
    return marked & mark.GAP == 0 and (_is_in(here, _ENDS) or _is_in(here, _CLOSERS))


@inlined
def _is_in(code_point, code_points):  # type: ignore[no-untyped-def]
    for candidate in code_points:  # noqa: SIM110  Numba compiles loops, not generators
        if candidate == code_point:
            return True
    return False
