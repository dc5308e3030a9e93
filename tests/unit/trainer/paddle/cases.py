"""Every task with a model that goes with it, small enough for tests, and micro-batches as a run makes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.trainer.collate import Batch
from headrace.trainer.config import TrainConfig
from headrace.trainer.run import task_functions
from headrace.trainer.window import MicroBatch, Window, cut
from tests.unit.trainer.made_up import META, PLAN, VOCAB, rows_of, texts

LABELS = ["a", "b", "c"]
CLASSES = {"type": "classification", "labels": LABELS}
WHOLE = 100_000  # tokens of a micro-batch that holds every row

#: name -> (model type, task)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "classification/ernie": ("ernie", CLASSES),
    "classification/ernie_gram": ("ernie_gram", CLASSES),
    "classification/bert": ("bert", CLASSES),
    "classification/roberta": ("roberta", CLASSES),
    "multi-label/ernie": ("ernie", {**CLASSES, "multi_label": True}),
    "multi-label/roberta": ("roberta", {**CLASSES, "multi_label": True}),
    "masked-lm/ernie": ("ernie", {"type": "masked-lm"}),
    "masked-lm/bert": ("bert", {"type": "masked-lm"}),
    "masked-lm/roberta": ("roberta", {"type": "masked-lm"}),
    "causal-lm/gpt": ("gpt", {"type": "causal-lm"}),
    "custom/ernie": ("ernie", {"type": "tests.unit.trainer.paddle.own_tasks:PairsApart"}),
    "custom/gpt": ("gpt", {"type": "tests.unit.trainer.paddle.own_tasks:PairsApart", "options": {"goal": 2.0}}),
}


def settings(case: str, **changes: Any) -> TrainConfig:
    model_type, task = CASES[case]
    model: dict[str, Any] = {
        "model_type": model_type,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 68,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    if model_type == "ernie_gram":
        model["embedding_size"] = 16
    return TrainConfig.model_validate({"model": model, "task": task, "optimizer": {"clip_norm": 1e9}, **changes})


def rows(case: str, count: int = 24, seed: int = 0) -> pa.RecordBatch:
    """Texts of many lengths; one in six is a pair, and with several labels a text some texts have none.

    Labels are not balanced: the terms of a balanced batch cancel at the start, and what is left is rounding.
    """
    random = np.random.default_rng(seed)
    ids = texts(count, seed)
    several = "multi-label" in case
    sizes = random.integers(0, 4, count) if several else [1] * count
    labels = [random.choice(LABELS, size, replace=False, p=(0.8, 0.1, 0.1)).tolist() for size in sizes]
    pairs = [len(each) // 2 if number % 6 == 0 else None for number, each in enumerate(ids)]
    return rows_of(ids, labels=labels, pair_start=pairs)


def micro_batches(case: str, given: pa.RecordBatch, micro_tokens: int = 128) -> list[MicroBatch]:
    screen = task_functions(settings(case), META)[1]
    return cut(Window.of(0, 9, [given]), replace(PLAN, micro_tokens=micro_tokens, pad_multiple=8), 0, screen)


def batches(case: str, given: pa.RecordBatch, micro_tokens: int = 128) -> list[Batch]:
    collate = task_functions(settings(case), META)[0]
    return [collate(micro) for micro in micro_batches(case, given, micro_tokens)]


def built(config: TrainConfig) -> Any:
    from headrace.trainer.model import build

    return build(config.task, config.model, VOCAB, META.special_ids["pad"], config.seed)


def learner(case: str, ranks: Any) -> Any:
    from headrace.trainer import step

    config = settings(case)
    return step.create(built(config), config, ranks)
