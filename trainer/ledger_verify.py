"""Verify: every record of the text topic has exactly one outcome.

    text topic    what was published, up to a position in every partition
    ledger        what was trained, held out, dropped, skipped or excluded, up to a checkpoint
    dead letters  what could not be used
    lanes         what is still to be trained (behind the cursors), and what lies before the start of the run

Every record gets a slot: the messages of a partition in order, and their rows. The four sources mark slots, so a record
without a mark is missing and one with two is duplicated. A long text that gave several parts is one record; its parts
are counted apart, so that one part trained twice or left out is found. A run of several passes must have an outcome
for each record in each pass: what the first has seen, every later one must see once.

All of it is NumPy arrays, some partitions of the text topic at a time: about 50 bytes a record of those, and one pass
over the ledger for each such group of partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.pipeline.scan import Spans
from headrace.pipeline.topics import Broker
from headrace.schemas.cursor import pass_of
from headrace.schemas.record import Origin, TextFormat
from headrace.trainer import ledger_scan
from headrace.trainer.ledger import OUTCOME_NAMES
from headrace.trainer.ledger_read import Ledger
from headrace.trainer.ledger_scan import DeadLetters, Integers, Names

#: Records of the text topic that are looked at together, unless one partition has more.
GROUP_RECORDS = 20_000_000
EXAMPLES = 10

# What a slot holds: the lowest mark wins. The first ones are `OUTCOME_NAMES`.
_DEAD, _PENDING, _BEFORE_START, _MISSING = range(len(OUTCOME_NAMES), len(OUTCOME_NAMES) + 4)
_COUNTED = (*OUTCOME_NAMES, "dead_lettered", "pending", "before_start", "missing")


@dataclass(frozen=True, slots=True)
class RunTopics:
    """The topics of a run, and the group whose positions say what ingest has read."""

    text: str
    dead_letters: str
    tokens: str
    ingest_group: str
    text_format: TextFormat = TextFormat.AUTO


@dataclass(slots=True)
class Verification:
    """Records by what became of them. `published` is the sum of the counts down to `missing`."""

    published: int = 0
    trained: int = 0
    held_out: int = 0
    dropped: int = 0
    skipped: int = 0
    excluded: int = 0
    dead_lettered: int = 0
    pending: int = 0  # in a lane, behind the checkpoint's cursors
    before_start: int = 0  # in a lane, before the run's start
    missing: int = 0  # nowhere
    duplicated: int = 0  # in two places, or twice in one pass
    unknown: int = 0  # in the ledger, and no such record in the text topic
    expired: int = 0  # ledger rows of messages that retention has deleted, or that lie before `since`: not compared
    missing_origins: list[Origin] = field(default_factory=list)  # examples
    duplicated_origins: list[Origin] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.missing or self.duplicated or self.unknown)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where records can be apart from the ledger."""

    dead: DeadLetters
    before_start: Names
    open: Names  # in a window that is being trained: some are in the ledger already
    ahead: Names  # behind it: none may be in the ledger, of this pass
    pass_number: int  # that the run is in


def verify(
    ledger: Ledger,
    broker: Broker,
    topics: RunTopics,
    *,
    since: Mapping[int, int] | None = None,
    upto: Mapping[int, int] | None = None,
    group_records: int = GROUP_RECORDS,
) -> Verification:
    """Compare a ledger with the topics.

    `upto` gives an offset for each partition of the text topic; without it, ingest's committed positions. `since` is
    for an ingest that did not start at the beginning. What retention has deleted from the text topic is not compared.
    """
    spans = _text_spans(broker, topics, since or {}, upto)
    places = _places(ledger, broker, topics)
    result = Verification()
    for group in _groups(ledger, topics.text, spans, group_records):
        spans_of_group = {partition: spans[partition] for partition in group}
        text = ledger_scan.text_records(broker, topics.text, spans_of_group, topics.text_format)
        for partition, rows in _ledger_records(ledger, topics.text, group).items():
            first, end = spans[partition]
            slots = _Slots.of(topics.text, partition, *text[partition], places.dead)
            result.expired += int((rows.names.offset < first).sum())
            here = (rows.names.offset >= first) & (rows.names.offset < end)
            _compare(result, slots, rows.where(here), places)
    return result


