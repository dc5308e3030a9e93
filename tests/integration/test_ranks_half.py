"""Two real ranks with weights in half precision: scale, skips and weights agree, and a resume goes on to the bit.

The CPU has no arithmetic in half precision; the network casts its weights to float32 before it multiplies. Weights,
their gradients and the overflows are real fp16 and bf16.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.integration.rank_programs import Found, launch, under

TYPES = ("bfloat16", "float16")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def both(folder: Path) -> list[Found]:
    return launch(("half_whole", "half_begun"), folder / "first", 2)


@pytest.mark.parametrize("stored", TYPES)
def test_ranks_end_with_equal_weights_in_float32(both: list[Found], stored: str) -> None:
    first, second = (rank[f"half_whole/{stored}/hash"] for rank in both)
    assert first == second
    weights = under(both[0], f"half_whole/{stored}/weights/")
    assert {array.dtype for array in weights.values()} == {np.dtype(np.float32)}


def test_an_overflow_on_one_rank_repeats_the_step_on_both_at_half_the_scale(both: list[Found]) -> None:
    for rank in both:
        scales = rank["half_whole/float16/scales"]
        assert 1.0 < scales[1] < scales[0] < 2.0**16
        assert (np.log2(scales) % 1 == 0).all()
        losses = rank["half_whole/float16/losses"]
        assert np.isfinite(losses).all()
        assert (losses[[0, 1, 2, 3, 5]] > 0).all()  # repeated, not given up
    np.testing.assert_array_equal(both[0]["half_whole/float16/scales"], both[1]["half_whole/float16/scales"])


def test_the_scale_is_in_the_checkpoint(both: list[Found]) -> None:
    stored = both[0]["half_begun/float16/optimizer/loss_scale"]
    assert stored[0] == both[0]["half_begun/float16/scales"][-1]


@pytest.mark.parametrize("stored", TYPES)
def test_a_spike_on_one_rank_is_skipped_by_both_and_blamed_by_one(both: list[Found], stored: str) -> None:
    first, second = (rank[f"half_whole/{stored}/skipped"].tolist() for rank in both)
    assert first == [-1, -1, -1, -1, 0, -1]
    assert second == [-1, -1, -1, -1, 1, -1]
    scales = both[0][f"half_whole/{stored}/scales"]
    assert scales[4] == scales[3]  # no scale is tried on a step that is given up


def test_six_steps_equal_three_and_three_more_in_a_fresh_process(folder: Path, both: list[Found]) -> None:
    for rank in launch(["half_resumed"], folder / "resumed", 2):
        for stored in TYPES:
            whole, resumed = under(both[0], f"half_whole/{stored}/"), under(rank, f"half_resumed/{stored}/")
            assert resumed.keys() == whole.keys()
            for name in ("losses", "scales"):
                np.testing.assert_array_equal(resumed.pop(name), whole[name][3:], err_msg=name)
            del resumed["skipped"]  # who is blamed differs between ranks
            for name, array in resumed.items():
                np.testing.assert_array_equal(array, whole[name], err_msg=name)
