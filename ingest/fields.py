"""Fields: raw values of one record -> the values of a RECORDS row, or the reason why it is a dead letter.

JSON and Arrow end here, so one rule holds for both: a scalar becomes text (numbers their decimal text, booleans
`true` and `false`, null and NaN mean absent), a label may be a list of scalars, a nested object where a scalar should
be is an INVALID_FIELD, a timestamp is ISO 8601 (without an offset: UTC) or milliseconds since 1970. The text itself is
kept as it is; only one that is empty after stripping is refused.

Ids and labels are bounded, so that no row can outgrow the tokens topic's messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from headrace.pipeline.config import FieldNames
from headrace.schemas.errors import BadRecord, Reason

MAX_ID_CHARS = 1024
MAX_LABEL_CHARS = 1024
MAX_LABELS = 64

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
FIRST_MS = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
LAST_MS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
_EXACT = 2.0**53  # floats from here on may stand for another number than was written
_MAX_DIGITS = 400  # more than any double needs, and `1e-999999999` must not become a gigabyte of zeros
_BASIC_DATE_CHARS = 8  # 20261123 is a date, longer digits are milliseconds


class Inexact(Exception):
    """A number was read as a float that cannot hold it: read the record again with decimals."""


#: Text, pair, labels, id, timestamp in milliseconds: what one record says. Plain tuples, as there are millions.
Values = tuple[str, str | None, Sequence[str], str | None, int | None]

#: The same five as the producer wrote them; None where absent.
Raw = tuple[Any, Any, Any, Any, Any]

Pick = Callable[[Mapping[str, Any]], Raw]
Check = Callable[[Raw], Values]


@dataclass(frozen=True, slots=True)
class FieldRules:
    """What makes a record acceptable."""

    names: FieldNames
    max_text_bytes: int
    labels: frozenset[str] | None = None  # None: any label will do


def picker(names: FieldNames) -> Pick:
    """Return the function that takes the five raw values out of a record."""
    wanted = (names.text, names.pair, names.label, names.id, names.timestamp)
    if any("." in name for name in wanted):
        paths = [name.split(".") for name in wanted]
        return lambda record: tuple(_descend(record, path) for path in paths)
    text, pair, label, id_, timestamp = wanted

    def pick(record: Mapping[str, Any]) -> Raw:
        get = record.get
        return get(text), get(pair), get(label), get(id_), get(timestamp)

    return pick


def _descend(record: Any, path: Sequence[str]) -> Any:
    """A dotted name reaches into nested objects; what is not there is None."""
    for key in path:
        if not isinstance(record, dict):
            return None
        record = record.get(key)
    return record


def checker(rules: FieldRules) -> Check:
    """Return the function that turns raw values into a row's.

    It raises BadRecord with the reason, naming the field, and Inexact as that says. The usual cases are decided inline.
    """
    names, known, max_bytes = rules.names, rules.labels, rules.max_text_bytes
    short_chars = max_bytes // 4  # no character has more than four bytes

    def check(raw: Raw) -> Values:
        text, pair, label, id_, timestamp = raw
        if type(text) is not str:
            text = _scalar(text, names.text)
            if text is None:
                raise BadRecord(Reason.MISSING_TEXT, f"there is no field {names.text!r} (text.fields.text)")
        if not text or text.isspace():
            raise BadRecord(Reason.EMPTY_TEXT, f"{names.text!r} is empty")
        if len(text) > short_chars:
            _check_length(text, names.text, max_bytes)
        if pair is not None:
            pair = _pair(pair, names.pair, max_bytes)
        labels: Sequence[str] = ()
        if type(label) is str and len(label) <= MAX_LABEL_CHARS and (known is None or label in known):
            labels = (label,)
        elif label is not None:
            labels = _labels(label, rules)
        if id_ is not None and not (type(id_) is str and 0 < len(id_) <= MAX_ID_CHARS):
            id_ = _id(id_, names.id)
        if timestamp is not None:
            timestamp = _timestamp_ms(timestamp, names.timestamp)
        return text, pair, labels, id_, timestamp

    return check


def _scalar(value: Any, name: str) -> str | None:
    """The text of a scalar; None for what is absent."""
    kind = type(value)
    if kind is str:
        return str(value)
    if value is None:
        return None
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        return str(value)
    if kind is float:
        return _float(value, name)
    if kind is Decimal:
        return _decimal(value, name)
    if kind is bytes:
        try:
            return str(value, "utf-8")
        except UnicodeDecodeError as error:
            raise BadRecord(Reason.INVALID_UTF8, f"{name!r} is not UTF-8: {error.reason}") from error
    raise BadRecord(Reason.INVALID_FIELD, f"{name!r} is {_article(value)}, a single value is expected")


def _float(value: float, name: str) -> str | None:
    if value != value:  # NaN: tables write it for a missing value
        return None
    if abs(value) >= _EXACT:
        raise Inexact
    return _decimal(Decimal(repr(value)), name)


def _decimal(value: Decimal, name: str) -> str:
    if not value.is_finite() or abs(value.adjusted()) > _MAX_DIGITS or len(value.as_tuple().digits) > _MAX_DIGITS:
        raise BadRecord(Reason.INVALID_FIELD, f"{name!r} is a number beyond any use")
    return format(value, "f")


def _pair(value: Any, name: str, max_bytes: int) -> str | None:
    """A blank pair is an absent one."""
    text = _scalar(value, name)
    if text is None or not text or text.isspace():
        return None
    _check_length(text, name, max_bytes)
    return text


def _check_length(text: str, name: str, max_bytes: int) -> None:
    length = len(text.encode())
    if length > max_bytes:
        raise BadRecord(Reason.TEXT_TOO_LONG, f"{name!r} has {length} bytes, ingest.max_text_bytes allows {max_bytes}")


def _labels(value: Any, rules: FieldRules) -> list[str]:
    name = rules.names.label
    items = value if type(value) is list else [value]
    if len(items) > MAX_LABELS:
        raise BadRecord(Reason.INVALID_FIELD, f"{name!r} has {len(items)} labels, at most {MAX_LABELS} are taken")
    labels = [label for item in items if (label := _scalar(item, name)) is not None]
    for label in labels:
        if len(label) > MAX_LABEL_CHARS:
            raise BadRecord(Reason.INVALID_FIELD, f"{name!r} has a label of more than {MAX_LABEL_CHARS} characters")
        if rules.labels is not None and label not in rules.labels:
            raise BadRecord(Reason.UNKNOWN_LABEL, f"{label[:100]!r} is not in train.task.labels")
    return labels


def _id(value: Any, name: str) -> str | None:
    """An empty id is none: it would send all such records to one bucket."""
    text = _scalar(value, name)
    if text is not None and len(text) > MAX_ID_CHARS:
        raise BadRecord(Reason.INVALID_FIELD, f"{name!r} has more than {MAX_ID_CHARS} characters")
    return text or None


def _timestamp_ms(value: Any, name: str) -> int | None:
    if value != value:
        return None
    if type(value) is str:
        if not value:
            return None
        number = value.isascii() and value.isdecimal() and len(value) > _BASIC_DATE_CHARS
        time_ms = _whole(Decimal(value), name) if number else _iso_ms(value, name)
    elif type(value) in (int, float, Decimal):
        time_ms = _whole(value, name)
    else:
        raise BadRecord(Reason.INVALID_FIELD, f"{name!r} is {_article(value)}, ISO 8601 or milliseconds are expected")
    if not FIRST_MS <= time_ms <= LAST_MS:
        raise BadRecord(Reason.INVALID_FIELD, f"{name!r} lies outside the years 1 to 9999 (milliseconds are expected)")
    return time_ms


def _whole(value: Any, name: str) -> int:
    """Whole milliseconds; far too large numbers are left far too large without being spelt out."""
    if not abs(value) <= _EXACT:
        raise BadRecord(Reason.INVALID_FIELD, f"{name!r} lies outside the years 1 to 9999 (milliseconds are expected)")
    return int(value)


def _iso_ms(text: str, name: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadRecord(
            Reason.INVALID_FIELD, f"{name!r} is {text[:40]!r}, ISO 8601 or milliseconds are expected"
        ) from error
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _MILLISECOND


def _article(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", bool: "a boolean", tuple: "a list"}
    return kinds.get(type(value), f"a {type(value).__name__}")
