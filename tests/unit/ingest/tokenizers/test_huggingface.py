"""The library's tokenizers: ids, pairs, truncation, fingerprints."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ingest import tokenizers
from headrace.ingest.tokenizers import Tokenizer
from headrace.ingest.tokenizers.huggingface import HuggingFaceTokenizer
from headrace.schemas.errors import UsageError
from tests.unit.ingest.tools import VOCABULARY, write_vocabulary

IDS = {token: number for number, token in enumerate(dict.fromkeys(VOCABULARY))}


def encode(tokenizer: Tokenizer, *texts: str, pairs: list[str | None] | None = None) -> list[list[str]]:
    names = {number: token for token, number in IDS.items()}
    encoded = tokenizer.encode(pa.array(texts), None if pairs is None else pa.array(pairs, pa.string()))
    return [[names[number] for number in row] for row in encoded.input_ids.to_pylist()]


def load(folder: Path, *, lowercase: bool = True, max_tokens: int = 32) -> HuggingFaceTokenizer:
    found = tokenizers.load(str(folder), lowercase=lowercase, max_tokens=max_tokens)
    assert isinstance(found, HuggingFaceTokenizer)
    return found


def test_wordpiece_as_bert_does_it(tokenizer: Tokenizer) -> None:
    assert encode(tokenizer, "交通jam。 Traffic jams", "ÀB", "a\x00\u200bb") == [
        ["[CLS]", "交", "通", "jam", "。", "traffic", "jam", "##s", "[SEP]"],
        ["[CLS]", "a", "##b", "[SEP]"],
        ["[CLS]", "a", "##b", "[SEP]"],
    ]


def test_words_without_pieces_and_words_too_long_are_unknown(tokenizer: Tokenizer) -> None:
    assert encode(tokenizer, "é☃ ok", "a" * 101, "a" * 20)[:2] == [
        ["[CLS]", "[UNK]", "o", "##k", "[SEP]"],
        ["[CLS]", "[UNK]", "[SEP]"],
    ]


def test_case_and_accents_are_kept_where_lowercase_is_off(vocabulary: Path) -> None:
    cased = load(vocabulary, lowercase=False)
    assert encode(cased, "Ab", "à") == [["[CLS]", "[UNK]", "[SEP]"]] * 2


def test_too_long_is_known_and_an_exact_fit_is_none(vocabulary: Path) -> None:
    tokenizer = load(vocabulary, max_tokens=5)
    encoded = tokenizer.encode(pa.array(["交通拥", "交通拥堵", "交通"]), None)
    assert encoded.too_long.to_pylist() == [False, True, False]
    assert [len(ids) for ids in encoded.input_ids.to_pylist()] == [5, 5, 4]


def test_pairs_cut_the_longer_text_first_and_know_where_the_second_begins(vocabulary: Path) -> None:
    tokenizer = load(vocabulary, max_tokens=7)
    pairs = ["a b", None, "a b c d e", "\u200b"]
    encoded = tokenizer.encode(pa.array(["交 通 拥 堵 严 重"] * 2 + ["交"] * 2), pa.array(pairs))
    assert encode(tokenizer, "交 通 拥 堵 严 重", pairs=["a b"]) == [["[CLS]", "交", "通", "[SEP]", "a", "b", "[SEP]"]]
    assert encoded.pair_start is not None
    assert encoded.pair_start.to_pylist() == [4, None, 3, 3]
    assert encoded.too_long.to_pylist() == [True, True, True, False]


def test_ids_are_uint16_where_the_vocabulary_fits(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode(pa.array(["a"]), None).input_ids.type == pa.list_(pa.uint16())
    assert tokenizer.encode(pa.array([], pa.string()), None).input_ids.type == pa.list_(pa.uint16())


def test_decoding_leaves_special_tokens_out(tokenizer: Tokenizer) -> None:
    (ids,) = tokenizer.encode(pa.array(["traffic jams"]), None).input_ids.to_pylist()
    assert tokenizer.decode(ids) == "traffic jams"


def test_special_ids_and_vocabulary(tokenizer: Tokenizer) -> None:
    assert tokenizer.special_ids == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    assert tokenizer.vocab_size == len(IDS)


@given(st.lists(st.text(max_size=30), max_size=5))
def test_one_row_a_text_whatever_the_texts_and_batches(vocabulary: Path, texts: list[str]) -> None:
    tokenizer = load(vocabulary, max_tokens=12)
    together = tokenizer.encode(pa.array(texts, pa.string()), None)
    assert len(together.input_ids) == len(together.too_long) == len(texts)
    alone = [tokenizer.encode(pa.array([text]), None).input_ids.to_pylist()[0] for text in texts]
    assert together.input_ids.to_pylist() == alone
    assert all(2 <= len(ids) <= 12 for ids in alone)


class TestFingerprint:
    def test_the_same_files_and_settings_have_the_same(self, vocabulary: Path, tmp_path: Path) -> None:
        assert load(vocabulary).fingerprint == load(write_vocabulary(tmp_path)).fingerprint

    def test_every_setting_and_the_content_change_it(self, vocabulary: Path, tmp_path: Path) -> None:
        write_vocabulary(tmp_path)
        with (tmp_path / "vocab.txt").open("a", encoding="utf-8") as file:
            file.write("more\n")
        found = [load(vocabulary), load(vocabulary, lowercase=False), load(vocabulary, max_tokens=33), load(tmp_path)]
        assert len({tokenizer.fingerprint for tokenizer in found}) == 4

    def test_values_are_pinned(self, tokenizer: Tokenizer) -> None:
        """A new value refuses to resume every run: raise OUTPUT_VERSION only when ids change."""
        assert tokenizer.fingerprint[:16] == PINNED


PINNED = "eeff15edf7b1f917"


class TestVocabularyFile:
    def test_windows_line_ends(self, vocabulary: Path, tmp_path: Path) -> None:
        content = (vocabulary / "vocab.txt").read_bytes().replace(b"\n", b"\r\n")
        (tmp_path / "vocab.txt").write_bytes(content)
        assert encode(load(tmp_path), "交通") == [["[CLS]", "交", "通", "[SEP]"]]

    def test_a_token_that_stands_twice_has_the_last_id(self, vocabulary: Path, tmp_path: Path) -> None:
        content = (vocabulary / "vocab.txt").read_text(encoding="utf-8")
        (tmp_path / "vocab.txt").write_text(content + "交\n", encoding="utf-8")
        tokenizer = load(tmp_path)
        assert tokenizer.encode(pa.array(["交"]), None).input_ids.to_pylist() == [[2, len(IDS), 3]]
        assert tokenizer.vocab_size == len(IDS) + 1

    def test_missing_special_tokens_are_named(self, tmp_path: Path) -> None:
        (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\na\n")
        with pytest.raises(UsageError, match=r"lacks \[SEP\], \[MASK\]"):
            load(tmp_path)

    def test_not_utf8(self, tmp_path: Path) -> None:
        (tmp_path / "vocab.txt").write_bytes("交通".encode("gbk"))
        with pytest.raises(UsageError, match="not UTF-8"):
            load(tmp_path)

    def test_max_tokens_that_leave_no_room(self, vocabulary: Path) -> None:
        with pytest.raises(UsageError, match="at least"):
            load(vocabulary, max_tokens=3)


class TestTokenizerJson:
    def folder(self, vocabulary: Path, tmp_path: Path) -> Path:
        load(vocabulary).inner.save(str(tmp_path / "tokenizer.json"))
        return tmp_path

    def test_gives_the_ids_of_what_it_was_saved_from(self, vocabulary: Path, tmp_path: Path) -> None:
        saved, texts = load(self.folder(vocabulary, tmp_path)), ["交通jam", "a" * 60]
        assert encode(saved, *texts) == encode(load(vocabulary), *texts)
        assert saved.special_ids == load(vocabulary).special_ids
        assert saved.fingerprint != load(vocabulary).fingerprint

    def test_padding_that_the_file_asks_for_is_not_done(self, vocabulary: Path, tmp_path: Path) -> None:
        inner = load(vocabulary).inner
        inner.enable_padding(length=20)
        inner.save(str(tmp_path / "tokenizer.json"))
        assert encode(load(tmp_path), "交") == [["[CLS]", "交", "[SEP]"]]

    def test_files_beside_it_name_the_special_tokens(self, vocabulary: Path, tmp_path: Path) -> None:
        folder = self.folder(vocabulary, tmp_path)
        names = {"mask_token": {"content": "a"}, "pad_token": "b"}
        (folder / "special_tokens_map.json").write_text(json.dumps(names))
        found = load(folder).special_ids
        assert (found["mask"], found["pad"], found["cls"]) == (IDS["a"], IDS["b"], IDS["[CLS]"])

    def test_damaged(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.json").write_text("{}")
        with pytest.raises(UsageError, match="not a tokenizer"):
            load(tmp_path)
