"""Decode: a run of messages -> RECORDS batches, dead letters, and the positions behind them.

    messages ──┬─ JSON, plain text ── scanned together (scan.py) ─────┐
               └─ Arrow stream ────── read whole, checked (bulk.py) ──┴─> columns ──> one batch for many records
                                                                             └─ rows left open ──> values, one by one

Records are decided as columns where their types allow it (columns.py). What is left open, and all that is bad, is
decided one by one (formats.py, fields.py). Every message gives rows or dead letters, never nothing, and the same ones
each time it is read. A `Decoded` carries, for each partition it touched, the next unread record: all that a commit has
to say.

Memory: `RUN_BYTES` of text at a time, or one bulk message, of which a batch takes `BULK_ROWS` rows. Bulk messages that
are smaller are put together: each batch costs some tenths of a millisecond, however few its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
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

_VALUE_FIELDS = list(RECORDS)[: len(Field)]


@dataclass(frozen=True, slots=True)
class Decoded:
    """Some records in topic order, and what could not be used among them."""

    records: pa.RecordBatch  # of RECORDS
    bad: list[DeadLetter]
    next: dict[int, tuple[int, int]]  # partition -> (offset, row) of the next unread record
    rules: Rules
    messages: Sequence[Message]  # of each row of `records`
    bulks: Mapping[tuple[int, int], Bulk] = field(default_factory=dict)  # (partition, offset) -> the bulk message there

    @property
    def count(self) -> int:
        """Good and bad records."""
        return int(self.records.num_rows) + len(self.bad)

    def dead_letter(self, index: int, reason: Reason, detail: str) -> DeadLetter:
        """The dead letter of a record that decoded well and is refused after all."""
        message, row = self.messages[index], self.records.column("row")[index].as_py()
        origin = Origin(self.rules.topic, message.partition, message.offset, row)
        bulk = self.bulks.get((message.partition, message.offset))
        if bulk is not None:
            return DeadLetter(origin, reason, detail, JSON_TYPE, bulk.row_json(row))
        kind = content_type(message, form_of(message, self.rules))
        return DeadLetter(origin, reason, detail, kind, message.value)


def decode(messages: Sequence[Message], rules: Rules, positions: Mapping[int, Position]) -> Iterator[Decoded]:
    """Decode messages that follow `positions`; a position inside a bulk message goes on at its row.

    Raises UsageError for a position inside a message that is not bulk any more.
    """
    if not messages:
        return
    inside = {partition: position for partition, position in positions.items() if position.row}
    # Parts of all messages at once, without Python code for each.
    partitions, offsets, times_ms, bodies, _, headers = zip(*messages, strict=True)
    forms = _forms(messages, headers, rules)
    bounds = np.zeros(len(bodies) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, bodies), np.int64, len(bodies)), out=bounds[1:])
    is_bulk = forms == _ARROW
    cuts = np.flatnonzero(np.diff(is_bulk)) + 1
    begin = 0
    while begin < len(messages):
        cut = np.searchsorted(cuts, begin, side="right")
        end = int(cuts[cut]) if cut < len(cuts) else len(messages)
        if is_bulk[begin]:
            pieces = (_bulk(message, rules, _rows_done(message, inside)) for message in messages[begin:end])
            yield from _together(chain.from_iterable(pieces))
        else:
            end = min(end, int(np.searchsorted(bounds[1:], bounds[begin] + RUN_BYTES)) + 1)
            run = slice(begin, end)
            joined, inner = b"".join(bodies[run]), bounds[begin : end + 1] - bounds[begin]
            scanned = scan.scan(joined, inner, forms[run], rules.fields.names)
            origins = [
                pa.array(np.array(times_ms[run], np.int64)).view(pa.timestamp("ms")),
                pa.array(np.array(partitions[run], np.int32)),
                pa.array(np.array(offsets[run], np.int64)),
            ]
            yield _run(messages[run], scanned, origins, rules, inside)
        begin = end


def _forms(
    messages: Sequence[Message], headers: Sequence[Sequence[tuple[str, bytes]]], rules: Rules
) -> npt.NDArray[np.uint8]:
    """What the scan is to take each message for, or _ARROW."""
    codes = {TextFormat.TEXT: scan.PLAIN, TextFormat.ARROW: _ARROW, TextFormat.AUTO: scan.GUESS}
    codes[TextFormat.JSON] = scan.JSON if scan.can_scan(rules.fields.names) else scan.OTHER
    forms = np.full(len(messages), codes[rules.format], np.uint8)
    sure = codes[TextFormat.JSON] == scan.JSON
    if rules.format is TextFormat.AUTO and (not sure or any(headers)):
        for index, message in enumerate(messages):
            if message.headers or not sure:
                try:
                    forms[index] = codes[detect(message)]
                except BadRecord:  # whose reason is told where it is refused
                    forms[index] = scan.OTHER
    return forms


def _run(
    messages: Sequence[Message],
    scanned: tuple[columns.Columns, columns.Mask],
    origins: list[pa.Array],
    rules: Rules,
    inside: Mapping[int, Position],
) -> Decoded:
    """Messages of one record each, scanned. `origins`: their times, partitions and offsets."""
    for message in messages if inside else ():
        if done := _rows_done(message, inside):
            raise _moved(rules.topic, message, done)
    fields, unscanned = scanned
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
    rows = pa.array(np.zeros(len(messages), np.int64))
    records, kept = _merged([*arrays, *origins, rows], left_open, closed)
    of_rows = messages if kept is None else [messages[index] for index in kept.tolist()]
    return Decoded(records, bad, _following(*origins[1:]), rules, of_rows)


def _following(partitions: pa.Int32Array, offsets: pa.Int64Array) -> dict[int, tuple[int, int]]:
    """The position behind the last message of each partition."""
    numbers = partitions.to_numpy()
    last = np.zeros(int(numbers.max()) + 1, np.int64)
    last[numbers] = offsets.to_numpy()  # of several the last one stays
    return {int(number): (int(last[number]) + 1, 0) for number in np.flatnonzero(np.bincount(numbers))}


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
    raws = bulk.raws([rows[index] for index in indices]) if indices else []
    for index, raw in zip(indices, raws, strict=True):
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
    bulks = {(message.partition, message.offset): bulk}
    return Decoded(records, bad, {}, rules, [message] * records.num_rows, bulks)


def _together(pieces: Iterator[Decoded]) -> Iterator[Decoded]:
    """Small bulk messages as one: what follows costs nearly as much for a few rows as for thousands."""
    waiting: list[Decoded] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += piece.records.nbytes
        goes_on = any(row for _, row in piece.next.values())  # in the next piece
        if goes_on or size >= RUN_BYTES:
            yield _joined(waiting)
            waiting, size = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(pieces: Sequence[Decoded]) -> Decoded:
    if len(pieces) == 1:
        return pieces[0]
    return Decoded(
        pa.concat_batches([piece.records for piece in pieces]),
        list(chain.from_iterable(piece.bad for piece in pieces)),
        dict(chain.from_iterable(piece.next.items() for piece in pieces)),
        pieces[0].rules,
        list(chain.from_iterable(piece.messages for piece in pieces)),
        dict(chain.from_iterable(piece.bulks.items() for piece in pieces)),
    )


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
