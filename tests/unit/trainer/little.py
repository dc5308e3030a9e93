"""A whole run without Paddle: real local topics, real sockets between ranks in threads, and a learner of a few lines.

The learner's weights are integers, so that sums are exact in any order: any difference is a fault of the run.
"""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headrace.pipeline import names
from headrace.pipeline.broker import open_broker
from headrace.pipeline.child import Channel
from headrace.schemas.errors import LossNotFinite
from headrace.schemas.position import Position
from headrace.schemas.tokens import encode
from headrace.trainer import other_run
from headrace.trainer.agree import Line, Meeting, meet
from headrace.trainer.beginning import Look, begin
from headrace.trainer.checkpoint_store import Store, open_store
from headrace.trainer.collate import Batch
from headrace.trainer.conduct import Topics
from headrace.trainer.config import RankPlan
from headrace.trainer.learner import Learner, LearnerState, Score, StepResult
from headrace.trainer.ledger_read import Ledger
from headrace.trainer.ledger_verify import RunTopics, Verification, verify
from headrace.trainer.run import Run
from tests.services.ports import free_port
from tests.unit.trainer.made_up import META, token_batches

LABELS = ["a", "b"]
BAD = "bad"
RATE_UNITS = 1e15  # a rate as a whole number: any difference in it shows
TOKENS = 100  # what ingest says that it emitted, for each token batch


class Killed(Exception):
    """What a SIGKILL looks like from inside one process: nothing after it runs."""


class LittleLearner:
    """weights += a hash of the step's records * its rate; ranks sum over a line of their own.

    A step before which `before_step` says so is bad, and skipped.
    """

    def __init__(self, line: Line, before_step: Callable[[int], object] = lambda _: None, every: int = 1) -> None:
        self._line = line
        self._before_step = before_step
        self.weights = np.zeros(8, np.int64)
        self.steps = 0
        self._every = every
        self._collected_at = 0

    @property
    def together(self) -> bool:
        return self.steps % self._every == 0 or self.steps == self._collected_at

    def collect(self) -> None:
        self._collected_at = self.steps

    def step(self, batches: Sequence[Batch], count: int, learning_rate: float) -> StepResult:
        bad = self._before_step(self.steps) == BAD
        mine = np.zeros(8, np.int64)
        for batch in batches:
            digest = hashlib.sha256(batch.arrays["input_ids"].tobytes() + str(batch.seed).encode()).digest()
            mine += np.frombuffer(digest, np.int32).astype(np.int64)
        every = self._line.exchange_json({"gradient": mine.tolist(), "rows": sum(batch.count for batch in batches)})
        assert sum(each["rows"] for each in every) == count
        self.steps += 1
        if bad:
            return StepResult(
                Score(0.0, 0.0, 0), 0.0, skipped=LossNotFinite("the loss is nan", (0,) if batches else ())
            )
        for each in every:
            self.weights = self.weights + np.array(each["gradient"]) * round(learning_rate * RATE_UNITS)
        return StepResult(Score(count * 0.5, count * 0.25, count), 1.0)

    def evaluate(self, batches: Iterable[Batch]) -> Score:
        """The accuracy follows from the weights, and goes up and down."""
        every = self._line.exchange_json({"rows": sum(batch.count for batch in batches)})
        count = sum(each["rows"] for each in every)
        return Score(0.0, float(count * (int(self.weights[0]) % 97) / 97), count)

    def state(self) -> LearnerState:
        return LearnerState({"w": self.weights.copy()}, {"steps": np.array([self.steps])}, {"config.json": b"{}"})

    def load(self, state: LearnerState) -> None:
        self.weights = np.array(state.weights["w"])
        self.steps = int(state.optimizer["steps"][0])

    def weight_hash(self) -> str:
        return hashlib.sha256(self.weights.tobytes()).hexdigest()


