"""Marks: what the kernel notes of a token beside its id, for word boundaries and for cutting long texts.

One int32 a token: the code point of a token that is one CJK character or symbol in its low bits (0 for pieces of
words), and flags above. Whole-token flags come from the text; nothing here depends on the vocabulary but PIECE.
"""

from __future__ import annotations

CODE_POINT = (1 << 21) - 1
CJK = 1 << 21  # one CJK character
PIECE = 1 << 22  # goes on with a word that a token before it began
GAP = 1 << 23  # white space stands before it
LINE = 1 << 24  # a line break stands before it

LINE_BREAKS = "\n\r\u2028\u2029"

#: In ids, where word boundaries are asked for: a word begins here. No id is as large.
WORD = 1 << 30
