"""Steps/s over the stream as a share of the steps/s of the same model on the same micro-batches held in memory.

One rank, one process. The run over the stream is the real one: lanes, windows, collate, agreement, ledger, reports and
checkpoints. A recording learner keeps what it was given; then it is given the same again, from memory. Both are timed
from step to step, in turn several times because a machine's speed drifts; the first steps of each are not counted.
The share of padding comes from the same run.
"""

from __future__ import annotations

import io
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import pipe
from bench.reviews import LABELS, as_json_lines, reviews, write_vocabulary
from headrace.pipeline import names
from headrace.pipeline.broker import open_broker
from headrace.pipeline.child import Channel
from headrace.schemas.tokens import TokensMeta
from headrace.trainer.agree import Meeting, meet
from headrace.trainer.beginning import Look, begin
from headrace.trainer.checkpoint_store import open_store
from headrace.trainer.collate import Batch
from headrace.trainer.conduct import Topics
from headrace.trainer.config import RankPlan
from headrace.trainer.learner import LearnerState, Score, StepResult
from headrace.trainer.run import Run

RUNS = 3
STEPS = 20
WARM_STEPS = 3
MODEL = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 512,
    "max_position_embeddings": 128,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


@dataclass
class Recorder:
    """A learner around a learner: keeps batches, and the moment at which each step was done."""

    inner: Any
    given: list[tuple[Sequence[Batch], int, float]] = field(default_factory=list)
    done_at: list[float] = field(default_factory=list)

    def step(self, batches: Sequence[Batch], count: int, learning_rate: float) -> StepResult:
        result: StepResult = self.inner.step(batches, count, learning_rate)
        self.done_at.append(time.monotonic())
        self.given.append((batches, count, learning_rate))
        return result

    def evaluate(self, batches: Sequence[Batch]) -> Score:
        score: Score = self.inner.evaluate(batches)
        return score

    @property
    def together(self) -> bool:
        return bool(self.inner.together)

    def collect(self) -> None:
        self.inner.collect()

    def state(self) -> LearnerState:
        state: LearnerState = self.inner.state()
        return state

    def load(self, state: LearnerState) -> None:
        self.inner.load(state)

    def weight_hash(self) -> str:
        return str(self.inner.weight_hash())


def run(folder: Path) -> dict[str, Any]:
    """Median of the ratios, and the padding of the run."""
    rows = reviews()
    write_vocabulary(rows, folder / "vocab.txt")
    address = f"local:{folder / 'broker'}"
    messages = as_json_lines(rows)
    pipe.publish(address, "reviews", messages)
    pipe.ingest(address, "reviews", "bench", folder / "vocab.txt", len(messages))
    shares, stream_rates, padding = [], [], 0.0
    for number in range(RUNS):
        recorder, padding = _over_the_stream(_plan(address, folder, f"run-{number}"))
        stream = _steps_s(recorder.done_at)
        memory = _steps_s(_from_memory(recorder))
        shares.append(stream / memory)
        stream_rates.append(stream)
    return {
        "steps_s": round(statistics.median(stream_rates), 2),
        "steps_share_of_memory": round(statistics.median(shares), 4),
        "padding_share": round(padding, 4),
    }


def _plan(address: str, folder: Path, run_name: str) -> RankPlan:
    return RankPlan.model_validate(
        {
            "name": "bench",
            "broker": {"broker": address},
            "text_topic": "reviews",
            "tokens": {"topic": names.tokens_topic("bench"), "lanes": pipe.LANES},
            "train": {
                "run": run_name,
                "model": MODEL,
                "task": {"type": "classification", "labels": LABELS},
                "batch": {"tokens": 16_384},
                "optimizer": {"learning_rate": 1e-3},
                "stop": {"steps": STEPS},
            },
            "checkpoint": {"root": str(folder / "checkpoints")},
            "max_tokens": 128,
        }
    )


def _learner(plan: RankPlan, meta: TokensMeta) -> Recorder:
    from headrace.trainer import distributed, model, step

    built = model.build(plan.train.task, plan.train.model, meta.vocab_size, meta.special_ids["pad"], plan.train.seed)
    return Recorder(step.create(built, plan.train, distributed.Ranks()))


def _over_the_stream(plan: RankPlan) -> tuple[Recorder, float]:
    lines = meet(Meeting(0, 1, "127.0.0.1", 0, b""), ["steps", "results"], connect_s=1, wait_s=60)
    channel = Channel(io.StringIO())
    with closing(open_broker(plan.broker.broker)) as broker:
        store = open_store(plan.checkpoint.root, plan.name, plan.train.run)
        complete = threading.Event()
        complete.set()
        topics = Topics(broker, plan.text_topic, plan.tokens.topic, names.ingest_group(plan.name))
        look = Look(topics, complete, channel.stopping, names.trained_group(plan.name, plan.train.run))
        beginning = begin(store, lines["steps"], plan.train, look)
        assert beginning.meta is not None
        recorder = _learner(plan, beginning.meta)
        Run.prepare(plan, broker, beginning, beginning.meta).train(recorder, lines, store, channel, look)
        notes = broker.positions(names.trained_group(plan.name, plan.train.run), plan.tokens.topic)[0].notes
    tokens, padded = (int(str(notes[name])) for name in ("tokens", "padded_tokens"))
    return recorder, 1 - tokens / padded


def _from_memory(recorder: Recorder) -> list[float]:
    """The moments at which the learner is done with each of the same steps."""
    again = recorder.inner
    done_at = []
    for batches, count, rate in recorder.given:
        again.step(batches, count, rate)
        done_at.append(time.monotonic())
    return done_at


def _steps_s(done_at: list[float]) -> float:
    counted = done_at[WARM_STEPS:]
    return (len(counted) - 1) / (counted[-1] - counted[0])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps({"bench": "steps", **run(Path(scratch))}), flush=True)