@dataclass
class World:
    """A folder with a broker and a run's checkpoints."""

    folder: Path
    lanes: int = 6
    equal_every: int = 1  # steps after which the ranks' weights are equal
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"local:{self.folder / 'broker'}"

    def plan(self, *, keep: int = 3, every_steps: int = 3, **train: Any) -> RankPlan:
        fields = {
            "name": "orders",
            "broker": {"broker": self.address},
            "text_topic": "orders",
            "tokens": {"topic": "orders.tokens", "lanes": self.lanes},
            "train": {
                "model": {},
                "task": {"type": "classification", "labels": LABELS},
                "stop": "end",
                "batch": {"tokens": 128 * self.lanes, "flush_s": 0.2},
                "window_tokens": 600,
                **train,
            },
            "evaluate": {"hold_out_share": 0.0},
            "checkpoint": {"root": str(self.folder / "checkpoints"), "every_steps": every_steps, "keep": keep},
            "max_tokens": 64,
        }
        return RankPlan.model_validate(fields)

    def fill(self, batches: Sequence[int], *, finished: bool = True) -> None:
        """Put so many token batches into each lane, as if ingest had read a text topic to its end."""
        broker = open_broker(self.address)
        if broker.describe("orders") is None:
            broker.create("orders", self.lanes)
            broker.create("orders.tokens", self.lanes)
        text, tokens = broker.writer("publish"), broker.writer("ingest")
        for lane, count in enumerate(batches):
            for rows in token_batches(lane, count, topic="orders"):
                text.begin()
                for _ in range(len(rows)):
                    text.append("orders", b"text", partition=lane)
                text.commit("p", "orders", {})
                tokens.begin()
                tokens.append("orders.tokens", encode(rows, META), partition=lane)
                tokens.commit("p", "orders", {})
        if finished:
            ends = broker.ends("orders")
            done = {number: Position(end.end, tokens=TOKENS * batches[number]) for number, end in ends.items()}
            broker.set_positions(names.ingest_group("orders"), "orders", done)
        text.close()
        tokens.close()
        broker.close()

    def store(self, run: str = "main") -> Store:
        return open_store(str(self.folder / "checkpoints"), "orders", run)

    def verify(self, run: str = "main") -> Verification:
        topics = RunTopics("orders", "orders.dead", "orders.tokens", names.ingest_group("orders"))
        with closing(open_broker(self.address)) as broker:
            return verify(Ledger.open(self.store(run)), broker, topics)


@dataclass
class Result:
    """How a run ended on rank 0."""

    step: int
    why: str
    weights: list[int]


def run_ranks(
    world: World,
    ranks: int,
    plan: RankPlan | None = None,
    *,
    before_step: Callable[[int, Channel], object] = lambda *_: None,
    learner_type: Callable[..., Learner] = LittleLearner,
) -> Result:
    """Run all ranks to the end. `before_step` sees the number of finished steps; raising Killed ends everything.

    Returning BAD spoils the step.
    """
    meeting_port, errors = free_port(), []
    chosen = plan or world.plan()
    channels = [Channel(io.StringIO()) for _ in range(ranks)]
    for channel in channels:
        channel.report = world.events.append  # type: ignore[method-assign]

    def one(rank: int) -> Result | None:
        meeting = Meeting(rank, ranks, "127.0.0.1", meeting_port, b"k")
        lines = meet(meeting, ["steps", "results", "learner"], connect_s=30, wait_s=30)
        broker = open_broker(world.address)
        try:
            store = open_store(chosen.checkpoint.root, "orders", chosen.train.run)
            text_complete = threading.Event()
            text_complete.set()
            topics = Topics(broker, "orders", "orders.tokens", names.ingest_group("orders"))
            trained = names.trained_group("orders", chosen.train.run)
            look = Look(topics, text_complete, channels[rank].stopping, trained) if rank == 0 else None
            beginning = begin(store, lines["steps"], chosen.train, look)
            if beginning.meta is None:
                return Result(0, "nothing", [])
            meta, beginning = beginning.meta, other_run.chosen(chosen, beginning, lines["steps"])
            run = Run.prepare(chosen, broker, beginning, meta)
            learner = learner_type(lines["learner"], lambda step: before_step(step, channels[rank]), world.equal_every)
            if beginning.checkpoint is not None:
                saved = beginning.checkpoint
                learner.load(LearnerState(saved.weights.arrays, saved.optimizer.arrays))
            step, why = run.train(learner, lines, store, channels[rank], look)
            return Result(step, why, np.asarray(learner.state().weights["w"]).tolist())
        except BaseException as error:
            errors.append(error)
            raise
        finally:
            for line in lines.values():
                line.close()
            broker.close()

    with ThreadPoolExecutor(ranks) as pool:
        futures = [pool.submit(one, rank) for rank in range(ranks)]
        for future in futures:
            future.exception()
    if errors:
        raise errors[0]
    result = futures[0].result()
    assert result is not None
    return result
