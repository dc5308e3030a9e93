"""Ledger, reading: what became of a record, what a checkpoint has seen, and one hash over all that was trained.

The ledger of checkpoint N is its chain of parents: each checkpoint stores what happened since the one before. Opening
reads the manifests only. They say which offsets each part of the ledger holds, so that finding a record opens the few
files that can name it. Everything that is read is checked against its checksum.

Cost: `find` a file or two; `ranges` and `hash` one pass over the ledger, about two million rows a second, in memory one
part of the ledger and, for `ranges`, the ranges.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.schemas.errors import CheckpointDamaged, Stop, UsageError
from headrace.schemas.ledger import ORIGIN_COLUMNS, Outcome
from headrace.schemas.record import Origin
from headrace.trainer.checkpoint import MANIFEST_FILE, STATE_FILE, folder_of, newest_step, published_steps
from headrace.trainer.checkpoint_load import read_file
from headrace.trainer.checkpoint_state import Manifest, TrainerState
from headrace.trainer.checkpoint_store import Store
from headrace.trainer.ledger import OUTCOMES_FILE, STEPS_FILE

Offsets = npt.NDArray[np.int64]

#: What one trained row adds to the hash: little-endian, without gaps. Changing it changes every hash.
_HASHED = np.dtype(
    [
        ("step", "<i8"),
        ("lane", "<i4"),
        ("topic", "<u8"),  # first 8 bytes of the SHA-256 of its name
        ("partition", "<i4"),
        ("offset", "<i8"),
        ("row", "<i8"),
        ("part", "<u2"),
        ("pass", "<u2"),
    ]
)


@dataclass(frozen=True, slots=True)
class Found:
    """What became of one record, or of one part of a long one."""

    origin: Origin
    step: int
    lane: int
    checkpoint: int  # step of the first checkpoint that contains it
    outcome: str
    reason: str | None
    pass_number: int


@dataclass(slots=True)
class PartitionSeen:
    """What a checkpoint has seen of one partition of a text topic."""

    ranges: Offsets = field(default_factory=lambda: np.empty((0, 2), np.int64))  # first and last offset, both included
    rows: Counter[str] = field(default_factory=Counter)  # by outcome


@dataclass(frozen=True, slots=True)
class Ledger:
    """The ledger of one checkpoint, oldest part first."""

    store: Store
    chain: tuple[Manifest, ...]

    @classmethod
    def open(cls, store: Store, step: int | None = None) -> Ledger:
        """The ledger of the checkpoint at `step`, else of the newest."""
        target = newest_step(store) if step is None else step
        if target is None:
            raise Stop(f"there is no checkpoint in {store.address} yet: a ledger is written with the first one")
        steps = [known for known in published_steps(store) if known <= target]
        found = dict(zip(steps, store.read_each([folder_of(known) for known in steps], MANIFEST_FILE), strict=True))
        if found.get(target) is None:
            near = ", ".join(str(known) for known in published_steps(store)[-5:])
            raise UsageError(f"there is no checkpoint of step {target} in {store.address}: the newest are {near}")
        return cls(store, tuple(reversed(list(_parents(store, target, found)))))

    @property
    def step(self) -> int:
        return self.chain[-1].step

    def state(self) -> TrainerState:
        """State of the trainer at the end of this ledger."""
        manifest = self.chain[-1]
        what = f"{self.store.address}/{folder_of(manifest.step)}/{STATE_FILE}"
        return TrainerState.from_json(read_file(self.store, manifest, STATE_FILE), what)

    def steps(self, after: int = -1) -> Iterator[pa.Table]:
        """Tables of STEPS, oldest first: what every step behind `after` (a checkpoint's) took from every lane."""
        for manifest in self.chain:
            if manifest.step <= after:
                continue
            yield pq.read_table(pa.BufferReader(read_file(self.store, manifest, STEPS_FILE)))

    def outcomes(self, columns: Sequence[str], manifests: Sequence[Manifest] | None = None) -> Iterator[pa.RecordBatch]:
        """Rows of OUTCOMES, oldest first, a row group at a time."""
        for manifest in self.chain if manifests is None else manifests:
            file = pq.ParquetFile(pa.BufferReader(read_file(self.store, manifest, OUTCOMES_FILE)))
            for group in range(file.num_row_groups):
                yield from file.read_row_group(group, columns=list(columns)).combine_chunks().to_batches()

    def find(self, origin: Origin) -> list[Found]:
        """Every row that names a record, in the order of the steps.

        Row 0 stands for all rows of a message, part 0 for all parts of a row: as `Origin.parse` gives them where the
        text names neither. Empty when the record had not left a lane by this checkpoint.
        """
        found = [row for manifest in self._holding(origin) for row in self._find_in(manifest, origin)]
        return sorted(found, key=lambda row: row.step)

    def ranges(self) -> dict[tuple[str, int], PartitionSeen]:
        """By topic and partition: the ranges of offsets that have an outcome, and how many rows have which.

        A message of many records counts as seen when one of them is. Transaction markers take offsets too, so a gap
        between two ranges need not be a record: `ledger_verify` knows.
        """
        seen: dict[tuple[str, int], PartitionSeen] = {}
        for batch in self.outcomes(("topic", "partition", "offset", "outcome")):
            for (topic, partition), rows in by_partition(batch):
                entry = seen.setdefault((topic, partition), PartitionSeen())
                entry.ranges = _joined(entry.ranges, rows.column("offset").to_numpy())
                counts = rows.column("outcome").cast(pa.string()).value_counts().to_pylist()
                entry.rows.update({count["values"]: count["counts"] for count in counts})
        return dict(sorted(seen.items()))

    def hash(self) -> str:
        """One SHA-256 over the origins of all trained rows in the order of training: by step, lane, and in the lane.

        It depends on neither the number of ranks nor where checkpoints were taken, so two runs that trained the same
        global batches have the same hash.
        """
        digest = hashlib.sha256()
        for batch in self.outcomes(("step", "lane", *ORIGIN_COLUMNS, "pass", "outcome")):
            outcome = batch.column("outcome")
            wanted = np.array([name == Outcome.TRAINED for name in outcome.dictionary.to_pylist()], bool)
            trained = batch.filter(pa.array(wanted[outcome.indices.to_numpy()]))
            rows = np.empty(trained.num_rows, _HASHED)
            for name in ("step", "lane", "partition", "offset", "row", "part", "pass"):
                rows[name] = trained.column(name).to_numpy()
            topics = trained.column("topic")
            keys = np.array([_topic_key(name) for name in topics.dictionary.to_pylist()], np.uint64)
            rows["topic"] = keys[topics.indices.to_numpy()]
            digest.update(rows.data)
        return digest.hexdigest()

    def _holding(self, origin: Origin) -> list[Manifest]:
        return [
            manifest
            for manifest in self.chain
            if any(
                (part.topic, part.partition) == (origin.topic, origin.partition)
                and part.first <= origin.offset <= part.last
                for part in manifest.ledger
            )
        ]

    def _find_in(self, manifest: Manifest, origin: Origin) -> Iterator[Found]:
        wanted = (pc.field("partition") == origin.partition) & (pc.field("offset") == origin.offset)
        if origin.row:
            wanted &= pc.field("row") == origin.row
        if origin.part:
            wanted &= pc.field("part") == origin.part
        data = pa.BufferReader(read_file(self.store, manifest, OUTCOMES_FILE))
        for row in pq.read_table(data, filters=wanted).to_pylist():
            if row["topic"] == origin.topic:
                named = Origin(*(row[name] for name in ORIGIN_COLUMNS))
                yield Found(named, row["step"], row["lane"], manifest.step, row["outcome"], row["reason"], row["pass"])


def _parents(store: Store, target: int, found: dict[int, bytes | None]) -> Iterator[Manifest]:
    """The checkpoint of step `target`, its parent, and so on."""
    step: int | None = target
    child: int | None = None
    while step is not None:
        what = f"{store.address}/{folder_of(step)}/{MANIFEST_FILE}"
        data = found.get(step)
        if data is None:
            raise CheckpointDamaged(f"{what} is missing, the parent of step {child}: restore it, the ledger has a hole")
        manifest = Manifest.from_json(data, what)
        yield manifest
        child, step = step, manifest.parent
        if step is not None and step >= child:
            raise CheckpointDamaged(f"{what} names the later step {step} as its parent: restore the file")


def _topic_key(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def by_partition(batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, int], pa.RecordBatch]]:
    """The rows of every topic and partition, in their order."""
    topics = batch.column("topic")
    names = topics.dictionary.to_pylist()
    topic = topics.indices.to_numpy().astype(np.int64)
    keys = (topic << 32) | batch.column("partition").to_numpy()
    for key in np.unique(keys).tolist():
        yield (names[key >> 32], key & 0xFFFFFFFF), batch.take(pa.array(np.flatnonzero(keys == key)))


def _joined(ranges: Offsets, offsets: npt.NDArray[Any]) -> Offsets:
    """Ranges that also cover `offsets`; ranges that touch become one."""
    single = np.unique(offsets)
    first, last = (np.concatenate([ranges[:, side], single]) for side in (0, 1))
    order = np.argsort(first, kind="stable")
    first, last = first[order], np.maximum.accumulate(last[order])
    begins = np.concatenate([[True], first[1:] > last[:-1] + 1])
    ends = np.concatenate([begins[1:], [True]])
    return np.stack([first[begins], last[ends]], axis=1)
