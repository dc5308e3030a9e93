"""Tables: what the kernel does at each code point, worked out once from the rules in unicode.py.

`actions[code point]` is one int32: an action in its low three bits and a value above them. A code point that becomes
several (a Hangul syllable under NFD) points into `expansions`, which holds actions of the same form. Cost: 0.3 s and
4.5 MB, of which a text touches the few pages that its scripts use.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.ingest.tokenizers.wordpiece import unicode
from headrace.ingest.tokenizers.wordpiece.marks import LINE_BREAKS
from headrace.ingest.tokenizers.wordpiece.spec import WordPieceSpec

EMIT_CJK = 0  # a word of its own, value: its id
EMIT_SYMBOL = 1  # the same, and no CJK character
LETTER = 2  # part of a word, value: the code point that it becomes
REMOVE = 3
SPACE = 4  # value: 1 for a line break
EXPAND = 5  # value: where its actions stand in `expansions`; the first item there is their number
SLOW = 6  # what it becomes depends on its neighbours: the whole text takes the reference path
LITERAL = 7  # a literal token may begin here; where none does, the same as EXPAND

ACTION_BITS = 3
KIND = (1 << ACTION_BITS) - 1

Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Tables:
    """Both tables, and the most items that one byte of UTF-8 can become."""

    actions: Int32s  # (0x110000,)
    expansions: Int32s
    items_per_byte: int


def build(spec: WordPieceSpec, literals: Collection[str]) -> Tables:
    """Work out the tables for texts in which `literals` are looked for."""
    actions = np.full(unicode.CODE_POINTS, REMOVE, np.int32)
    expansions = [0]
    items_per_byte = 1
    firsts = {token[0] for token in literals} | {token[0].swapcase() for token in literals if spec.lowercase}
    firsts = {char for char in firsts if len(char) == 1}  # some change case into two
    within = {char for token in literals for char in token} if spec.lowercase else set()
    _put_ideographs(actions, spec)
    for char, category in unicode.other_chars():
        spaced = spec.split_cjk and unicode.is_cjk(char)
        if _stays(char, spec):
            items = [_action(char, category, spaced, spec)]
        else:
            items = [_action(part, unicodedata.category(part), spaced, spec) for part in _become(char, spec)]
            items = [item for item in items if item != REMOVE]
        hidden = (within and _hides_literal(char, within)) or (spec.kept_words and _begins_as(char, firsts, spec))
        if SLOW in items or hidden:
            action = SLOW
        elif char in firsts or len(items) > 1:
            action = len(expansions) << ACTION_BITS | (LITERAL if char in firsts else EXPAND)
            expansions += [len(items), *items]
            items_per_byte = max(items_per_byte, -(-len(items) // len(char.encode())))
        else:
            action = items[0] if items else REMOVE
        actions[ord(char)] = action
    for char in sorted(firsts):  # an ideograph, or what is removed, may begin a literal too
        action = int(actions[ord(char)])
        if action & KIND not in (LITERAL, SLOW):
            items = [] if action == REMOVE else [action]
            actions[ord(char)] = len(expansions) << ACTION_BITS | LITERAL
            expansions += [len(items), *items]
    return Tables(actions, np.array(expansions, np.int32), items_per_byte)


def direct(tables: Tables, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """(0x10000,): the ids of characters that are words of their own, 0 for all others. Small, for most look-ups."""
    emitted = tables.actions[:0x10000] & KIND <= EMIT_SYMBOL
    return np.where(emitted, tables.actions[:0x10000] >> ACTION_BITS, 0).astype(kind)


def _put_ideographs(actions: Int32s, spec: WordPieceSpec) -> None:
    """All at once, for they are a third of what there is to work out."""
    numbers = unicode.ideographs()
    if not spec.split_cjk:
        actions[numbers] = numbers << ACTION_BITS | LETTER
        return
    actions[numbers] = spec.vocabulary[spec.special["unk"]] << ACTION_BITS | EMIT_CJK
    known = {ord(token): number for token, number in spec.vocabulary.items() if len(token) == 1}
    for number in numbers[np.isin(numbers, list(known))].tolist():
        actions[number] = known[number] << ACTION_BITS | EMIT_CJK


def _stays(char: str, spec: WordPieceSpec) -> bool:
    """Neither case nor accents make another character of it: true of nearly all."""
    return not (spec.lowercase and char.lower() != char) and (
        not spec.strip_accents or unicodedata.is_normalized("NFD", char)
    )


def _hides_literal(char: str, within: Set[str]) -> bool:
    """Lower-cased it is part of a literal, and the kernel, folding ASCII alone, does not see it: the Kelvin sign."""
    return not char.isascii() and char.lower() != char and not within.isdisjoint(char.lower())


def _begins_as(char: str, firsts: Set[str], spec: WordPieceSpec) -> bool:
    """It becomes another character and more: the first one of a literal, which could be a kept word's."""
    become = _become(char, spec)
    return become != char and become[:1] in firsts


def _become(char: str, spec: WordPieceSpec) -> str:
    """The characters that one becomes."""
    lowered = char.lower() if spec.lowercase else char
    return unicodedata.normalize("NFD", lowered) if spec.strip_accents else lowered


def _action(char: str, category: str, spaced: bool, spec: WordPieceSpec) -> int:
    """What the kernel does at one of these."""
    if unicode.is_space(char, category):
        return (char in LINE_BREAKS) << ACTION_BITS | SPACE
    if unicode.is_removed(char, category) or (category == "Mn" and spec.strip_accents):
        return REMOVE
    if spec.strip_accents and category[0] == "M" and unicodedata.combining(char):
        return SLOW  # NFD puts it in order with its neighbours
    if spaced or unicode.is_symbol(char, category):
        kind = EMIT_CJK if spaced else EMIT_SYMBOL
        unknown = spec.vocabulary[spec.special["unk"]]
        return spec.vocabulary.get(char, unknown) << ACTION_BITS | kind
    return ord(char) << ACTION_BITS | LETTER
