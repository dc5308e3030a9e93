"""SentencePiece models: pieces as the library and PaddleNLP cut them, what stands around them, truncation."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import sentencepiece as library
from hypothesis import given
from hypothesis import strategies as st

from headrace.ingest import tokenizers
from headrace.ingest.tokenizers.sentencepiece import SentencePieceTokenizer, longest_first
from headrace.schemas.errors import UsageError

SENTENCES = ["hello world this is a test", "交通 拥堵 严重", "我们 希望 尽快 解决", "a quick brown fox", "jams traffic"]
TEXTS = ["hello traffic 交通", "", "x [MASK] hello[SEP] a", "[CLS]", "a, Ünknown ☃☃", " two  spaces ", "HELLO Σ"]


def model(folder: Path, name: str = "spiece.model", **special: object) -> Path:
    """Train a small model; `special` are arguments of the trainer."""
    written = io.BytesIO()
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 20),
        model_writer=written,
        vocab_size=90,
        hard_vocab_limit=False,
        minloglevel=2,
        **(special or BERT),
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(written.getvalue())
    return folder


BERT = {
    "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "pad_piece": "[PAD]", "unk_piece": "[UNK]",
    "control_symbols": "[CLS],[SEP],[MASK]",
}  # fmt: skip
ROBERTA = {"pad_id": 3, "unk_id": 0, "bos_id": 1, "eos_id": 2, "user_defined_symbols": "<mask>"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model(tmp_path_factory.mktemp("bert"))


def load(folder: Path, max_tokens: int = 32, **settings: Any) -> SentencePieceTokenizer:
    found = tokenizers.load(str(folder), max_tokens=max_tokens, **settings)
    assert isinstance(found, SentencePieceTokenizer)
    return found


def encode(tokenizer: SentencePieceTokenizer, *texts: str, pairs: list[str | None] | None = None) -> list[list[str]]:
    encoded = tokenizer.encode(pa.array(texts), None if pairs is None else pa.array(pairs, pa.string()))
    return [[tokenizer.inner.id_to_piece(number) for number in row] for row in encoded.input_ids.to_pylist()]


@pytest.mark.parametrize("lowercase", [False, True])
def test_ids_of_paddlenlp(tmp_path: Path, lowercase: bool) -> None:
    from paddlenlp.transformers import RemBertTokenizer

    model(tmp_path, "sentencepiece.model")
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "RemBertTokenizer", "do_lower_case": lowercase})
    )
    theirs, ours = RemBertTokenizer.from_pretrained(str(tmp_path)), load(tmp_path, max_tokens=9)
    pairs = [*TEXTS[::-1]]
    for seconds in (None, pairs):
        expected = [
            theirs(text, None if seconds is None else seconds[number], max_length=9, truncation="longest_first")
            for number, text in enumerate(TEXTS)
        ]
        found = ours.encode(pa.array(TEXTS), None if seconds is None else pa.array(seconds))
        assert found.input_ids.to_pylist() == [each["input_ids"] for each in expected]
    assert found.pair_start is not None
    assert found.pair_start.to_pylist() == [each["token_type_ids"].index(1) for each in expected]
    special = {name: getattr(theirs, f"{name}_token_id") for name in ("cls", "sep", "pad", "mask", "unk")}
    assert dict(ours.special_ids) == special


def test_cls_and_sep_where_the_model_has_them_else_s(folder: Path, tmp_path: Path) -> None:
    bert, roberta = load(folder), load(model(tmp_path, **ROBERTA))
    assert encode(bert, "a", pairs=["a"]) == [["[CLS]", "▁", "a", "[SEP]", "▁", "a", "[SEP]"]]
    assert encode(roberta, "a", pairs=["a"]) == [["<s>", "▁", "a", "</s>", "▁", "a", "</s>"]]


def test_texts_with_and_without_a_pair(folder: Path) -> None:
    encoded = load(folder).encode(pa.array(["a", "a", ""]), pa.array(["a", None, ""]))
    assert encoded.pair_start is not None
    assert encoded.pair_start.to_pylist() == [4, None, 2]
    assert [len(ids) for ids in encoded.input_ids.to_pylist()] == [7, 4, 3]
    assert load(folder).encode(pa.array([], pa.string()), None).input_ids.type == pa.list_(pa.uint16())


def test_too_long_is_known_and_an_exact_fit_is_none(folder: Path) -> None:
    exact = len(encode(load(folder), "hello")[0])
    texts, none = pa.array(["hello", "hello a", "a"]), None
    assert load(folder, exact).encode(texts, none).too_long.to_pylist() == [False, True, False]


@given(st.lists(st.text(max_size=20), max_size=5), st.integers(4, 12))
def test_one_row_a_text_whatever_the_texts_and_batches(folder: Path, texts: list[str], most: int) -> None:
    tokenizer = load(folder, most)
    pairs = texts[::-1]
    together = tokenizer.encode(pa.array(texts, pa.string()), pa.array(pairs, pa.string()))
    alone = [tokenizer.encode(pa.array([a]), pa.array([b])) for a, b in zip(texts, pairs, strict=True)]
    assert together.input_ids.to_pylist() == [each.input_ids.to_pylist()[0] for each in alone]
    assert together.too_long.to_pylist() == [each.too_long.to_pylist()[0] for each in alone]
    assert all(3 <= len(ids) <= most for ids in together.input_ids.to_pylist())


@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 20))
def test_the_longer_text_loses_tokens_first_of_equal_ones_the_second(first: int, second: int, room: int) -> None:
    a, b = first, second
    while a + b > room:
        a, b = (a - 1, b) if a > b else (a, b - 1)
    found = longest_first(np.array([first]), np.array([second]), np.array([room]))
    assert (found[0].item(), found[1].item()) == (a, b)


class TestSpecialTokensInTexts:
    def test_are_theirs_or_text_as_asked(self, folder: Path) -> None:
        text = "a [MASK] hello"
        assert "[MASK]" in encode(load(folder), text)[0]
        assert "[MASK]" not in encode(load(folder, special_in_text=False), text)[0]
        assert load(folder).fingerprint != load(folder, special_in_text=False).fingerprint

    def test_that_the_model_matches_itself_cannot_be_text(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"tokenizer\.special_in_text.*<mask>"):
            load(model(tmp_path, **ROBERTA), special_in_text=False)

    def test_are_left_out_of_decoded_texts(self, folder: Path) -> None:
        tokenizer = load(folder)
        (ids,) = tokenizer.encode(pa.array(["hello world"]), None).input_ids.to_pylist()
        assert tokenizer.decode(ids) == "hello world"


class TestFilesBesideIt:
    def test_name_the_special_tokens(self, tmp_path: Path) -> None:
        model(tmp_path, **ROBERTA)
        (tmp_path / "special_tokens_map.json").write_text(json.dumps({"cls_token": "</s>", "mask_token": "<m>"}))
        (tmp_path / "added_tokens.json").write_text(json.dumps({"<m>": 200}))
        found = load(tmp_path)
        assert (found.special_ids["cls"], found.special_ids["mask"], found.vocab_size) == (2, 200, 201)

    def test_of_a_class_with_another_layout_is_refused_by_name(self, tmp_path: Path) -> None:
        model(tmp_path)
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "XLNetTokenizer"}))
        with pytest.raises(UsageError, match="XLNetTokenizer"):
            load(tmp_path)


def test_a_model_without_special_tokens(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no \[CLS\] and no \[SEP\].*cls_token"):
        load(model(tmp_path, bos_id=-1, eos_id=-1))


def test_damaged(tmp_path: Path) -> None:
    (tmp_path / "spm.model").write_bytes(b"no model")
    with pytest.raises(UsageError, match="not a SentencePiece model"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"max_tokens": 3}, r"tokenizer\.max_tokens"),
        ({"strip_accents": True}, r"tokenizer\.strip_accents"),
        ({"split": True}, r"tokenizer\.long_text: split"),
        ({"words": "jieba"}, r"tokenizer\.words"),
    ],
)
def test_settings_that_are_not_available_are_refused_by_name(folder: Path, setting: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        load(folder, **setting)


def test_every_setting_changes_the_fingerprint(folder: Path) -> None:
    found = [load(folder), load(folder, lowercase=True), load(folder, 33)]
    assert len({tokenizer.fingerprint for tokenizer in found}) == 3
    assert load(folder).fingerprint == load(folder).fingerprint
