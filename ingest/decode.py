"""Decode: a run of messages -> RECORDS batches, dead letters, and the positions behind them.

    messages ──┬─ JSON, plain text ── scanned together (scan.py) ─────┐
               └─ Arrow stream ────── read whole, checked (bulk.py) ──┴─> columns ──> one batch for many records
                                                                             └─ rows left open ──> values, one by one

Records are decided as columns where their types allow it (columns.py). What is left open, and all that is bad, is
decided one by one (formats.py, fields.py). Every message gives rows or dead letters, never nothing, and the same ones
each time it is read. A `Decoded` carries, for each partition it touched, the next unread record: all that a commit has
to say.

Memory: `RUN_BYTES` of text at a time, or one bulk message, of which a batch takes `BULK_ROWS` rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.ingest import columns, scan
from headrace.ingest.bulk import FOREIGN, Bulk, read
from headrace.ingest.columns import Field
from headrace.ingest.dead_letters import DeadLetter
from headrace.ingest.fields import Check, Inexact, Raw, Values, checker
from headrace.ingest.formats import Rules, content_type, detect, form_of, one_by_one
from headrace.pipeline.topics import Message
from headrace.schemas.errors import BadRecord, Reason, UsageError
from headrace.schemas.position import Position
from headrace.schemas.record import JSON_TYPE, RECORDS, Origin, TextFormat

RUN_BYTES = 1_000_000
BULK_ROWS = 4096

_ARROW = scan.OTHER + 1

# Parts of many messages at once, without Python code for each.
_PARTITION, _OFFSET, _TIME_MS, _BODY, _HEADERS = map(itemgetter, (0, 1, 2, 3, 5))
_VALUE_FIELDS = list(RECORDS)[: len(Field)]


@dataclass(frozen=True, slots=True)
class Decoded:
    """Some records in topic order, and what could not be used among them."""

    records: pa.RecordBatch  # of RECORDS
    bad: list[DeadLetter]
    next: dict[int, tuple[int, int]]  # partition -> (offset, row) of the next unread record
    rules: Rules
    messages: Sequence[Message]  # of each row of `records`
    bulk: Bulk | None = None  # where they are rows of one bulk message

    @property
    def count(self) -> int:
        """Good and bad records."""
        return int(self.records.num_rows) + len(self.bad)

    def dead_letter(self, index: int, reason: Reason, detail: str) -> DeadLetter:
        """The dead letter of a record that decoded well and is refused after all."""
        message, row = self.messages[index], self.records.column("row")[index].as_py()
        origin = Origin(self.rules.topic, message.partition, message.offset, row)
        if self.bulk is not None:
            return DeadLetter(origin, reason, detail, JSON_TYPE, self.bulk.row_json(row))
        kind = content_type(message, form_of(message, self.rules))
        return DeadLetter(origin, reason, detail, kind, message.value)


def decode(messages: Sequence[Message], rules: Rules, positions: Mapping[int, Position]) -> Iterator[Decoded]:
    """Decode messages that follow `positions`; a position inside a bulk message goes on at its row.

    Raises UsageError for a position inside a message that is not bulk any more.
    """
    inside = {partition: position for partition, position in positions.items() if position.row}
    forms = _forms(messages, rules)
    sizes = np.cumsum(np.fromiter(map(len, map(_BODY, messages)), np.int64, len(messages)))
    cuts = np.flatnonzero(forms == _ARROW)
    begin = done_bytes = 0
    while begin < len(messages):
        first = messages[begin]
        if forms[begin] == _ARROW:
            end = begin + 1
            yield from _bulk(first, rules, _rows_done(first, inside))
        else:
            cut = np.searchsorted(cuts, begin)
            full = int(np.searchsorted(sizes, done_bytes + RUN_BYTES)) + 1
            end = min(full, int(cuts[cut]) if cut < len(cuts) else len(messages))
            yield _run(messages[begin:end], forms[begin:end], rules, inside)
        begin, done_bytes = end, int(sizes[end - 1])


def _forms(messages: Sequence[Message], rules: Rules) -> npt.NDArray[np.uint8]:
    """What the scan is to take each message for, or _ARROW."""
    codes = {TextFormat.TEXT: scan.PLAIN, TextFormat.ARROW: _ARROW, TextFormat.AUTO: scan.GUESS}
    codes[TextFormat.JSON] = scan.JSON if scan.can_scan(rules.fields.names) else scan.OTHER
    forms = np.full(len(messages), codes[rules.format], np.uint8)
    sure = codes[TextFormat.JSON] == scan.JSON
    if rules.format is TextFormat.AUTO and (not sure or any(map(_HEADERS, messages))):
        for index, message in enumerate(messages):
            if message.headers or not sure:
                try:
                    forms[index] = codes[detect(message)]
                except BadRecord:  # whose reason is told where it is refused
                    forms[index] = scan.OTHER
    return forms


def _run(
    messages: Sequence[Message], forms: npt.NDArray[np.uint8], rules: Rules, inside: Mapping[int, Position]
) -> Decoded:
    """Messages of one record each."""
    for message in messages if inside else ():
        if done := _rows_done(message, inside):
            raise _moved(rules.topic, message, done)
    bodies, partitions, offsets = (list(map(part, messages)) for part in (_BODY, _PARTITION, _OFFSET))
    fields, unscanned = scan.scan(bodies, forms, rules.fields.names)
    arrays, left_open = columns.check(fields, len(messages), rules.fields)
    left_open |= unscanned
    closed: dict[int, Values] = {}
    bad = []
    values_of = one_by_one(rules)
    for index in np.flatnonzero(left_open).tolist():
        message = messages[index]
        try:
            closed[index] = values_of(message)
        except BadRecord as error:
            origin = Origin(rules.topic, message.partition, message.offset)
            bad.append(DeadLetter(origin, error.reason, error.detail, _kind(message, rules), message.value))
    origins = [
        pa.array(list(map(_TIME_MS, messages)), pa.timestamp("ms")),
        pa.array(partitions, pa.int32()),
        pa.array(offsets, pa.int64()),
    ]
    rows = pa.array(np.zeros(len(messages), np.int64))
    records, kept = _merged([*arrays, *origins, rows], left_open, closed)
    last = dict(zip(partitions, offsets, strict=True))
    following = {partition: (offset + 1, 0) for partition, offset in last.items()}
    return Decoded(
        records, bad, following, rules, messages if kept is None else [messages[index] for index in kept.tolist()]
    )


def _bulk(message: Message, rules: Rules, done: int) -> Iterator[Decoded]:
    """Rows of a bulk message from row `done` on, `BULK_ROWS` at a time."""
    partition, following = message.partition, (message.offset + 1, 0)
    try:
        bulk = read(message.value, rules.fields.names)
    except BadRecord as error:
        if done:
            raise _moved(rules.topic, message, done) from error
        origin = Origin(rules.topic, partition, message.offset)
        letter = DeadLetter(origin, error.reason, error.detail, content_type(message, TextFormat.ARROW), message.value)
        yield Decoded(pa.RecordBatch.from_pylist([], RECORDS), [letter], {partition: following}, rules, [])
        return
    count = bulk.table.num_rows
    if done >= count:
        raise _moved(rules.topic, message, done)
    for start in range(done, count, BULK_ROWS):
        stop = min(start + BULK_ROWS, count)
        decoded = _bulk_rows(message, bulk, range(start, stop), rules)
        decoded.next[partition] = (message.offset, stop) if stop < count else following
        yield decoded


def _bulk_rows(message: Message, bulk: Bulk, rows: range, rules: Rules) -> Decoded:
    count = len(rows)
    arrays, left_open = columns.check(bulk.columns(rows.start, rows.stop), count, rules.fields)
    closed: dict[int, Values] = {}
    bad = []
    check = checker(rules.fields)
    indices = np.flatnonzero(left_open).tolist()
    for index, raw in zip(indices, bulk.raws([rows[index] for index in indices]), strict=True):
        try:
            closed[index] = _checked(check, raw)
        except BadRecord as error:
            origin = Origin(rules.topic, message.partition, message.offset, rows[index])
            bad.append(DeadLetter(origin, error.reason, error.detail, JSON_TYPE, bulk.row_json(rows[index])))
    origins = [
        pa.repeat(pa.scalar(message.timestamp_ms, pa.timestamp("ms")), count),
        pa.repeat(pa.scalar(message.partition, pa.int32()), count),
        pa.repeat(pa.scalar(message.offset, pa.int64()), count),
        pa.array(np.arange(rows.start, rows.stop, dtype=np.int64)),
    ]
    records, _ = _merged([*arrays, *origins], left_open, closed)
    return Decoded(records, bad, {}, rules, [message] * records.num_rows, bulk)


def _merged(
    arrays: list[pa.Array], left_open: columns.Mask, closed: Mapping[int, Values]
) -> tuple[pa.RecordBatch, npt.NDArray[np.int64] | None]:
    """Records of the rows that were decided as columns and of those `closed` since, in their order.

    Also which rows these are; None where they are all.
    """
    if not left_open.any():
        return pa.RecordBatch.from_arrays(arrays, schema=RECORDS), None
    kept = np.concatenate([np.flatnonzero(~left_open), np.fromiter(closed, np.int64, len(closed))])
    order = np.argsort(kept)
    kept, places = kept[order], pa.array(order)
    decided = [array.filter(pa.array(~left_open)) for array in arrays[: len(Field)]]
    chosen = [
        pa.concat_arrays([array, one_by_one]).take(places)
        for array, one_by_one in zip(decided, _arrays(list(closed.values())), strict=True)
    ]
    chosen += [array.take(pa.array(kept)) for array in arrays[len(Field) :]]
    return pa.RecordBatch.from_arrays(chosen, schema=RECORDS), kept


def _arrays(values: Sequence[Values]) -> list[pa.Array]:
    fields: list[Any] = [list(field) for field in zip(*values, strict=True)] or [[]] * len(Field)
    ends = np.cumsum([0, *map(len, fields[Field.LABEL])], dtype=np.int32)
    labels = pa.array(list(chain.from_iterable(fields[Field.LABEL])), pa.string())
    return [
        pa.ListArray.from_arrays(ends, labels) if field is Field.LABEL else pa.array(column, kind.type)
        for field, column, kind in zip(Field, fields, _VALUE_FIELDS, strict=True)
    ]


def _kind(message: Message, rules: Rules) -> str:
    """The content type of a message that may be none that is read."""
    try:
        form = form_of(message, rules)
    except BadRecord:
        form = TextFormat.JSON
    return content_type(message, form)


def _checked(check: Check, raw: Raw) -> Values:
    """Arrow has values that no rule foresees: they are bad, the run goes on."""
    try:
        return check(raw)
    except (Inexact, *FOREIGN) as error:
        detail = f"a value that cannot be read: {type(error).__name__}: {str(error)[:200]}"
        raise BadRecord(Reason.INVALID_FIELD, detail) from error


def _rows_done(message: Message, positions: Mapping[int, Position]) -> int:
    position = positions.get(message.partition)
    return position.row if position is not None and position.offset == message.offset else 0


def _moved(topic: str, message: Message, done: int) -> UsageError:
    return UsageError(
        f"{topic}/{message.partition}@{message.offset} was read up to row {done} and has no such row now: set "
        "text.format and text.fields back to what they were until ingest has passed it"
    )
