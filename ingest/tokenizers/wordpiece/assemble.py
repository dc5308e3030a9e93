"""Assemble: tokens of texts -> rows, with special tokens, pairs joined and long texts cut into parts.

A plan says for each row which tokens of which text and pair it holds; then one pass writes all rows. Of a pair that is
too long the longer text loses tokens first; where long texts are split, the longer is split and the other goes with
every part, cut to half of the room. Cost: two compiled passes over the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.ingest.compiled import compiled, inlined
from headrace.ingest.tokenizers.base import MAX_PARTS
from headrace.ingest.tokenizers.wordpiece.sentences import next_cut

Ids = npt.NDArray[Any]  # uint16 or int32
Int32s = npt.NDArray[np.int32]

_NO_PAIR = -1


@dataclass(frozen=True, slots=True)
class Flat:
    """Tokens of N texts: text i is ids[ends[i]:ends[i + 1]]."""

    ids: Ids
    ends: Int32s  # (N + 1,)
    marks: Int32s | None = None  # beside ids


@dataclass(frozen=True, slots=True)
class Plan:
    """R rows."""

    text_of: Int32s  # (R,): the number of the text
    spans: Int32s  # (R, 4): tokens [begin, end) of the text and of the pair; no pair: its begin is -1
    too_long: npt.NDArray[np.bool_]  # (N,)


@dataclass(frozen=True, slots=True)
class Rows:
    """What was written."""

    ids: Ids
    ends: Int32s  # (R + 1,)
    pair_start: npt.NDArray[np.uint16]  # (R,); 0: no pair


def replaced(flat: Flat, numbers: npt.NDArray[np.int64], tokens: list[list[tuple[int, int]]]) -> Flat:
    """`flat` with its (empty) texts `numbers` replaced by tokens with marks."""
    lengths = np.diff(flat.ends)
    lengths[numbers] = [len(found) for found in tokens]
    ends = np.zeros_like(flat.ends)
    np.cumsum(lengths, out=ends[1:])
    ids = np.empty(int(ends[-1]), flat.ids.dtype)
    marks = None if flat.marks is None else np.empty(len(ids), np.int32)
    _spread(flat.ids, flat.ends, ends, ids)
    if flat.marks is not None:
        _spread(flat.marks, flat.ends, ends, marks)
    for number, found in zip(numbers, tokens, strict=True):
        place = slice(ends[number], ends[number + 1])
        ids[place] = [token for token, _ in found]
        if marks is not None:
            marks[place] = [note for _, note in found]
    return Flat(ids, ends, marks)


def plan_pairs(texts: Flat, pairs: Flat, has_pair: npt.NDArray[np.bool_], max_tokens: int) -> Plan:
    """One row a text."""
    count = len(has_pair)
    plan = Plan(np.arange(count, dtype=np.int32), np.empty((count, 4), np.int32), np.zeros(count, np.bool_))
    _plan_pairs(texts.ends, pairs.ends, has_pair, max_tokens, plan.spans, plan.too_long)
    return plan


def plan_parts(texts: Flat, pairs: Flat, has_pair: npt.NDArray[np.bool_], max_tokens: int, words: bool) -> Plan:
    """As many rows a text as it needs; none for one that needs more than MAX_PARTS. `words`: ids carry WORD."""
    most = len(has_pair) + int(texts.ends[-1]) + int(pairs.ends[-1])
    text_of, spans = np.empty(most, np.int32), np.empty((most, 4), np.int32)
    too_long = np.zeros(len(has_pair), np.bool_)
    first = (texts.ids, texts.marks, texts.ends)
    second = (pairs.ids, pairs.marks, pairs.ends)
    count = _plan_parts(first, second, has_pair, (max_tokens, words, MAX_PARTS), text_of, spans, too_long)
    return Plan(text_of[:count], spans[:count], too_long)


def write(plan: Plan, texts: Flat, pairs: Flat, cls: int, sep: int) -> Rows:
    """[CLS] text [SEP], or [CLS] text [SEP] pair [SEP]."""
    spans = plan.spans
    has_pair = spans[:, 2] != _NO_PAIR
    lengths = spans[:, 1] - spans[:, 0] + spans[:, 3] - spans[:, 2] + 2 + has_pair
    ends = np.zeros(len(spans) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    rows = Rows(np.empty(int(ends[-1]), texts.ids.dtype), ends, np.zeros(len(spans), np.uint16))
    _write(spans, texts.ids, pairs.ids, (cls, sep), rows.ids, rows.pair_start)
    return rows


@compiled
def _spread(source, source_ends, target_ends, target):  # type: ignore[no-untyped-def]
    """Copy every text to its new place."""
    for number in range(source_ends.shape[0] - 1):
        shift = target_ends[number] - source_ends[number]
        for i in range(source_ends[number], source_ends[number + 1]):
            target[i + shift] = source[i]


@inlined
def _keep_longest_first(first, second, room):  # type: ignore[no-untyped-def]
    """How many tokens of two texts are kept: the longer loses one at a time, of two equal ones the second.

    The `longest_first` of PaddleNLP's truncate_sequences, in one step.
    """
    excess = first + second - room
    if excess <= 0:
        return first, second
    if first > second:
        cut = min(excess, first - second)
        first -= cut
    else:
        cut = min(excess, second - first)
        second -= cut
    excess -= cut
    return first - excess // 2, second - (excess + 1) // 2


@compiled
def _plan_pairs(ends, pair_ends, has_pair, max_tokens, spans, too_long):  # type: ignore[no-untyped-def]
    for row in range(has_pair.shape[0]):
        first = ends[row + 1] - ends[row]
        second = pair_ends[row + 1] - pair_ends[row] if has_pair[row] else 0
        kept, kept_second = _keep_longest_first(first, second, max_tokens - (3 if has_pair[row] else 2))
        too_long[row] = kept < first or kept_second < second
        spans[row, 0] = ends[row]
        spans[row, 1] = ends[row] + kept
        spans[row, 2] = pair_ends[row] if has_pair[row] else _NO_PAIR
        spans[row, 3] = pair_ends[row] + kept_second if has_pair[row] else _NO_PAIR


@compiled
def _plan_parts(texts, pairs, has_pair, settings, text_of, spans, too_long):  # type: ignore[no-untyped-def]
    """Fill the plan; the number of rows."""
    ids, marks, ends = texts
    pair_ids, pair_marks, pair_ends = pairs
    max_tokens, words, most_parts = settings
    count = 0
    for number in range(has_pair.shape[0]):
        begin, end = ends[number], ends[number + 1]
        pair_begin, pair_end = _NO_PAIR, _NO_PAIR
        room = max_tokens - 2
        if has_pair[number]:
            pair_begin, pair_end = pair_ends[number], pair_ends[number + 1]
            room = max_tokens - 3
        too_long[number] = end - begin + pair_end - pair_begin > room
        cuts_pair = pair_end - pair_begin > end - begin
        if cuts_pair:
            end = min(end, begin + max(room // 2, room - (pair_end - pair_begin)))
            room -= end - begin
            at, stop = pair_begin, pair_end
        else:
            pair_end = min(pair_end, pair_begin + max(room // 2, room - (end - begin)))
            room -= pair_end - pair_begin
            at, stop = begin, end
        first_row = count
        while True:
            if cuts_pair:
                cut = next_cut(pair_ids, pair_marks, at, stop, room, words)
            else:
                cut = next_cut(ids, marks, at, stop, room, words)
            text_of[count] = number
            spans[count, 0] = begin if cuts_pair else at
            spans[count, 1] = end if cuts_pair else cut
            spans[count, 2] = at if cuts_pair else pair_begin
            spans[count, 3] = cut if cuts_pair else pair_end
            count += 1
            at = cut
            if at >= stop or count - first_row > most_parts:
                break
        if count - first_row > most_parts:
            count = first_row
    return count


@compiled
def _write(spans, ids, pair_ids, special, out, pair_start):  # type: ignore[no-untyped-def]
    cls, sep = special
    at = 0
    for row in range(spans.shape[0]):
        begin = at
        out[at] = cls
        at += 1
        for i in range(spans[row, 0], spans[row, 1]):
            out[at] = ids[i]
            at += 1
        out[at] = sep
        at += 1
        if spans[row, 2] != _NO_PAIR:
            pair_start[row] = at - begin
            for i in range(spans[row, 2], spans[row, 3]):
                out[at] = pair_ids[i]
                at += 1
            out[at] = sep
            at += 1
