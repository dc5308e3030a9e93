"""Rows: every record becomes one row, or a dead letter where long texts are refused."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headrace.ingest.config import LongText
from headrace.ingest.rows import count_by_partition, tokenize
from headrace.ingest.tokenizers import Encoded, Tokenizer
from headrace.schemas import tokens
from headrace.schemas.errors import Reason
from headrace.schemas.tokens import TokensMeta, tokens_schema
from tests.unit.ingest.tools import bulk, decode_all, message, rules

LONG = "交通" * 50


def test_columns_come_along(tokenizer: Tokenizer) -> None:
    record = {"text": "交通", "label": "a", "id": "9", "timestamp": 5}
    rows, bad = tokenize(decode_all([message(record, partition=1, offset=2)], rules()), tokenizer, LongText.TRUNCATE)
    assert bad == []
    assert rows.schema == tokens_schema(tokenizer.vocab_size)
    (row,) = rows.to_pylist()
    cls, sep = tokenizer.special_ids["cls"], tokenizer.special_ids["sep"]
    assert row["input_ids"][0] == cls and row["input_ids"][-1] == sep and len(row["input_ids"]) == 4
    assert (row["labels"], row["id"], row["topic"], row["partition"], row["offset"]) == (["a"], "9", "text", 1, 2)


def test_no_good_record_gives_no_rows(tokenizer: Tokenizer) -> None:
    rows, bad = tokenize(decode_all([message("{")], rules()), tokenizer, LongText.DEAD_LETTER)
    assert (rows.num_rows, len(bad)) == (0, 1)


def test_long_texts_are_cut_or_refused_as_asked(tokenizer: Tokenizer) -> None:
    decoded = decode_all([message("交通", offset=0), message(LONG, offset=1), message("拥堵", offset=2)], rules())
    cut, none = tokenize(decoded, tokenizer, LongText.TRUNCATE)
    assert ([len(ids) for ids in cut.column("input_ids").to_pylist()], none) == ([4, 32, 4], [])
    kept, (letter,) = tokenize(decoded, tokenizer, LongText.DEAD_LETTER)
    assert kept.column("offset").to_pylist() == [0, 2]
    assert (letter.reason, letter.value, letter.content_type) == (Reason.TEXT_TOO_LONG, LONG.encode(), "text/plain")


def test_a_long_row_of_a_bulk_message_is_a_dead_letter_with_that_row(tokenizer: Tokenizer) -> None:
    decoded = decode_all([bulk({"text": ["交通", LONG], "label": ["a", "b"]}, offset=7)], rules())
    _, (letter,) = tokenize(decoded, tokenizer, LongText.DEAD_LETTER)
    assert str(letter.origin) == "text/0@7+1"
    assert json.loads(letter.value) == {"text": LONG, "label": "b"}


class Splitting:
    """Every character of a text a row; a text of more than three is more than `part` can count."""

    fingerprint, special_ids, vocab_size = "f" * 64, {"cls": 2}, 30_000

    def encode(self, texts: pa.StringArray, pairs: pa.StringArray | None) -> Encoded:
        lengths = [len(text) if len(text) <= 3 else 0 for text in texts.to_pylist()]
        text_of = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        part = np.array([part for length in lengths for part in range(length)], np.uint16)
        return Encoded(
            input_ids=pa.array([[2, number] for number in part.tolist()], pa.list_(pa.uint16())),
            pair_start=None,
            too_long=pa.array([length != 1 for length in lengths]),
            word_start=pa.array([[False, True]] * len(part), pa.list_(pa.bool_())),
            text_of=text_of,
            part=part,
        )

    def decode(self, ids: Sequence[int]) -> str:
        raise NotImplementedError


def test_the_parts_of_a_text_share_its_columns_and_are_one_record() -> None:
    messages = [
        message({"text": text, "id": text, "label": ["a", text]}, partition=offset % 2, offset=offset)
        for offset, text in enumerate(["x", "yyy", "zzzz", "vv"])
    ]
    rows, bad = tokenize(decode_all(messages, rules()), Splitting(), LongText.SPLIT)
    assert rows.schema == tokens_schema(30_000, words=True)
    assert rows.column("id").to_pylist() == ["x", "yyy", "yyy", "yyy", "vv", "vv"]
    assert rows.column("part").to_pylist() == [0, 0, 1, 2, 0, 1]
    assert rows.column("offset").to_pylist() == [0, 1, 1, 1, 3, 3]
    assert rows.column("labels").to_pylist()[3] == ["a", "yyy"]
    assert len(set(rows.column("bucket").to_pylist())) == 3
    assert count_by_partition(rows) == {0: (1, 2), 1: (2, 10)}
    (letter,) = bad
    assert (letter.reason, letter.origin.offset) == (Reason.TEXT_TOO_LONG, 2)
    assert "more than 65536 parts" in letter.detail


def test_where_no_text_is_long_a_splitting_tokenizer_gives_a_row_each() -> None:
    rows, bad = tokenize(decode_all([message("a"), message("b", offset=1)], rules()), Splitting(), LongText.SPLIT)
    assert (rows.column("offset").to_pylist(), bad) == ([0, 1], [])
    decoded, _ = tokens.decode(tokens.encode(rows, TokensMeta("f" * 64, 30_000, {"cls": 2})))
    assert decoded.column("word_start").to_pylist() == [[False, True]] * 2
