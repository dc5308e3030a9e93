"""A trie in a hash table: one array, one probe a character.

An edge is one int64: parent node (20 bits), code point (21 bits), child node (22 bits); 0 is an empty slot. Node 0 does
not exist, 1 and 2 are the roots, so that two sets of strings share a table (first and following pieces of words). A
child is found by multiplicative hashing and linear probing; at most a third of the slots are taken. Cost: building is
linear in the characters; looking up touches one cache line a character, mostly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.ingest.compiled import compiled, inlined

ROOTS = (1, 2)
NONE = -1

MAX_NODES = 1 << 20
_CODE_POINT_BITS = 21
_CHILD_BITS = 22
_MULTIPLIER = -7046029254386353131  # 2**64 divided by the golden ratio, as a signed number
_HASH_SHIFT = 20


@dataclass(frozen=True, slots=True)
class Trie:
    """Strings with a number each."""

    edges: npt.NDArray[np.int64]  # (a power of two,)
    values: npt.NDArray[np.int32]  # (nodes,): the number of the string that ends there, or NONE


def build(*sets: Mapping[str, int]) -> Trie:
    """A trie of at most two sets of non-empty strings, the first under ROOTS[0]. Raises ValueError beyond MAX_NODES."""
    strings = [
        (string, value, root) for root, entries in zip(ROOTS, sets, strict=False) for string, value in entries.items()
    ]
    text = "".join(string for string, _, _ in strings)
    ends = np.cumsum([0, *(len(string) for string, _, _ in strings)])
    code_points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)
    numbers = np.array([value for _, value, _ in strings], np.int32)
    roots = np.array([root for _, _, root in strings], np.int64)
    edges = np.zeros(_slots(len(text)), np.int64)
    values = np.full(len(text) + len(ROOTS) + 1, NONE, np.int32)
    nodes = _insert(code_points, ends, numbers, roots, edges, values)
    if nodes > MAX_NODES:
        raise ValueError(f"{len(strings)} strings make more than {MAX_NODES} nodes")
    return Trie(edges, values[:nodes].copy())


def _slots(characters: int) -> int:
    """Three to six times the possible edges, as a power of two."""
    return 1 << max(4, (3 * min(characters, MAX_NODES)).bit_length())


@inlined
def child(edges, node, code_point):  # type: ignore[no-untyped-def]
    """The node behind an edge, or NONE."""
    key = node << _CODE_POINT_BITS | code_point
    mask = edges.shape[0] - 1
    slot = (key * _MULTIPLIER >> _HASH_SHIFT) & mask
    while True:
        edge = edges[slot]
        if edge >> _CHILD_BITS == key:
            return edge & ((1 << _CHILD_BITS) - 1)
        if edge == 0:
            return NONE
        slot = (slot + 1) & mask


@compiled
def _insert(code_points, ends, numbers, roots, edges, values):  # type: ignore[no-untyped-def]
    """Insert every string; the number of nodes. Stops beyond MAX_NODES."""
    nodes = 3
    mask = edges.shape[0] - 1
    for number in range(numbers.shape[0]):
        node = roots[number]
        for at in range(ends[number], ends[number + 1]):
            key = node << _CODE_POINT_BITS | code_points[at]
            slot = (key * _MULTIPLIER >> _HASH_SHIFT) & mask
            while edges[slot] != 0 and edges[slot] >> _CHILD_BITS != key:
                slot = (slot + 1) & mask
            if edges[slot] == 0:
                if nodes > MAX_NODES:
                    return nodes
                edges[slot] = key << _CHILD_BITS | nodes
                nodes += 1
            node = edges[slot] & ((1 << _CHILD_BITS) - 1)
        values[node] = numbers[number]
    return nodes


def split_pieces(vocabulary: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """A WordPiece vocabulary as tokens that begin words and pieces that follow (without their `##`)."""
    first = {token: number for token, number in vocabulary.items() if token}
    following = {token[2:]: number for token, number in vocabulary.items() if token.startswith("##") and len(token) > 2}
    return first, following


def words(found: Sequence[str]) -> Trie:
    """A trie of words alone."""
    return build(dict.fromkeys(found, 1))
