"""Ways of exchanging gradients and weights, on two real ranks over Gloo, beside one rank with everything."""

from __future__ import annotations

import numpy as np
import pytest

from tests.integration.communication_programs import STEPS
from tests.integration.rank_programs import Found, launch

MODULE = "tests.integration.communication_programs"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Found:
    (found,) = launch(["exchanges"], tmp_path_factory.mktemp("alone"), 1, module=MODULE)
    return found


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[Found]:
    return launch(["exchanges", "resumed", "partly_used"], tmp_path_factory.mktemp("both"), 2, module=MODULE)


def test_overlap_gives_the_same_bits_as_sums_after_the_backward_pass(both: list[Found]) -> None:
    for rank in both:
        np.testing.assert_array_equal(rank["exchanges/overlap/hashes"], rank["exchanges/plain/hashes"])
        np.testing.assert_array_equal(rank["exchanges/overlap/losses"], rank["exchanges/plain/losses"])


def test_two_ranks_lose_as_one_does_step_by_step_with_overlap(alone: Found, both: list[Found]) -> None:
    for rank in both:
        np.testing.assert_allclose(rank["exchanges/overlap/losses"], alone["exchanges/plain/losses"], rtol=1e-5)


@pytest.mark.parametrize("way", ("plain", "overlap", "bf16", "sharded"))
def test_ranks_hold_the_same_bits_after_every_step(both: list[Found], way: str) -> None:
    first, second = (rank[f"exchanges/{way}/hashes"] for rank in both)
    np.testing.assert_array_equal(first, second)
    assert len(set(first)) == STEPS + 1


def test_overlap_with_unused_parameters_and_failing_ranks_changes_nothing(both: list[Found]) -> None:
    for rank in both:
        np.testing.assert_array_equal(rank["partly_used/True/hashes"], rank["partly_used/False/hashes"])
        np.testing.assert_array_equal(rank["partly_used/True/messages"], rank["partly_used/False/messages"])
    first, second = (rank["partly_used/True/hashes"] for rank in both)
    np.testing.assert_array_equal(first, second)
    assert [rank["partly_used/True/messages"].tolist() for rank in both] == [
        ["RankLost", "LossNotFinite"],
        ["ValueError", "LossNotFinite"],
    ]


def test_bf16_halves_the_bytes_and_stays_near(alone: Found, both: list[Found]) -> None:
    for rank in both:
        plain, bf16 = rank["exchanges/plain/traffic"], rank["exchanges/bf16/traffic"]
        assert plain[0, 0] > 3
        np.testing.assert_array_equal(bf16[:, 0], plain[:, 0])
        np.testing.assert_array_equal(bf16[:, 1] * 2, plain[:, 1])
        np.testing.assert_allclose(rank["exchanges/bf16/losses"], alone["exchanges/plain/losses"], rtol=2e-2)
        assert (rank["exchanges/bf16/losses"] != rank["exchanges/plain/losses"]).any()


def test_a_sharded_optimizer_takes_the_same_steps_to_the_bit(alone: Found, both: list[Found]) -> None:
    for rank in both:
        np.testing.assert_array_equal(rank["exchanges/sharded/hashes"], rank["exchanges/plain/hashes"])
        np.testing.assert_allclose(rank["exchanges/sharded/losses"], alone["exchanges/plain/losses"], rtol=1e-5)


def test_rank_0_collects_the_whole_state_of_a_sharded_optimizer(both: list[Found]) -> None:
    root = both[0]
    for key in root["exchanges/plain/keys"]:
        np.testing.assert_array_equal(
            root[f"exchanges/sharded/optimizer/{key}"], root[f"exchanges/plain/optimizer/{key}"], err_msg=key
        )


def test_local_steps_of_eight_send_an_eighth_of_the_bytes(both: list[Found]) -> None:
    for rank in both:
        plain, local = rank["exchanges/plain/traffic"][:, 1], rank["exchanges/local/traffic"][:, 1]
        assert (local > 0).tolist() == [step % 8 == 0 for step in range(1, STEPS + 1)]
        assert local.sum() * 8 == plain.sum()


@pytest.mark.parametrize(("way", "every"), (("local", 8), ("mixed", 4)))
def test_ranks_are_equal_after_the_interval_and_differ_between(both: list[Found], way: str, every: int) -> None:
    first, second = (rank[f"exchanges/{way}/hashes"][1:-1] for rank in both)
    expected = [step % every == 0 for step in range(1, STEPS + 1)]
    assert (first == second).tolist() == expected
    for rank in both:
        assert rank[f"exchanges/{way}/together"].tolist() == expected
        np.testing.assert_array_equal(rank[f"exchanges/{way}/losses"], both[0][f"exchanges/{way}/losses"])


def test_local_steps_stay_near_the_synchronous_curve(both: list[Found]) -> None:
    for rank in both:
        np.testing.assert_allclose(rank["exchanges/local/losses"], rank["exchanges/plain/losses"], atol=0.2)


@pytest.mark.parametrize("name", ("equal", "between", "sharded"))
def test_a_resumed_learner_goes_on_as_the_one_that_saved(both: list[Found], name: str) -> None:
    hashes = {str(rank[f"resumed/{name}/{side}"]) for rank in both for side in ("went-on", "loaded")}
    assert len(hashes) == 1


def test_one_rank_sends_nothing(alone: Found) -> None:
    assert not alone["exchanges/plain/traffic"].any()
