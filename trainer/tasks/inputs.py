"""What every task feeds the encoder: the arrays of a batch as tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import paddle

#: Paddle is untyped; the aliases say what is meant.
Network = Any
Tensor = Any

#: (network, arrays of a batch) -> (sum of the losses, number of right predictions), both float32 scalars.
Loss = Callable[[Network, Mapping[str, np.ndarray]], tuple[Tensor, Tensor]]

_NAMES = ("input_ids", "token_type_ids", "attention_mask")


def encoder_inputs(network: Network, arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Keyword arguments of an ERNIE model's `forward`.

    Lengths are padded to a multiple, so padding may reach past the last position embedding. Padding takes the last one:
    the mask hides it, and the lookup stays inside its table.
    """
    inputs = {name: paddle.to_tensor(arrays[name]) for name in _NAMES if name in arrays}
    length = arrays["input_ids"].shape[1]
    positions = network.config.max_position_embeddings
    if length > positions:
        clipped = np.minimum(np.arange(length, dtype=np.int64), positions - 1)
        inputs["position_ids"] = paddle.to_tensor(np.broadcast_to(clipped, arrays["input_ids"].shape).copy())
    return inputs


def right_predictions(logits: Tensor, labels: Tensor) -> Tensor:
    """How many rows have their largest logit at the label."""
    return (paddle.argmax(logits, axis=-1) == labels).astype("float32").sum()
