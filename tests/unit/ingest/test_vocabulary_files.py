"""A vocabulary's folder: read by both tokenizers, whole or not there, and never overwritten by accident."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.ingest import tokenizers
from headrace.ingest.vocabulary import Limits, Words, build, splitter
from headrace.ingest.vocabulary_files import check_folder, write
from headrace.schemas.errors import UsageError

TEXTS = [
    "交通拥堵严重，希望尽快解决！",
    "Café Lowest low №5 ①号线 Ｗ",
    "low lower LOWEST news newest",
    "한국 ΑΣ e\u0301",
]


@pytest.mark.parametrize("cased", [False, True])
def test_paddlenlp_reads_it_and_knows_every_word(cased: bool, tmp_path: Path) -> None:
    from paddlenlp.transformers import ErnieTokenizer

    words = Words(splitter(cased=cased))
    words.add(TEXTS)
    made = build(words, Limits(300))
    assert write(tmp_path / "a" / "b", made.tokens, cased=cased, force=False) == tmp_path / "a" / "b" / "vocab.txt"
    theirs = ErnieTokenizer.from_pretrained(str(tmp_path / "a" / "b"))
    assert theirs.do_lower_case is not cased and theirs.vocab_size == len(made.tokens)
    assert [theirs.convert_ids_to_tokens(number) for number in range(5)] == list(made.tokens[:5])
    ids = [theirs(text)["input_ids"] for text in TEXTS]
    assert not [theirs.convert_ids_to_tokens(row) for row in ids if theirs.unk_token_id in row]

    ours = tokenizers.load(str(tmp_path / "a" / "b"), lowercase=not cased, max_tokens=512)
    assert dict(ours.special_ids) == {"pad": 0, "cls": 1, "sep": 2, "mask": 3, "unk": 4}
    assert ours.encode(pa.array(TEXTS), None).input_ids.to_pylist() == ids


def test_what_is_there_is_not_overwritten_without_force(tmp_path: Path) -> None:
    write(tmp_path, ["first"], cased=False, force=False)
    with pytest.raises(UsageError, match=r"--out: .*vocab\.txt is there already: .*--force"):
        write(tmp_path, ["second"], cased=True, force=False)
    assert (tmp_path / "vocab.txt").read_text() == "first\n"
    write(tmp_path, ["second"], cased=True, force=True)
    assert (tmp_path / "vocab.txt").read_text() == "second\n"
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["do_lower_case"] is False
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer_config.json", "vocab.txt"]


@pytest.mark.parametrize("name", ["tokenizer.json", "added_tokens.json", "spiece.model"])
def test_another_tokenizer_in_the_folder_is_refused_even_with_force(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(UsageError, match=f"{name} belongs to another tokenizer"):
        check_folder(tmp_path, force=True)


def test_a_file_in_the_folders_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is not a folder"):
        check_folder(tmp_path / "file", force=True)
    with pytest.raises(UsageError, match="file is not a folder"):  # before texts are read for nothing
        check_folder(tmp_path / "file" / "below" / "deeper", force=False)
    with pytest.raises(UsageError, match=r"--out: .* cannot be written"):
        write(tmp_path / "file" / "below", ["a"], cased=False, force=False)


def test_a_write_that_fails_leaves_nothing_half_done(tmp_path: Path) -> None:
    """A token that UTF-8 cannot hold stops the vocabulary's file in the middle."""
    write(tmp_path, ["first"], cased=False, force=False)
    with pytest.raises(UnicodeEncodeError):
        write(tmp_path, ["second", "\ud800"], cased=False, force=True)
    assert (tmp_path / "vocab.txt").read_text() == "first\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokenizer_config.json", "vocab.txt"]
