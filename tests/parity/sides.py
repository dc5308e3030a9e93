"""Both sides: a tokenizer of PaddleNLP and ours, made from the same folder, each giving the same thing."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.ingest.tokenizers import load
from headrace.ingest.tokenizers.wordpiece.tokenizer import WordPieceTokenizer
from tests.parity import vocabulary
from tests.parity.texts import UNCUT, Row


@dataclass(frozen=True, slots=True)
class Setting:
    """A tokenizer of PaddleNLP, by what its folder says."""

    family: str
    lowercase: bool
    strip_accents: bool | None = None
    split_cjk: bool = True
    large: bool = False  # ids beyond 65 535

    def write(self, folder: Path) -> None:
        """A folder that either side can load."""
        fields: dict[str, Any] = {"tokenizer_class": self.family, "do_lower_case": self.lowercase}
        if self.family not in ("ErnieTokenizer", "ErnieGramTokenizer"):
            fields |= {"strip_accents": self.strip_accents, "tokenize_chinese_chars": self.split_cjk}
        folder.mkdir(parents=True)
        (folder / "tokenizer_config.json").write_text(json.dumps(fields))
        text = vocabulary.text_of(vocabulary.tokens(self.large))
        (folder / "vocab.txt").write_text(text, encoding="utf-8", newline="")


#: The two that matter most, which are compared in full.
MAIN = ("ernie, lower case", "ernie, cased")
SETTINGS: dict[str, Setting] = {
    "ernie, lower case": Setting("ErnieTokenizer", lowercase=True),
    "ernie, cased": Setting("ErnieTokenizer", lowercase=False),
    "ernie, 72 000 tokens": Setting("ErnieTokenizer", lowercase=True, large=True),
    "ernie-gram": Setting("ErnieGramTokenizer", lowercase=True),
    "bert, lower case": Setting("BertTokenizer", lowercase=True),
    "bert, cased": Setting("BertTokenizer", lowercase=False),
    "bert, lower case with accents": Setting("BertTokenizer", lowercase=True, strip_accents=False),
    "bert, cased without accents": Setting("BertTokenizer", lowercase=False, strip_accents=True),
    "bert, Chinese not split": Setting("BertTokenizer", lowercase=True, split_cjk=False),
    "roberta, lower case": Setting("RobertaChineseTokenizer", lowercase=True),
    "roberta, cased": Setting("RobertaChineseTokenizer", lowercase=False),
}


class Tokenized(NamedTuple):
    """What a row gives."""

    ids: list[int]
    pair_start: int | None
    too_long: bool


class Reference:
    """PaddleNLP's tokenizer, from a folder."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        from paddlenlp import transformers

        self.inner = getattr(transformers, setting.family).from_pretrained(str(folder))

    def tokenize(self, row: Row) -> Tokenized:
        first = self._ids(row.text)
        second = None if row.pair is None else self._ids(row.pair)
        whole: list[int] = self.inner.build_inputs_with_special_tokens(first, second)
        if len(whole) <= row.max_tokens:
            return Tokenized(whole, None if second is None else len(first) + 2, too_long=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that pairs return no overflowing tokens: once per row
            cut = self.inner(row.text, row.pair, max_length=row.max_tokens, truncation=True)
        return Tokenized(cut["input_ids"], _begin_of_second(cut) if row.pair is not None else None, too_long=True)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        found: list[str] = self.inner.convert_ids_to_tokens(ids)
        return found

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.inner.convert_tokens_to_ids(self.inner.tokenize(text))
        return ids


def _begin_of_second(cut: Any) -> int:
    return int(cut["token_type_ids"].index(1))


@cache
def ours(folder: Path) -> WordPieceTokenizer:
    """The compiled tokenizer, which is what `load` must give for such a folder."""
    tokenizer = load(str(folder), max_tokens=UNCUT)
    assert isinstance(tokenizer, WordPieceTokenizer)
    return tokenizer


def _limited(folder: Path, max_tokens: int) -> WordPieceTokenizer:
    """The same at another length. Loading anew would take a second, and the tables are the same at every length."""
    tokenizer = ours(folder)
    return replace(tokenizer, options=replace(tokenizer.options, max_tokens=max_tokens))


def encode(folder: Path, rows: Sequence[Row], sliced: bool) -> list[Tokenized]:
    """Rows of one `max_tokens` through ours; `sliced`: as a part of a longer Arrow array with 64-bit offsets."""
    tokenizer = _limited(folder, rows[0].max_tokens)
    texts = _array([row.text for row in rows], sliced)
    has_pairs = any(row.pair is not None for row in rows)
    encoded = tokenizer.encode(texts, _array([row.pair for row in rows], False) if has_pairs else None)
    lists = encoded.input_ids
    flat, ends = lists.values.to_numpy().tolist(), lists.offsets.to_numpy().tolist()
    starts = encoded.pair_start.to_pylist() if encoded.pair_start is not None else [None] * len(rows)
    if not len(ends) - 1 == len(starts) == len(encoded.too_long) == len(rows):
        raise AssertionError(f"{len(rows)} texts gave {len(ends) - 1} rows")
    bounds = zip(ends, ends[1:], starts, encoded.too_long.to_pylist(), strict=False)
    return [Tokenized(flat[begin:end], start, too_long) for begin, end, start, too_long in bounds]


def _array(texts: Sequence[str | None], sliced: bool) -> pa.Array:
    if not sliced:
        return pa.array(texts, pa.string())
    return pa.array(["前 a", *texts, "后"], pa.large_string()).slice(1, len(texts))
