"""What generated lines are put together from: one function per kind of fragment, with a weight."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable
from functools import cache

from bench.prose import english_words

from tests.parity import vocabulary

SPACES = (
    " \t\n\r\u000b\u000c\u001c\u001d\u001e\u001f\u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007"
    "\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
#: Removed, kept or spaces, never what they seem: NUL, controls, zero width, bidi, joiners, variation selectors, tags.
INVISIBLE = (
    "\x00\x01\x07\x08\x1b\x7f\x80\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u180e\u200b\u200c\u200d\u200e\u200f\u202a"
    "\u202b\u202c\u202d\u202e\u2060\u2061\u2064\u2066\u2067\u2068\u2069\u206f\u3164\ufe00\ufe0e\ufe0f\ufeff\uffa0\ufff9"
    "\ufffb\ufffc\ufffd\U000e0001\U000e0041\U000e007f\U000e0100"
)
NOWHERE = "\u0378\u0530\u2fe0\uabfa\ue000\uf8ff\ufdd0\ufffe\uffff\U0001fffe\U000f0000\U0010ffff\U000323b0\U000e1234"
#: Marks of many combining classes; 302E, 1D165, 16FF0 and their like have one and are no accents (category Mc).
MARKS = (
    "\u0300\u0301\u0302\u0303\u0308\u030a\u0315\u031b\u0321\u0323\u0327\u0328\u0334\u0338\u0340\u0341\u0343\u0344\u0345"
    "\u035c\u0360\u05b0\u05bc\u064b\u0651\u0670\u0711\u093c\u094d\u09be\u09d7\u0b3e\u0f71\u0f72\u0f74\u1039\u17d2\u20d0"
    "\u20dd\u302a\u302e\u302f\u3099\u309a\ufb1e\U00016ff0\U0001d165\U0001d166\U0001d16d\U0001d167\U0001d1aa\U0001e8d0"
)
#: Upper and lower case that change length or class, signs that are letters, ligatures, letters that decompose.
CASES = (
    "İIıiŁłØøĐđßẞſKÅΩΣσςΐΰϒϓϔϕΆΈΌ΅ᾼᾳᾲᾷῼῥ῭ǅǆǄǇǈǊǰŉ\u0149ﬀﬁﬂﬃﬄﬅﬆﬗﭏיִשׁשּׁ\ufb1d\ufb2c½²³ªºµÆæŒœŊŋƱʊƷʒⱯꙖ𐐀𐐨ⅣⅷⒶⓐ㎏㏒ﷺﷲ"
    "\u212a\u212b\u2126\u1e9b\u01c5\u0130\u1fd3\u0390\u1f82\u1fb7\ufb4f\u1e69\u1ebf\ua7c7\U0001e900\U0001d15e\U000114be"
)
SYMBOLS = "～￥①㈠№℃™©®°±×÷€$¢£§¶†‡…—–•·「」『』【】《》〈〉〇〆々ー゛゜ヶ\u3007\u3012\u303d€₿∑√∞≠≤⇒■▲♥♪✓❤➀⚡\u29f8"
EMOJI = (
    "😀", "😂", "👍", "👍🏽", "👩‍👩‍👧‍👦", "👩🏾‍🚀", "🏳️‍🌈", "🇨🇳", "🇺🇸🇫🇷", "🇨", "1️⃣", "#️⃣", "*\u20e3",
    "❤️", "☎︎", "♂️", "\u200d♀️", "🏴\U000e0067\U000e0062\U000e007f",
    "🫠", "🧑‍💻", "🏻", "\ufe0f", "🀄", "㊗️",
)  # fmt: skip
SPECIAL = (
    "[SEP]", "[MASK]", "[CLS]", "[PAD]", "[UNK]", "[sep]", "[Mask]", "[ SEP ]", "[SEP", "SEP]", "[[SEP]]",
    "[SEP][MASK]",
    "[S\u200bEP]", "\u200b[SEP]", "[SEP]\u0301", "[M\u0000ASK]", "x[SEP]y", " [MASK] ", "[MASK].", "[[CLS]",
    "[SE[SEP]P]", "[CL[CLS]S]",
    "[SEP]]", "［SEP］", "[ＳＥＰ]", "[PAD[PAD]", "[UN", "K]", "[unused1]", "##[SEP]", "[SÉP]", "[UN\u0301K]",
    "[\u0000SEP]", "[\u3000SEP]",
)  # fmt: skip
MARKUP = (
    "<br />", "<a href='#x'>", "</p>", "&nbsp;", "&#39;", "```py", "**bold**", "# T", "{\"a\": [1, null]}",
    "@user", "#话题#",
    "https://www.example.com/a_b?c=%E4%BD%A0&d=1#e", "me.you+tag@example.com", "C:\\dir\\file.txt", "a/b\\c",
    "snake_case", "it's", "don’t",
    "3.14", "-1,234,567.89", "50%", "$9.99", "2026-12-01T11:30:00Z", "1/2", "v2.8.1", "#1",
    "+86-138-0000-0000", "1e-9", "0x1F", "１２３．４５", "٣٤٥",
)  # fmt: skip
SCRIPTS = (
    (0x41, 0x7A), (0xC0, 0x24F), (0x250, 0x2AF), (0x370, 0x3FF), (0x400, 0x52F), (0x531, 0x587),
    (0x5D0, 0x5F4), (0x600, 0x6FF),
    (0x900, 0x97F), (0x980, 0x9FE), (0xE01, 0xE5B), (0xF00, 0xFDA), (0x1000, 0x109F), (0x10A0, 0x10FF),
    (0x1100, 0x11FF), (0x13A0, 0x13FD),
    (0x1780, 0x17F9), (0x1D00, 0x1DBF), (0x1E00, 0x1FFF), (0x2070, 0x209C), (0x2100, 0x218B), (0x2C00, 0x2DFF),
    (0x2E80, 0x2FDF),
    (0x3041, 0x30FF), (0x3131, 0x318E), (0x3400, 0x3500), (0x9FA0, 0x9FFF), (0xA640, 0xA7FF), (0xAC00, 0xD7FB),
    (0xF900, 0xFAFF),
    (0xFB00, 0xFDFF), (0xFE20, 0xFE6F), (0xFF01, 0xFFEE), (0x10400, 0x1044F), (0x11080, 0x110CD),
    (0x1D100, 0x1D1FF), (0x1D400, 0x1D7FF),
    (0x1F100, 0x1F251), (0x20000, 0x20100), (0x2A6D0, 0x2A710), (0x2B730, 0x2B750), (0x2B810, 0x2B830),
    (0x2CEA0, 0x2CEB8),
    (0x2F800, 0x2FA20), (0x30000, 0x30010),
)  # fmt: skip


@cache
def words() -> tuple[str, ...]:
    """Tokens of the vocabulary, without the marks of pieces."""
    return tuple(token.removeprefix("##") for token in vocabulary.tokens() if 1 < len(token) < 30)


def known(rng: random.Random) -> str:
    """Tokens glued together: several pieces, or a dead end."""
    return "".join(rng.choices(words(), k=rng.choice((1, 1, 1, 2, 2, 3, 5))))


def english(rng: random.Random) -> str:
    prose = english_words()
    begin = rng.randrange(len(prose) - 6)
    return " ".join(prose[begin : begin + rng.randint(1, 6)])


def letters(rng: random.Random) -> str:
    """Few letters, so that they meet the vocabulary's overlapping pieces."""
    return "".join(rng.choices("abcdeABCDàéÉ中가あßſ", k=rng.randint(1, 18)))


