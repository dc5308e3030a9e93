"""Texts: of files, of standard input and of a topic, each read once and only to look at.

Records are decoded as ingest decodes them: what would become a dead letter is counted by its reason and left out. A
topic is read from its start to the end it has at the first look, without a consumer group: nothing that ingest does is
seen from outside or disturbed. Memory: `RUN_LINES` lines or `RUN_BYTES` of them, or what one poll brings.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.ingest.decode import decode
from headrace.ingest.formats import Rules
from headrace.ingest.sources.files import file_format, open_file
from headrace.ingest.sources.lines import Line, file_chunks, lines, pipe_chunks
from headrace.pipeline import scan
from headrace.pipeline.topics import Broker, Ends, Message
from headrace.schemas.errors import Reason, TooLarge, TopicError, UsageError
from headrace.schemas.record import TextFormat

RUN_LINES = 2000
RUN_BYTES = 1_000_000
MAX_LINE_BYTES = 64_000_000  # a line of a file; texts are bounded by the rules

PIPE_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Texts:
    """Some records' texts, and how far reading has come."""

    source: str
    texts: list[str]  # pairs are texts of their own
    records: int
    skipped: Counter[Reason] = field(default_factory=Counter)
    done_bytes: int = 0
    size_bytes: int | None = None  # None: not known


def of_file(path: Path, rules: Rules, verb: str, records: int | None = None) -> Iterator[Texts]:
    """Texts of a .txt or .jsonl file. Raises UsageError for a file that is not read, naming `headrace VERB`."""
    form = TextFormat(file_format(path, verb))
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        read = lines(str(path), file_chunks(file), MAX_LINE_BYTES)
        for texts in _of_runs(str(path), runs(str(path), read), replace(rules, format=form), records):
            yield replace(texts, size_bytes=size)


def of_pipe(fd: int, rules: Rules, records: int | None = None) -> Iterator[Texts]:
    """Texts of standard input, a record a line; JSON or text is what the rules' format says."""
    name = "standard input"
    form = TextFormat.AUTO if rules.format is TextFormat.ARROW else rules.format
    read = lines(name, pipe_chunks(fd, PIPE_WAIT_S), MAX_LINE_BYTES)
    yield from _of_runs(name, runs(name, read), replace(rules, format=form), records)


def of_topic(broker: Broker, rules: Rules, records: int) -> Iterator[Texts]:
    """Texts of up to `records` records, an equal share of each partition; what one has not the next ones give.

    Raises TopicError where there is no such topic, Stalled when a message that is there does not arrive.
    """
    if broker.describe(rules.topic) is None:
        raise TopicError(
            f"topic {rules.topic!r} does not exist on {broker.address}: publish texts first, or name files"
        )
    # The short ones first, so that the others make up for them. Offsets have gaps: this is an order, not a count.
    ordered = sorted(broker.ends(rules.topic).items(), key=lambda item: (item[1].end - item[1].first, item[0]))
    done_bytes = 0
    for number, (partition, ends) in enumerate(ordered):
        share = -(-records // (len(ordered) - number))
        last = done_bytes
        with closing(_of_partition(broker, rules.topic, partition, ends)) as runs:
            for texts in _of_runs(rules.topic, runs, rules, share):
                records -= texts.records
                done_bytes = last + texts.done_bytes
                yield replace(texts, done_bytes=done_bytes)


def _of_partition(broker: Broker, topic: str, partition: int, ends: Ends) -> Generator[tuple[list[Message], int]]:
    first = broker.ends(topic)[partition].first  # retention went on while the partitions before were read
    read_bytes = 0
    with closing(scan.messages(broker, topic, {partition: (first, ends.end)})) as runs:
        for run in runs:
            read_bytes += sum(len(message.value) for message in run)
            yield run, read_bytes


def runs(source: str, read: Iterator[Line | None], *, blank: bool = False) -> Iterator[tuple[list[Message], int]]:
    """Lines as messages, some at a time, with the byte position behind them. Each has its line's number as its offset.

    Blank lines are left out, unless asked for. Where nothing has come for a while, what is there goes on.
    """
    run: list[Message] = []
    run_bytes = end = number = 0
    try:
        for line in read:
            if line is not None:
                number, end = line.number, line.end
                if blank or line.text.strip():
                    run.append(Message(0, number, 0, line.text))
                    run_bytes += len(line.text)
            if len(run) == RUN_LINES or run_bytes >= RUN_BYTES or (run and line is None):
                yield run, end
                run, run_bytes = [], 0
    except TooLarge as error:
        raise UsageError(
            f"{source}:{number + 1}: the line has more than {MAX_LINE_BYTES} bytes: name files with a text a line"
        ) from error
    if run:
        yield run, end


def _of_runs(
    source: str, runs: Iterable[tuple[list[Message], int]], rules: Rules, records: int | None
) -> Iterator[Texts]:
    """The texts of messages, of up to `records` records."""
    for run, done_bytes in runs:
        for decoded in decode(run, rules, {}):
            if records == 0:
                return
            rows = decoded.records.slice(0, records)
            texts = [text for name in ("text", "pair") for text in rows.column(name).to_pylist() if text is not None]
            skipped = Counter(letter.reason for letter in decoded.bad)
            yield Texts(source, texts, rows.num_rows, skipped, done_bytes)
            if records is not None:
                records -= rows.num_rows
