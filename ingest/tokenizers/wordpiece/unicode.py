"""Characters as PaddleNLP's BasicTokenizer sees them.

The rules: control, private-use and unassigned code points vanish; white space separates; every CJK character,
punctuation mark and symbol is a word of its own; what is left forms words. They rest on this Python's Unicode tables,
as PaddleNLP's own do: another Python may know other characters.
"""

from __future__ import annotations

import unicodedata

MAX_CODE_POINT = 0x10FFFF
SURROGATES = range(0xD800, 0xE000)

#: Blocks whose characters PaddleNLP spaces out. Hiragana, katakana and Hangul are not among them.
CJK_BLOCKS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)

_ASCII_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
#: Counted among the symbols by PaddleNLP, whatever their category.
_MORE_SYMBOLS = frozenset("\u00ad\u00b2\u00ba\u3007\u00b5\u00d8\u014b\u01b1")


def is_removed(char: str) -> bool:
    """Dropped before anything else: categories C*, NUL and the replacement character."""
    if char in "\t\n\r":
        return False
    return char == "\ufffd" or unicodedata.category(char).startswith("C")


def is_space(char: str) -> bool:
    """Separates words. `str.split` adds the line and paragraph separators to the category Zs."""
    return char in "\t\n\r" or unicodedata.category(char) == "Zs" or char.isspace()


def is_cjk(char: str) -> bool:
    """In one of the blocks that are spaced out."""
    code_point = ord(char)
    return any(first <= code_point <= last for first, last in CJK_BLOCKS)


def is_symbol(char: str) -> bool:
    """A word of its own: punctuation and symbols."""
    return (
        char in _ASCII_PUNCTUATION or char in _MORE_SYMBOLS or unicodedata.category(char)[0] in "PS"
    )


def without_accents(text: str) -> str:
    """NFD without nonspacing marks."""
    return "".join(char for char in unicodedata.normalize("NFD", text) if unicodedata.category(char) != "Mn")