def chinese(rng: random.Random) -> str:
    return "".join(chr(rng.randint(0x4E00, 0x9FFF)) for _ in range(rng.randint(1, 12)))


def script(rng: random.Random) -> str:
    first, last = rng.choice(SCRIPTS)
    return "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 8)))


def marked(rng: random.Random) -> str:
    """Letters under several marks, in any order of their combining classes, decomposed or composed."""
    text = "".join(
        rng.choice("aeiouAEOnΑωиא가中のｶ1!ßi") + "".join(rng.choices(MARKS, k=rng.choice((0, 1, 1, 2, 2, 3, 5))))
        for _ in range(rng.randint(1, 6))
    )
    form = rng.choice(("", "", "NFC", "NFD", "NFKC"))
    return unicodedata.normalize(form, text) if form else text  # type: ignore[arg-type]


def greek(rng: random.Random) -> str:
    """Words that end in a sigma, or seem to."""
    word = "".join(rng.choices("ΑΒΓΔΕΣΟΣσςοάώΰ", k=rng.randint(1, 7)))
    return word + rng.choice(("Σ", "ς", "σ", "Σ'", "Σ\u0301", "Σ\u00ad", "Σ.a", "Σ·", "ΣΣ", "Σ中", "Σ\u200b"))


def hangul(rng: random.Random) -> str:
    """Syllables and the letters that they decompose to, in orders that compose and that do not."""
    kinds = ((0xAC00, 0xD7A3), (0x1100, 0x1112), (0x1161, 0x1175), (0x11A8, 0x11C2), (0xA960, 0xA97C), (0xD7B0, 0xD7C6))
    return "".join(chr(rng.randint(*rng.choice(kinds))) for _ in range(rng.randint(1, 6)))


