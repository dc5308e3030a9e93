"""Every task on two real ranks: micro-batches in any shares give the gradient of one big batch, and equal weights."""

from __future__ import annotations

import numpy as np
import pytest

from tests.integration.rank_programs import Found, launch, under
from tests.unit.trainer.paddle.cases import CASES

SHARES = ("uneven", "one-empty", "one-big-batch")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Found:
    (found,) = launch(["every_task"], tmp_path_factory.mktemp("alone"), 1)
    return under(found, "every_task/")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    return [under(found, "every_task/") for found in launch(["every_task"], tmp_path_factory.mktemp("both"), 2)]


def joined(found: Found, prefix: str) -> np.ndarray:
    parts = under(found, f"{prefix}/gradient/")
    return np.concatenate([parts[name].reshape(-1).astype(np.float64) for name in sorted(parts)])


@pytest.mark.parametrize("case", CASES)
def test_micro_batches_over_any_ranks_give_the_gradient_of_one_big_batch(
    alone: Found, both: list[Found], case: str
) -> None:
    many, terms, whole = alone[f"{case}/batches"]
    assert many > 3
    assert terms == whole
    expected = joined(alone, f"{case}/one-big-batch")
    assert np.linalg.norm(expected) > 0
    for found in (alone, *both):
        for share in SHARES:
            apart = np.linalg.norm(joined(found, f"{case}/{share}") - expected)
            assert apart <= 1e-6 * np.linalg.norm(expected), (share, apart / np.linalg.norm(expected))


@pytest.mark.parametrize("case", CASES)
def test_loss_and_right_predictions_are_of_the_global_batch(alone: Found, both: list[Found], case: str) -> None:
    expected = alone[f"{case}/one-big-batch/score"]
    assert expected[0] > 0
    for found in both:
        for share in SHARES:
            np.testing.assert_allclose(found[f"{case}/{share}/score"], expected, rtol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_ranks_end_with_equal_weights(both: list[Found], case: str) -> None:
    first, second = both
    for share in SHARES:
        assert first[f"{case}/{share}/hash"] == second[f"{case}/{share}/hash"]


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("custom")])
def test_a_head_that_only_some_micro_batches_reach_is_trained_on_both_ranks(both: list[Found], case: str) -> None:
    for found in both:
        for share in SHARES:
            assert found[f"{case}/{share}/gradient/pairs.weight"].any()
