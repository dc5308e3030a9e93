"""Characters as PaddleNLP's BasicTokenizer sees them.

The rules: control, private-use and unassigned code points vanish; white space separates; every CJK character,
punctuation mark and symbol is a word of its own; what is left forms words. They rest on this Python's Unicode tables,
as PaddleNLP's own do: another Python may know other characters. Where a function takes a character's category, it is
for callers that know it already.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

CODE_POINTS = 0x110000

#: Blocks whose characters PaddleNLP spaces out. Hiragana, katakana and Hangul are not among them.
_CJK = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b820-\U0002ceaf\U0002f800-\U0002fa1f]"
)

_ASCII_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
#: Counted among the symbols by PaddleNLP, whatever their category.
_MORE_SYMBOLS = frozenset("\u00ad\u00b2\u00ba\u3007\u00b5\u00d8\u014b\u01b1")


_LINE_SPACE = "\t\n\r"  # control characters that separate words

#: Blocks of ideographs that neither case, nor accents, nor NFD change: a third of all characters, and alike.
_IDEOGRAPHS = (
    range(0x3400, 0x4DC0),
    range(0x4E00, 0xA000),
    range(0x20000, 0x2A6E0),
    range(0x2A700, 0x2B740),
    range(0x2B740, 0x2B820),
    range(0x2B820, 0x2CEB0),
)
#: Between these planes lies nothing but what is unassigned, behind them nothing but private use.
_ASSIGNED = (range(0x40000), range(0xE0000, 0xE1000))


def ideographs() -> npt.NDArray[np.int64]:
    """Code points of the ideographs that are assigned."""
    numbers = _numbers(_IDEOGRAPHS)
    return numbers[_is_present(_categories(numbers))]


def other_chars() -> Iterator[tuple[str, str]]:
    """All other characters that are not removed, with their categories."""
    numbers = np.setdiff1d(_numbers(_ASSIGNED), _numbers(_IDEOGRAPHS), assume_unique=True)
    categories = _categories(numbers)
    present = _is_present(categories) | np.isin(numbers, [ord(char) for char in _LINE_SPACE])
    for index in np.flatnonzero(present).tolist():
        yield chr(numbers[index]), categories[2 * index : 2 * index + 2]


def _numbers(blocks: Sequence[range]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.arange(block.start, block.stop) for block in blocks])


def _categories(numbers: npt.NDArray[np.int64]) -> str:
    """Two letters each."""
    return "".join(map(unicodedata.category, map(chr, numbers.tolist())))


def _is_present(categories: str) -> npt.NDArray[np.bool_]:
    return np.asarray(np.frombuffer(categories.encode(), np.uint8)[::2] != ord("C"))


def is_removed(char: str, category: str | None = None) -> bool:
    """Dropped before anything else: categories C*, and the replacement character."""
    return ((category or unicodedata.category(char))[0] == "C" and char not in _LINE_SPACE) or char == "\ufffd"


def is_space(char: str, category: str | None = None) -> bool:
    """Separates words: the categories Z*, for `str.split` adds the line and paragraph separators to Zs."""
    return (category or unicodedata.category(char))[0] == "Z" or char in _LINE_SPACE


def is_cjk(char: str) -> bool:
    """In one of the blocks that are spaced out."""
    return _CJK.match(char) is not None


def is_symbol(char: str, category: str | None = None) -> bool:
    """A word of its own: punctuation and symbols."""
    return (category or unicodedata.category(char))[0] in "PS" or char in _ASCII_PUNCTUATION or char in _MORE_SYMBOLS


def nfd(text: str) -> str:
    """`unicodedata.normalize("NFD", text)`, which takes quadratic time over a long run of marks; this sorts."""
    chars = "".join(unicodedata.normalize("NFD", char) for char in text)
    if not any(map(unicodedata.combining, chars)):
        return chars
    runs = groupby(chars, lambda char: unicodedata.combining(char) != 0)
    return "".join("".join(sorted(run, key=unicodedata.combining)) if marks else "".join(run) for marks, run in runs)


def without_accents(text: str) -> str:
    """NFD without nonspacing marks."""
    return "".join(char for char in nfd(text) if unicodedata.category(char) != "Mn")
