"""Bucket: a hash of the record that decides whether it is held out, the same whenever and wherever it is computed.

The CRC-32 of the producer's id (else of the text), as UTF-8, finalised by a multiplicative mix: a CRC of short ids
alone leaves its top bits far from uniform. The top 16 bits are the bucket. A text that is published again falls on
its old side. Cost: one C call per row.

Never change it: rows that were held out would move into training.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def buckets(ids: pa.StringArray, texts: pa.StringArray) -> npt.NDArray[np.uint16]:
    """The bucket of every row, in [0, 2**16)."""
    keys = pc.coalesce(ids, texts).cast(pa.binary()).to_numpy(zero_copy_only=False)
    return mix(np.fromiter(map(zlib.crc32, keys), np.uint32, len(keys)))


def mix(hashes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
    """Spread every input bit over the top 16 bits (the finaliser of MurmurHash3, public domain)."""
    mixed = hashes.copy()
    mixed ^= mixed >> np.uint32(16)
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(13)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    return (mixed >> np.uint32(16)).astype(np.uint16)
