"""Checkpoints of small models with random weights over real reviews, as a run would publish them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.ingest import tokenizers
from headrace.schemas.cursor import Cursor
from headrace.schemas.tokens import TokensMeta
from headrace.trainer import model
from headrace.trainer.checkpoint import Checkpoint, folder_of, publish
from headrace.trainer.checkpoint_state import TrainerState
from headrace.trainer.checkpoint_store import LocalStore
from headrace.trainer.checkpoint_tensors import Tensors
from headrace.trainer.config import TrainConfig
from headrace.trainer.ledger import LedgerRows, merge

MAX_TOKENS = 64
LABELS = ("neg", "pos", "neither")

#: Wide weights, so that the classes of random weights differ from text to text.
_MODEL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": MAX_TOKENS, "initializer_range": 0.3,
}  # fmt: skip


@dataclass(frozen=True)
class Made:
    address: str
    network: Any
    tokenizer: Any


def checkpoint(root: Path, name: str, task: dict[str, Any], vocabulary: Path, **configuration: Any) -> Made:
    """Publish ROOT/NAME/main/step-7."""
    tokenizer = tokenizers.load(str(vocabulary), max_tokens=MAX_TOKENS)
    train = TrainConfig.model_validate({"model": {**_MODEL, **configuration}, "task": task})
    pad_id = tokenizer.special_ids["pad"]
    built = model.build(train.task, train.model, tokenizer.vocab_size, pad_id, seed=5)
    meta = TokensMeta(tokenizer.fingerprint, tokenizer.vocab_size, dict(tokenizer.special_ids), {"reviews": "id-1"})
    settings = {f"train.task.{key}": value for key, value in train.task.model_dump(mode="json").items()}
    settings |= {"tokenizer.max_tokens": MAX_TOKENS, "tokenizer.fingerprint": tokenizer.fingerprint}
    store = LocalStore(root / name / "main")
    publish(
        store,
        Checkpoint(
            parent=None,
            state=TrainerState(7, {0: Cursor.at(3), 1: Cursor.at(4)}, settings=settings, meta=meta),
            weights=Tensors({key: tensor.numpy() for key, tensor in built.network.state_dict().items()}),
            optimizer=Tensors(),
            ledger=merge([LedgerRows().drain()]),
            extra={**built.files, "vocab.txt": vocabulary.read_bytes()},
        ),
    )
    built.network.eval()
    return Made(f"{store.address}/{folder_of(7)}", built.network, tokenizer)
