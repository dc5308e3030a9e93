from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest

from headrace.schemas.errors import ResumeRefused, UsageError
from headrace.trainer import optimizer
from headrace.trainer.config import OptimizerConfig

SETTINGS = OptimizerConfig(weight_decay=0.1, beta1=0.8, beta2=0.95, epsilon=1e-6)


def parameters(seed: int = 0) -> dict[str, Any]:
    layer = paddle.nn.Sequential(paddle.nn.Linear(4, 3), paddle.nn.LayerNorm(3))
    random = np.random.default_rng(seed)
    for parameter in layer.parameters():
        parameter.set_value(random.standard_normal(tuple(parameter.shape)).astype(np.float32))
    return dict(layer.named_parameters())


def gradients(of: dict[str, Any], step: int) -> list[Any]:
    random = np.random.default_rng(100 + step)
    return [paddle.to_tensor(random.standard_normal(tuple(p.shape)).astype(np.float32)) for p in of.values()]


def values(of: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.array(tensor.numpy()) for name, tensor in of.items()}


def test_creating_changes_no_weight_and_starts_from_zero_moments() -> None:
    ours = parameters()
    before = values(ours)
    adamw = optimizer.create(ours, SETTINGS)
    assert all(np.array_equal(before[name], array) for name, array in values(ours).items())
    arrays = adamw.arrays()
    assert set(arrays) == {
        f"{name}/{part}" for name in ours for part in ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc")
    }
    assert not any(array.any() for key, array in arrays.items() if "moment" in key)
    assert arrays["0.weight/beta1_pow_acc"].item() == np.float32(0.8)


def test_three_steps_equal_adamw_written_out() -> None:
    """Decoupled decay on the matrix, none on biases and normalisation weights."""
    ours = parameters()
    adamw = optimizer.create(ours, SETTINGS)
    expected = {name: array.astype(np.float64) for name, array in values(ours).items()}
    first = {name: np.zeros_like(array) for name, array in expected.items()}
    second = {name: np.zeros_like(array) for name, array in expected.items()}
    for step in range(1, 4):
        drawn = gradients(ours, step)
        adamw.step(drawn, 0.01 * step)
        for (name, weight), drawn_gradient in zip(expected.items(), drawn, strict=True):
            gradient = drawn_gradient.numpy().astype(np.float64)
            first[name] = 0.8 * first[name] + 0.2 * gradient
            second[name] = 0.95 * second[name] + 0.05 * gradient**2
            moved = first[name] / (1 - 0.8**step) / (np.sqrt(second[name] / (1 - 0.95**step)) + 1e-6)
            decay = 0.1 if name == "0.weight" else 0.0
            expected[name] = weight - 0.01 * step * (moved + decay * weight)
    for name, array in values(ours).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_patterns_say_what_does_not_decay() -> None:
    ours = parameters()
    assert optimizer.decaying(ours, None) == ["0.weight"]
    assert optimizer.decaying(ours, ()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert optimizer.decaying(ours, ("*.bias", "0.*")) == ["1.weight"]
    with pytest.raises(UsageError, match=r"optimizer\.no_decay: '\*\.gamma'"):
        optimizer.create(ours, SETTINGS.model_copy(update={"no_decay": ("*.gamma",)}))


def test_state_survives_other_generated_names_bit_for_bit() -> None:
    """Paddle's names count what was built before; the structured ones do not."""
    whole = parameters()
    adamw = optimizer.create(whole, SETTINGS)
    for step in range(2):
        adamw.step(gradients(whole, step), 0.01)
    saved, weights = adamw.arrays(), values(whole)
    adamw.step(gradients(whole, 2), 0.01)

    paddle.nn.Linear(5, 5)
    resumed = parameters(seed=9)
    assert resumed["0.weight"].name != whole["0.weight"].name
    again = optimizer.create(resumed, SETTINGS)
    again.load(saved)
    for name, tensor in resumed.items():
        tensor.set_value(weights[name])
    again.step(gradients(resumed, 2), 0.01)
    assert all(np.array_equal(array, values(whole)[name]) for name, array in values(resumed).items())
    assert all(np.array_equal(array, adamw.arrays()[key]) for key, array in again.arrays().items())


def test_two_optimizers_over_the_same_parameters_are_both_read_back() -> None:
    ours = parameters()
    optimizer.create(ours, SETTINGS)
    assert len(optimizer.create(ours, SETTINGS).arrays()) == 4 * len(ours)


def test_saved_arrays_do_not_see_later_steps() -> None:
    ours = parameters()
    adamw = optimizer.create(ours, SETTINGS)
    adamw.step(gradients(ours, 0), 0.01)
    saved = adamw.arrays()
    copies = {key: array.copy() for key, array in saved.items()}
    adamw.step(gradients(ours, 1), 0.01)
    assert all(np.array_equal(array, copies[key]) for key, array in saved.items())


@pytest.mark.parametrize("change", ("missing", "unknown", "shape"))
def test_a_state_of_another_model_is_refused_by_name_and_changes_nothing(change: str) -> None:
    adamw = optimizer.create(parameters(), SETTINGS)
    arrays = adamw.arrays()
    if change == "missing":
        del arrays["0.bias/moment2"]
    elif change == "unknown":
        arrays["0.bias/moment3"] = arrays["0.bias/moment2"]
    else:
        arrays["0.bias/moment2"] = np.zeros(4, np.float32)
    arrays["0.weight/moment1"] = np.ones((4, 3), np.float32)
    with pytest.raises(ResumeRefused, match=r"0\.bias/moment"):
        adamw.load(arrays)
    assert not adamw.arrays()["0.weight/moment1"].any()


def test_the_norm_is_over_all_gradients_and_shows_infinities() -> None:
    drawn = gradients(parameters(), 0)
    expected = np.sqrt(sum(float((tensor.numpy().astype(np.float64) ** 2).sum()) for tensor in drawn))
    assert optimizer.global_norm(drawn) == pytest.approx(expected, rel=1e-6)
    assert np.isinf(optimizer.global_norm([*drawn, paddle.to_tensor([np.inf], dtype="float32")]))
    assert np.isnan(optimizer.global_norm([*drawn, paddle.to_tensor([np.nan], dtype="float32")]))
