"""A vocabulary in the shape of ERNIE's, made from this file, `unicodedata` and the standard library's prose.

No published vocabulary is at hand, and one would not do: this one holds what a real one holds (special tokens in
ERNIE's places, single CJK characters, words and ##pieces in many scripts), leaves out some of every kind so that
unknown ones occur, and adds traps: pieces that overlap so that the longest match leads into a dead end, tokens that
no text gives, lines that a careless reader would strip, split or drop. Always the same under one version of Python.
"""

from __future__ import annotations

import random
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain

from bench.prose import english_words

FIRST = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "，", "的", "、", "一")
UNK_ID = 17_963
SEED = 7

# First and last code point, share of them that are words, share of them that are ##pieces.
BLOCKS = (
    (0x30, 0x39, 1.0, 1.0),  # ASCII digits
    (0x41, 0x5A, 1.0, 0.9),
    (0x61, 0x7A, 1.0, 1.0),
    (0x21, 0x7E, 0.9, 0.1),  # ASCII punctuation, and what is above again
    (0xA1, 0xFF, 0.8, 0.5),  # Latin-1
    (0x100, 0x24F, 0.7, 0.4),  # Latin extended
    (0x300, 0x36F, 0.3, 0.5),  # combining marks: pieces where accents stay
    (0x370, 0x3FF, 0.8, 0.7),  # Greek
    (0x400, 0x4FF, 0.8, 0.7),  # Cyrillic
    (0x5D0, 0x5EA, 0.7, 0.5),  # Hebrew
    (0x621, 0x64A, 0.7, 0.5),  # Arabic
    (0x904, 0x94D, 0.6, 0.6),  # Devanagari, with signs that are no accents
    (0xE01, 0xE3A, 0.6, 0.6),  # Thai
    (0x1100, 0x11FF, 0.7, 0.7),  # Hangul jamo
    (0x1E00, 0x1FFF, 0.4, 0.2),  # Latin and Greek with accents
    (0x2010, 0x2BFF, 0.4, 0.05),  # punctuation, signs, number forms, arrows, mathematics, dingbats
    (0x3001, 0x303F, 0.8, 0.1),  # CJK punctuation
    (0x3041, 0x30FF, 0.9, 0.7),  # kana
    (0x3105, 0x33FF, 0.2, 0.05),  # Bopomofo, enclosed and squared
    (0x3400, 0x4DBF, 0.03, 0.0),
    (0x4E00, 0x9FFF, 0.42, 0.06),
    (0xAC00, 0xD7A3, 0.06, 0.05),  # Hangul syllables
    (0xE000, 0xE010, 0.5, 0.5),  # private use: no text gives them
    (0xF900, 0xFAFF, 0.3, 0.1),  # CJK compatibility: other characters after normalisation
    (0xFB00, 0xFB4F, 0.5, 0.3),  # ligatures
    (0xFE00, 0xFE0F, 0.3, 0.3),  # variation selectors
    (0xFF01, 0xFFEF, 0.7, 0.3),  # full-width
    (0x1D400, 0x1D4FF, 0.2, 0.2),  # mathematical letters
    (0x1F300, 0x1F64F, 0.4, 0.0),  # emoji
    (0x20000, 0x200FF, 0.3, 0.1),
    (0x2F800, 0x2F8FF, 0.2, 0.0),
)  # fmt: skip

# A line of its own each: what a reader of the file must neither strip, nor split, nor take for another.
TRAPS = (
    "", " ", "##", "## ", "zz ", " zz", "zz", "zz\t", "##zz ", "\u2028", "\u0085q", "\x0c", "\x1c", "\u3000",
    "[unused1]", "[sep]", "[mask]", "##[SEP]", "[SEP] ", "[UNK]x", "a##b", "##a b", "####", "###a", "\ufeff",
    "e\u0301", "é", "##é", "##e\u0301", "İ", "i\u0307", "##i\u0307", "ſ", "ς", "##ς", "σ", "##σ", "ß", "ss", "ﬁ", "fi",
    "x" * 100, "x" * 101, "##" + "x" * 99, "##" + "x" * 98, "xxx", "##xxxx",
)  # fmt: skip

_ONSETS = (
    "",
    "b",
    "c",
    "ch",
    "d",
    "f",
    "g",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "qu",
    "r",
    "s",
    "st",
    "t",
    "v",
    "w",
    "z",
)
_NUCLEI = ("a", "e", "i", "o", "u", "ea", "io", "ou", "é", "ö", "ñ")
_CODAS = ("", "", "n", "r", "s", "t", "ng", "ck", "tion")


@cache
def tokens(large: bool = False) -> tuple[str, ...]:
    """One token a line; some twice. `large` has more than 65 536 lines, the others' first."""
    rng = random.Random(SEED)
    body = list(dict.fromkeys(chain(_characters(rng), _english(), _generated(rng, 2600), _chains(rng), _digits(rng))))
    rng.shuffle(body)
    body[5_000:5_000] = TRAPS
    ids = [*FIRST, *(token for token in body if token not in FIRST)]
    ids.insert(UNK_ID, "[UNK]")
    ids += rng.sample(ids[len(FIRST) : UNK_ID], 40)  # again: the later line counts
    if large:
        known = set(ids)
        more = (token for token in _generated(rng, 90_000) if token not in known)
        ids += list(dict.fromkeys(more))[: 72_000 - len(ids)]
    return tuple(ids)


def text_of(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _characters(rng: random.Random) -> Iterator[str]:
    for first, last, as_word, as_piece in BLOCKS:
        for char in map(chr, range(first, last + 1)):
            if unicodedata.category(char) == "Cn":
                continue
            if rng.random() < as_word:
                yield char
            if rng.random() < as_piece:
                yield f"##{char}"


def _english() -> Iterator[str]:
    for word, times in Counter(english_words()).most_common(2200):
        if times % 5:  # some frequent ones are left out
            yield word
        yield f"##{word[len(word) // 2 :]}"
    yield from ("##s", "##ed", "##ing", "##ly", "##er", "##tion", "un", "re", "pre", "THE", "The", "##S", "##ING")


def _generated(rng: random.Random, count: int) -> Iterator[str]:
    """Words of syllables, 2 to 20 letters, some with capitals, some as pieces."""
    for _ in range(count):
        syllables = rng.randint(1, 6)
        word = "".join(rng.choice(part) for _ in range(syllables) for part in (_ONSETS, _NUCLEI, _CODAS))[:20]
        if len(word) < 2:
            continue
        case = rng.random()
        word = word.upper() if case < 0.1 else word.capitalize() if case < 0.25 else word
        yield f"##{word}" if rng.random() < 0.45 else word


def _chains(rng: random.Random) -> Iterator[str]:
    """Prefixes of one word with some lengths missing, and pieces that go on from some of them only."""
    for _ in range(160):
        word = "".join(rng.choices("abcdeàé中가あ", (4, 4, 3, 2, 2, 1, 1, 1, 1, 1), k=rng.randint(6, 16)))
        for end in range(2, len(word) + 1):
            if rng.random() < 0.4:
                yield word[:end]
            if rng.random() < 0.25:
                yield f"##{word[end - 2 : end + 1]}"


def _digits(rng: random.Random) -> Iterator[str]:
    yield from (str(year) for year in range(1980, 2031))
    yield from ("##00", "##000", "##19", "100", "1000", "10000", "##0000", "３６", "##５")
    yield from (f"{rng.choice(('', '##'))}{rng.randrange(10 ** rng.randint(2, 5))}" for _ in range(200))
