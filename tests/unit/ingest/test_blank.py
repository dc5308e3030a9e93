"""Every code point is white space for `blank` where it is for Python."""

from __future__ import annotations

import sys

import pyarrow as pa

from headrace.ingest.blank import blank
from headrace.ingest.tokenizers.wordpiece.strings import Strings

CHARACTERS = [chr(point) for point in range(sys.maxunicode + 1) if not 0xD800 <= point < 0xE000]


def found(texts: list[str | None]) -> list[bool]:
    return blank(Strings.of(pa.array(texts, pa.string()))).tolist()


def test_each_character_is_white_space_where_python_says_so() -> None:
    assert found(CHARACTERS) == [character.isspace() for character in CHARACTERS]


def test_white_space_around_a_character_does_not_hide_it() -> None:
    spaces = "".join(character for character in CHARACTERS if character.isspace())
    texts = [spaces, spaces + "a", spaces + "交", "a" + spaces, "", " ", "\u3000\u3000", "\u3001"]
    assert found(texts) == [not text.strip() for text in texts]


def test_a_null_is_blank_and_a_slice_is_its_own_rows() -> None:
    assert found([None, "a", None]) == [True, False, True]
    assert blank(Strings.of(pa.array(["a", " ", "b", ""]).slice(1, 2))).tolist() == [True, False]
