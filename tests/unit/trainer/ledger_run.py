"""A whole run on a real local broker, small: what publishers, ingest and the trainer leave in topics and checkpoints.

Ingest and trainer are played here, in a few lines each, so that a test can plant what the real ones never do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from headrace.ingest.dead_letters import DeadLetter
from headrace.ingest.dead_letters import encode as encode_dead_letter
from headrace.pipeline.local import LocalBroker
from headrace.schemas import tokens
from headrace.schemas.cursor import Cursor, CuttingPlan
from headrace.schemas.errors import Reason
from headrace.schemas.position import Position
from headrace.schemas.record import ARROW_TYPE, JSON_TYPE, Origin
from headrace.trainer.checkpoint import Checkpoint, publish
from headrace.trainer.checkpoint_load import load_latest
from headrace.trainer.checkpoint_state import TrainerState
from headrace.trainer.checkpoint_store import Store, open_store
from headrace.trainer.checkpoint_tensors import Tensors
from headrace.trainer.ledger import LedgerRows, merge
from headrace.trainer.ledger_read import Ledger
from headrace.trainer.ledger_verify import RunTopics, Verification, verify
from headrace.trainer.window import MicroBatch, Window, cut
from tests.unit.trainer.checkpoint_samples import VOCAB_SIZE, token_rows

TOPICS = RunTopics("orders", "orders.dead", "orders.tokens", "orders.ingest")
LANES = 3
PARTITIONS = 2
PLAN = CuttingPlan(seed=3, micro_tokens=32, window_tokens=80, hold_out_share=0.0)
META = tokens.TokensMeta("f", VOCAB_SIZE, {"pad": 0})
BATCH_ROWS = 5


@dataclass
class Run:
    """Everything that is kept between two lives of the processes lies in topics and checkpoints."""

    path: Path
    plan: CuttingPlan = PLAN
    now_s: float = 1000.0
    retention_ms: int | None = None
    drop: frozenset[int] = frozenset()  # offsets of records that the task cannot use
    lane: int = 0
    broker: LocalBroker = field(init=False)

    def __post_init__(self) -> None:
        self.broker = LocalBroker(self.path / "data", lambda: self.now_s)
        self.broker.create(TOPICS.text, PARTITIONS, retention_ms=self.retention_ms)
        self.broker.create(TOPICS.tokens, LANES)
        self.broker.create(TOPICS.dead_letters, 1)

    @property
    def store(self) -> Store:
        return open_store(str(self.path / "checkpoints"), "orders", "main")

    def publish(self, count: int, partition: int = 0) -> list[Origin]:
        """Publish JSON records; returns their origins."""
        first = self.broker.ends(TOPICS.text)[partition].end
        self._append(TOPICS.text, partition, [(b'{"text": "a"}', JSON_TYPE)] * count)
        return [Origin(TOPICS.text, partition, offset) for offset in range(first, first + count)]

    def publish_bulk(self, rows: int, partition: int = 0) -> list[Origin]:
        """Publish one Arrow message of many records."""
        first = self.broker.ends(TOPICS.text)[partition].end
        sink = pa.BufferOutputStream()
        table = pa.table({"text": ["a"] * rows})
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table, max_chunksize=3)
        self._append(TOPICS.text, partition, [(sink.getvalue().to_pybytes(), ARROW_TYPE)])
        return [Origin(TOPICS.text, partition, first, row) for row in range(rows)]

    def ingest(self, origins: Sequence[Origin]) -> None:
        """Write token batches, each to the next lane, and move the group's positions behind these records."""
        batches = [origins[at : at + BATCH_ROWS] for at in range(0, len(origins), BATCH_ROWS)]
        writer = self.broker.writer("ingest")
        writer.begin()
        for batch in batches:
            writer.append(TOPICS.tokens, tokens.encode(token_rows(batch), META), partition=self.lane % LANES)
            self.lane += 1
        ends = self.broker.ends(TOPICS.text)
        writer.commit(TOPICS.ingest_group, TOPICS.text, {p: Position(end.end) for p, end in ends.items()})
        writer.close()

    def bury(self, origin: Origin, content_type: str = JSON_TYPE) -> None:
        """Write a dead letter."""
        letter = DeadLetter(origin, Reason.EMPTY_TEXT, "empty", content_type, b"{}")
        writer = self.broker.writer("ingest")
        writer.begin()
        value, headers = encode_dead_letter(letter, 100_000)
        writer.append(TOPICS.dead_letters, value, partition=0, headers=headers)
        writer.commit(TOPICS.ingest_group, TOPICS.text, {})
        writer.close()

    def _append(self, topic: str, partition: int, messages: Sequence[tuple[bytes, str]]) -> None:
        writer = self.broker.writer("publish")
        writer.begin()
        for value, kind in messages:
            writer.append(topic, value, partition=partition, headers=[("content-type", kind.encode())])
        writer.commit("publish", topic, {})
        writer.close()

    def train(self, steps: int, *, ranks: int = 1, starts: dict[int, int] | None = None) -> int:
        """One life of the trainer: resume, train up to so many steps, save. Returns the steps that were trained."""
        newest = load_latest(self.store, mend=True)
        starts = starts or dict.fromkeys(range(LANES), 0)
        state = newest.state if newest else TrainerState(0, {lane: Cursor.at(at) for lane, at in starts.items()})
        lanes = {lane: _Lane(self, lane, cursor) for lane, cursor in state.cursors.items()}
        rows = [LedgerRows() for _ in range(ranks)]
        step = state.step
        while step < state.step + steps:
            taken = [micro for lane in lanes.values() if (micro := lane.take()) is not None]
            if not taken:
                break
            step += 1
            for rank in range(ranks):
                rows[rank].add(step, [micro for micro in taken if micro.lane % ranks == rank], int(self.now_s * 1000))
        if step > state.step or newest is None:
            cursors = {number: lane.cursor for number, lane in lanes.items()}
            after = TrainerState(step, cursors, starts=newest.state.starts if newest else starts)
            ledger = merge([rank.drain() for rank in rows])
            parent = newest.step if newest else None
            publish(self.store, Checkpoint(parent, after, Tensors(), Tensors(), ledger))
        return step - state.step

    def ledger(self) -> Ledger:
        return Ledger.open(self.store)

    def verify(self, **how: object) -> Verification:
        return verify(self.ledger(), self.broker, TOPICS, **how)  # type: ignore[arg-type]


