"""Publish: the lines of a file (or of standard input) as messages of the text topic, each exactly once.

Opening the writer of a file fences a publication of the same file that still runs; then it is read where the last one
stopped, and lines are sent in transactions (`ingest.sending`). Each of them carries the file's position: lines done,
bytes done, and a mark of what the file held up to there. So lines and the position behind them are committed together:
a publication that was killed goes on where it stopped, at no cost (the file is seeked), and publishes no line twice.
What stands before the position must be what stood there: the mark is a hash of the file's head and of what lies just
before the position. Standard input has no position.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from headrace.ingest.sending import Control, Progress, Published, Sending
from headrace.ingest.sources.files import LineFormat, file_format, open_file
from headrace.ingest.sources.lines import Place, file_chunks, lines, pipe_chunks
from headrace.pipeline import names
from headrace.pipeline.topics import Broker, Headers, Topic
from headrace.schemas.errors import TopicError, UsageError
from headrace.schemas.position import Position
from headrace.schemas.record import JSON_TYPE, TEXT_TYPE

__all__ = ["Control", "Progress", "Published", "publish_file", "publish_pipe"]

DEFAULT_CONTROL = Control()

_OVERHEAD_BYTES = 1024  # what a broker adds to a message, and more
_MARK_BYTES = 65_536
_PIPE_WAIT_S = 0.2  # a pipe is left alone for so long before what it gave is committed

_TYPES: dict[LineFormat, str] = {"text": TEXT_TYPE, "json": JSON_TYPE}


def publish_file(
    broker: Broker, topic: str, path: Path, *, again: bool = False, control: Control = DEFAULT_CONTROL
) -> Published:
    """Publish a .txt file (a text a line) or a .jsonl file (an object a line), going on where the last call stopped.

    A file that was published to its end is left alone unless `again`. Raises UsageError for a file of another kind,
    or one that has changed before its position; TooLarge names the line that the topic does not take.
    """
    form = file_format(path, "publish")
    found = _describe(broker, topic)
    source = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]
    group = names.publish_group(topic, source)
    with open_file(path) as file, closing(broker.writer(group)) as writer:
        before = broker.positions(group, topic).get(0)  # after the writer, which stops whoever may move it
        start = Place() if before is None or again else _resume(file, path, before)
        size = os.fstat(file.fileno()).st_size
        read = lines(str(path), file_chunks(file, start.position), found.max_message_bytes - _OVERHEAD_BYTES, start)

        def commit(end: Place) -> None:
            notes: dict[str, object] = {"bytes": end.position, "size": size, "mark": mark(file.fileno(), end.position)}
            writer.commit(group, topic, {0: Position(end.lines, notes=notes)})

        return Sending(writer, found, _headers(form), commit, control).run(str(path), read, start, size)


def publish_pipe(
    broker: Broker, topic: str, fd: int, *, form: LineFormat | None = None, control: Control = DEFAULT_CONTROL
) -> Published:
    """Publish the lines of standard input. Without `form`, ingest tells JSON from text by the first byte.

    A pipe cannot be resumed: what was committed before a kill stays published, the rest is the sender's to send again.
    """
    name = "standard input"
    found = _describe(broker, topic)
    group = names.publish_group(topic, f"pipe-{uuid.uuid4().hex[:16]}")
    with closing(broker.writer(group)) as writer:
        read = lines(name, pipe_chunks(fd, _PIPE_WAIT_S), found.max_message_bytes - _OVERHEAD_BYTES)

        def commit(end: Place) -> None:
            writer.commit(group, topic, {})

        return Sending(writer, found, _headers(form), commit, control).run(name, read, Place(), None)


def mark(fd: int, position: int) -> str:
    """Stands for what a file holds before `position`: a hash of its head and of its end there."""
    head = os.pread(fd, min(_MARK_BYTES, position), 0)
    tail_bytes = min(_MARK_BYTES, position)
    tail = os.pread(fd, tail_bytes, position - tail_bytes)
    return hashlib.sha256(head + tail).hexdigest()[:32]


def _resume(file: BinaryIO, path: Path, before: Position) -> Place:
    """Where the last publication of this file stopped. Raises UsageError when that is not this file any more."""
    done = before.notes.get("bytes")
    size = os.fstat(file.fileno()).st_size
    if not isinstance(done, int) or size < done or mark(file.fileno(), done) != before.notes.get("mark"):
        raise UsageError(
            f"{path} is not the file that was published up to line {before.offset}: what stood there has changed. "
            "Give the new file a name of its own, or publish all of it with `--again`"
        )
    if 0 < done < size:
        joint = os.pread(file.fileno(), 2, done - 1)
        if joint[:1] != b"\n" and joint[1:] not in (b"\n", b"\r"):
            raise UsageError(
                f"{path}:{before.offset}: the line was published and has grown since: end files with a line feed, and "
                "publish all of it with `--again`"
            )
    return Place(before.offset, done)


def _describe(broker: Broker, topic: str) -> Topic:
    found = broker.describe(topic)
    if found is None:
        raise TopicError(f"topic {topic!r} does not exist on {broker.address}: make it with `headrace topics create`")
    return found


def _headers(form: LineFormat | None) -> Headers:
    return () if form is None else (("content-type", _TYPES[form].encode()),)
