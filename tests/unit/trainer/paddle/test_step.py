"""PaddleLearner on one rank; two ranks are in tests/integration/test_ranks_step.py."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.schemas.errors import LossNotFinite, ResumeRefused
from headrace.trainer.checkpoint_tensors import Tensors, read_tensors, write_tensors
from headrace.trainer.learner import Learner, LearnerState
from headrace.trainer.precision import Precision
from tests.unit.trainer.paddle import tiny, two_branches

SCALED = Precision(scaled=True)  # fp16's scale on fp32 arithmetic: the CPU has no fp16


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
