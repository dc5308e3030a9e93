"""Lines of files and pipes, each with its number and the byte position behind it, so that reading can go on there.

A line ends with LF or CRLF; the last one may end with the file. A byte order mark at the beginning is dropped.
Memory: one chunk and one line, whatever the size of the file: a line is refused as soon as it is above the bound.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from headrace.schemas.errors import TooLarge, UsageError

CHUNK_BYTES = 1_048_576

_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its end."""

    number: int  # counted from 1
    text: bytes
    end: int  # byte position behind it and its end


@dataclass(frozen=True, slots=True)
class Place:
    """Where reading starts: so many lines are done, and so many bytes."""

    lines: int = 0
    position: int = 0


START = Place()


def lines(name: str, chunks: Iterator[bytes | None], max_bytes: int, start: Place = START) -> Iterator[Line | None]:
    """Cut chunks into lines; None (nothing has come yet) is passed on.

    Raises TooLarge for a line of more than `max_bytes`, naming it.
    """
    number, position, rest = start.lines, start.position, b""
    for chunk in chunks:
        if chunk is None:
            yield None
            continue
        *whole, rest = (rest + chunk).split(b"\n")
        for raw in whole:
            number, position = number + 1, position + len(raw) + 1
            yield Line(number, _checked(name, number, raw, max_bytes), position)
        if len(rest) > max_bytes + len(_BOM) + 1:  # as much again may stand behind it, so refuse it now
            _checked(name, number + 1, rest, max_bytes)
    if rest:
        yield Line(number + 1, _checked(name, number + 1, rest, max_bytes), position + len(rest))


def file_chunks(file: BinaryIO, position: int = 0) -> Iterator[bytes]:
    """Read from `position` to the end."""
    file.seek(position)
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def pipe_chunks(fd: int, wait_s: float) -> Iterator[bytes | None]:
    """Read a pipe or terminal to its end; None each time that nothing has come for `wait_s`."""
    while True:
        ready, _, _ = select.select([fd], [], [], wait_s)
        if not ready:
            yield None
        elif chunk := os.read(fd, CHUNK_BYTES):
            yield chunk
        else:
            return


def _checked(name: str, number: int, raw: bytes, max_bytes: int) -> bytes:
    if number == 1:
        if raw.startswith(_UTF16):
            raise UsageError(f"{name} is UTF-16: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)")
        raw = raw.removeprefix(_BOM)
    text = raw.removesuffix(b"\r")
    if len(text) > max_bytes:
        raise TooLarge(
            f"{name}:{number}: the line has more than the {max_bytes} bytes that the text topic takes: shorten it, or "
            "raise the topic's max.message.bytes"
        )
    return text
