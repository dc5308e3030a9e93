"""The hash trie holds what was put in, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ingest.compiled import compiled
from headrace.ingest.tokenizers.wordpiece import trie


@compiled
def _number(edges, values, root, code_points):  # type: ignore[no-untyped-def]
    node = root
    for code_point in code_points:
        node = trie.child(edges, node, code_point)
        if node < 0:
            return -1
    return values[node]


def number(found: trie.Trie, root: int, text: str) -> int:
    import numpy as np

    return int(_number(found.edges, found.values, root, np.array([*map(ord, text)], np.int64)))


STRINGS = st.dictionaries(st.text("ab中\U0010ffff\x01", min_size=1, max_size=6), st.integers(0, 2**28), max_size=40)


@given(STRINGS, STRINGS, st.text("ab中\U0010ffff\x01", min_size=1, max_size=6))
def test_two_sets_of_strings(first: dict[str, int], second: dict[str, int], other: str) -> None:
    found = trie.build(first, second)
    for root, strings in zip(trie.ROOTS, (first, second), strict=True):
        for text in {*first, *second, other}:
            assert number(found, root, text) == strings.get(text, trie.NONE)


def test_too_many_nodes_are_refused() -> None:
    strings = {chr(0x4E00 + number % 20_000) + chr(0x4E00 + number // 20_000) * 60: 1 for number in range(20_000)}
    with pytest.raises(ValueError, match="nodes"):
        trie.build(strings)


def test_pieces_and_beginnings() -> None:
    assert trie.split_pieces({"a": 0, "##b": 1, "##": 2, "": 3}) == ({"a": 0, "##b": 1, "##": 2}, {"b": 1})