class _Lane:
    """Reads windows of one lane from its cursor."""

    def __init__(self, run: Run, number: int, cursor: Cursor) -> None:
        self.run = run
        self.number = number
        self.cursor = cursor
        self.micro_batches: list[MicroBatch] = []
        if cursor.open:
            assert cursor.plan is not None
            batches = self._read(cursor.start)[: cursor.token_batches]
            self._cut(Window.of(cursor.start, cursor.end, [rows for _, rows in batches]), cursor.plan, cursor.taken)

    def take(self) -> MicroBatch | None:
        if not self.micro_batches:
            self._open_window()
        if not self.micro_batches:
            return None
        micro_batch = self.micro_batches.pop(0)
        self.cursor = micro_batch.after
        return micro_batch

    def _open_window(self) -> None:
        chosen = []
        count = 0
        for offset, rows in self._read(self.cursor.end):
            chosen.append((offset, rows))
            count += tokens.token_count(rows)
            if count >= self.run.plan.window_tokens:
                break
        if chosen:
            window = Window.of(self.cursor.end, chosen[-1][0] + 1, [rows for _, rows in chosen])
            self._cut(window, self.run.plan, 0)

    def _cut(self, window: Window, plan: CuttingPlan, taken: int) -> None:
        self.micro_batches = cut(window, plan, self.number, self._screen)[taken:]

    def _screen(self, rows: pa.RecordBatch) -> pa.StringArray:
        unusable = [offset in self.run.drop for offset in rows.column("offset").to_pylist()]
        return pa.array(["unknown-label" if each else None for each in unusable], pa.string())

    def _read(self, offset: int) -> list[tuple[int, pa.RecordBatch]]:
        reader = self.run.broker.reader(TOPICS.tokens, {self.number: offset})
        messages = reader.poll(10_000, 0.0).messages
        reader.close()
        return [(message.offset, tokens.decode(message.value)[0]) for message in messages]
