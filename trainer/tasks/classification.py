"""Classification: cross entropy over the classes; where a row may have several labels, binary cross entropy of each.

Both are summed over the rows. A row with several labels is one term, the sum over all classes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import paddle
import paddle.nn.functional as F  # noqa: N812 (Paddle's own habit)

from headrace.trainer.tasks.inputs import Network, Terms, class_counts, encoder_inputs, right_predictions


def loss(network: Network, arrays: Mapping[str, np.ndarray]) -> Terms:
    """`labels` [B] int64. Summed over the rows."""
    logits_BC = network(**encoder_inputs(network, arrays))
    labels_B = paddle.to_tensor(arrays["labels"])
    summed = F.cross_entropy(logits_BC, labels_B, reduction="sum")
    logits_BC = logits_BC.detach()
    classes = logits_BC.shape[-1]
    predicted_BC = F.one_hot(paddle.argmax(logits_BC, axis=-1), classes)
    by_class = class_counts(predicted_BC, F.one_hot(labels_B, classes))
    return Terms(summed, right_predictions(logits_BC, labels_B), by_class)


def multi_label_loss(network: Network, arrays: Mapping[str, np.ndarray]) -> Terms:
    """`labels` [B, C] int64, 1 where the row has the label. Right is a row whose labels are those above one half."""
    logits_BC = network(**encoder_inputs(network, arrays))
    labels_BC = paddle.to_tensor(arrays["labels"].astype(np.float32))
    summed = F.binary_cross_entropy_with_logits(logits_BC.astype("float32"), labels_BC, reduction="sum")
    given_BC = logits_BC.detach() > 0
    wrong_BC = given_BC != (labels_BC > 0)
    right = (wrong_BC.astype("int64").sum(axis=-1) == 0).astype("float32").sum()
    return Terms(summed, right, class_counts(given_BC, labels_BC))
