"""One rank, from start to end: the composition of everything in this folder. A target of the supervisor.

1. meet the other ranks (control plane), open the broker, take the run's lock (rank 0); import Paddle, which takes
   seconds, while the first records arrive
2. begin: newest checkpoint or new run; refuse a configuration that does not fit it
3. build the model
4. a new run publishes checkpoint 0 before its first step: its start is fixed from here on
5. loop
6. wait for the last save, report once more, leave
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from headrace.pipeline import names
from headrace.pipeline.broker import open_broker
from headrace.pipeline.child import Channel
from headrace.pipeline.topics import Broker
from headrace.schemas.errors import UsageError
from headrace.trainer.agree import Line, Meeting, meet
from headrace.trainer.beginning import Look, begin
from headrace.trainer.checkpoint_store import Store, open_store
from headrace.trainer.conduct import Topics
from headrace.trainer.config import RankPlan
from headrace.trainer.learner import Learner, LearnerState
from headrace.trainer.lock import RunLock
from headrace.trainer.other_run import chosen, model_of
from headrace.trainer.run import Run
from headrace.trainer.stage import AGREE_VARIABLE, KEY_VARIABLE
from headrace.trainer.start import check_lanes

_CONNECT_S = 120.0
_MARGIN_S = 60.0  # a rank that waits for data may be silent for `stall_s`; so much longer is too long


@dataclass(frozen=True, slots=True)
class Rank:
    """This process among the others."""

    meeting: Meeting
    lines: Mapping[str, Line]
    broker: Broker
    store: Store
    look: Look | None  # on rank 0


def work(args: dict[str, Any], channel: Channel) -> None:
    """Run one rank to the end of the run, or until it is told to stop. See the module's text for the order."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    plan = RankPlan.model_validate(args)
    with ExitStack() as stack:
        rank = _enter(plan, channel, stack)  # 1
        channel.hold_stop()  # Paddle takes SIGTERM for itself, PaddleNLP gives it back to the system: both would end us
        ranks = _join(rank.lines["sums"])
        channel.catch_stop()
        beginning = begin(rank.store, rank.lines["steps"], plan.train, rank.look)  # 2
        if beginning.meta is None:
            channel.report({"event": "finished", "why": "nothing to train", "step": 0})
            return
        meta, beginning = beginning.meta, chosen(plan, beginning, rank.lines["steps"])
        run = Run.prepare(plan, rank.broker, beginning, meta)
        learner = _learner(run, rank.store, ranks)  # 3
        step, why = run.train(learner, rank.lines, rank.store, channel, rank.look)  # 4, 5, 6
        channel.report({"event": "finished", "why": why, "step": step})


def meeting_of(environment: Mapping[str, str]) -> Meeting:
    """Who this rank is, by the variables of Paddle's launcher and of `stage.rank_children`."""
    ranks = int(environment.get("PADDLE_TRAINERS_NUM", "1"))
    host, _, port = environment.get(AGREE_VARIABLE, "127.0.0.1:0").rpartition(":")
    key = environment.get(KEY_VARIABLE, "").encode()
    return Meeting(int(environment.get("PADDLE_TRAINER_ID", "0")), ranks, host, int(port), key)


def _enter(plan: RankPlan, channel: Channel, stack: ExitStack) -> Rank:
    broker = open_broker(plan.broker.broker, plan.broker.kafka)
    stack.callback(broker.close)
    check_lanes(broker, plan.tokens.topic, plan.tokens.lanes)
    meeting = meeting_of(os.environ)
    wait_s = plan.train.stall_s + _MARGIN_S
    lines = meet(meeting, ["steps", "results", "sums"], connect_s=_CONNECT_S, wait_s=wait_s)
    for line in lines.values():
        stack.callback(line.close)
    store = open_store(plan.checkpoint.root, plan.name, plan.train.run)
    look = None
    if meeting.rank == 0:
        topics = Topics(broker, plan.text_topic, plan.tokens.topic, names.ingest_group(plan.name))
        stack.enter_context(RunLock(store))
        trained = names.trained_group(plan.name, plan.train.run)
        look = Look(topics, _text_complete(plan, channel), channel.stopping, trained)
    return Rank(meeting, lines, broker, store, look)


def _text_complete(plan: RankPlan, channel: Channel) -> threading.Event:
    """Set at once, or, where the end comes by command, when the parent sends one."""
    complete = threading.Event()
    if not plan.end_on_command:
        complete.set()
        return complete

    def listen() -> None:
        while not channel.commands.get().get("end"):
            continue
        complete.set()

    threading.Thread(target=listen, name="commands", daemon=True).start()
    return complete


def _join(sums: Line) -> Any:
    """Import all of Paddle and PaddleNLP, choose the device, meet the others'; returns `distributed.Ranks`."""
    from headrace.trainer import distributed, model, step  # noqa: F401 - the last two before the caller catches SIGTERM

    return distributed.join(meet=lambda: sums.exchange(b""))


def _learner(run: Run, store: Store, ranks: Any) -> Learner:
    from headrace.trainer import model, step

    plan, meta, beginning = run.plan, run.meta, run.beginning
    with model_of(plan, store, beginning) as named:
        built = model.build(plan.train.task, named, meta.vocab_size, meta.special_ids["pad"], plan.train.seed)
    if built.max_tokens < plan.max_tokens:
        raise UsageError(
            f"tokenizer.max_tokens is {plan.max_tokens}, the model takes rows of at most {built.max_tokens}: lower it"
        )
    learner: Learner = step.create(built, plan.train, ranks)
    if beginning.checkpoint is not None:
        saved = beginning.checkpoint
        learner.load(LearnerState(saved.weights.arrays, saved.optimizer.arrays))
    return learner
