"""Characters as PaddleNLP's BasicTokenizer sees them.

The rules: control, private-use and unassigned code points vanish; white space separates; every CJK character,
punctuation mark and symbol is a word of its own; what is left forms words. They rest on this Python's Unicode tables,
as PaddleNLP's own do: another Python may know other characters.
"""

from __future__ import annotations

import re
import unicodedata

CODE_POINTS = 0x110000

#: Blocks whose characters PaddleNLP spaces out. Hiragana, katakana and Hangul are not among them.
_CJK = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b820-\U0002ceaf\U0002f800-\U0002fa1f]"
)

_ASCII_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
#: Counted among the symbols by PaddleNLP, whatever their category.
_MORE_SYMBOLS = frozenset("\u00ad\u00b2\u00ba\u3007\u00b5\u00d8\u014b\u01b1")


def present_chars() -> list[str]:
    """All characters that are not removed."""
    categories = "".join(map(unicodedata.category, map(chr, range(CODE_POINTS))))
    return [chr(number) for number, major in enumerate(categories[::2]) if major != "C" or number in (9, 10, 13)]


def is_removed(char: str) -> bool:
    """Dropped before anything else: categories C*, NUL and the replacement character."""
    if char in "\t\n\r":
        return False
    return char == "\ufffd" or unicodedata.category(char)[0] == "C"


def is_space(char: str) -> bool:
    """Separates words. `str.split` adds the line and paragraph separators to the category Zs."""
    return char in "\t\n\r" or unicodedata.category(char) == "Zs" or char.isspace()


def is_cjk(char: str) -> bool:
    """In one of the blocks that are spaced out."""
    return _CJK.match(char) is not None


def is_plain_cjk(char: str) -> bool:
    """A CJK character that has no decomposition: it stays what it is."""
    return is_cjk(char) and not unicodedata.decomposition(char)


def is_symbol(char: str) -> bool:
    """A word of its own: punctuation and symbols."""
    return char in _ASCII_PUNCTUATION or char in _MORE_SYMBOLS or unicodedata.category(char)[0] in "PS"


def without_accents(text: str) -> str:
    """NFD without nonspacing marks."""
    return "".join(char for char in unicodedata.normalize("NFD", text) if unicodedata.category(char) != "Mn")
