"""Causal language modelling: cross entropy of the next token of each document, over rows that hold several of them.

A token attends to itself and to what stands before it in its own document. Only positions that have a next token are
projected to the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import paddle
import paddle.nn.functional as F  # noqa: N812 (Paddle's own habit)

from headrace.trainer.tasks.inputs import Network, Tensor, at_positions, right_predictions


def loss(network: Network, arrays: Mapping[str, np.ndarray]) -> tuple[Tensor, Tensor]:
    """The arrays of `packing.causal_lm_collate`. Summed over the positions whose `labels` are not negative."""
    # Padding may reach past the last position; documents do not.
    width = min(arrays["input_ids"].shape[1], network.config.max_position_embeddings)
    ids, positions, documents, labels = (
        np.ascontiguousarray(arrays[name][:, :width]) for name in ("input_ids", "position_ids", "documents", "labels")
    )
    predicted_M = np.flatnonzero(labels >= 0)
    labels_M = paddle.to_tensor(labels.reshape(-1)[predicted_M])
    documents_RS = paddle.to_tensor(documents)
    # The decoder adds the causal half of the mask. Padding attends to padding, so that no row of it is empty.
    together_R1SS = (documents_RS.unsqueeze(2) == documents_RS.unsqueeze(1)).astype("int64").unsqueeze(1)
    hidden_RSH = network.gpt(
        paddle.to_tensor(ids), position_ids=paddle.to_tensor(positions), attention_mask=together_R1SS
    )
    logits_MV = network.lm_head(at_positions(hidden_RSH, paddle.to_tensor(predicted_M.astype(np.int64))))
    summed = F.cross_entropy(logits_MV, labels_M, reduction="sum")
    return summed, right_predictions(logits_MV.detach(), labels_M)
