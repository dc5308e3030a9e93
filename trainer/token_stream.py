"""TokenStream: token batches as micro-batches of NumPy arrays, for a training loop of one's own.

    for batch in TokenStream("kafka://kafka-1:9092", "workorders.tokens", batch_tokens=65536):
        loss = model(paddle.to_tensor(batch["input_ids"]), ...)

Each micro-batch is a dict: `input_ids`, `token_type_ids`, `attention_mask` ([B, S] int64), `labels` ([B] int64, where
`labels` were given), the `lane` it comes from, the lane's `cursor` behind it, and the `state` of the whole stream
behind it, which `load_state_dict` takes. Each rank reads lanes of its own, found from Paddle's environment variables.

It is a `paddle.io.IterableDataset` where Paddle can be imported. It prefetches in a thread of its own, so a DataLoader
around it gains nothing; one with worker processes is refused, because each would read every record again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from typing import Any, Literal

import pyarrow as pa

from headrace.pipeline.broker import open_broker
from headrace.pipeline.topics import Broker
from headrace.schemas.cursor import Cursor, CuttingPlan
from headrace.schemas.errors import ResumeRefused, TopicError, UsageError
from headrace.trainer.batch import owned
from headrace.trainer.collate import class_numbers, classification_screen, pad
from headrace.trainer.lane import LaneRules
from headrace.trainer.stream import LaneStream
from headrace.trainer.window import MicroBatch

#: How often a stream that is idle looks whether it has reached its end.
_IDLE_S = 1.0

State = dict[str, Any]


@dataclass(eq=False)
class TokenStreamBase:
    """Iterate over it to read. Every iteration goes on where the last one was; `load_state_dict` goes elsewhere."""

    broker_address: str
    """`kafka://host:9092` or `local:DIR`."""
    topic: str
    """The tokens topic."""
    batch_tokens: int = 65_536
    """Most padded tokens of a micro-batch."""
    _: KW_ONLY
    labels: Sequence[str] | None = None
    """The classes in order: adds `labels`, and leaves out rows that do not have exactly one of them."""
    window_tokens: int = 1_048_576
    """Tokens of one lane that are shuffled and sorted by length together."""
    seed: int = 42
    """Decides the order."""
    start: Literal["earliest", "latest"] = "earliest"
    """Where the first iteration starts."""
    stop: Literal["never", "end"] = "never"
    """`end`: what is in the topic when an iteration begins; `never`: wait for more."""
    flush_s: float = 5.0
    """Longest wait for more records once a lane is at its end."""
    stall_s: float = 300.0
    """Fail after waiting so long for data that the broker has but does not deliver."""
    rank: int | None = None
    """This rank; by default PADDLE_TRAINER_ID, or 0."""
    ranks: int | None = None
    """All ranks; by default PADDLE_TRAINERS_NUM, or 1."""
    client_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the Kafka client (TLS, SASL)."""
    _cursors: dict[int, Cursor] = field(default_factory=dict, init=False, repr=False)
    _served: frozenset[int] = field(default=frozenset(), init=False, repr=False)  # lanes done in the round begun

    def __iter__(self) -> Iterator[dict[str, Any]]:
        _refuse_worker_process()
        broker = open_broker(self.broker_address, self.client_options)
        try:
            lanes = self._owned(broker)
            ends = {lane: each.end for lane, each in broker.ends(self.topic).items() if lane in lanes}
            with LaneStream(broker, self.topic, self._begin(broker, lanes), self._rules()) as stream:
                if self.stop == "end":
                    stream.set_ends(ends)
                yield from self._rounds(stream, lanes)
        finally:
            broker.close()

    def state_dict(self) -> State:
        """Where the stream is: behind the last micro-batch that was yielded. JSON values only.

        Whoever prefetches (a DataLoader does) keeps the `state` of the micro-batch that was trained instead.
        """
        cursors = {str(lane): cursor.to_json() for lane, cursor in sorted(self._cursors.items())}
        return {"topic": self.topic, "seed": self.seed, "cursors": cursors, "served": sorted(self._served)}

    def load_state_dict(self, state: State) -> None:
        """Go on from there. States of several ranks may be merged: `cursors` and `served` are unions.

        Raises ResumeRefused when the state is of another topic or seed.
        """
        for name, own in (("topic", self.topic), ("seed", self.seed)):
            if state.get(name) != own:
                raise ResumeRefused(
                    f"the state was taken with {name} {state.get(name)!r}, this stream has {own!r}: "
                    f"give the stream the same {name}, or start without the state"
                )
        self._cursors = {int(lane): Cursor.from_json(fields) for lane, fields in state["cursors"].items()}
        self._served = frozenset(state["served"])

    def _rounds(self, stream: LaneStream, lanes: tuple[int, ...]) -> Iterator[dict[str, Any]]:
        """Round after round, one micro-batch of every lane; a round that was broken off is finished first."""
        while True:
            taken = stream.take({lane: 1 for lane in lanes if lane not in self._served})
            for micro in taken.micro_batches:
                stream.trained([micro])
                self._cursors[micro.lane] = micro.after
                self._served |= {micro.lane}
                if micro.rows.num_rows:
                    yield self._batch(micro, stream)
            idle = not taken.micro_batches and not self._served
            self._served = frozenset()
            if taken.lanes_ended == len(lanes):
                return
            if idle:
                stream.wait_for_data(_IDLE_S)

    def _batch(self, micro: MicroBatch, stream: LaneStream) -> dict[str, Any]:
        assert stream.meta is not None
        batch: dict[str, Any] = dict(pad(micro.rows, stream.meta.special_ids["pad"], micro.plan.pad_multiple))
        if self.labels is not None:
            batch["labels"] = class_numbers(micro.rows, tuple(self.labels))
        return {**batch, "lane": micro.lane, "cursor": micro.after, "state": self.state_dict()}

    def _rules(self) -> LaneRules:
        plan = CuttingPlan(self.seed, self.batch_tokens, self.window_tokens)
        screen = _keep_all if self.labels is None else classification_screen(tuple(self.labels))
        return LaneRules(plan, screen, self.flush_s, self.stall_s)

    def _owned(self, broker: Broker) -> tuple[int, ...]:
        described = broker.describe(self.topic)
        if described is None:
            raise TopicError(f"there is no topic {self.topic!r} at {self.broker_address}: start ingest first")
        rank = self.rank if self.rank is not None else int(os.environ.get("PADDLE_TRAINER_ID", "0"))
        ranks = self.ranks if self.ranks is not None else int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
        return owned(described.partitions, rank, ranks)

    def _begin(self, broker: Broker, lanes: tuple[int, ...]) -> dict[int, Cursor]:
        """The cursors to read from: of the state, else where `start` says."""
        if not self._cursors:
            ends = {lane: each for lane, each in broker.ends(self.topic).items() if lane in lanes}
            first = {lane: each.first if self.start == "earliest" else each.end for lane, each in ends.items()}
            self._cursors = {lane: Cursor.at(offset) for lane, offset in first.items()}
        missing = sorted(set(lanes) - self._cursors.keys())
        if missing:
            raise ResumeRefused(
                f"the state has no cursor for lane {missing[0]}, which is this rank's: "
                "merge the states that all ranks saved (the union of `cursors` and of `served`)"
            )
        return {lane: self._cursors[lane] for lane in lanes}


@cache
def token_stream_class() -> type[TokenStreamBase]:
    """TokenStreamBase, as a subclass of Paddle's IterableDataset where there is one. Imports Paddle."""
    try:
        from paddle.io import IterableDataset
    except ImportError:
        return type("TokenStream", (TokenStreamBase,), {"__doc__": TokenStreamBase.__doc__})
    return type("TokenStream", (TokenStreamBase, IterableDataset), {"__doc__": TokenStreamBase.__doc__})


def _refuse_worker_process() -> None:
    """In a worker process of a DataLoader every record would be read once per worker."""
    if "paddle" in sys.modules:
        from paddle.io import get_worker_info

        if get_worker_info() is not None:
            raise UsageError(
                "a TokenStream cannot be read in the worker processes of a DataLoader, each would yield every record "
                "again: use DataLoader(stream, batch_size=None, num_workers=0), the stream prefetches by itself"
            )


def _keep_all(rows: pa.RecordBatch) -> pa.StringArray:
    return pa.nulls(rows.num_rows, pa.string())
