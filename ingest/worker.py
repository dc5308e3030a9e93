"""The ingest worker: text topic -> token batches and dead letters, exactly once.

One worker is one process and one member of the consumer group. The steps of its loop, numbered in the code:

    1. poll a run of messages
    2. decode it
    3. tokenize it
    4. begin a transaction when the first token batch or dead letter is ready; append to the lanes in turn
    5. put the positions into it: of each partition the next record not read, and the tokens ever emitted from it
    6. commit, after `commit_s` or `COMMIT_BYTES`, with an empty buffer: what is partly full goes out as a small batch

So a record, the position behind it and its tokens are committed together or not at all. When a commit is refused
(Fenced) or partitions move (`Fetched.starts`), the buffers are dropped and the loop goes on from the committed
positions. Whatever kills the process, the same happens in its successor.

A partition that is read to its end may stand before transaction markers, which take offsets and hold no record: its
position moves past them, so that others can see that nothing is left. The worker waits for the trainer (backlog)
between transactions only, and stays in the group meanwhile.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from headrace.ingest.backlog import Backlog
from headrace.ingest.batcher import Batcher
from headrace.ingest.config import LongText
from headrace.ingest.dead_letters import DeadLetter, Limit, encode
from headrace.ingest.decode import Decoded, decode
from headrace.ingest.formats import Rules
from headrace.ingest.numbers import Numbers
from headrace.ingest.rows import count_by_partition, tokenize
from headrace.ingest.start import check_tokenizer, noted
from headrace.ingest.tokenizers import Tokenizer
from headrace.pipeline.topics import Fetched, Topic, Worker
from headrace.schemas.errors import Fenced
from headrace.schemas.position import Position
from headrace.schemas.tokens import TokensMeta

#: A transaction is committed when it holds so many bytes, whatever the time.
COMMIT_BYTES = 16_000_000

#: Texts of so many bytes may take seconds to tokenize, and are not inside an open transaction: brokers abort old ones.
HEAVY_BYTES = 2_000_000

_WAIT_S = 0.5  # longest wait in one call, so that a stop is noticed


@dataclass(frozen=True, slots=True)
class Work:
    """What a worker does: from where, how, and to where."""

    name: str  # of the worker
    group: str
    rules: Rules  # names the text topic
    tokenizer: Tokenizer
    tokens: Topic
    dead_letters: Topic
    meta: TokensMeta
    batch_tokens: int
    long_text: LongText = LongText.TRUNCATE
    poll_messages: int = 2000
    commit_s: float = 0.5
    max_bad_share: float = 0.5


class IngestWorker:
    """The loop. `run` returns when `stopping` is set and everything read is committed."""

    def __init__(
        self,
        worker: Worker,
        work: Work,
        backlog: Backlog,
        numbers: Numbers,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._work = work
        self._backlog = backlog
        self._numbers = numbers
        self._clock = clock
        self._batcher = Batcher(
            work.meta, batch_tokens=work.batch_tokens, max_message_bytes=work.tokens.max_message_bytes
        )
        self._limit = Limit(work.max_bad_share)
        self._lane = zlib.crc32(work.name.encode()) % work.tokens.partitions  # workers start at different lanes
        self._positions: dict[int, Position] = {}  # the next record of each partition, everything in hand counted
        self._moved: set[int] = set()  # partitions whose position is not committed
        self._moved_at = 0.0  # when the first of what made them move was taken in hand
        self._begun_at: float | None = None  # None: no transaction is open
        self._bytes = 0  # in the open transaction

    def run(self, stopping: threading.Event) -> None:
        """Work until told to stop.

        Raises Stop when going on would be wrong (too many bad records, another tokenizer than before), Fenced when
        another process has taken this worker's name.
        """
        while not stopping.is_set():
            self._numbers.report_when_due(self._backlog.tokens)
            if not self._moved and self._backlog.full():
                self._wait_for_backlog()
                continue
            fetched = self._worker.poll(self._work.poll_messages, self._wait_s())  # 1. poll
            try:
                self._take(fetched)
            except Fenced:
                self._drop(self._positions)
        self._finish()

    def _take(self, fetched: Fetched) -> None:
        """Steps 2 to 6 for one run of messages."""
        self._settle(fetched)
        for decoded in decode(fetched.messages, self._work.rules, self._positions):  # 2. decode
            if self._begun_at is not None and decoded.records.nbytes >= HEAVY_BYTES:
                self._commit()
            self._add(decoded)
            self._commit_when_due()
        self._pass_markers(fetched)
        self._commit_when_due()

    def _add(self, decoded: Decoded) -> None:
        rows, bad = tokenize(decoded, self._work.tokenizer, self._work.long_text)  # 3. tokenize
        self._limit.add(decoded.count, bad)
        good = count_by_partition(rows)
        self._numbers.read(good, bad)
        for partition, (offset, row) in decoded.next.items():
            before = self._positions[partition]
            _, tokens = good.get(partition, (0, 0))
            self._move(partition, replace(before, offset=offset, row=row, tokens=before.tokens + tokens))
        self._append(self._batcher.add(rows), bad)

    def _append(self, batches: Sequence[bytes], bad: Sequence[DeadLetter]) -> None:
        if batches or bad:
            self._begin()  # 4. begin when the first batch or dead letter is ready
        tokens, dead = self._work.tokens, self._work.dead_letters
        for value in batches:
            self._worker.append(tokens.name, value, partition=self._lane)
            self._lane = (self._lane + 1) % tokens.partitions
            self._bytes += len(value)
        for letter in bad:
            value, headers = encode(letter, dead.max_message_bytes)
            self._worker.append(dead.name, value, partition=letter.origin.partition % dead.partitions, headers=headers)
            self._bytes += len(value)

    def _commit_when_due(self) -> None:
        if self._moved and (self._bytes >= COMMIT_BYTES or self._clock() - self._moved_at >= self._work.commit_s):
            self._commit()

    def _commit(self) -> None:
        self._append(self._batcher.flush(), ())
        begun_at = self._begin()
        positions = {partition: self._positions[partition] for partition in self._moved}  # 5. put the positions in
        self._worker.commit(self._work.group, self._work.rules.topic, positions)  # 6. commit
        self._begun_at, self._bytes = None, 0
        self._moved.clear()
        self._numbers.committed(self._clock() - begun_at)

    def _begin(self) -> float:
        """Open a transaction where none is open; when it was opened."""
        if self._begun_at is None:
            self._worker.begin()
            self._begun_at = self._clock()
        return self._begun_at

    def _move(self, partition: int, position: Position) -> None:
        if not self._moved:
            self._moved_at = self._clock()
        self._moved.add(partition)
        self._positions[partition] = noted(position, self._work.meta.fingerprint)

    def _settle(self, fetched: Fetched) -> None:
        """Follow the group: forget partitions that went away, start again in those that were rewound."""
        lost = self._positions.keys() - self._worker.assigned()
        if not fetched.starts and not lost:
            return
        # A rebalance has aborted the open transaction, and with it what was read of every partition.
        self._drop(self._positions.keys() if self._begun_at is not None else lost | fetched.starts.keys())
        # A worker that was started again may have found other files where its tokenizer was.
        check_tokenizer(fetched.starts, self._work.group, self._work.meta.fingerprint)
        self._positions.update(fetched.starts)

    def _pass_markers(self, fetched: Fetched) -> None:
        for partition, end in fetched.at_end.items():
            position = self._positions.get(partition)
            if position is not None and position.row == 0 and position.offset < end:
                self._move(partition, replace(position, offset=end))

    def _wait_for_backlog(self) -> None:
        began = self._clock()
        self._settle(self._worker.idle(_WAIT_S))
        self._numbers.waited(self._clock() - began)

    def _wait_s(self) -> float:
        """Wait for messages until a commit is due."""
        if not self._moved:
            return _WAIT_S
        return min(_WAIT_S, max(0.0, self._moved_at + self._work.commit_s - self._clock()))

    def _drop(self, partitions: Collection[int]) -> None:
        """Forget what is not committed of these partitions; `Fetched.starts` says where to go on."""
        gone = set(partitions)
        self._batcher.drop(gone)
        self._numbers.dropped(gone)
        self._moved -= gone
        for partition in gone:
            self._positions.pop(partition, None)
        self._begun_at, self._bytes = None, 0

    def _finish(self) -> None:
        """Commit what is read, and leave. Where that is refused, whoever has the partitions now reads it again."""
        try:
            if self._moved:
                self._commit()
        except Fenced:
            self._drop(self._positions)
        self._numbers.report(self._backlog.tokens)
