"""Classification: cross entropy over the classes; where a row may have several labels, binary cross entropy of each.

Both are summed over the rows. A row with several labels is one term, the sum over all classes.
"""

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


def multi_label_loss(network: Network, arrays: Mapping[str, np.ndarray]) -> tuple[Tensor, Tensor]:
    """`labels` [B, C] int64, 1 where the row has the label. Right is a row whose labels are those above one half."""
    logits_BC = network(**encoder_inputs(network, arrays))
    labels_BC = paddle.to_tensor(arrays["labels"].astype(np.float32))
    summed = F.binary_cross_entropy_with_logits(logits_BC.astype("float32"), labels_BC, reduction="sum")
    wrong_BC = (logits_BC.detach() > 0) != (labels_BC > 0)
    return summed, (wrong_BC.astype("int64").sum(axis=-1) == 0).astype("float32").sum()
