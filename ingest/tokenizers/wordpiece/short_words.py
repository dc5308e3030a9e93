"""Short words: those of a vocabulary that fit into eight ASCII bytes, found in one probe.

Most English words and numbers of a text are of this kind. The bytes themselves, packed into an int64, are the key of a
hash table with linear probing; 0 is an empty slot. Cost: one multiplication and, mostly, one cache line a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.ingest.compiled import inlined

MOST_BYTES = 8
NONE = -1

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio
_HASH_SHIFT = np.uint64(24)


@dataclass(frozen=True, slots=True)
class ShortWords:
    """Words with a number each."""

    keys: npt.NDArray[np.int64]  # (a power of two, at most a quarter of it taken,)
    numbers: npt.NDArray[np.int32]  # beside keys


def build(vocabulary: Mapping[str, int]) -> ShortWords:
    """Take the short words of a vocabulary."""
    found = {
        int.from_bytes(word.encode()): number
        for word, number in vocabulary.items()
        if word.isascii() and 0 < len(word) <= MOST_BYTES and "\0" not in word
    }
    size = 1 << max(4, (4 * len(found)).bit_length())
    keys, numbers = np.zeros(size, np.int64), np.full(size, NONE, np.int32)
    for key, number in found.items():
        slot = _home(key, size)
        while keys[slot]:
            slot = (slot + 1) % size
        keys[slot], numbers[slot] = key, number
    return ShortWords(keys, numbers)


def _home(key: int, size: int) -> int:
    return (key * int(_MULTIPLIER) % 2**64 >> int(_HASH_SHIFT)) % size


@inlined
def number_of(keys, numbers, packed):  # type: ignore[no-untyped-def]
    """The number of the word whose bytes are packed into an int64, or NONE."""
    mask = np.uint64(keys.shape[0] - 1)
    slot = (np.uint64(packed) * _MULTIPLIER >> _HASH_SHIFT) & mask
    while keys[slot] != 0:
        if keys[slot] == packed:
            return numbers[slot]
        slot = (slot + np.uint64(1)) & mask
    return NONE
