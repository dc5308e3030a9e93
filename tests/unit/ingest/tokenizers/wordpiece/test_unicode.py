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
