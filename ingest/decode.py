"""Decode: a run of messages -> RECORDS batches, dead letters, and the positions behind them.

    messages ──┬─ JSON, plain text ── one tight loop over the run ──> one batch for many messages
               └─ Arrow stream ────── read whole, checked ──────────> one batch for every `BULK_ROWS` rows

Every message gives rows or dead letters, never nothing, and the same ones each time it is read. A `Decoded` carries,
for each partition it touched, the next unread record: all that a commit has to say.

Cost: a few microseconds a record. Memory: `RUN_BYTES` of text at a time, or one bulk message.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from headrace.ingest.bulk import FOREIGN, Bulk, read
from headrace.ingest.dead_letters import DeadLetter
from headrace.ingest.fields import Check, FieldRules, Inexact, Pick, Raw, Values, checker, picker
from headrace.pipeline.topics import Message
from headrace.schemas.errors import BadRecord, Reason, UsageError
from headrace.schemas.position import Position
from headrace.schemas.record import ARROW_TYPE, JSON_TYPE, RECORDS, SPLIT_TYPE, TEXT_TYPE, Origin, TextFormat

RUN_BYTES = 1_000_000
BULK_ROWS = 4096

_BOM = b"\xef\xbb\xbf"
_TYPES = {TextFormat.JSON: JSON_TYPE, TextFormat.TEXT: TEXT_TYPE, TextFormat.ARROW: ARROW_TYPE}


@dataclass(frozen=True, slots=True)
class Rules:
    """How the messages of a text topic are read."""

    topic: str
    format: TextFormat
    fields: FieldRules


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
        kind = _content_type(message, _form(message, self.rules.format))
        return DeadLetter(origin, reason, detail, kind, message.value)


def decode(messages: Sequence[Message], rules: Rules, positions: Mapping[int, Position]) -> Iterator[Decoded]:
    """Decode messages that follow `positions`; a position inside a bulk message goes on at its row.

    Raises UsageError for a position inside a message that is not bulk any more.
    """
    pick, check = picker(rules.fields.names), checker(rules.fields)
    run = _Run(rules)
    run_bytes = 0
    for message in messages:
        done = _rows_done(message, positions)
        refused = None
        try:
            form = _form(message, rules.format)
        except BadRecord as error:
            form, refused = TextFormat.JSON, error
        if form is TextFormat.ARROW:
            if run.next:
                yield run.finish()
                run, run_bytes = _Run(rules), 0
            yield from _bulk(message, rules, done)
            continue
        if done:
            raise _moved(rules.topic, message, done)
        try:
            if refused is not None:
                raise refused
            if form is TextFormat.JSON:
                values = _json(message.value, pick, check)
            else:
                values = _text(message.value, rules.fields)
        except BadRecord as error:
            run.refuse(message, 0, error, _content_type(message, form), message.value)
        else:
            run.add(message, 0, values)
        run.next[message.partition] = (message.offset + 1, 0)
        run_bytes += len(message.value)
        if run_bytes >= RUN_BYTES:
            yield run.finish()
            run, run_bytes = _Run(rules), 0
    if run.next:
        yield run.finish()


def detect(message: Message) -> TextFormat:
    """What `auto` takes a message for. Raises BadRecord for a split: the run goes on without it."""
    header = message.header("content-type") if message.headers else None
    if header is not None:
        kind = header.partition(b";")[0].strip().lower().decode(errors="replace")
        if kind == SPLIT_TYPE:
            raise BadRecord(
                Reason.INVALID_SPLIT,
                "the message points at a file (a split), and nothing reads splits yet: publish the file's lines with "
                "`headrace publish FILE`",
            )
        if kind == ARROW_TYPE:
            return TextFormat.ARROW
        if kind in (JSON_TYPE, "text/json") or kind.endswith("+json"):
            return TextFormat.JSON
        if kind.startswith("text/"):
            return TextFormat.TEXT
    value = message.value
    start = len(_BOM) if value.startswith(_BOM) else 0
    return TextFormat.JSON if value[start : start + 1] == b"{" else TextFormat.TEXT


def _form(message: Message, configured: TextFormat) -> TextFormat:
    return configured if configured is not TextFormat.AUTO else detect(message)


class _Run:
    """Columns under construction."""

    __slots__ = ("_bad", "_messages", "_rows", "_rules", "_values", "next")

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._values: list[Values] = []
        self._messages: list[Message] = []
        self._rows: list[int] = []
        self._bad: list[DeadLetter] = []
        self.next: dict[int, tuple[int, int]] = {}

    def add(self, message: Message, row: int, values: Values) -> None:
        self._values.append(values)
        self._messages.append(message)
        self._rows.append(row)

    def refuse(self, message: Message, row: int, error: BadRecord, content_type: str, value: bytes) -> None:
        origin = Origin(self._rules.topic, message.partition, message.offset, row)
        self._bad.append(DeadLetter(origin, error.reason, error.detail, content_type, value))

    def finish(self, bulk: Bulk | None = None) -> Decoded:
        texts, pairs, labels, ids, times = zip(*self._values, strict=True) if self._values else ((),) * 5
        ends = np.cumsum([0, *map(len, labels)], dtype=np.int32)
        messages = self._messages
        columns: list[Any] = [texts, pairs, None, ids, times]
        columns += [
            [message.timestamp_ms for message in messages],
            [message.partition for message in messages],
            [message.offset for message in messages],
            self._rows,
        ]
        arrays = [
            pa.ListArray.from_arrays(ends, pa.array(list(chain.from_iterable(labels)), pa.string()))
            if column is None
            else pa.array(column, kind.type)
            for column, kind in zip(columns, RECORDS, strict=True)
        ]
        records = pa.RecordBatch.from_arrays(arrays, schema=RECORDS)
        return Decoded(records, self._bad, self.next, self._rules, messages, bulk)


def _json(value: bytes, pick: Pick, check: Check) -> Values:
    try:
        record = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        record = _explain(value, error)
    if type(record) is not dict:
        raise BadRecord(Reason.INVALID_JSON, f"a record is a JSON object, this is a {type(record).__name__}")
    try:
        return check(pick(record))
    except Inexact:
        # A number beyond what a float holds, such as a long id: once more, with every digit.
        try:
            exact = json.loads(value, parse_float=Decimal, parse_int=Decimal)
        except (ValueError, ArithmeticError, RecursionError) as error:
            raise BadRecord(Reason.INVALID_FIELD, f"a number that cannot be read: {error}") from error
        return check(pick(exact))


def _explain(value: bytes, error: orjson.JSONDecodeError) -> Any:
    """Say why JSON could not be read; a byte order mark in front is forgiven."""
    if value.startswith(_BOM):
        try:
            return orjson.loads(value[len(_BOM) :])
        except orjson.JSONDecodeError as behind:
            error = behind
    try:
        value.decode()
    except UnicodeDecodeError as broken:
        raise BadRecord(Reason.INVALID_UTF8, f"{broken.reason} at byte {broken.start}") from error
    raise BadRecord(Reason.INVALID_JSON, str(error)) from error


def _text(value: bytes, rules: FieldRules) -> Values:
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise BadRecord(Reason.INVALID_UTF8, f"{error.reason} at byte {error.start}") from error
    text = text.removeprefix("\ufeff")
    if not text or text.isspace():
        raise BadRecord(Reason.EMPTY_TEXT, "the message is empty")
    if len(value) > rules.max_text_bytes:
        raise BadRecord(
            Reason.TEXT_TOO_LONG, f"{len(value)} bytes, ingest.max_text_bytes allows {rules.max_text_bytes}"
        )
    return text, None, (), None, None


def _bulk(message: Message, rules: Rules, done: int) -> Iterator[Decoded]:
    """Rows of a bulk message from row `done` on, `BULK_ROWS` at a time."""
    following = (message.offset + 1, 0)
    run = _Run(rules)
    check = checker(rules.fields)
    try:
        bulk = read(message.value, rules.fields.names)
    except BadRecord as error:
        if done:
            raise _moved(rules.topic, message, done) from error
        run.refuse(message, 0, error, _content_type(message, TextFormat.ARROW), message.value)
        run.next[message.partition] = following
        yield run.finish()
        return
    count = len(bulk.raws)
    if done >= count:
        raise _moved(rules.topic, message, done)
    for start in range(done, count, BULK_ROWS):
        stop = min(start + BULK_ROWS, count)
        for row in range(start, stop):
            try:
                run.add(message, row, _checked(check, bulk.raws[row]))
            except BadRecord as error:
                run.refuse(message, row, error, JSON_TYPE, bulk.row_json(row))
        run.next[message.partition] = (message.offset, stop) if stop < count else following
        yield run.finish(bulk)
        run = _Run(rules)


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


def _content_type(message: Message, form: TextFormat) -> str:
    header = message.header("content-type")
    return header.decode(errors="replace") if header is not None else _TYPES[form]
