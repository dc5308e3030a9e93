"""Live token batches in any framework: plain NumPy dictionaries, here into a softmax regression of NumPy alone.

    python examples/numpy_batches.py local:./data workorders.tokens 交通 环保 教育

Weights and the stream's state go into one file that is replaced in one operation. So wherever the process is killed,
the next one goes on behind the last micro-batch whose gradient is in the saved weights: none is lost, none comes twice.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headrace.trainer.token_stream import TokenStreamBase as TokenStream  # `headrace.TokenStream` would import Paddle

VOCABULARY = 40_000
LEARNING_RATE = 0.1
SAVE_EVERY = 10

Batch = dict[str, Any]


def train(stream: TokenStream, file: Path, after_step: Callable[[int, Batch], None] = lambda step, batch: None) -> int:
    """Train to the end of the stream; returns the number of steps of all lives of the process."""
    assert stream.labels is not None
    weights = np.zeros((VOCABULARY, len(stream.labels)), np.float32)
    step = 0
    if file.exists():
        with np.load(file) as saved:
            weights, step = saved["weights"], int(saved["step"])
            stream.load_state_dict(json.loads(str(saved["stream"])))  # one call to go on
    for batch in stream:
        learn(weights, batch)
        step += 1
        if step % SAVE_EVERY == 0:
            save(file, weights, step, stream)
        after_step(step, batch)
    save(file, weights, step, stream)
    return step


def learn(weights: np.ndarray, batch: Batch) -> None:
    """One step of gradient descent: the classes' scores are the sums of the weights of a text's tokens."""
    ids_BS, mask_BS, labels_B = batch["input_ids"], batch["attention_mask"], batch["labels"]
    scores_BC = (weights[ids_BS] * mask_BS[:, :, None]).sum(axis=1) / mask_BS.sum(axis=1, keepdims=True)
    shares_BC = np.exp(scores_BC - scores_BC.max(axis=1, keepdims=True))
    errors_BC = shares_BC / shares_BC.sum(axis=1, keepdims=True)
    errors_BC[np.arange(len(labels_B)), labels_B] -= 1
    rows, columns = np.nonzero(mask_BS)
    np.subtract.at(weights, ids_BS[rows, columns], LEARNING_RATE * errors_BC[rows].astype(np.float32))


def save(file: Path, weights: np.ndarray, step: int, stream: TokenStream) -> None:
    unfinished = file.with_name(f"{file.name}.unfinished.npz")
    place = json.dumps(stream.state_dict())  # one call to keep the place
    np.savez(unfinished, weights=weights, step=step, stream=place)
    unfinished.replace(file)


if __name__ == "__main__":
    address, topic, *labels = sys.argv[1:]
    steps = train(TokenStream(address, topic, 4096, labels=labels, stop="end"), Path("numpy-model.npz"))
    print(f"{steps} steps")
