"""Two real ranks over Gloo: exact gradients, equal weights, repeatable and resumable to the bit, and no hang.

The programs are in `rank_programs`; they run once, for all tests of this file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.integration.rank_programs import Found, launch, under

TASKS = ("classification", "masked-lm")
SHARES = ("uneven", "one-empty", "one-big-batch")
PROGRAMS = ("gradients", "partly_used", "five_steps", "scored")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def alone(folder: Path) -> Found:
    """What one rank with everything finds."""
    (found,) = launch(PROGRAMS, folder / "alone", 1)
    return found


@pytest.fixture(scope="module")
def both(folder: Path) -> list[Found]:
    """What each of two ranks finds."""
    return launch((*PROGRAMS, "four_steps", "two_steps", "failures"), folder / "first", 2)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("share", SHARES)
def test_accumulated_gradients_of_two_ranks_equal_one_big_batch(
    alone: Found, both: list[Found], task: str, share: str
) -> None:
    expected = alone[f"gradients/{task}/one-big-batch/gradient"]
    for rank in (alone, *both):
        gradient = rank[f"gradients/{task}/{share}/gradient"]
        assert np.linalg.norm(gradient - expected) <= 1e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("share", SHARES)
def test_ranks_with_different_data_end_with_equal_weights(both: list[Found], task: str, share: str) -> None:
    first, second = (rank[f"gradients/{task}/{share}/hash"] for rank in both)
    assert first == second


@pytest.mark.parametrize("task", TASKS)
def test_loss_and_right_predictions_are_of_the_global_batch(alone: Found, both: list[Found], task: str) -> None:
    expected = alone[f"gradients/{task}/one-big-batch/score"]
    for rank in both:
        for share in SHARES:
            np.testing.assert_allclose(rank[f"gradients/{task}/{share}/score"], expected, rtol=1e-6)
            counted = alone[f"gradients/{task}/one-big-batch/by_class"]
            np.testing.assert_array_equal(rank[f"gradients/{task}/{share}/by_class"], counted)
            assert counted[:, 3].sum() == (expected[2] if task == "classification" else 0)  # every row has one class


@pytest.mark.parametrize("used_by", ("used-by-rank-0", "used-by-rank-1"))
def test_a_parameter_unused_by_a_ranks_last_micro_batch_keeps_ranks_equal(
    alone: Found, both: list[Found], used_by: str
) -> None:
    first, second = (rank[f"partly_used/{used_by}/hash"] for rank in both)
    assert first == second
    expected = alone[f"partly_used/{used_by}/gradient"]
    assert np.count_nonzero(expected) == expected.size
    for rank in both:
        gradient = rank[f"partly_used/{used_by}/gradient"]
        assert np.linalg.norm(gradient - expected) <= 1e-6 * np.linalg.norm(expected)


def test_weights_are_bitwise_equal_on_both_ranks_after_every_step(both: list[Found]) -> None:
    first, second = (rank["five_steps/once/hashes"] for rank in both)
    np.testing.assert_array_equal(first, second)
    assert len(set(first)) == 6
    assert (both[0]["five_steps/once/losses"][:, 1] > 0.1).all()  # each of these steps was clipped


def test_training_twice_gives_the_same_bits(alone: Found, both: list[Found]) -> None:
    for rank in (alone, *both):
        np.testing.assert_array_equal(rank["five_steps/once/hashes"], rank["five_steps/again/hashes"])
        np.testing.assert_array_equal(rank["five_steps/once/losses"], rank["five_steps/again/losses"])


def test_another_number_of_ranks_differs_only_in_the_order_of_sums(alone: Found, both: list[Found]) -> None:
    """Dropout is on: its seeds follow the micro-batches, not the ranks."""
    np.testing.assert_allclose(both[0]["five_steps/once/losses"], alone["five_steps/once/losses"], rtol=1e-5)
    for name, expected in under(alone, "five_steps/once/weights/").items():
        np.testing.assert_allclose(both[0][f"five_steps/once/weights/{name}"], expected, atol=2e-5)


def test_four_steps_equal_two_saved_loaded_in_a_fresh_process_and_two_more(folder: Path, both: list[Found]) -> None:
    whole = under(both[0], "four_steps/")
    for rank in launch(["two_more_steps"], folder / "resumed", 2):
        resumed = under(rank, "two_more_steps/")
        assert resumed.keys() == whole.keys()
        for name, expected in whole.items():
            np.testing.assert_array_equal(resumed[name], expected, err_msg=name)


def test_ranks_score_different_numbers_of_batches(alone: Found, both: list[Found]) -> None:
    for rank in both:
        for first in ("5", "1"):
            np.testing.assert_allclose(rank[f"scored/{first}"], alone["scored/5"], rtol=1e-6)
            np.testing.assert_array_equal(rank[f"scored/{first}/by_class"], alone["scored/5/by_class"])


def test_a_nan_on_one_rank_stops_every_rank_before_the_step(both: list[Found]) -> None:
    for rank in both:
        assert rank["failures/messages"][0].startswith("LossNotFinite: the loss is nan")
        assert rank["failures/hashes"][0] == rank["failures/hashes"][1]


def test_only_the_rank_with_the_nan_blames_a_micro_batch(both: list[Found]) -> None:
    first, second = both
    assert "not in the batches of this rank" in first["failures/messages"][0]
    assert "micro-batch 1 of lane 9" in second["failures/messages"][0]
    assert first["failures/blamed"].tolist() == []
    assert second["failures/blamed"].tolist() == [1]


def test_an_error_in_one_ranks_forward_pass_does_not_hang_the_others(both: list[Found]) -> None:
    first, second = both
    assert first["failures/messages"][1].startswith("RankLost: rank 1 failed")
    assert second["failures/messages"][1].startswith("ValueError: a batch that breaks")
    assert first["failures/hashes"][1] == first["failures/hashes"][2]


def test_an_error_in_one_ranks_evaluation_does_not_hang_the_others(both: list[Found]) -> None:
    first, second = both
    assert first["failures/messages"][2].startswith("RankLost: rank 1 failed")
    assert second["failures/messages"][2].startswith("ValueError: a batch that breaks")


def test_ranks_train_on_in_step_after_a_caught_error(both: list[Found]) -> None:
    first, second = (rank["failures/hashes"] for rank in both)
    np.testing.assert_array_equal(first, second)
    assert first[3] != first[2]


def test_a_dead_rank_is_an_error_for_the_others(tmp_path: Path) -> None:
    (left,) = launch(["one_dies"], tmp_path, 2, codes=[0, 9])
    assert "a sum over 2 ranks broke off" in str(left["one_dies/message"])
    assert left["one_dies/hashes"][0] == left["one_dies/hashes"][1]


def test_a_frozen_rank_is_named_by_the_control_plane(tmp_path: Path) -> None:
    (left,) = launch(["one_freezes"], tmp_path, 2, codes=[0, None])
    assert "rank 1 did not answer" in str(left["one_freezes/message"])
    assert left["one_freezes/hashes"][0] == left["one_freezes/hashes"][1]
