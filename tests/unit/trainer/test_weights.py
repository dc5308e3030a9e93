from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace.schemas.errors import UsageError
from headrace.trainer import weights

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(2, np.float32)}


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray] = ARRAYS) -> bool:
    return found.keys() == expected.keys() and all(np.array_equal(found[name], expected[name]) for name in expected)


def test_hash_does_not_depend_on_the_order_of_the_names() -> None:
    assert weights.weight_hash(ARRAYS) == weights.weight_hash(dict(reversed(ARRAYS.items())))


@pytest.mark.parametrize(
    "other",
    [
        {**ARRAYS, "b": np.array([0.0, -0.0], np.float32)},
        {**ARRAYS, "a": ARRAYS["a"].reshape(3, 2)},
        {"a": ARRAYS["a"], "c": ARRAYS["b"]},
        {**ARRAYS, "b": np.zeros(4, np.float16)},
    ],
)
def test_hash_changes_with_any_bit_shape_name_or_type(other: dict[str, np.ndarray]) -> None:
    assert weights.weight_hash(ARRAYS) != weights.weight_hash(other)


def test_safetensors_go_before_pdparams(tmp_path: Path) -> None:
    (tmp_path / "model_state.pdparams").touch()
    save_file(ARRAYS, tmp_path / "model.safetensors", {"format": "np"})
    assert same(weights.read(weights.find(tmp_path)))


def test_an_index_names_several_files(tmp_path: Path) -> None:
    for name in ARRAYS:
        save_file({name: ARRAYS[name]}, tmp_path / f"{name}.safetensors", {"format": "np"})
    index = {"weight_map": {name: f"{name}.safetensors" for name in ARRAYS}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert same(weights.read(weights.find(tmp_path)))


def test_a_folder_without_weights_is_refused_with_the_names_it_may_hold(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"model\.safetensors"):
        weights.find(tmp_path)


def test_a_damaged_safetensors_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 9)
    with pytest.raises(UsageError, match="fetch it again"):
        weights.read(tmp_path / "model.safetensors")


@pytest.mark.parametrize("protocol", (2, 4))
def test_pdparams_of_old_and_new_paddle_are_read(tmp_path: Path, protocol: int) -> None:
    saved = {
        "a": ("linear_0.w_0", ARRAYS["a"]),
        "b": ARRAYS["b"],
        "StructuredToParameterName@@": {"a": "linear_0.w_0", "b": "linear_0.b_0"},
    }
    (tmp_path / "model_state.pdparams").write_bytes(pickle.dumps(saved, protocol))
    assert same(weights.read(weights.find(tmp_path)))


def test_large_pdparams_come_in_slices(tmp_path: Path) -> None:
    flat = ARRAYS["a"].reshape(-1)
    saved = {
        "b": ARRAYS["b"],
        "a@@.0": flat[:4],
        "a@@.1": flat[4:],
        "UnpackBigParamInfor@@": {"a": {"OriginShape": (2, 3), "slices": ["a@@.0", "a@@.1"]}},
    }
    (tmp_path / "model_state.pdparams").write_bytes(pickle.dumps(saved))
    assert same(weights.read(weights.find(tmp_path)))


def test_bfloat16_pdparams_are_widened(tmp_path: Path) -> None:
    (tmp_path / "model_state.pdparams").write_bytes(pickle.dumps({"a": np.array([0x3FC0, 0xBF80], np.uint16)}))
    assert same(weights.read(weights.find(tmp_path)), {"a": np.array([1.5, -1.0], np.float32)})


class _Touch:
    """What a hostile pickle does: call something of its choice."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path(self.path),)  # type: ignore[return-value]


def test_a_pickle_that_calls_something_is_refused_and_calls_nothing(tmp_path: Path) -> None:
    (tmp_path / "model_state.pdparams").write_bytes(pickle.dumps({"a": _Touch(tmp_path / "touched")}))
    with pytest.raises(UsageError, match="not a plain state dict"):
        weights.read(tmp_path / "model_state.pdparams")
    assert not (tmp_path / "touched").exists()
