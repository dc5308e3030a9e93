"""Tasks as users write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle

from headrace.trainer.tasks.inputs import encoder_inputs
from headrace.trainer.window import MicroBatch


class TwoHeads(paddle.nn.Layer):
    """An encoder under a name of its own; pairs have a head that batches without pairs never reach."""

    def __init__(self, config: Any) -> None:
        from paddlenlp.transformers import ErnieModel, GPTModel

        super().__init__()
        self.body = (GPTModel if config.model_type == "gpt" else ErnieModel)(config)
        self.alone = paddle.nn.Linear(config.hidden_size, 1)
        self.pairs = paddle.nn.Linear(config.hidden_size, 1)

    def forward(self, inputs: Any, pairs: np.ndarray) -> Any:
        found = self.body(**inputs)
        first = (found[0] if isinstance(found, tuple) else found)[:, 0]
        scores = self.alone(first)
        if pairs.any():
            scores = paddle.where(paddle.to_tensor(pairs)[:, None], self.pairs(first), scores)
        return scores[:, 0]


class PairsApart:
    """Regression of the text's length over `goal`, by one head for single texts and one for pairs."""

    def __init__(self, goal: float = 20.0) -> None:
        self.goal = goal

    def network(self, config: Any) -> Any:
        return TwoHeads(config)

    def collate(self, micro: MicroBatch, padded: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], int]:
        goals = padded["attention_mask"].sum(axis=1).astype(np.float32) / self.goal
        pairs = np.asarray(micro.rows.column("pair_start").is_valid())
        return {**padded, "goals": goals, "pairs": pairs}, len(goals)

    def loss(self, network: Any, arrays: Mapping[str, np.ndarray]) -> tuple[Any, Any]:
        scores = network(encoder_inputs(network, arrays), arrays["pairs"])
        apart = paddle.abs(scores - paddle.to_tensor(arrays["goals"]))
        return (apart**2).sum(), (apart.detach() < 1).astype("float32").sum()


class NoEncoder(PairsApart):
    """With a network that has no place for a published encoder."""

    def network(self, config: Any) -> Any:
        return paddle.nn.Embedding(config.vocab_size, 1)