def _text_spans(
    broker: Broker, topics: RunTopics, since: Mapping[int, int], upto: Mapping[int, int] | None
) -> dict[int, tuple[int, int]]:
    if upto is None:
        upto = {p: at.offset for p, at in broker.positions(topics.ingest_group, topics.text, settled=False).items()}
    spans = {}
    for partition, ends in broker.ends(topics.text).items():
        first = max(ends.first, since.get(partition, 0))
        spans[partition] = (first, max(first, min(ends.end, upto.get(partition, 0))))
    return spans


def _places(ledger: Ledger, broker: Broker, topics: RunTopics) -> _Places:
    """Read after ingest's positions were: what lies before those is in a lane or a dead letter by now."""
    state = ledger.state()
    cursors, starts = state.cursors, state.starts
    spans: dict[int, tuple[int, int]] = {}
    older: dict[int, tuple[int, int]] = {}
    for lane, ends in broker.ends(topics.tokens).items():
        if lane in cursors:
            spans[lane] = (max(ends.first, cursors[lane].start), ends.end)
            older[lane] = (ends.first, min(starts.get(lane, 0), ends.end))
    dead = ledger_scan.dead_letters(broker, topics.dead_letters, topics.text)
    read = ledger_scan.lane_records
    open_rows, ahead = read(broker, topics.tokens, spans, topics.text, {lane: cursors[lane].end for lane in spans})
    before_start, _ = read(broker, topics.tokens, older, topics.text, starts)
    return _Places(dead, before_start, open_rows, ahead, pass_of(cursors))


def _groups(ledger: Ledger, topic: str, spans: Spans, group_records: int) -> Iterator[list[int]]:
    """Partitions that are compared together. Sizes are upper bounds, from offsets or from the ledger."""
    rows = dict.fromkeys(spans, 0)
    for manifest in ledger.chain:
        for part in manifest.ledger:
            if part.topic == topic and part.partition in rows:
                rows[part.partition] += part.rows
    group: list[int] = []
    size = 0
    for partition, (first, end) in sorted(spans.items()):
        more = max(rows[partition], end - first)
        if group and size + more > group_records:
            yield group
            group, size = [], 0
        group.append(partition)
        size += more
    if group:
        yield group


@dataclass(frozen=True, slots=True)
class _LedgerRows:
    """Rows of the ledger."""

    names: Names
    codes: Integers  # of the outcomes
    passes: Integers

    def where(self, chosen: npt.NDArray[Any]) -> _LedgerRows:
        return _LedgerRows(self.names.where(chosen), self.codes[chosen], self.passes[chosen])


def _ledger_records(ledger: Ledger, topic: str, group: Sequence[int]) -> dict[int, _LedgerRows]:
    """By partition: the rows of the ledger."""
    manifests = [m for m in ledger.chain if any(p.topic == topic and p.partition in group for p in m.ledger)]
    found: dict[int, list[_LedgerRows]] = {partition: [] for partition in group}
    for batch in ledger.outcomes(("topic", "partition", "offset", "row", "part", "outcome", "pass"), manifests):
        rows = ledger_scan.of_topic(batch, topic)
        outcomes = rows.column("outcome")
        known = np.array([OUTCOME_NAMES.index(name) for name in outcomes.dictionary.to_pylist()], np.int64)
        passes = rows.column("pass").to_numpy().astype(np.int64)
        here = _LedgerRows(Names.in_rows(rows), known[outcomes.indices.to_numpy()], passes)
        for partition in set(np.unique(here.names.partition).tolist()) & set(group):
            found[partition].append(here.where(here.names.partition == partition))
    return {partition: _joined(rows) for partition, rows in found.items()}


def _joined(several: Sequence[_LedgerRows]) -> _LedgerRows:
    nothing = np.empty(0, np.int64)
    codes, passes = (np.concatenate([nothing, *(getattr(r, name) for r in several)]) for name in ("codes", "passes"))
    return _LedgerRows(Names.concatenated([rows.names for rows in several]), codes, passes)