def long_word(rng: random.Random) -> str:
    """About as long as the longest word that is not unknown, also where a letter becomes two, or none."""
    length = rng.choice((97, 98, 99, 100, 101, 102))
    tail = "".join(
        rng.choices(
            ("x", "İ", "e\u0301", "é", "\u0301", "ﬁ", "ẞ", "가", "각", "\u200b", "\U0001d15e", "中", "ΐ"),
            k=rng.randint(0, 3),
        )
    )
    kept = max(0, length - len(tail))
    cut = rng.choice((0, kept // 2, kept))
    body = rng.choice("xxxaĸ中")
    return body * cut + tail + body * (kept - cut)


def anything(rng: random.Random) -> str:
    points = (rng.randrange(0x110000 - 0x800) for _ in range(rng.randint(1, 3)))
    return "".join(chr(point + 0x800 if point >= 0xD800 else point) for point in points)


def _one_of(choices: str | tuple[str, ...], most: int = 1) -> Callable[[random.Random], str]:
    return lambda rng: "".join(rng.choices(choices, k=rng.randint(1, most)))


def _digits(rng: random.Random) -> str:
    return str(rng.randrange(10 ** rng.randint(1, 12)))


#: Function and how often it is taken.
FRAGMENTS: tuple[tuple[Callable[[random.Random], str], int], ...] = (
    (known, 12), (english, 6), (letters, 8), (chinese, 14), (script, 12), (marked, 8), (greek, 3), (hangul, 4),
    (long_word, 1), (anything, 4), (_digits, 5), (_one_of(SPACES, 2), 5), (_one_of(INVISIBLE, 2), 5),
    (_one_of(NOWHERE), 1),
    (_one_of(MARKS, 3), 3), (_one_of(CASES, 4), 7), (_one_of(SYMBOLS, 3), 5), (_one_of(EMOJI, 2), 5),
    (_one_of(SPECIAL), 4), (_one_of(MARKUP), 5),
)  # fmt: skip
_FUNCTIONS = [function for function, _ in FRAGMENTS]
_WEIGHTS = [weight for _, weight in FRAGMENTS]


def line(rng: random.Random, most: int) -> str:
    """At most `most` fragments, some with a space between them."""
    spaced = rng.choice((0.1, 0.5, 0.9))
    parts = []
    for function in rng.choices(_FUNCTIONS, _WEIGHTS, k=rng.randint(1, most)):
        parts.append(function(rng))
        if rng.random() < spaced:
            parts.append(" ")
    return "".join(parts)
