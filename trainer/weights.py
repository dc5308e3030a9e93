"""Weights as arrays under structured names: hashing them, and reading them from a model folder. No Paddle.

PaddleNLP 2.8.1's `from_pretrained` takes a folder with `config.json` and `model.safetensors` whose header carries the
metadata `{"format": "np"}`: without any metadata it fails, and it refuses "pd".

`read` takes the layouts that PaddleNLP publishes. Its `.pdparams` are pickles, and nothing from outside is unpickled
here, so they are read by a reader that can build NumPy arrays and containers and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from headrace.schemas.errors import UsageError

Arrays = Mapping[str, np.ndarray]

FILE_NAME = "model.safetensors"
CONFIG_NAME = "config.json"
#: In PaddleNLP's order of preference; the indexed ones name several files.
_LAYOUTS = (
    "model.safetensors.index.json",
    FILE_NAME,
    "model_state.pdparams.index.json",
    "model_state.pdparams",
)


def weight_hash(arrays: Arrays) -> str:
    """SHA-256 over names, types, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def find(folder: Path) -> Path:
    """The weight file of a model folder, or the index of several."""
    for name in _LAYOUTS:
        if (folder / name).is_file():
            return folder / name
    raise UsageError(
        f"model: {folder} holds none of {', '.join(_LAYOUTS)}: name a folder in PaddleNLP's layout, "
        "or convert PyTorch weights first (from_pretrained(..., convert_from_torch=True).save_pretrained(...))"
    )


def read(path: Path) -> dict[str, np.ndarray]:
    """Every array of a weight file, or of the files that an index names (they lie beside it)."""
    if path.name.endswith(".index.json"):
        shards = sorted(set(json.loads(path.read_text())["weight_map"].values()))
        return {name: array for shard in shards for name, array in read(path.parent / Path(shard).name).items()}
    if path.suffix == ".pdparams":
        return _read_pdparams(path)
    try:
        return dict(load_file(path))
    except (SafetensorError, TypeError) as error:
        raise UsageError(f"model: {path} is not a readable safetensors file ({error}): fetch it again") from error


def _latin1(text: str, encoding: str) -> bytes:
    """What `_codecs.encode` does in old pickles, which write bytes as text; no other encoding."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in {encoding!r}")
    return text.encode("latin1")


class _ArraysOnly(pickle.Unpickler):
    """Knows the names that arrays and their containers are made of; every other one is refused."""

    _KNOWN = {  # noqa: RUF012 (a constant)
        ("_codecs", "encode"): _latin1,
        ("collections", "OrderedDict"): OrderedDict,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("numpy.core.multiarray", "_reconstruct"): np._core.multiarray._reconstruct,  # type: ignore[attr-defined]
        ("numpy._core.multiarray", "_reconstruct"): np._core.multiarray._reconstruct,  # type: ignore[attr-defined]
    }

    def find_class(self, module: str, name: str) -> Any:
        known = self._KNOWN.get((module, name))
        if known is None:
            raise pickle.UnpicklingError(f"{module}.{name} is not an array")
        return known


def _read_pdparams(path: Path) -> dict[str, np.ndarray]:
    """A state dict as `paddle.save` writes it: name -> array, or -> (generated name, array); large ones in slices."""
    try:
        with path.open("rb") as file:
            saved = _ArraysOnly(file, encoding="latin1").load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"model: {path} is not a plain state dict ({error}): load it with paddle.load where you trust it "
            "and save it with save_pretrained(..., safe_serialization=True)"
        ) from error
    sliced = saved.pop("UnpackBigParamInfor@@", {})
    for name, parts in sliced.items():
        flat = np.concatenate([saved.pop(part) for part in parts["slices"]])
        saved[name] = flat.reshape(parts["OriginShape"])
    arrays = {}
    for name, value in saved.items():
        array = value[1] if isinstance(value, tuple) and len(value) == 2 else value
        if isinstance(array, np.ndarray) and array.dtype != object:
            arrays[name] = _from_bfloat16(array) if array.dtype == np.uint16 else array
    return arrays


def _from_bfloat16(array: np.ndarray) -> np.ndarray:
    """Paddle saves bfloat16 as uint16: the upper half of a float32."""
    return (array.astype(np.uint32) << 16).view(np.float32)