@dataclass(frozen=True, slots=True)
class _Slots:
    """A number for every record of one partition, in the order of the topic."""

    topic: str
    partition: int
    offsets: Integers  # of the messages
    counts: Integers  # records in each
    firsts: Integers  # slot of the first record of each

    @classmethod
    def of(cls, topic: str, partition: int, offsets: Integers, counts: Integers, dead: DeadLetters) -> _Slots:
        """A message that was dead-lettered as a whole is one record, however many it holds."""
        whole = dead.names.where(dead.whole).of_partition(partition)
        counts = np.where(np.isin(offsets, whole.offset), 1, counts)
        return cls(topic, partition, offsets, counts, np.cumsum(counts) - counts)

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    def find(self, names: Names) -> Integers:
        """Slots of records; -1 for those that the topic does not hold."""
        if not len(self.offsets):
            return np.full(len(names), -1)
        at = np.minimum(np.searchsorted(self.offsets, names.offset), len(self.offsets) - 1)
        known = (self.offsets[at] == names.offset) & (names.row < self.counts[at])
        return np.where(known, self.firsts[at] + names.row, -1)

    def keys(self, names: Names) -> Integers:
        """Slot and part in one number, for the records that the topic holds."""
        slots = self.find(names)
        return (slots << 16 | names.part)[slots >= 0]

    def origin(self, slot: int, part: int = 0) -> Origin:
        at = int(np.searchsorted(self.firsts, slot, side="right")) - 1
        return Origin(self.topic, self.partition, int(self.offsets[at]), slot - int(self.firsts[at]), part)


def _compare(result: Verification, slots: _Slots, rows: _LedgerRows, places: _Places) -> None:
    """Add the counts of one partition."""
    found = slots.find(rows.names)
    result.unknown += int((found < 0).sum())
    trained = slots.keys(rows.names)  # and whatever else the ledger says
    passes = rows.passes[found >= 0]
    dead, before_start, ahead, open_rows = (
        slots.keys(place.of_partition(slots.partition))
        for place in (places.dead.names, places.before_start, places.ahead, places.open)
    )
    marks = np.full(slots.count, _MISSING, np.uint8)
    np.minimum.at(marks, found[found >= 0], rows.codes[found >= 0].astype(np.uint8))
    for mark, keys in ((_DEAD, dead), (_BEFORE_START, before_start), (_PENDING, ahead), (_PENDING, open_rows)):
        np.minimum.at(marks, keys >> 16, np.uint8(mark))
    incomplete = _incomplete(np.concatenate([trained, before_start, ahead, open_rows]))
    marks[incomplete >> 16] = _MISSING
    newest = np.concatenate([trained[passes == places.pass_number], ahead, open_rows])
    for number in range(2, places.pass_number + 1):
        there = newest if number == places.pass_number else trained[passes == number]
        marks[np.setdiff1d(trained[passes == 1], there) >> 16] = _MISSING
    elsewhere = [(dead, 1), (before_start, 1), (ahead, places.pass_number)]
    numbers = np.concatenate([passes, *(np.full(len(keys), number) for keys, number in elsewhere)])
    _add_duplicated(result, slots, np.concatenate([trained, dead, before_start, ahead]), numbers)
    _add_missing(result, slots, marks, incomplete)
    for name, count in zip(_COUNTED, np.bincount(marks, minlength=len(_COUNTED)).tolist(), strict=True):
        setattr(result, name, getattr(result, name) + count)
    result.published += slots.count


def _incomplete(keys: Integers) -> Integers:
    """Keys of the parts that are not there though a later part of the same record is; one for each such record."""
    keys = np.unique(keys)
    if not len(keys):
        return keys
    begins = np.flatnonzero(np.concatenate([[True], np.diff(keys >> 16) > 0]))
    number = np.arange(len(keys)) - np.repeat(begins, np.diff([*begins, len(keys)]))
    wrong = np.flatnonzero((keys & 0xFFFF) != number)
    slots, first = np.unique(keys[wrong] >> 16, return_index=True)
    left_out: Integers = slots << 16 | number[wrong[first]]
    return left_out


def _add_duplicated(result: Verification, slots: _Slots, keys: Integers, passes: Integers) -> None:
    order = np.lexsort((passes, keys))
    keys, passes = keys[order], passes[order]
    twice = np.unique(keys[1:][(keys[1:] == keys[:-1]) & (passes[1:] == passes[:-1])])
    records, first = np.unique(twice >> 16, return_index=True)
    result.duplicated += len(records)
    room = EXAMPLES - len(result.duplicated_origins)
    result.duplicated_origins += [slots.origin(key >> 16, key & 0xFFFF) for key in twice[first][:room].tolist()]


def _add_missing(result: Verification, slots: _Slots, marks: npt.NDArray[np.uint8], incomplete: Integers) -> None:
    parts = {key >> 16: key & 0xFFFF for key in incomplete.tolist()}
    room = EXAMPLES - len(result.missing_origins)
    missing = np.flatnonzero(marks == _MISSING)[:room].tolist()
    result.missing_origins += [slots.origin(slot, parts.get(slot, 0)) for slot in missing]
