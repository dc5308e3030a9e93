"""Every text that is compared, by kind and number: row `number` of a kind is always the same, whatever else is run."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from bench.reviews import reviews

from tests.parity import alphabet

UNCUT = 16_384  # more tokens than any row has
LENGTHS = range(4, 44)  # 4: the fewest that a tokenizer of ours takes
PAIR_LENGTHS = (4, 5, 6, 7, 8, 13, 16, 32, 61, 128)
TRUNCATED = 300
PAIRS = 120_000
LINES = 2_000_000

_SURROGATES = range(0xD800, 0xE000)


class Row(NamedTuple):
    """One text, or a text with its pair, and how many tokens may be left of it."""

    text: str
    pair: str | None = None
    max_tokens: int = UNCUT


@dataclass(frozen=True, slots=True)
class Kind:
    """`size` rows."""

    size: Callable[[], int]
    row: Callable[[int], Row]
    pairs: bool = False  # rows may have a pair


def code_point(number: int) -> Row:
    """One code point: alone, within Latin, within Chinese, doubled, at either end of a word, under marks."""
    char = chr(number + len(_SURROGATES) if number >= _SURROGATES.start else number)
    return Row(f"{char} a{char}b 中{char}国 {char}{char} {char}new new{char} É{char}\u0327\u0301 [SEP]{char}")


@cache
def _assigned() -> list[str]:
    return [char for char in map(chr, range(0x110000)) if unicodedata.category(char) not in ("Cn", "Cs")]


@cache
def representatives() -> list[str]:
    """Of each category six characters, and one of each combining class that occurs in it; and the curious ones."""
    rng = random.Random(1)
    by_category: dict[str, list[str]] = {}
    by_class: dict[tuple[str, int], str] = {}
    for char in _assigned():
        by_category.setdefault(unicodedata.category(char), []).append(char)
        by_class.setdefault((unicodedata.category(char), unicodedata.combining(char)), char)
    by_category["Cn"] = ["\u0378", "\U0001fffe"]
    chosen = [char for chars in by_category.values() for char in rng.sample(chars, min(6, len(chars)))]
    curious = "İıKÅΩΣςﬁẞ각가각\u0344\u0f73\U0001d15f\U000114bbǅΐ中々\uf900\U0002f800ａＡ²ªº\u3007[]\u200b\u00ad"
    return list(dict.fromkeys([*chosen, *by_class.values(), *curious, *alphabet.MARKS]))


def neighbours(number: int) -> Row:
    """An ordered pair of representatives: alone, within a word, beside Chinese."""
    first, second = divmod(number, len(representatives()))
    both = representatives()[first] + representatives()[second]
    return Row(f"{both} ab{both}cd 中{both}国 Z{both}")


def generated(number: int) -> Row:
    return Row(alphabet.line(random.Random(number), 14))


@cache
def _to_cut() -> list[tuple[str, str | None]]:
    rng = random.Random(2)
    blank = ["", " ", "\t\n\u3000", "\u200b", "[SEP]", "中"]
    fixed = [(text, pair) for text in blank for pair in (None, *blank)]
    made = [
        (alphabet.line(rng, 6)[:60], alphabet.line(rng, 4)[:40] if number % 3 else None)
        for number in range(TRUNCATED - len(fixed))
    ]
    return fixed + made


def truncated(number: int) -> Row:
    """Each text at every length; the same length for many rows on end."""
    length, text = divmod(number, TRUNCATED)
    first, second = _to_cut()[text]
    return Row(first, second, LENGTHS[length])


def paired(number: int) -> Row:
    """Pairs of unlike lengths, some without a second text, cut longest first."""
    rng = random.Random(LINES + number)
    first, second = alphabet.line(rng, rng.choice((1, 3, 9))), alphabet.line(rng, rng.choice((1, 3, 9)))
    length = PAIR_LENGTHS[number * len(PAIR_LENGTHS) // PAIRS]
    return Row(first, None if rng.random() < 0.15 else second, length)


@cache
def _reviews() -> list[str]:
    return [text for text, _ in reviews()]


def review(number: int) -> Row:
    return Row(_reviews()[number])


KINDS: dict[str, Kind] = {
    "code points": Kind(lambda: 0x110000 - len(_SURROGATES), code_point),
    "assigned, alone": Kind(lambda: len(_assigned()), lambda number: Row(_assigned()[number])),
    "neighbours": Kind(lambda: len(representatives()) ** 2, neighbours),
    "lines": Kind(lambda: LINES, generated),
    "truncated": Kind(lambda: TRUNCATED * len(LENGTHS), truncated, pairs=True),
    "pairs": Kind(lambda: PAIRS, paired, pairs=True),
    "reviews": Kind(lambda: len(_reviews()), review),
}
