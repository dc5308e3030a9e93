from __future__ import annotations

import numpy as np
import paddle
import pytest

from headrace.trainer.tasks import LOSSES
from headrace.trainer.tasks.inputs import encoder_inputs
from tests.unit.trainer.paddle import tiny


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    logits = logits - logits.max(axis=-1, keepdims=True)
    return np.log(np.exp(logits).sum(axis=-1)) - np.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


def test_classification_sums_over_rows_and_counts_right_ones() -> None:
    network = tiny.built(tiny.settings()).network
    arrays = tiny.classification_batch(1, rows=7).arrays
    logits = network(**encoder_inputs(network, arrays)).numpy()
    loss, right, by_class = LOSSES["classification"](network, arrays)
    assert loss.item() == pytest.approx(cross_entropy(logits, arrays["labels"]).sum(), rel=1e-5)
    assert right.item() == (logits.argmax(-1) == arrays["labels"]).sum()
    pairs = list(zip(logits.argmax(-1).tolist(), arrays["labels"].tolist(), strict=True))
    expected = [
        (pairs.count((c, c)), sum(given == c for given, _ in pairs), sum(own == c for _, own in pairs))
        for c in range(logits.shape[-1])
    ]
    assert by_class.numpy().T.tolist() == [list(map(float, row)) for row in expected]


def test_masked_lm_scores_the_masked_positions_as_the_whole_projection_would() -> None:
    network = tiny.built(tiny.settings(tiny.MASKED_LM)).network
    batch = tiny.masked_lm_batch(1, rows=7)
    labels = batch.arrays["labels"]
    logits = network(**encoder_inputs(network, batch.arrays)).numpy()
    losses = cross_entropy(logits, np.where(labels < 0, 0, labels))
    loss, right, _ = LOSSES["masked-lm"](network, batch.arrays)
    assert loss.item() == pytest.approx(losses[labels >= 0].sum(), rel=1e-5)
    assert right.item() == ((logits.argmax(-1) == labels) & (labels >= 0)).sum()
    assert batch.count == (labels >= 0).sum()


def test_padding_does_not_change_the_loss() -> None:
    network = tiny.built(tiny.settings()).network
    batches = [tiny.classification_batch(number) for number in range(4)]
    apart = sum(LOSSES["classification"](network, batch.arrays)[0].item() for batch in batches)
    together = LOSSES["classification"](network, tiny.one_batch(batches).arrays)[0].item()
    assert together == pytest.approx(apart, rel=1e-5)


def test_padding_may_reach_past_the_last_position() -> None:
    """Lengths are rounded up to a multiple of 8; a model with 20 positions takes rows of 20, padded to 24."""
    config = tiny.settings()
    network = tiny.built(config.revised(model={**config.model, "max_position_embeddings": 20})).network  # type: ignore[dict-item]
    random = np.random.default_rng(0)
    arrays = tiny.padded(random, np.array([20, 5])) | {"labels": np.array([0, 1])}
    assert arrays["input_ids"].shape == (2, 24)
    cut = {name: array[:, :20] if array.ndim == 2 else array for name, array in arrays.items()}
    longer, shorter = (LOSSES["classification"](network, each)[0].item() for each in (arrays, cut))
    assert longer == pytest.approx(shorter, rel=1e-6)


def test_dropout_follows_paddles_seed_alone() -> None:
    network = tiny.built(tiny.settings(dropout=0.5)).network
    arrays = tiny.classification_batch(1).arrays

    def loss(seed: int) -> float:
        paddle.seed(seed)
        return float(LOSSES["classification"](network, arrays)[0].item())

    assert loss(1) == loss(1)
    assert loss(1) != loss(2)
