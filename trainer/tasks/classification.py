"""Classification: one label per row, cross entropy over the classes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import paddle
import paddle.nn.functional as F  # noqa: N812 (Paddle's own habit)

from headrace.trainer.tasks.inputs import Network, Tensor, encoder_inputs, right_predictions


def loss(network: Network, arrays: Mapping[str, np.ndarray]) -> tuple[Tensor, Tensor]:
    """`labels` [B] int64. Summed over the rows."""
    logits_BC = network(**encoder_inputs(network, arrays))
    labels_B = paddle.to_tensor(arrays["labels"])
    summed = F.cross_entropy(logits_BC, labels_B, reduction="sum")
    return summed, right_predictions(logits_BC.detach(), labels_B)
