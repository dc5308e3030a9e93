"""Tables: what the kernel does at each code point, worked out once from the rules in unicode.py.

`actions[code point]` is one int32: an action in its low three bits and a value above them. A code point that becomes
several (a Hangul syllable under NFD) points into `expansions`, which holds actions of the same form. Cost: 0.5 s and
4.5 MB, of which a text touches the few pages that its scripts use.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass

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
    unknown = spec.vocabulary[spec.special["unk"]]
    actions = np.full(unicode.CODE_POINTS, REMOVE, np.int32)
    expansions = [0]
    items_per_byte = 1
    firsts = {token[0] for token in literals} | {token[0].swapcase() for token in literals if spec.lowercase}
    within = {char for token in literals for char in token} if spec.lowercase else set()
    for char in unicode.present_chars():
        if spec.split_cjk and unicode.is_plain_cjk(char) and char not in firsts:
            actions[ord(char)] = spec.vocabulary.get(char, unknown) << ACTION_BITS | EMIT_CJK
            continue
        items = [_action(item, spec, unknown) for item in _become(char, spec)]
        if SLOW in items or _hides_literal(char, within):
            action = SLOW
        elif char in firsts or len(items) > 1:
            action = len(expansions) << ACTION_BITS | (LITERAL if char in firsts else EXPAND)
            expansions += [len(items), *items]
            items_per_byte = max(items_per_byte, -(-len(items) // len(char.encode())))
        else:
            action = items[0] if items else REMOVE
        actions[ord(char)] = action
    return Tables(actions, np.array(expansions, np.int32), items_per_byte)


def _hides_literal(char: str, within: Set[str]) -> bool:
    """Lower-cased it is part of a literal, and the kernel, folding ASCII alone, does not see it: the Kelvin sign."""
    return not char.isascii() and char.lower() != char and not within.isdisjoint(char.lower())


def _become(char: str, spec: WordPieceSpec) -> Iterator[tuple[str, bool]]:
    """The characters that one becomes, and whether each stands for itself as a CJK character."""
    for lowered in char.lower() if spec.lowercase else char:
        if unicode.is_removed(lowered):
            continue
        spaced = spec.split_cjk and unicode.is_cjk(lowered)
        if unicode.is_space(lowered):
            yield lowered, False
        elif spec.strip_accents:
            yield from ((part, spaced) for part in unicode.without_accents(lowered))
        else:
            yield lowered, spaced


def _action(item: tuple[str, bool], spec: WordPieceSpec, unknown: int) -> int:
    char, spaced = item
    if unicode.is_space(char):
        return (char in LINE_BREAKS) << ACTION_BITS | SPACE
    if spec.strip_accents and unicodedata.combining(char):
        return SLOW  # NFD puts it in order with its neighbours
    if spaced or unicode.is_symbol(char):
        kind = EMIT_CJK if spaced else EMIT_SYMBOL
        return spec.vocabulary.get(char, unknown) << ACTION_BITS | kind
    return ord(char) << ACTION_BITS | LETTER
