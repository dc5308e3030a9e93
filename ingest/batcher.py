"""Batcher: rows in, token batch messages of about `batch_tokens` tokens out, in the same order.

Rows wait here until a batch is full or a commit flushes them. A message never exceeds what the topic takes: one that
would is split in halves until its parts fit. Cost: one copy per row, into the message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.rows import lengths
from headrace.schemas import tokens
from headrace.schemas.errors import TooLarge
from headrace.schemas.tokens import TokensMeta

_OVERHEAD_BYTES = 1024  # what a broker adds to a message, and more


class Batcher:
    """Rows that were not sent yet."""

    def __init__(self, meta: TokensMeta, *, batch_tokens: int, max_message_bytes: int) -> None:
        self._meta = meta
        self._batch_tokens = batch_tokens
        self._max_bytes = max_message_bytes - _OVERHEAD_BYTES
        self._waiting: list[pa.RecordBatch] = []
        self.tokens = 0  # waiting

    def add(self, rows: pa.RecordBatch) -> list[bytes]:
        """Take rows; return the messages that are full now."""
        messages: list[bytes] = []
        ends = np.cumsum(lengths(rows))
        total = int(ends[-1]) if len(ends) else 0
        start = done = 0
        while self.tokens + total - done >= self._batch_tokens:
            stop = int(np.searchsorted(ends, done + self._batch_tokens - self.tokens, side="right"))
            if not self._waiting:
                stop = max(start + 1, stop)
            full = rows.slice(start, stop - start)
            messages += self._encode(pa.concat_batches([*self._waiting, full]) if self._waiting else full)
            self.clear()
            start, done = stop, int(ends[stop - 1]) if stop else 0
        if start < rows.num_rows:
            self._waiting.append(rows.slice(start))
            self.tokens += total - done
        return messages

    def flush(self) -> list[bytes]:
        """Return what waits, as a smaller batch."""
        if not self._waiting:
            return []
        waiting = pa.concat_batches(self._waiting)
        self.clear()
        return list(self._encode(waiting))

    def clear(self) -> None:
        """Drop what waits."""
        self._waiting, self.tokens = [], 0

    def drop(self, partitions: Collection[int]) -> None:
        """Drop what waits of these text partitions."""
        gone = pa.array(list(partitions), pa.int32())
        kept = [rows.filter(pc.invert(pc.is_in(rows.column("partition"), gone))) for rows in self._waiting]
        self._waiting = [rows for rows in kept if rows.num_rows]
        self.tokens = sum(map(tokens.token_count, self._waiting))

    def _encode(self, rows: pa.RecordBatch) -> Iterator[bytes]:
        message = tokens.encode(rows, self._meta)
        if len(message) <= self._max_bytes:
            yield message
            return
        half = rows.num_rows // 2
        if not half:
            raise TooLarge(
                f"a single tokenized record makes a message of {len(message)} bytes and the tokens topic takes "
                f"{self._max_bytes}: raise the topic's max.message.bytes, or lower tokenizer.max_tokens"
            )
        yield from self._encode(rows.slice(0, half))
        yield from self._encode(rows.slice(half))
