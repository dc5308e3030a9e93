"""Made-up token batches, a topic in memory with a clock that tests turn, and ways to run streams over topics."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headrace.pipeline.topics import Broker, Ends, Fetched, Message
from headrace.schemas.cursor import Cursor, CuttingPlan
from headrace.schemas.record import Origin
from headrace.schemas.tokens import TokensMeta, encode, tokens_schema
from headrace.trainer.lane import LaneRules
from headrace.trainer.stream import LaneStream
from headrace.trainer.window import MicroBatch

VOCAB = 1000
SPECIAL = {"cls": 1, "sep": 2, "pad": 0, "mask": 3, "unk": 4}
META = TokensMeta("f" * 64, VOCAB, SPECIAL)
PLAN = CuttingPlan(seed=7, micro_tokens=128, window_tokens=600)


def keep_all(rows: pa.RecordBatch) -> pa.StringArray:
    return pa.nulls(rows.num_rows, pa.string())


def rows_of(
    ids: Sequence[Sequence[int]],
    *,
    partition: int = 0,
    first_offset: int = 0,
    topic: str = "text",
    labels: Sequence[Sequence[str | None]] | None = None,
    buckets: Sequence[int] | None = None,
    pair_start: Sequence[int | None] | None = None,
    words: Sequence[Sequence[bool] | None] | None = None,
) -> pa.RecordBatch:
    """Rows of these ids, one text message each."""
    count = len(ids)
    schema = tokens_schema(VOCAB, words=words is not None)
    columns = {
        "input_ids": [list(row) for row in ids],
        "pair_start": list(pair_start or [None] * count),
        "labels": [list(row) for row in labels or [["a"]] * count],
        "id": [None] * count,
        "timestamp": [None] * count,
        "published": [1_700_000_000_000 + number for number in range(count)],
        "partition": [partition] * count,
        "offset": list(range(first_offset, first_offset + count)),
        "row": [0] * count,
        "part": [0] * count,
        "bucket": list(buckets or [7919 * (first_offset + number) % 2**16 for number in range(count)]),
    }
    if words is not None:
        columns["word_start"] = [None if row is None else list(row) for row in words]
    arrays = [
        pa.array([topic] * count, pa.string()).dictionary_encode().cast(each.type)
        if each.name == "topic"
        else pa.array(columns[each.name], each.type)
        for each in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def texts(count: int, seed: int = 0, *, longest: int = 60) -> list[list[int]]:
    """Ids of texts of very different lengths, with [CLS] and [SEP]."""
    random = np.random.default_rng(seed)
    lengths = np.minimum(longest - 2, 1 + random.geometric(0.06, count))
    return [[1, *random.integers(5, VOCAB, length).tolist(), 2] for length in lengths]


def token_batches(
    lane: int, batches: int, rows: int = 5, *, from_offset: int = 0, topic: str = "text"
) -> list[pa.RecordBatch]:
    """Consecutive token batches of one lane, all from one partition of the text topic."""
    return [
        rows_of(texts(rows, 1000 * lane + number), partition=lane, first_offset=number * rows, topic=topic)
        for number in range(from_offset, from_offset + batches)
    ]


def origins(rows: pa.RecordBatch) -> list[str]:
    names = [rows.column(name).to_pylist() for name in ("topic", "partition", "offset", "row", "part")]
    return [str(Origin(*fields)) for fields in zip(*names, strict=True)]


@dataclass(frozen=True)
class Given:
    """What matters of a micro-batch, comparable."""

    lane: int
    rows: tuple[str, ...]
    untrained: tuple[str, ...]
    before: Cursor
    after: Cursor
    seed: int

    @classmethod
    def of(cls, micro: MicroBatch) -> Given:
        return cls(
            micro.lane,
            tuple(origins(micro.rows)),
            tuple(origins(micro.untrained)),
            micro.before,
            micro.after,
            micro.seed,
        )


def rules(plan: CuttingPlan = PLAN, *, flush_s: float = 5.0, stall_s: float = 60.0, **more: object) -> LaneRules:
    return LaneRules(plan, more.pop("screen", keep_all), flush_s, stall_s, **more)  # type: ignore[arg-type]


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class MemoryTopic:
    """A tokens topic in memory, as a broker shows it to a reader that has a made-up clock.

    Offsets are sparse: every commit takes one more offset for its transaction marker. `held_back` lanes have an open
    transaction, `slow` lanes deliver nothing: neither is at its end. While a poll waits, the clock moves and `plans`
    (what happens at which time) come true.
    """

    lanes: int
    clock: Clock = field(default_factory=Clock)
    messages: dict[int, list[Message]] = field(default_factory=dict)
    ends_at: dict[int, int] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    held_back: set[int] = field(default_factory=set)
    slow: set[int] = field(default_factory=set)
    plans: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    fetched: int = 0
    closed: int = 0

    def commit(self, lane: int, *batches: pa.RecordBatch, meta: TokensMeta = META) -> None:
        """One transaction: messages, and a marker that takes an offset."""
        at = self.ends_at.get(lane, 0)
        for batch in batches:
            self.messages.setdefault(lane, []).append(Message(lane, at, 0, encode(batch, meta)))
            at += 1
        self.ends_at[lane] = at + 1

    def later(self, after_s: float, what: Callable[[], None]) -> None:
        self.plans.append((self.clock() + after_s, what))
        self.plans.sort(key=lambda plan: plan[0])

    def ends(self, topic: str) -> dict[int, Ends]:
        return {lane: Ends(self.first.get(lane, 0), self.ends_at.get(lane, 0)) for lane in range(self.lanes)}

    def reader(self, topic: str, offsets: Mapping[int, int]) -> MemoryReader:
        return MemoryReader(self, dict(offsets))


@dataclass
class MemoryReader:
    topic: MemoryTopic
    offsets: dict[int, int]
    paused: set[int] = field(default_factory=set)

    def poll(self, max_messages: int, wait_s: float) -> Fetched:
        deadline_s = self.topic.clock() + wait_s
        while True:
            fetched = self._fetch(max_messages)
            plans = self.topic.plans
            if fetched.messages or not plans or plans[0][0] > deadline_s:
                break
            at_s, what = plans.pop(0)
            self.topic.clock.now_s = max(self.topic.clock.now_s, at_s)
            what()
        if not fetched.messages:
            # Never less than a millisecond, so that a deadline that has come is past.
            self.topic.clock.now_s = max(deadline_s, self.topic.clock.now_s + 0.001)
        return fetched

    def _fetch(self, max_messages: int) -> Fetched:
        fetched = Fetched()
        for lane in sorted(self.offsets):
            if lane in self.paused or lane in self.topic.slow:
                continue
            ready = [m for m in self.topic.messages.get(lane, []) if m.offset >= self.offsets[lane]]
            ready = ready[: max_messages - len(fetched.messages)]
            fetched.messages += ready
            self.topic.fetched += len(ready)
            if ready:
                self.offsets[lane] = ready[-1].offset + 1
            left = any(m.offset >= self.offsets[lane] for m in self.topic.messages.get(lane, []))
            if not left and lane not in self.topic.held_back:
                self.offsets[lane] = max(self.offsets[lane], self.topic.ends_at.get(lane, 0))
                fetched.at_end[lane] = self.offsets[lane]
        return fetched

    def pause(self, partitions: Sequence[int]) -> None:
        self.paused.update(partitions)

    def resume(self, partitions: Sequence[int]) -> None:
        self.paused.difference_update(partitions)

    def seek(self, partition: int, offset: int) -> None:
        self.offsets[partition] = offset

    def close(self) -> None:
        self.topic.closed += 1


def filled(lanes: int, batches: Mapping[int, int] | None = None, **more: object) -> MemoryTopic:
    """A topic in which every lane has some token batches, of different numbers unless they are given."""
    topic = MemoryTopic(lanes, **more)  # type: ignore[arg-type]
    for lane in range(lanes):
        for batch in token_batches(lane, (batches or {}).get(lane, 9 + 2 * lane)):
            topic.commit(lane, batch)
    return topic


def beginning(lanes: Sequence[int]) -> dict[int, Cursor]:
    return {lane: Cursor.at(0) for lane in lanes}


def open_stream(topic: MemoryTopic, cursors: Mapping[int, Cursor], rules_: LaneRules | None = None) -> LaneStream:
    """A stream without a thread, by the topic's clock."""
    return LaneStream(topic, "t", cursors, rules_ or rules(), prefetch=False, clock=topic.clock)  # type: ignore[arg-type]


def drain(stream: LaneStream, accumulate: int = 1) -> list[list[Given]]:
    """Steps until every lane is at its end, each trained."""
    steps: list[list[Given]] = []
    while True:
        taken = stream.take(accumulate)
        if not taken.micro_batches:
            return steps
        steps.append([Given.of(micro) for micro in taken.micro_batches])
        stream.trained(taken.micro_batches)


def publish(broker: Broker, topic: str, lanes: Mapping[int, Sequence[pa.RecordBatch]]) -> None:
    """Append token batches to a real topic, in one transaction."""
    writer = broker.writer(f"writer-{next(_NUMBERS)}")
    writer.begin()
    for lane, batches in lanes.items():
        for batch in batches:
            writer.append(topic, encode(batch, META), partition=lane)
    writer.commit("none", topic, {})
    writer.close()


_NUMBERS = itertools.count()
