"""A network small enough for tests, and batches for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.trainer import step
from headrace.trainer.collate import Batch
from headrace.trainer.config import TrainConfig
from headrace.trainer.distributed import Ranks
from headrace.trainer.model import Built, build

VOCAB = 60
PAD = 0
LABELS = ("a", "b", "c")
IGNORED = -100

CLASSIFICATION = {"type": "classification", "labels": LABELS}
MASKED_LM = {"type": "masked-lm"}


def settings(
    task: dict[str, Any] = CLASSIFICATION, dropout: float = 0.0, clip_norm: float = 1e9, **changes: Any
) -> TrainConfig:
    model = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 24,
        "type_vocab_size": 2,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    optimizer = {"learning_rate": 1e-2, "clip_norm": clip_norm}
    return TrainConfig.model_validate({"model": model, "task": task, "optimizer": optimizer, **changes})


def built(config: TrainConfig) -> Built:
    return build(config.task, config.model, VOCAB, PAD, config.seed)


def learner(config: TrainConfig | None = None, ranks: Ranks = Ranks()) -> step.PaddleLearner:  # noqa: B008
    config = config or settings()
    return step.create(built(config), config, ranks)


def classification_batch(number: int, rows: int = 3) -> Batch:
    """Micro-batch `number`, the same on every rank and in every process."""
    random = np.random.default_rng(number)
    lengths = random.integers(2, 17, rows)
    return _batch(number, padded(random, lengths) | {"labels": random.integers(0, len(LABELS), rows)}, rows)


def masked_lm_batch(number: int, rows: int = 3) -> Batch:
    random = np.random.default_rng(number)
    lengths = random.integers(4, 17, rows)
    arrays = padded(random, lengths)
    ids = arrays["input_ids"]
    masked = (random.random(ids.shape) < 0.3) & (arrays["attention_mask"] == 1)
    masked[:, 1] = True
    arrays["labels"] = np.where(masked, ids, IGNORED)
    arrays["input_ids"] = np.where(masked, 1, ids)
    return _batch(number, arrays, int(masked.sum()))


def padded(random: np.random.Generator, lengths: np.ndarray) -> dict[str, np.ndarray]:
    width = -(-int(lengths.max()) // 8) * 8
    real = np.arange(width) < lengths[:, None]
    second = np.arange(width) >= lengths[:, None] // 2
    return {
        "input_ids": np.where(real, random.integers(2, VOCAB, real.shape), PAD),
        "token_type_ids": (second & real).astype(np.int64),
        "attention_mask": real.astype(np.int64),
    }


def one_batch(batches: Sequence[Batch]) -> Batch:
    """The rows of several micro-batches in a single one."""
    width = max(batch.arrays["input_ids"].shape[1] for batch in batches)
    arrays: dict[str, np.ndarray] = {}
    for name in batches[0].arrays:
        parts = [batch.arrays[name] for batch in batches]
        if parts[0].ndim == 2:
            fill = IGNORED if name == "labels" else PAD
            parts = [np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=fill) for part in parts]
        arrays[name] = np.concatenate(parts)
    return _batch(0, arrays, sum(batch.count for batch in batches))


def total(batches: Sequence[Batch]) -> int:
    return sum(batch.count for batch in batches)


def _batch(number: int, arrays: dict[str, np.ndarray], count: int) -> Batch:
    shape = arrays["input_ids"].shape
    return Batch(
        arrays=arrays,
        count=count,
        seed=2**64 - 1 - number,  # seeds fill 64 bits
        lane=number % 4,
        tokens=int(arrays["attention_mask"].sum()),
        padded_tokens=shape[0] * shape[1],
    )
