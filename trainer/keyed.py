"""Keyed hashes: every order and every seed is a function of names and numbers, never of a library's random stream.

A random stream depends on how often it was asked before, so it cannot be resumed, shared out among ranks, or relied
upon from one release of its library to the next. A keyed hash depends on nothing but its input.

The mixer is the output function of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014; the constants are those of Vigna's public domain splitmix64.c). Numbers are folded into a key
one after the other. Mixing is one to one, so keys that differ in a single number never collide; others collide by
chance, at one in 2**64. Hashes are unsigned 64-bit and wrap, on every machine alike. None of this is cryptography.

Cost: about 2 ns for each number folded.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Keys = npt.NDArray[np.uint64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR_2 = np.uint64(0x94D049BB133111EB)
_MASK_64 = 2**64 - 1


class Purpose(IntEnum):
    """What a key decides: the first number folded, so that no two purposes share their chances."""

    ROW_ORDER = 1
    MICRO_BATCH_ORDER = 2
    MICRO_BATCH_SEED = 3
    MASK = 4


def mix(keys: Keys) -> Keys:
    """The output function of splitmix64, elementwise."""
    mixed = (keys ^ (keys >> np.uint64(30))) * _FACTOR_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _FACTOR_2
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64)


def fold(keys: Keys, numbers: npt.NDArray[np.integer]) -> Keys:
    """Fold one number into each key; shapes broadcast. Negative numbers wrap."""
    # Addition of arrays wraps in silence; between scalars NumPy would warn.
    return mix((keys ^ numbers.astype(np.uint64)) + _GAMMA)


def key_of(purpose: Purpose, *numbers: int) -> int:
    """The key of a purpose and some numbers, of any sign and up to 64 bits."""
    keys = np.zeros(1, dtype=np.uint64)
    for number in (purpose, *numbers):
        keys = fold(keys, np.array([number & _MASK_64], dtype=np.uint64))
    return int(keys[0])


def keys_of(purpose: Purpose, *numbers: int, last: npt.NDArray[np.integer]) -> Keys:
    """`key_of(purpose, *numbers, n)` for each n of `last`."""
    return fold(np.array([key_of(purpose, *numbers)], dtype=np.uint64), last)


def pass_numbers(pass_number: int) -> tuple[int, ...]:
    """What a pass adds to the numbers of a key: nothing in the first, whose order is that of a run of one pass."""
    return () if pass_number == 1 else (pass_number,)


def origin_keys(key: int, rows: pa.RecordBatch) -> Keys:
    """Fold the origin of each row into `key`: topic, partition, offset, row, part."""
    keys = fold(np.array([key], dtype=np.uint64), _topic_numbers(rows.column("topic")))
    for name in ("partition", "offset", "row", "part"):
        keys = fold(keys, rows.column(name).to_numpy(zero_copy_only=False))
    return keys


def _topic_numbers(topics: pa.DictionaryArray) -> Keys:
    """A number per row that stands for its topic's name. Indices would not do: they differ from batch to batch."""
    names = topics.dictionary.to_pylist()
    numbers = [int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") for name in names]
    indices = topics.indices.to_numpy(zero_copy_only=False)
    return np.array(numbers, dtype=np.uint64)[indices] if names else np.zeros(len(indices), dtype=np.uint64)
