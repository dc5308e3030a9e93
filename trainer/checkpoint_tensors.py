"""Tensors on disk: named NumPy arrays as a safetensors file, streamed out and checked on the way in.

The file is written array by array from the arrays' own memory, so that saving costs no second copy of the model.
Reading goes through the safetensors library, which checks the header against the file before a byte is used.

NumPy has no bfloat16. Such an array travels as its uint16 bits and is declared in `Tensors.dtypes`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import safetensors

from headrace.schemas.errors import CheckpointDamaged, ResumeRefused

_CHUNK_BYTES = 8 * 2**20

#: safetensors' name of a dtype -> NumPy's; the first that fits an array is written, unless another is declared.
_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
    "BF16": np.dtype("<u2"),  # as bits, and only where declared
}
_NAMES = {dtype: name for name, dtype in reversed(_DTYPES.items()) if name != "BF16"}


@dataclass(frozen=True, slots=True)
class Tensors:
    """Arrays by name; `dtypes` declares those that are not what NumPy calls them (`BF16`, held as uint16)."""

    arrays: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)


def write_tensors(tensors: Tensors) -> Iterator[bytes | memoryview]:
    """The file in chunks. Arrays must not change before the last one is taken.

    `format: np` is what PaddleNLP's `from_pretrained` asks for. Wide types first, so that every array is aligned.
    """
    names = sorted(tensors.arrays, key=lambda name: (-tensors.arrays[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": {"format": "np"}}
    start = 0
    for name in names:
        array = tensors.arrays[name]
        end = start + array.nbytes
        dtype = _dtype_name(name, array, tensors.dtypes.get(name))
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        data = np.ascontiguousarray(tensors.arrays[name]).reshape(-1).view(np.uint8).data
        for at in range(0, len(data), _CHUNK_BYTES):
            yield data[at : at + _CHUNK_BYTES]


def _dtype_name(name: str, array: np.ndarray[Any, Any], declared: str | None) -> str:
    found = declared or _NAMES.get(array.dtype)
    if found is None or _DTYPES.get(found) != array.dtype:
        raise TypeError(f"tensor {name!r} is {array.dtype} (declared {declared}): a checkpoint holds {sorted(_DTYPES)}")
    return found


def read_tensors(data: bytes, what: str) -> Tensors:
    """Inverse of `write_tensors`; `what` names the file in the error."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    dtypes: dict[str, str] = {}
    try:
        found = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise CheckpointDamaged(f"{what} is not a safetensors file: {error}") from error
    for name, tensor in found:
        dtype = tensor["dtype"]
        if dtype not in _DTYPES:
            raise ResumeRefused(f"{what} holds {name!r} as {dtype}, which this headrace does not read: update headrace")
        arrays[name] = np.frombuffer(tensor["data"], _DTYPES[dtype]).reshape(tensor["shape"])
        if dtype == "BF16":
            dtypes[name] = dtype
    return Tensors(arrays, dtypes)
