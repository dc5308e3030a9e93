"""PaddleLearner on one rank; two ranks are in tests/integration/test_ranks_step.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headrace.schemas.errors import LossNotFinite, LossSpike, ResumeRefused, UsageError
from headrace.trainer import network_weights, recompute
from headrace.trainer.checkpoint_tensors import Tensors, read_tensors, write_tensors
from headrace.trainer.learner import Learner, LearnerState
from headrace.trainer.precision import Precision
from tests.unit.trainer.paddle import tiny, two_branches

SCALED = Precision(scaled=True)  # fp16's scale on fp32 arithmetic: the CPU has no fp16
FP16 = Precision(scaled=True, stored="float16")  # weights and their gradients are fp16, also on the CPU
BF16 = Precision(stored="bfloat16")


def test_it_is_a_learner_and_learns() -> None:
    learner: Learner = tiny.learner()
    batches = [tiny.classification_batch(number) for number in range(4)]
    first = learner.step(batches, tiny.total(batches), 1e-2)
    for _ in range(6):
        last = learner.step(batches, tiny.total(batches), 1e-2)
    assert last.score.mean_loss < first.score.mean_loss
    assert learner.evaluate(batches).mean_loss < first.score.mean_loss


def test_a_state_does_not_see_later_steps() -> None:
    learner = tiny.learner()
    batches = [tiny.classification_batch(number) for number in range(2)]
    learner.step(batches, tiny.total(batches), 1e-2)
    state = learner.state()
    copies = {name: array.copy() for name, array in (*state.weights.items(), *state.optimizer.items())}
    learner.step(batches, tiny.total(batches), 1e-2)
    for name, array in (*state.weights.items(), *state.optimizer.items()):
        np.testing.assert_array_equal(array, copies[name], err_msg=name)


def test_a_batch_without_terms_changes_nothing() -> None:
    batches = [tiny.classification_batch(number) for number in range(2)]
    empty = tiny.classification_batch(9, rows=1)
    empty = type(empty)({name: array[:0] for name, array in empty.arrays.items()}, 0, 1, 0, 0, 0)
    with_empty, without = tiny.learner(), tiny.learner()
    with_empty.step([empty, *batches, empty], tiny.total(batches), 1e-2)
    without.step(batches, tiny.total(batches), 1e-2)
    assert with_empty.weight_hash() == without.weight_hash()


def test_clipping_scales_the_gradient_to_the_norm() -> None:
    """With fresh moments the first moment after one step is a tenth of the clipped gradient."""
    learner = two_branches.learner(clip_norm=0.5)
    batch = two_branches.batch(1, branch=True)
    result = learner.step([batch], batch.count, 1e-2)
    assert result.grad_norm > 0.5
    moments = [array for key, array in learner.state().optimizer.items() if key.endswith("/moment1")]
    assert np.sqrt(sum((array**2).sum() for array in moments)) == pytest.approx(0.05, rel=1e-5)


def test_loading_into_a_learner_that_has_stepped_goes_on_from_the_state() -> None:
    batches = [tiny.classification_batch(number) for number in range(4)]
    learner = tiny.learner(tiny.settings(dropout=0.1))
    learner.step(batches[:2], tiny.total(batches[:2]), 1e-2)
    state = learner.state()
    learner.step(batches[2:], tiny.total(batches[2:]), 1e-2)
    expected = learner.weight_hash()
    learner.load(state)
    learner.step(batches[2:], tiny.total(batches[2:]), 1e-2)
    assert learner.weight_hash() == expected


@pytest.mark.parametrize("task", (tiny.CLASSIFICATION, tiny.MASKED_LM), ids=("classification", "masked-lm"))
def test_a_state_goes_through_files_bit_for_bit(task: dict[str, object]) -> None:
    make = tiny.classification_batch if task is tiny.CLASSIFICATION else tiny.masked_lm_batch
    learner = tiny.learner(tiny.settings(task))
    batches = [make(number) for number in range(2)]
    learner.step(batches, tiny.total(batches), 1e-2)
    state = learner.state()
    weights, adamw = (
        read_tensors(b"".join(write_tensors(Tensors(arrays))), "state").arrays
        for arrays in (state.weights, state.optimizer)
    )
    resumed = tiny.learner(tiny.settings(task, seed=1))
    resumed.load(LearnerState(weights, adamw))
    for each in (learner, resumed):
        each.step(batches, tiny.total(batches), 1e-2)
    assert resumed.weight_hash() == learner.weight_hash()
    for key, array in learner.state().optimizer.items():
        np.testing.assert_array_equal(resumed.state().optimizer[key], array, err_msg=key)


def test_another_models_state_is_refused_and_changes_nothing() -> None:
    classifier, masked_lm = tiny.learner(), tiny.learner(tiny.settings(tiny.MASKED_LM))
    before = classifier.weight_hash()
    with pytest.raises(ResumeRefused, match="another model"):
        classifier.load(masked_lm.state())
    with pytest.raises(ResumeRefused, match="another model"):
        classifier.load(LearnerState(classifier.state().weights, masked_lm.state().optimizer))
    assert classifier.weight_hash() == before


def test_an_overflow_repeats_the_step_at_a_lower_scale() -> None:
    """The gradient is finite, the scaled one is not until the scale has come down."""
    learner, plain = two_branches.learner(precision=SCALED), two_branches.learner()
    batches = [two_branches.batch(1, branch=True), two_branches.overflowing(2)]
    result = learner.step(batches, 6, 1e-2)
    expected = plain.step(batches, 6, 1e-2)
    assert 1.0 < learner.state().optimizer["loss_scale"][0] < 2.0**16
    assert result == expected
    assert learner.weight_hash() == plain.weight_hash()


def test_a_loss_that_no_scale_cures_stops_before_the_step() -> None:
    learner = two_branches.learner(precision=SCALED)
    before = learner.weight_hash()
    with pytest.raises(LossNotFinite, match="loss is nan") as caught:
        learner.step([two_branches.batch(1, branch=True), two_branches.not_a_number(2)], 6, 1e-2)
    assert caught.value.batches == (1,)
    assert learner.weight_hash() == before
    assert learner.state().optimizer["loss_scale"][0] == 2.0**16


def test_the_loss_scale_is_part_of_the_state() -> None:
    learner = two_branches.learner(precision=SCALED)
    batch = two_branches.batch(1, branch=True)
    for _ in range(3):
        learner.step([batch], batch.count, 1e-2)
    state = learner.state()
    np.testing.assert_array_equal(state.optimizer["loss_scale"], [2.0**16, 3])
    other = two_branches.learner(precision=SCALED)
    other.load(state)
    np.testing.assert_array_equal(other.state().optimizer["loss_scale"], [2.0**16, 3])


@pytest.mark.parametrize("precision", (SCALED, FP16), ids=("fp32", "fp16-weights"))
def test_clipping_is_to_the_norm_of_the_unscaled_gradient(precision: Precision) -> None:
    learner = two_branches.learner(clip_norm=0.5, precision=precision)
    batch = two_branches.batch(1, branch=True)
    result = learner.step([batch], batch.count, 1e-2)
    assert learner.state().optimizer["loss_scale"][0] > 1.0
    assert 0.5 < result.grad_norm < 100.0
    moments = [array for key, array in learner.state().optimizer.items() if key.endswith("/moment1")]
    assert np.sqrt(sum((array**2).sum() for array in moments)) == pytest.approx(0.05, rel=1e-5)


def test_a_real_fp16_gradient_overflows_and_the_scale_comes_down() -> None:
    """Nothing is arranged: gradients of a few units times 2**16 do not fit into fp16."""
    learner, plain = two_branches.learner(precision=FP16), two_branches.learner()
    batches = [two_branches.batch(number, branch=True) for number in range(2)]
    found, expected = learner.step(batches, 6, 1e-2), plain.step(batches, 6, 1e-2)
    assert 1.0 < learner.state().optimizer["loss_scale"][0] < 2.0**16
    assert found.grad_norm == pytest.approx(expected.grad_norm, rel=2e-3)


@pytest.mark.parametrize("precision", (BF16, FP16), ids=("bf16", "fp16"))
def test_masters_take_steps_that_half_precision_would_round_away(precision: Precision) -> None:
    learner = two_branches.learner(precision=precision)
    network = learner._model.network
    before, batch = learner.state().weights, two_branches.batch(1, branch=True)
    for _ in range(3):
        learner.step([batch], batch.count, 1e-5)
    after = learner.state().weights
    moved = np.abs(after["common.weight"] - before["common.weight"])
    assert after["common.weight"].dtype == np.float32
    assert ((moved > 1e-5) & (moved < 4e-5)).all()
    rounded = after["common.weight"].astype(np.float16) if precision is FP16 else None
    if rounded is not None:
        np.testing.assert_array_equal(network.common.weight.numpy(), rounded)


def test_accumulated_gradients_of_a_half_precision_network_are_summed_in_float32() -> None:
    """2048 equal micro-batches: a sum in bf16 stops at 256 of them."""
    learner = two_branches.learner(precision=BF16)
    batch = two_branches.batch(1, branch=True, rows=1)
    one = learner.step([batch], 1, 0.0).grad_norm
    assert learner.step([batch] * 512, 512, 0.0).grad_norm == pytest.approx(one, rel=1e-2)


@pytest.mark.parametrize("precision", (Precision(), BF16), ids=("fp32", "bf16"))
def test_a_checkpoint_of_one_precision_loads_in_another(precision: Precision) -> None:
    fp16 = two_branches.learner(precision=FP16)
    batch = two_branches.batch(1, branch=True)
    fp16.step([batch], batch.count, 1e-2)
    other = two_branches.learner(precision=precision)
    other.load(fp16.state())
    assert other.weight_hash() == fp16.weight_hash()
    other.step([batch], batch.count, 1e-2)
    fp16.load(other.state())
    assert other.weight_hash() == fp16.weight_hash()


@pytest.mark.parametrize("task", (tiny.CLASSIFICATION, tiny.MASKED_LM), ids=("classification", "masked-lm"))
def test_an_ernie_in_half_precision_saves_what_it_was_given(task: dict[str, object]) -> None:
    network = tiny.built(tiny.settings(task)).network
    before = {name: np.array(tensor.numpy()) for name, tensor in network.state_dict().items()}
    weights = network_weights.create(network, "bfloat16")
    for name, array in weights.arrays().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    weights.publish()
    kept = {name for name, tensor in network.named_parameters() if str(tensor.dtype) == "paddle.float32"}
    assert kept
    assert all("norm" in name for name in kept)


@pytest.mark.parametrize("task", (tiny.CLASSIFICATION, tiny.MASKED_LM), ids=("classification", "masked-lm"))
def test_recompute_runs_every_layer_twice_and_gives_the_same_gradients(task: dict[str, object]) -> None:
    make = tiny.classification_batch if task is tiny.CLASSIFICATION else tiny.masked_lm_batch
    batches = [make(number) for number in range(2)]
    moments, calls = [], []
    for again in (False, True):
        learner = tiny.learner(tiny.settings(task, dropout=0.1, recompute=again))
        runs: list[int] = []
        learner._model.network.ernie.encoder.layers[0].register_forward_post_hook(lambda *_, runs=runs: runs.append(1))
        learner.step(batches, tiny.total(batches), 1e-2)
        calls.append(len(runs))
        moments.append({key: array for key, array in learner.state().optimizer.items() if key.endswith("/moment1")})
    assert calls == [2, 4]
    for key, expected in moments[0].items():
        np.testing.assert_allclose(moments[1][key], expected, atol=1e-6, err_msg=key)


def test_recompute_of_a_network_that_cannot_is_refused() -> None:
    with pytest.raises(UsageError, match=r"train\.recompute: TwoBranches"):
        recompute.enable(two_branches.TwoBranches())


def test_a_bad_step_is_skipped_with_no_weight_changed_and_the_next_one_learns() -> None:
    learner, plain = two_branches.learner(on_bad_loss="skip", most_skips=1), two_branches.learner()
    good, bad = two_branches.batch(1, branch=True), two_branches.not_a_number(2)
    before = learner.weight_hash()
    result = learner.step([good, bad], 6, 1e-2)
    assert isinstance(result.skipped, LossNotFinite)
    assert result.skipped.batches == (1,)
    assert result.score.count == 0
    assert learner.weight_hash() == before
    for each in (learner, plain):
        assert each.step([good], 3, 1e-2).skipped is None
    assert learner.weight_hash() == plain.weight_hash()
    learner.step([bad], 3, 1e-2)
    with pytest.raises(LossNotFinite, match=r"train\.most_skips"):
        learner.step([bad], 3, 1e-2)


def test_a_spike_names_the_batches_above_the_bound_and_a_resumed_run_finds_it_too() -> None:
    settings = {"on_bad_loss": "stop", "spike_factor": 1.5, "spike_steps": 2}
    learner, good = two_branches.learner(**settings), two_branches.batch(1, branch=True)
    for _ in range(2):
        learner.step([good], 3, 1e-3)
    resumed = two_branches.learner(**settings)
    resumed.load(learner.state())
    high = replace(good, arrays=good.arrays | {"rows": good.arrays["rows"] * 10})
    for each in (learner, resumed):
        with pytest.raises(LossSpike, match="the median of the last 2 steps") as caught:
            each.step([good, high], 6, 1e-3)
        assert caught.value.batches == (1,)
