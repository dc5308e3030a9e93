"""What the tests of ledger and checkpoints share: rows, micro-batches and checkpoints that are small and distinct."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from fsspec.implementations.memory import MemoryFileSystem

from headrace.schemas.cursor import Cursor, CuttingPlan
from headrace.schemas.ledger import ORIGIN_COLUMNS, Outcome
from headrace.schemas.record import Origin
from headrace.schemas.tokens import tokens_schema
from headrace.trainer.checkpoint import Checkpoint
from headrace.trainer.checkpoint_state import TrainerState
from headrace.trainer.checkpoint_store import Chunk, ObjectStore, Store
from headrace.trainer.checkpoint_tensors import Tensors
from headrace.trainer.ledger import LedgerRows, LedgerTables, merge
from headrace.trainer.window import UNTRAINED, MicroBatch

PLAN = CuttingPlan(seed=1, micro_tokens=64, window_tokens=1024)
SCHEMA = tokens_schema(100)
VOCAB_SIZE = 100

#: One step: for each lane the micro-batches, each a list of origins.
Step = dict[int, list[list[Origin]]]


def memory_store() -> Store:
    """An object store of its own."""
    system = type("Memory", (MemoryFileSystem,), {"store": {}, "pseudo_dirs": [""], "cachable": False})
    return ObjectStore(system(), "/bucket/orders/main", "memory://bucket/orders/main")


def token_rows(origins: Sequence[Origin], length: int = 4) -> pa.RecordBatch:
    """Rows as ingest writes them; `published` is 1000 * offset."""
    count = len(origins)
    topics = [origin.topic for origin in origins]
    columns = {
        "input_ids": pa.array([list(range(1, length + 1))] * count, SCHEMA.field("input_ids").type),
        "pair_start": pa.nulls(count, pa.uint16()),
        "labels": pa.array([["a"]] * count, pa.list_(pa.string())),
        "id": pa.nulls(count, pa.string()),
        "timestamp": pa.nulls(count, pa.timestamp("ms")),
        "published": pa.array([origin.offset * 1000 % 2**60 for origin in origins], pa.timestamp("ms")),
        "topic": pa.array(topics, pa.string()).dictionary_encode(),
        **{name: pa.array([getattr(o, name) for o in origins], SCHEMA.field(name).type) for name in ORIGIN_COLUMNS[1:]},
        "bucket": pa.array([o.offset % 2**16 for o in origins], pa.uint16()),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def untrained_rows(rows: Iterable[tuple[Origin, Outcome, str | None]]) -> pa.RecordBatch:
    rows = list(rows)
    origins = token_rows([origin for origin, _, _ in rows])
    columns = [origins.column(name) for name in ORIGIN_COLUMNS]
    columns += [
        pa.array([str(outcome) for _, outcome, _ in rows], pa.string()).cast(UNTRAINED.field("outcome").type),
        pa.array([reason for _, _, reason in rows], pa.string()).cast(UNTRAINED.field("reason").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=UNTRAINED)


def micro_batch(
    lane: int, origins: Sequence[Origin], untrained: Iterable[tuple[Origin, Outcome, str | None]] = ()
) -> MicroBatch:
    rows = token_rows(origins)
    before = Cursor(0, 10, 1, 0, PLAN)
    after = before.take(1, of=100)
    aside = untrained_rows(untrained)
    tokens, left_tokens = 4 * len(rows), 4 * (len(rows) + len(aside))
    return MicroBatch(lane, rows, before, after, aside, rows.slice(0, 0), tokens, left_tokens, 2 * tokens, 1)


def noted(steps: dict[int, Step], ranks: int) -> LedgerTables:
    """What so many ranks note and rank 0 merges."""
    rows = [LedgerRows() for _ in range(ranks)]
    for step, lanes in steps.items():
        for rank in range(ranks):
            taken = [micro_batch(lane, o) for lane, batches in lanes.items() if lane % ranks == rank for o in batches]
            rows[rank].add(step, taken, stepped_ms=step * 10)
    return merge([rank.drain() for rank in rows])


def checkpoint(step: int, parent: int | None, ledger: LedgerTables | None = None) -> Checkpoint:
    """Every number in it follows from the step, so that two of them are never mixed unseen."""
    return Checkpoint(
        parent=parent,
        state=TrainerState(step, {0: Cursor(step, step + 5, 2, 1, PLAN), 1: Cursor.at(step)}, {"rows": step}),
        weights=Tensors({"layer.weight": np.full((2, 3), step, np.float32)}),
        optimizer=Tensors({"layer.weight.moment1": np.full((2, 3), -step, np.float32)}),
        ledger=ledger,
        held_out=pa.Table.from_batches([token_rows([Origin("orders", 0, step)])]),
        extra={"config.json": b'{"step": %d}' % step},
    )


def assert_same(loaded: Checkpoint | None, expected: Checkpoint) -> None:
    assert loaded is not None
    assert loaded.parent == expected.parent
    assert loaded.state == expected.state
    assert loaded.held_out == expected.held_out
    assert loaded.extra == expected.extra
    for got, wanted in ((loaded.weights, expected.weights), (loaded.optimizer, expected.optimizer)):
        assert got.arrays.keys() == wanted.arrays.keys()
        for name, array in wanted.arrays.items():
            np.testing.assert_array_equal(got.arrays[name], array)


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours may catch it and go on."""


class DyingStore:
    """A store whose process dies at its `at`-th change: before it, or when it is half done."""

    def __init__(self, store: Store, at: int, *, half: bool, die: type[BaseException] = Killed) -> None:
        self._store = store
        self._at = at
        self._half = half
        self._die = die
        self.changes = 0
        self.address = store.address
        self.renames = store.renames

    def _dies(self) -> bool:
        self.changes += 1
        if self.changes - 1 == self._at and not self._half:
            raise self._die
        return self.changes - 1 == self._at

    def folders(self) -> list[str]:
        return self._store.folders()

    def files(self, folder: str) -> dict[str, int]:
        return self._store.files(folder)

    def read(self, folder: str, name: str) -> bytes:
        return self._store.read(folder, name)

    def read_each(self, folders: Sequence[str], name: str) -> list[bytes | None]:
        return self._store.read_each(folders, name)

    def write(self, folder: str, name: str, chunks: Iterable[Chunk]) -> None:
        self._store.write(folder, name, self._cut(chunks) if self._dies() else chunks)

    def _cut(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        whole = b"".join(bytes(chunk) for chunk in chunks)
        if self.renames:  # an object store shows no half objects
            yield whole[: len(whole) // 2]
        raise self._die

    def seal(self, folder: str) -> None:
        dies = self._dies()
        self._store.seal(folder)
        if dies:
            raise self._die

    def rename(self, folder: str, to: str) -> None:
        dies = self._dies()
        self._store.rename(folder, to)
        if dies:
            raise self._die

    def remove(self, folder: str, name: str) -> None:
        dies = self._dies()
        self._store.remove(folder, name)
        if dies:
            raise self._die

    def remove_folder(self, folder: str) -> None:
        if self._dies():
            names = sorted(self._store.files(folder), key=lambda name: name != "manifest.json")
            for name in names[: len(names) // 2]:
                self._store.remove(folder, name)
            raise self._die
        self._store.remove_folder(folder)
