"""Dead letters: what could not be used, kept with the reason, and the limit on how many there may be.

A dead letter's message holds the original bytes as its value and all the rest in headers, so that a retry sends on
what came in and any Kafka tool can look at it. Bytes that its topic would not take are cut, with their length and
SHA-256: a message that cannot be appended would abort its transaction for ever.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.pipeline.topics import Headers, Message
from headrace.schemas.errors import BadRecord, Reason, Stop
from headrace.schemas.record import Origin

#: The limit looks at so many records.
WINDOW_RECORDS = 1000

_DETAIL_CHARS = 300
_OVERHEAD_BYTES = 1024  # what a broker adds to a message, and more

_CURES = {
    Reason.INVALID_UTF8: "publish UTF-8",
    Reason.INVALID_JSON: "set text.format to what the topic holds",
    Reason.INVALID_ARROW: "set text.format to what the topic holds",
    Reason.INVALID_SPLIT: "publish the lines of the files with `headrace publish FILE`, as nothing reads splits yet",
    Reason.MISSING_TEXT: "set text.fields.text to the field that holds the text",
    Reason.EMPTY_TEXT: "set text.fields.text to the field that holds the text",
    Reason.TEXT_TOO_LONG: "raise ingest.max_text_bytes, or set tokenizer.long_text to truncate",
    Reason.INVALID_FIELD: "set text.fields to the fields that hold single values",
    Reason.UNKNOWN_LABEL: "complete train.task.labels, or set ingest.labels to keep",
}


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One unusable record (or message) with its origin. `value` is what was published, or its head."""

    origin: Origin
    reason: Reason
    detail: str
    content_type: str
    value: bytes
    length: int | None = None  # of the original value, where `value` is only its head
    sha256: str = ""  # likewise

    @property
    def truncated(self) -> bool:
        return self.length is not None


def encode(letter: DeadLetter, max_message_bytes: int) -> tuple[bytes, Headers]:
    """Value and headers of the message, which together stay below what the topic takes."""
    origin = letter.origin
    headers = [
        ("reason", letter.reason.encode()),
        ("detail", letter.detail[:_DETAIL_CHARS].encode(errors="replace")),
        ("topic", origin.topic.encode()),
        ("partition", str(origin.partition).encode()),
        ("offset", str(origin.offset).encode()),
        ("row", str(origin.row).encode()),
        ("content-type", letter.content_type[:_DETAIL_CHARS].encode(errors="replace")),
    ]
    taken = _OVERHEAD_BYTES + sum(len(name) + len(value) for name, value in headers)
    room = max(0, max_message_bytes - taken)
    if len(letter.value) <= room:
        return letter.value, headers
    headers += [
        ("truncated", b"true"),
        ("length", str(len(letter.value)).encode()),
        ("sha256", hashlib.sha256(letter.value).hexdigest().encode()),
    ]
    return letter.value[:room], headers


def decode(message: Message) -> DeadLetter:
    """Read a dead letter back. Raises BadRecord for a message that is none."""
    headers = {name: value.decode(errors="replace") for name, value in message.headers}
    try:
        length = int(headers["length"]) if "truncated" in headers else None
        origin = Origin(headers["topic"], int(headers["partition"]), int(headers["offset"]), int(headers["row"]))
        return DeadLetter(
            origin=origin,
            reason=Reason(headers["reason"]),
            detail=headers["detail"],
            content_type=headers["content-type"],
            value=message.value,
            length=length,
            sha256=headers.get("sha256", ""),
        )
    except (KeyError, ValueError) as error:
        raise BadRecord(
            Reason.INVALID_FIELD,
            f"partition {message.partition} offset {message.offset} of the dead letters topic holds no dead letter: "
            "another program writes there",
        ) from error


class Limit:
    """Stops ingest when too many records are bad: that is a wrong setting, not bad records.

    Counts whole runs of records, the newest that hold at least `WINDOW_RECORDS`: bad records stand anywhere in a run.
    """

    def __init__(self, max_share: float) -> None:
        self._max_share = max_share
        self._runs: deque[tuple[int, list[DeadLetter]]] = deque()
        self._records = 0

    def add(self, records: int, bad: Sequence[DeadLetter]) -> None:
        """Count a run of `records`, of which `bad` are. Raises Stop with the most common reason and its cure."""
        # Only reasons and details are kept, not the letters' bytes.
        self._runs.append((records, [_without_value(letter) for letter in bad]))
        self._records += records
        while self._records - self._runs[0][0] >= WINDOW_RECORDS:
            self._records -= self._runs.popleft()[0]
        if self._records >= WINDOW_RECORDS:
            self._check()

    def _check(self) -> None:
        bad = [letter for _, letters in self._runs for letter in letters]
        if len(bad) <= self._max_share * self._records:
            return
        reason, count = Counter(letter.reason for letter in bad).most_common(1)[0]
        newest = next(letter for letter in reversed(bad) if letter.reason == reason)
        raise Stop(
            f"{len(bad)} of the last {self._records} records are bad, {count} of them with {reason} "
            f"(such as {newest.origin}: {newest.detail}), and ingest.dead_letters.max_share is {self._max_share}: "
            f"{_CURES.get(reason, 'look at the dead letters')}, or raise the share"
        )


def _without_value(letter: DeadLetter) -> DeadLetter:
    return DeadLetter(letter.origin, letter.reason, letter.detail, letter.content_type, b"")
