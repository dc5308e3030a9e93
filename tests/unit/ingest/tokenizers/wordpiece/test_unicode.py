"""Decomposition without the quadratic time of Python's over long runs of marks."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from headrace.ingest.tokenizers.wordpiece import unicode

MARKS = [char for char in map(chr, range(0x110000)) if unicodedata.combining(char) or unicodedata.decomposition(char)]


@given(st.text(st.one_of(st.sampled_from(MARKS), st.characters(codec="utf-8")), max_size=20))
def test_nfd_is_pythons(text: str) -> None:
    assert unicode.nfd(text) == unicodedata.normalize("NFD", text)


def test_each_character_is_among_the_ideographs_or_the_others() -> None:
    """What neither of them gives is removed."""
    ideographs = set(map(chr, unicode.ideographs().tolist()))
    others = dict(unicode.other_chars())
    assert ideographs.isdisjoint(others)
    for char in map(chr, range(unicode.CODE_POINTS)):
        category = unicodedata.category(char)
        if unicode.is_removed(char, category) and char != "\ufffd":
            assert char not in ideographs, hex(ord(char))
            assert char not in others, hex(ord(char))
        else:
            assert char in ideographs or others[char] == category, hex(ord(char))


def test_ideographs_are_alike() -> None:
    """So that a table may treat them together."""
    for char in map(chr, unicode.ideographs().tolist()):
        assert unicode.is_cjk(char)
        assert unicodedata.category(char) == "Lo"
        assert char == char.lower() == unicodedata.normalize("NFD", char)
        assert not unicodedata.combining(char)
