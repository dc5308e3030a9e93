"""Live token batches in a training loop of one's own, in bare Paddle.

    python examples/bare_loop.py local:./data workorders.tokens 交通 环保 教育

A checkpoint is a folder that appears by a rename, with the stream's state beside weights and optimizer. So wherever the
process is killed, the next one goes on behind the last micro-batch whose gradient is in the weights. With several
ranks, each reads lanes of its own: save every rank's state, and load them merged (docs/own-loop.md).
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paddle

from headrace import TokenStream

VOCABULARY = 40_000
SAVE_EVERY = 10

Batch = dict[str, Any]


class Classifier(paddle.nn.Layer):
    """The mean of a text's embeddings, and a linear layer: any network will do."""

    def __init__(self, classes: int, width: int = 64) -> None:
        super().__init__()
        self.embeddings = paddle.nn.Embedding(VOCABULARY, width)
        self.classifier = paddle.nn.Linear(width, classes)

    def forward(self, input_ids: paddle.Tensor, attention_mask: paddle.Tensor) -> paddle.Tensor:
        mask = attention_mask.astype("float32").unsqueeze(-1)
        return self.classifier((self.embeddings(input_ids) * mask).sum(axis=1) / mask.sum(axis=1))


def train(stream: Any, folder: Path, after_step: Callable[[int, Batch], None] = lambda step, batch: None) -> Classifier:
    """Train to the end of the stream, from the newest checkpoint in `folder`."""
    paddle.seed(1)
    network = Classifier(len(stream.labels))
    optimizer = paddle.optimizer.AdamW(1e-2, parameters=network.parameters())
    step = load(folder, network, optimizer, stream)
    for batch in stream:
        logits = network(paddle.to_tensor(batch["input_ids"]), paddle.to_tensor(batch["attention_mask"]))
        loss = paddle.nn.functional.cross_entropy(logits, paddle.to_tensor(batch["labels"]))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        step += 1
        if step % SAVE_EVERY == 0:
            save(folder, step, network, optimizer, stream)
        after_step(step, batch)
    if step % SAVE_EVERY:
        save(folder, step, network, optimizer, stream)
    return network


def save(folder: Path, step: int, network: Classifier, optimizer: Any, stream: Any) -> None:
    unfinished = folder / f"unfinished-{step}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    paddle.save(network.state_dict(), str(unfinished / "model.pdparams"))
    paddle.save(optimizer.state_dict(), str(unfinished / "optimizer.pdopt"))
    (unfinished / "stream.json").write_text(json.dumps(stream.state_dict()))  # one call to keep the place
    shutil.rmtree(folder / f"step-{step}", ignore_errors=True)
    unfinished.rename(folder / f"step-{step}")


def load(folder: Path, network: Classifier, optimizer: Any, stream: Any) -> int:
    steps = [int(path.name.removeprefix("step-")) for path in folder.glob("step-*")]
    if not steps:
        return 0
    newest = folder / f"step-{max(steps)}"
    network.set_state_dict(paddle.load(str(newest / "model.pdparams")))
    optimizer.set_state_dict(paddle.load(str(newest / "optimizer.pdopt")))
    stream.load_state_dict(json.loads((newest / "stream.json").read_text()))  # one call to go on
    return max(steps)


if __name__ == "__main__":
    address, topic, *labels = sys.argv[1:]
    train(TokenStream(address, topic, 4096, labels=labels, stop="end"), Path("bare-loop"))
