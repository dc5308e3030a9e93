"""Finding a tokenizer: what is missing is said with the setting's name and the way to get it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.ingest import tokenizers
from headrace.schemas.errors import UsageError
from tests.unit.ingest.tools import write_vocabulary


def test_a_folder_or_the_file_itself(tmp_path: Path) -> None:
    folder = write_vocabulary(tmp_path / "model")
    by_folder = tokenizers.load(str(folder), lowercase=True, max_tokens=16)
    by_file = tokenizers.load(str(folder / "vocab.txt"), lowercase=True, max_tokens=16)
    assert by_folder.fingerprint == by_file.fingerprint


def test_a_file_of_any_name_goes_by_its_ending(tmp_path: Path) -> None:
    folder = write_vocabulary(tmp_path / "model")
    (folder / "vocab.txt").rename(folder / "words.txt")
    assert tokenizers.load(str(folder / "words.txt"), lowercase=True, max_tokens=16).vocab_size > 0


def test_a_hub_name_is_no_folder_and_the_error_says_how_to_get_one() -> None:
    with pytest.raises(UsageError, match=r"tokenizer\.path.*ernie-3\.0-base-zh.*save_pretrained"):
        tokenizers.load("ernie-3.0-base-zh", lowercase=True, max_tokens=16)


@pytest.mark.parametrize("content", ["nothing", "other.bin"])
def test_a_folder_without_a_tokenizer(tmp_path: Path, content: str) -> None:
    (tmp_path / content).write_text("x")
    with pytest.raises(UsageError, match=r"neither tokenizer\.json nor vocab\.txt"):
        tokenizers.load(str(tmp_path), lowercase=True, max_tokens=16)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_text("x")
    with pytest.raises(UsageError, match="not a tokenizer"):
        tokenizers.load(str(tmp_path / "model.bin"), lowercase=True, max_tokens=16)


def test_no_path() -> None:
    with pytest.raises(UsageError, match=r"train\.model"):
        tokenizers.load("", lowercase=True, max_tokens=16)
