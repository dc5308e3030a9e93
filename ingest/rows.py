"""Rows: decoded records, tokenized, as rows of the TOKENS schema; long texts as the setting says."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.bucket import buckets
from headrace.ingest.config import LongText
from headrace.ingest.dead_letters import DeadLetter
from headrace.ingest.decode import Decoded
from headrace.ingest.tokenizers.base import Encoded, Tokenizer
from headrace.schemas.errors import Reason, UsageError
from headrace.schemas.tokens import tokens_schema


def check_long_text(long_text: LongText) -> None:
    """Raises UsageError for a choice that no tokenizer offers yet."""
    if long_text is LongText.SPLIT:
        raise UsageError("tokenizer.long_text: split is not available with this tokenizer: use truncate or dead-letter")


def tokenize(decoded: Decoded, tokenizer: Tokenizer, long_text: LongText) -> tuple[pa.RecordBatch, list[DeadLetter]]:
    """Rows of the records, in their order, and dead letters of those that are too long where that is asked for."""
    records, bad = decoded.records, decoded.bad
    pairs = records.column("pair")
    encoded = tokenizer.encode(records.column("text"), None if pairs.null_count == len(pairs) else pairs)
    rows = _rows(records, encoded, decoded.rules.topic, tokenizer.vocab_size)
    if long_text is not LongText.DEAD_LETTER or not pc.any(encoded.too_long).as_py():
        return rows, bad
    refused = [
        decoded.dead_letter(int(index), Reason.TEXT_TOO_LONG, "more tokens than tokenizer.max_tokens allows")
        for index in np.flatnonzero(encoded.too_long.to_numpy(zero_copy_only=False))
    ]
    return rows.filter(pc.invert(encoded.too_long)), bad + refused


def count_by_partition(rows: pa.RecordBatch) -> dict[int, tuple[int, int]]:
    """How many rows and tokens of each text partition there are."""
    partitions = rows.column("partition").to_numpy()
    if not len(partitions):
        return {}
    counts, tokens = np.bincount(partitions), np.bincount(partitions, weights=lengths(rows))
    return {int(number): (int(counts[number]), int(tokens[number])) for number in np.flatnonzero(counts)}


def lengths(rows: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Tokens in each row."""
    ends: np.ndarray[tuple[int], np.dtype[np.int32]] = rows.column("input_ids").offsets.to_numpy()
    return np.diff(ends).astype(np.int64)


def _rows(records: pa.RecordBatch, encoded: Encoded, topic: str, vocab_size: int) -> pa.RecordBatch:
    count = records.num_rows
    pair_start = encoded.pair_start if encoded.pair_start is not None else pa.nulls(count, pa.uint16())
    columns = {
        "input_ids": encoded.input_ids,
        "pair_start": pair_start,
        "topic": pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([topic])),
        "part": pa.array(np.zeros(count, np.uint16)),
        "bucket": pa.array(buckets(records.column("id"), records.column("text"))),
    }
    schema = tokens_schema(vocab_size)
    arrays = [columns[name] if name in columns else records.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
