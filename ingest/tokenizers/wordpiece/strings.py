"""Strings: an Arrow string array as the arrays that compiled code reads, without a copy, and arrays that it fills."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_NOTHING = np.frombuffer(b"\0", np.uint8)  # read-only, as Arrow's buffers are: another type would be compiled for


def pooled(count: int, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array without values, from the C library: it keeps freed memory of this size, so that no page is faulted in
    twice. Arrow's own pool gives it back to the system."""
    size = max(1, count) * np.dtype(kind).itemsize
    return np.frombuffer(pa.allocate_buffer(size, memory_pool=pa.system_memory_pool()), kind)


@dataclass(frozen=True, slots=True)
class Strings:
    """N texts: text i is data[starts[i]:ends[i]]. A null is an empty text."""

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]  # (N,)
    ends: npt.NDArray[np.int64]  # (N,)
    valid: npt.NDArray[np.bool_]  # (N,)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, number: int) -> str:
        """One text; malformed bytes become U+FFFD."""
        return self.data[self.starts[number] : self.ends[number]].tobytes().decode(errors="replace")

    @classmethod
    def of(cls, array: pa.StringArray | pa.LargeStringArray) -> Strings:
        """A view of string, large_string, binary or large_binary; slices and nulls as they are. Else TypeError."""
        kinds = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
        if array.type not in kinds:
            raise TypeError(f"an array of strings is expected, not of {array.type}")
        _, offsets, data = array.buffers()
        width = np.int64 if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type) else np.int32
        count = len(array)
        if offsets is None or not count:
            return cls.none(count)
        bounds = np.frombuffer(offsets, width)[array.offset : array.offset + count + 1].astype(np.int64)
        content = _NOTHING if data is None or not data.size else np.frombuffer(data, np.uint8)
        starts, ends = bounds[:-1], bounds[1:]
        valid = np.ones(count, np.bool_)
        if array.null_count:
            valid = array.is_valid().to_numpy(zero_copy_only=False)
            ends = np.where(valid, ends, starts)
        return cls(content, starts, ends, valid)

    @classmethod
    def none(cls, count: int) -> Strings:
        """`count` nulls."""
        zeros = np.zeros(count, np.int64)
        return cls(_NOTHING, zeros, zeros, np.zeros(count, np.bool_))
