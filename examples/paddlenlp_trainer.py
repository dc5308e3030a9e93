"""Live token batches in PaddleNLP's own Trainer.

    python examples/paddlenlp_trainer.py local:./data workorders.tokens /models/ernie-3.0-base-zh 交通 环保 教育

What is special beside any other dataset:

- a micro-batch comes whole, cut by tokens: `get_train_dataloader` hands the stream out as it is
- the stream's state goes into the Trainer's checkpoint when that is complete, and marks it as whole
- the Trainer must not skip batches when it resumes (`ignore_data_skip`): the stream is where it was already
- the Trainer would iterate over an ended stream for ever: the end of the stream ends the training
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paddle
from paddlenlp.trainer import Trainer, TrainerCallback, TrainingArguments
from paddlenlp.transformers import AutoModelForSequenceClassification

from headrace import TokenStream

STATE_FILE = "token_stream.json"
TAKEN = ("input_ids", "token_type_ids", "attention_mask", "labels")


class NothingLeft(Exception):
    """The stream was at its end already: the Trainer cannot train on no batch at all."""


class StreamTrainer(Trainer):
    """A Trainer whose `train_dataset` is a TokenStream."""

    def get_train_dataloader(self) -> Any:
        return Batches(self)


class Batches:
    """The micro-batches as tensors, one at a time: the stream's state is that behind the one being trained."""

    def __init__(self, trainer: StreamTrainer) -> None:
        self.trainer = trainer

    def __iter__(self) -> Iterator[dict[str, paddle.Tensor]]:
        batch = None
        for batch in self.trainer.train_dataset:
            yield {name: paddle.to_tensor(batch[name]) for name in TAKEN}
        if batch is None:
            raise NothingLeft
        # The stream is at its end, and all of it is trained: save once more and leave.
        self.trainer.control.should_save = True
        self.trainer.control.should_training_stop = True


class StreamState(TrainerCallback):
    """Writes the stream's state into every checkpoint, last: a folder that has it is whole."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def on_save(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        unfinished = folder / f"{STATE_FILE}.unfinished"
        unfinished.write_text(json.dumps(self.stream.state_dict()))  # one call to keep the place
        unfinished.replace(folder / STATE_FILE)


def newest_checkpoint(output: Path) -> Path | None:
    """The newest that is whole."""
    whole = [path.parent for path in output.glob(f"checkpoint-*/{STATE_FILE}")]
    return max(whole, key=lambda path: int(path.name.removeprefix("checkpoint-")), default=None)


def train(
    stream: Any, network: Any, output: Path, callbacks: tuple[TrainerCallback, ...] = (), **arguments: Any
) -> None:
    """Train to the end of the stream, from the newest checkpoint in `output`."""
    arguments = {"max_steps": 100_000, "save_steps": 500, "learning_rate": 2e-5, **arguments}
    settings = TrainingArguments(output_dir=str(output), ignore_data_skip=True, report_to=[], **arguments)
    resumed = newest_checkpoint(output)
    if resumed is not None:
        stream.load_state_dict(json.loads((resumed / STATE_FILE).read_text()))  # one call to go on
    trainer = StreamTrainer(
        model=network,
        criterion=paddle.nn.CrossEntropyLoss(),
        args=settings,
        train_dataset=stream,
        callbacks=[StreamState(stream), *callbacks],
    )
    with contextlib.suppress(NothingLeft):
        trainer.train(resume_from_checkpoint=str(resumed) if resumed else None)


if __name__ == "__main__":
    address, topic, model, *labels = sys.argv[1:]
    train(
        TokenStream(address, topic, 4096, labels=labels, stop="end"),
        AutoModelForSequenceClassification.from_pretrained(model, num_classes=len(labels)),
        Path("paddlenlp-trainer"),
    )
