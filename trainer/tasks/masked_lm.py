"""Masked language modelling: cross entropy over the vocabulary at the masked tokens.

Only the masked positions are projected to the vocabulary. With 15 % masked and a vocabulary of 40 000 the projection of
every position would cost more than the encoder of a base model, and its logits would take 2.6 GB for 16 384 tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import paddle
import paddle.nn.functional as F  # noqa: N812 (Paddle's own habit)

from headrace.trainer.tasks.inputs import Network, Tensor, Terms, at_positions, encoder_inputs, right_predictions


def loss(network: Network, arrays: Mapping[str, np.ndarray]) -> Terms:
    """`labels` [B, S] int64: the original id where a token is masked, negative elsewhere. Summed over the masked."""
    labels = arrays["labels"].reshape(-1)
    masked_M = np.flatnonzero(labels >= 0)
    labels_M = paddle.to_tensor(labels[masked_M])
    logits_MV = _project(network, encoder_inputs(network, arrays), paddle.to_tensor(masked_M.astype(np.int64)))
    summed = F.cross_entropy(logits_MV, labels_M, reduction="sum")
    return Terms(summed, right_predictions(logits_MV.detach(), labels_M))


def _project(network: Network, inputs: Mapping[str, Tensor], masked_M: Tensor) -> Tensor:
    """Scores over the vocabulary at the masked positions. RoBERTa's head does not choose them by itself."""
    if not hasattr(network, "lm_head"):
        return network(**inputs, masked_positions=masked_M)
    encoder = getattr(network, network.base_model_prefix)
    return network.lm_head(at_positions(encoder(**inputs)[0], masked_M))
