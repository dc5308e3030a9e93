"""What every task feeds the encoder: the arrays of a batch as tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import paddle

#: Paddle is untyped; the aliases say what is meant.
Network = Any
Tensor = Any


class Terms(NamedTuple):
    """What a task makes of one batch: float32 tensors, to be added up over batches and ranks."""

    loss: Tensor  # scalar: the sum of the losses
    right: Tensor  # scalar: the number of right predictions
    by_class: Tensor | None = None  # [3, C] as `class_counts` gives it, of tasks that have classes


#: (network, arrays of a batch) -> its terms; a task of one's own may leave out the last.
Loss = Callable[[Network, Mapping[str, np.ndarray]], tuple[Tensor, ...]]

_NAMES = ("input_ids", "token_type_ids", "attention_mask")


def encoder_inputs(network: Network, arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Keyword arguments of the `forward` of a PaddleNLP encoder, from what `collate.pad` made.

    Lengths are padded to a multiple, so padding may reach past the last position embedding. Padding takes the last one:
    the mask hides it, and the lookup stays inside its table. RoBERTa finds positions by itself, padding's among them.
    """
    config = network.config
    length = arrays["input_ids"].shape[1]
    positions = config.max_position_embeddings
    if config.model_type == "gpt":  # takes no types, and no padding past its last position
        return {name: paddle.to_tensor(arrays[name][:, :positions].copy()) for name in ("input_ids", "attention_mask")}
    inputs = {name: paddle.to_tensor(arrays[name]) for name in _NAMES if name in arrays}
    if config.type_vocab_size < 2:  # the table has no place for a second text
        inputs.pop("token_type_ids", None)
    if length > positions and config.model_type != "roberta":
        clipped = np.minimum(np.arange(length, dtype=np.int64), positions - 1)
        inputs["position_ids"] = paddle.to_tensor(np.broadcast_to(clipped, arrays["input_ids"].shape).copy())
    return inputs


def at_positions(hidden_BSH: Tensor, positions: Tensor) -> Tensor:
    """Rows of `hidden` [B, S, H] at positions of the flattened B * S."""
    return paddle.gather(hidden_BSH.reshape([-1, hidden_BSH.shape[-1]]), positions)


def right_predictions(logits: Tensor, labels: Tensor) -> Tensor:
    """How many rows have their largest logit at the label."""
    return (paddle.argmax(logits, axis=-1) == labels).astype("float32").sum()


def class_counts(predicted: Tensor, labels: Tensor) -> Tensor:
    """[3, C] float32: of every class the rows that are rightly given to it, all that are, all that belong to it.

    `predicted` and `labels` [B, C] say with ones which classes a row is given to and belongs to.
    """
    given, own = predicted.astype("float32"), labels.astype("float32")
    return paddle.stack([(given * own).sum(axis=0), given.sum(axis=0), own.sum(axis=0)])
