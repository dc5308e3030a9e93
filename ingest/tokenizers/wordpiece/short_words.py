"""Short words: those of a vocabulary that fit into sixteen ASCII bytes, found in one probe.

Most English words and numbers of a text are of this kind. The bytes themselves, packed into two int64, are the key of
a hash table with linear probing; 0 is an empty slot. Cost: two multiplications and, mostly, one cache line a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.ingest.compiled import inlined

MOST_BYTES = 16
NONE = -1

_HALF = 64
_SPREAD = np.uint64(0xC2B2AE3D27D4EB4F)  # odd, and other than the next
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio
_HASH_SHIFT = np.uint64(24)


@dataclass(frozen=True, slots=True)
class ShortWords:
    """Words with a number each."""

    keys: npt.NDArray[np.int64]  # (2 * slots,): the last eight bytes and those before them, side by side
    numbers: npt.NDArray[np.int32]  # (slots,): a power of two, at most a quarter of it taken


def build(vocabulary: Mapping[str, int]) -> ShortWords:
    """Take the short words of a vocabulary."""
    found = {
        int.from_bytes(word.encode()): number
        for word, number in vocabulary.items()
        if word.isascii() and 0 < len(word) <= MOST_BYTES and "\0" not in word
    }
    slots = 1 << max(4, (4 * len(found)).bit_length())
    keys, numbers = np.zeros(2 * slots, np.int64), np.full(slots, NONE, np.int32)
    for key, number in found.items():
        before, last = divmod(key, 1 << _HALF)
        slot = _home(last, before, slots)
        while keys[2 * slot]:
            slot = (slot + 1) % slots
        keys[2 * slot : 2 * slot + 2], numbers[slot] = (last, before), number
    return ShortWords(keys, numbers)


def _home(last: int, before: int, slots: int) -> int:
    mixed = (last ^ before * int(_SPREAD) % 2**64) * int(_MULTIPLIER) % 2**64
    return (mixed >> int(_HASH_SHIFT)) % slots


@inlined
def number_of(keys, numbers, last, before):  # type: ignore[no-untyped-def]
    """The number of the word whose bytes are packed into two int64, or NONE."""
    mask = np.uint64(numbers.shape[0] - 1)
    slot = ((np.uint64(last) ^ np.uint64(before) * _SPREAD) * _MULTIPLIER >> _HASH_SHIFT) & mask
    one = np.uint64(1)
    while keys[slot << one] != 0:
        if keys[slot << one] == last and keys[(slot << one) | one] == before:
            return numbers[slot]
        slot = (slot + one) & mask
    return NONE
