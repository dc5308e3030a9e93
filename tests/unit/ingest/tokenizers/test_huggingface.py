"""The library's tokenizers: ids, pairs, truncation, special tokens, fingerprints."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
import tokenizers as library
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from headrace.ingest import tokenizers
from headrace.ingest.tokenizers import Tokenizer
from headrace.ingest.tokenizers.huggingface import HuggingFaceTokenizer
from headrace.schemas.errors import UsageError
from tests.unit.ingest.tools import VOCABULARY

IDS = {token: number for number, token in enumerate(dict.fromkeys(VOCABULARY))}


def bert() -> library.Tokenizer:
    """A BERT pipeline of the library's own parts."""
    inner = library.Tokenizer(models.WordPiece(vocab=IDS, unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    inner.post_processor = processors.BertProcessing(("[SEP]", IDS["[SEP]"]), ("[CLS]", IDS["[CLS]"]))
    inner.decoder = decoders.WordPiece(prefix="##")
    return inner


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("json")
    bert().save(str(path / "tokenizer.json"))
    return path


def load(folder: Path, *, max_tokens: int = 32, special_in_text: bool = True) -> HuggingFaceTokenizer:
    found = tokenizers.load(str(folder), max_tokens=max_tokens, special_in_text=special_in_text)
    assert isinstance(found, HuggingFaceTokenizer)
    return found


def encode(tokenizer: Tokenizer, *texts: str, pairs: list[str | None] | None = None) -> list[list[str]]:
    names = {number: token for token, number in IDS.items()}
    encoded = tokenizer.encode(pa.array(texts), None if pairs is None else pa.array(pairs, pa.string()))
    return [[names[number] for number in row] for row in encoded.input_ids.to_pylist()]


def test_the_pipeline_of_the_file(folder: Path) -> None:
    assert encode(load(folder), "交通jam。 Traffic jams", "ÀB", "é☃ ok") == [
        ["[CLS]", "交", "通", "jam", "。", "traffic", "jam", "##s", "[SEP]"],
        ["[CLS]", "a", "##b", "[SEP]"],
        ["[CLS]", "[UNK]", "o", "##k", "[SEP]"],
    ]


def test_too_long_is_known_and_an_exact_fit_is_none(folder: Path) -> None:
    encoded = load(folder, max_tokens=5).encode(pa.array(["交通拥", "交通拥堵", "交通"]), None)
    assert encoded.too_long.to_pylist() == [False, True, False]
    assert [len(ids) for ids in encoded.input_ids.to_pylist()] == [5, 5, 4]


def test_pairs_cut_the_longer_text_first_and_know_where_the_second_begins(folder: Path) -> None:
    tokenizer = load(folder, max_tokens=7)
    pairs = ["a b", None, "a b c d e", "\u200b"]
    encoded = tokenizer.encode(pa.array(["交 通 拥 堵 严 重"] * 2 + ["交"] * 2), pa.array(pairs))
    assert encode(tokenizer, "交 通 拥 堵 严 重", pairs=["a b"]) == [["[CLS]", "交", "通", "[SEP]", "a", "b", "[SEP]"]]
    assert encoded.pair_start is not None
    assert encoded.pair_start.to_pylist() == [4, None, 3, 3]
    assert encoded.too_long.to_pylist() == [True, True, True, False]


def test_ids_are_uint16_where_the_vocabulary_fits(folder: Path) -> None:
    tokenizer = load(folder)
    assert tokenizer.encode(pa.array(["a"]), None).input_ids.type == pa.list_(pa.uint16())
    assert tokenizer.encode(pa.array([], pa.string()), None).input_ids.type == pa.list_(pa.uint16())


def test_decoding_leaves_special_tokens_out(folder: Path) -> None:
    tokenizer = load(folder)
    (ids,) = tokenizer.encode(pa.array(["traffic jams"]), None).input_ids.to_pylist()
    assert tokenizer.decode(ids) == "traffic jams"


def test_special_ids_and_vocabulary(folder: Path) -> None:
    assert load(folder).special_ids == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    assert load(folder).vocab_size == len(IDS)


@given(st.lists(st.text(max_size=30), max_size=5))
def test_one_row_a_text_whatever_the_texts_and_batches(folder: Path, texts: list[str]) -> None:
    tokenizer = load(folder, max_tokens=12)
    together = tokenizer.encode(pa.array(texts, pa.string()), None)
    assert len(together.input_ids) == len(together.too_long) == len(texts)
    alone = [tokenizer.encode(pa.array([text]), None).input_ids.to_pylist()[0] for text in texts]
    assert together.input_ids.to_pylist() == alone
    assert all(2 <= len(ids) <= 12 for ids in alone)


def test_special_tokens_in_a_text_are_theirs_or_text_as_asked(folder: Path) -> None:
    assert encode(load(folder), "a[MASK]") == [["[CLS]", "a", "[MASK]", "[SEP]"]]
    assert "[MASK]" not in encode(load(folder, special_in_text=False), "a[MASK]")[0]
    assert load(folder).fingerprint != load(folder, special_in_text=False).fingerprint


def test_padding_that_the_file_asks_for_is_not_done(tmp_path: Path) -> None:
    inner = bert()
    inner.enable_padding(length=20)
    inner.save(str(tmp_path / "tokenizer.json"))
    assert encode(load(tmp_path), "交") == [["[CLS]", "交", "[SEP]"]]


def test_files_beside_it_name_the_special_tokens(tmp_path: Path) -> None:
    bert().save(str(tmp_path / "tokenizer.json"))
    names = {"mask_token": {"content": "a"}, "pad_token": "b"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(names))
    found = load(tmp_path).special_ids
    assert (found["mask"], found["pad"], found["cls"]) == (IDS["a"], IDS["b"], IDS["[CLS]"])


def test_damaged(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="not a tokenizer"):
        load(tmp_path)


def test_max_tokens_that_leave_no_room(folder: Path) -> None:
    with pytest.raises(UsageError, match="at least 4"):
        load(folder, max_tokens=3)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"lowercase": True}, r"tokenizer\.lowercase"),
        ({"strip_accents": False}, r"tokenizer\.strip_accents"),
        ({"split": True}, r"tokenizer\.long_text: split"),
        ({"words": "jieba"}, r"tokenizer\.words"),
    ],
)
def test_settings_that_the_file_decides_are_refused_by_name(
    folder: Path, setting: dict[str, bool | str], named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        tokenizers.load(str(folder), max_tokens=32, **setting)
