"""Rows: every record becomes one row, or a dead letter where long texts are refused."""

from __future__ import annotations

import json

import pytest

from headrace.ingest.config import LongText
from headrace.ingest.rows import check_long_text, tokenize
from headrace.ingest.tokenizers import Tokenizer
from headrace.schemas.errors import Reason, UsageError
from headrace.schemas.tokens import tokens_schema
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


def test_split_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="not available with this tokenizer"):
        check_long_text(LongText.SPLIT)
    check_long_text(LongText.TRUNCATE)
