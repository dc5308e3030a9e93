"""Short words are found by their bytes, others are not."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.ingest.compiled import compiled
from headrace.ingest.tokenizers.wordpiece import short_words


@compiled
def _look_up(keys, numbers, last, before, found):  # type: ignore[no-untyped-def]
    for i in range(last.shape[0]):
        found[i] = short_words.number_of(keys, numbers, last[i], before[i])


WORDS = st.text("abz019#", min_size=1, max_size=17)


@given(st.dictionaries(st.one_of(WORDS, st.text(max_size=3)), st.integers(0, 2**28), max_size=40), st.lists(WORDS))
def test_words_of_up_to_sixteen_ascii_bytes(vocabulary: dict[str, int], others: list[str]) -> None:
    built = short_words.build(vocabulary)
    asked = [word for word in [*vocabulary, *others] if word.isascii() and 0 < len(word) <= 16 and "\0" not in word]
    last = np.array([int.from_bytes(word[-8:].encode()) for word in asked], np.int64)
    before = np.array([int.from_bytes(word[:-8].encode()) for word in asked], np.int64)
    found = np.empty(len(asked), np.int64)
    _look_up(built.keys, built.numbers, last, before, found)
    assert found.tolist() == [vocabulary.get(word, short_words.NONE) for word in asked]
