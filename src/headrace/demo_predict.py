"""A process that loads a checkpoint's model and names the classes of some sentences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.ingest import tokenizers
from headrace.pipeline.child import Channel
from headrace.trainer.config import ClassificationTask

_MAX_TOKENS = 96


def work(args: dict[str, Any], channel: Channel) -> None:
    """Reports `labels`, one for each of `sentences`."""
    from headrace.trainer import model
    from headrace.trainer.tasks.inputs import encoder_inputs

    folder = args["checkpoint"]
    labels = labels_of(Path(folder))
    tokenizer = tokenizers.load(folder, max_tokens=_MAX_TOKENS)
    pad_id = tokenizer.special_ids["pad"]
    built = model.build(
        ClassificationTask(type="classification", labels=labels), folder, tokenizer.vocab_size, pad_id, seed=0
    )
    built.network.eval()
    rows = tokenizer.encode(pa.array(args["sentences"], pa.string()), None).input_ids.to_pylist()
    logits = built.network(**encoder_inputs(built.network, padded(rows, pad_id))).numpy()
    channel.report({"event": "predicted", "labels": [labels[int(best)] for best in logits.argmax(axis=-1)]})


def labels_of(folder: Path) -> tuple[str, ...]:
    """The classes in the order of the model's outputs, as its config.json has them."""
    named = json.loads((folder / "config.json").read_text(encoding="utf-8"))["id2label"]
    return tuple(named[number] for number in sorted(named, key=int))


def padded(rows: list[list[int]], pad_id: int) -> dict[str, np.ndarray]:
    """Rows of ids as the arrays of a batch."""
    length = max(map(len, rows))
    input_ids = np.full((len(rows), length), pad_id, np.int64)
    for number, ids in enumerate(rows):
        input_ids[number, : len(ids)] = ids
    return {
        "input_ids": input_ids,
        "token_type_ids": np.zeros_like(input_ids),
        "attention_mask": (np.arange(length) < np.array([[len(ids)] for ids in rows])).astype(np.int64),
    }
