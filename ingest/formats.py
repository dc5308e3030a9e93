"""Formats: what a message is taken for, and the values of one JSON or plain text message, or why it has none.

This is what JSON means here: orjson's reading. The scan (scan.py) is quicker and leaves to it what it is not certain
of. Cost: 4 microseconds a message.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import orjson

from headrace.ingest.fields import Check, FieldRules, Inexact, Pick, Values, checker, picker
from headrace.pipeline.topics import Message
from headrace.schemas.errors import BadRecord, Reason
from headrace.schemas.record import ARROW_TYPE, JSON_TYPE, SPLIT_TYPE, TEXT_TYPE, TextFormat

_BOM = b"\xef\xbb\xbf"
_TYPES = {TextFormat.JSON: JSON_TYPE, TextFormat.TEXT: TEXT_TYPE, TextFormat.ARROW: ARROW_TYPE}
_FORMS = {kind.encode(): form for form, kind in _TYPES.items()}


@dataclass(frozen=True, slots=True)
class Rules:
    """How the messages of a text topic are read."""

    topic: str
    format: TextFormat
    fields: FieldRules


def detect(message: Message) -> TextFormat:
    """What `auto` takes a message for. Raises BadRecord for a split: the run goes on without it."""
    header = message.header("content-type") if message.headers else None
    if header is not None:
        if header in _FORMS:
            return _FORMS[header]
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


def form_of(message: Message, rules: Rules) -> TextFormat:
    """How a message is read. Raises BadRecord for one that nothing reads yet."""
    return rules.format if rules.format is not TextFormat.AUTO else detect(message)


def content_type(message: Message, form: TextFormat) -> str:
    """What the message says of itself, else what it was taken for."""
    header = message.header("content-type")
    return header.decode(errors="replace") if header is not None else _TYPES[form]


def one_by_one(rules: Rules) -> Callable[[Message], Values]:
    """Return the function that reads a message of one record. It raises BadRecord."""
    pick, check = picker(rules.fields.names), checker(rules.fields)

    def values_of(message: Message) -> Values:
        if form_of(message, rules) is TextFormat.TEXT:
            return _text(message.value, rules.fields)
        return _json(message.value, pick, check)

    return values_of


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
