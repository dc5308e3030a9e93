"""Rows: decoded records, tokenized, as rows of the TOKENS schema; long texts as the setting says.

A record is one row, or as many as its text was split into: they share everything but ids, word boundaries and `part`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.bucket import buckets
from headrace.ingest.config import LongText
from headrace.ingest.dead_letters import DeadLetter
from headrace.ingest.decode import Decoded
from headrace.ingest.tokenizers.base import MAX_PARTS, Encoded, Tokenizer
from headrace.schemas.errors import Reason
from headrace.schemas.tokens import tokens_schema


def tokenize(decoded: Decoded, tokenizer: Tokenizer, long_text: LongText) -> tuple[pa.RecordBatch, list[DeadLetter]]:
    """Rows of the records, in their order, and dead letters of those that are too long for what is asked for."""
    records, bad = decoded.records, decoded.bad
    pairs = records.column("pair")
    encoded = tokenizer.encode(records.column("text"), None if pairs.null_count == len(pairs) else pairs)
    rows = _rows(records, encoded, decoded.rules.topic, tokenizer.vocab_size)
    if long_text is LongText.SPLIT:
        without_rows = np.setdiff1d(np.arange(records.num_rows), _text_of(encoded, records.num_rows))
        return rows, bad + _refused(decoded, without_rows, f"needs more than {MAX_PARTS} parts")
    if long_text is not LongText.DEAD_LETTER or not pc.any(encoded.too_long).as_py():
        return rows, bad
    too_long = np.flatnonzero(encoded.too_long.to_numpy(zero_copy_only=False))
    refused = _refused(decoded, too_long, "more tokens than tokenizer.max_tokens allows")
    return rows.filter(pc.invert(encoded.too_long)), bad + refused


def count_by_partition(rows: pa.RecordBatch) -> dict[int, tuple[int, int]]:
    """How many records and tokens of each text partition there are. The parts of a long text are one record."""
    partitions = rows.column("partition").to_numpy()
    if not len(partitions):
        return {}
    records = np.bincount(partitions, weights=rows.column("part").to_numpy() == 0)
    tokens = np.bincount(partitions, weights=lengths(rows))
    return {int(number): (int(records[number]), int(tokens[number])) for number in np.flatnonzero(records)}


def lengths(rows: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Tokens in each row."""
    ends: np.ndarray[tuple[int], np.dtype[np.int32]] = rows.column("input_ids").offsets.to_numpy()
    return np.diff(ends).astype(np.int64)


def _refused(decoded: Decoded, indices: npt.NDArray[np.int64], detail: str) -> list[DeadLetter]:
    return [decoded.dead_letter(index, Reason.TEXT_TOO_LONG, detail) for index in indices.tolist()]


def _text_of(encoded: Encoded, count: int) -> npt.NDArray[np.int32]:
    """Which record each row comes from."""
    return encoded.text_of if encoded.text_of is not None else np.arange(count, dtype=np.int32)


def _rows(records: pa.RecordBatch, encoded: Encoded, topic: str, vocab_size: int) -> pa.RecordBatch:
    count = len(encoded.input_ids)
    own = {"bucket": pa.array(buckets(records.column("id"), records.column("text")))}
    own |= {name: records.column(name) for name in records.schema.names}
    if encoded.text_of is not None and not np.array_equal(encoded.text_of, np.arange(records.num_rows)):
        rows = pa.array(encoded.text_of)
        own = {name: column.take(rows) for name, column in own.items() if name not in ("text", "pair")}
    part = encoded.part if encoded.part is not None else np.zeros(count, np.uint16)
    columns = {
        **own,
        "input_ids": encoded.input_ids,
        "pair_start": encoded.pair_start if encoded.pair_start is not None else pa.nulls(count, pa.uint16()),
        "topic": pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([topic])),
        "part": pa.array(part),
        "word_start": encoded.word_start,
    }
    schema = tokens_schema(vocab_size, words=encoded.word_start is not None)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
