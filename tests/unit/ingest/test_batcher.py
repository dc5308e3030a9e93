"""The batcher: rows in are rows out, in order, in messages that their topic takes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ingest.batcher import Batcher
from headrace.ingest.rows import count_by_partition
from headrace.schemas import tokens
from headrace.schemas.errors import TooLarge
from headrace.schemas.tokens import TokensMeta, tokens_schema

META = TokensMeta("f" * 64, 30_000, {"cls": 2})
LARGE = 10**9


def rows(lengths: list[int], first: int = 0, partition: int = 0) -> pa.RecordBatch:
    count = len(lengths)
    columns = {
        "input_ids": [[number % 30_000] * length for number, length in enumerate(lengths, first)],
        "labels": [[]] * count,
        "published": [0] * count,
        "topic": pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array(["text"])),
        "partition": [partition] * count,
        "offset": range(first, first + count),
        "row": [0] * count,
        "part": [0] * count,
        "bucket": [0] * count,
    }
    schema = tokens_schema(META.vocab_size)
    arrays = [
        columns[field.name]
        if isinstance(columns.get(field.name), pa.Array)
        else pa.array(columns.get(field.name, [None] * count), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def decoded(messages: list[bytes]) -> list[pa.RecordBatch]:
    return [tokens.decode(message)[0] for message in messages]


@given(
    st.lists(st.lists(st.integers(1, 40), max_size=12), max_size=8),
    st.integers(10, 100),
    st.sampled_from([LARGE, 6_500]),
)
def test_rows_in_are_rows_out_in_order(runs: list[list[int]], batch_tokens: int, max_bytes: int) -> None:
    batcher = Batcher(META, batch_tokens=batch_tokens, max_message_bytes=max_bytes)
    given_rows, messages, first = [], [], 0
    for lengths in runs:
        batch = rows(lengths, first)
        given_rows += batch.to_pylist()
        messages += batcher.add(batch)
        first += len(lengths)
        assert batcher.tokens < batch_tokens
    messages += batcher.flush()
    assert [row for batch in decoded(messages) for row in batch.to_pylist()] == given_rows
    assert (batcher.tokens, batcher.flush()) == (0, [])
    for message, batch in zip(messages, decoded(messages), strict=True):
        assert len(message) <= max_bytes
        assert tokens.token_count(batch) <= batch_tokens or batch.num_rows == 1


def test_full_batches_hold_about_as_many_tokens_as_asked_for() -> None:
    batcher = Batcher(META, batch_tokens=1000, max_message_bytes=LARGE)
    sizes = [tokens.token_count(batch) for batch in decoded(batcher.add(rows([30] * 500)))]
    assert sizes == [990] * 15
    assert batcher.tokens == 150


def test_a_message_above_the_topics_limit_is_split_in_halves() -> None:
    batcher = Batcher(META, batch_tokens=100_000, max_message_bytes=20_000)
    messages = batcher.add(rows([100] * 1000))
    assert len(messages) > 10
    assert max(map(len, messages)) <= 20_000
    assert sum(batch.num_rows for batch in decoded(messages)) == 1000


def test_a_single_row_above_the_limit_stops_and_names_the_cure() -> None:
    batcher = Batcher(META, batch_tokens=1000, max_message_bytes=10_000)
    with pytest.raises(TooLarge, match=r"max\.message\.bytes"):
        batcher.add(rows([60_000]))


def test_dropping_a_partition_keeps_the_rows_of_the_others() -> None:
    batcher = Batcher(META, batch_tokens=1000, max_message_bytes=LARGE)
    for partition in (0, 1, 0):
        batcher.add(rows([10, 20], first=partition * 100, partition=partition))
    batcher.drop({0})
    assert batcher.tokens == 30
    (batch,) = decoded(batcher.flush())
    assert batch.column("partition").to_pylist() == [1, 1]


def test_counts_by_partition() -> None:
    both = pa.concat_batches([rows([3, 4], partition=2), rows([5], partition=0), rows([1], partition=2)])
    assert count_by_partition(both) == {0: (1, 5), 2: (3, 8)}
    assert count_by_partition(rows([])) == {}
