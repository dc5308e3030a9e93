"""Which tokenizer a folder or file is, and why; what is missing is said with its setting and the way to get it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.ingest import tokenizers
from headrace.ingest.tokenizers import Options
from headrace.schemas.errors import UsageError
from tests.unit.ingest.tools import write_vocabulary

OPTIONS = Options(max_tokens=16)


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPNLP_HOME", str(tmp_path / "nothing"))


def folder(path: Path, *names: str, kind: str = "") -> Path:
    """Files that are not looked into, beside a vocabulary; and a class."""
    write_vocabulary(path)
    for name in names:
        (path / name).write_text("")
    if kind:
        (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    return path


def found(path: Path, options: Options = OPTIONS) -> tuple[str, str]:
    chosen = tokenizers.find(str(path), options)
    return chosen.kind, chosen.file.name


def test_a_folder_or_the_file_itself(tmp_path: Path) -> None:
    path = folder(tmp_path / "model", kind="BertTokenizer")
    by_folder, by_file = (tokenizers.find(str(each), OPTIONS) for each in (path, path / "vocab.txt"))
    assert (by_folder.kind, by_folder.file, by_folder.why) == (by_file.kind, by_file.file, by_file.why)
    assert by_folder.why == "vocab.txt of BertTokenizer: the ids of PaddleNLP's"


def test_load_takes_the_settings_as_they_are_named(vocabulary: Path) -> None:
    tokenizer = tokenizers.load(str(vocabulary), max_tokens=16, lowercase=False, special_in_text=False)
    ids = tokenizer.encode(pa.array(["A[MASK]"]), None).input_ids.to_pylist()[0]
    assert tokenizer.special_ids["mask"] not in ids
    assert tokenizer.special_ids["unk"] == ids[1]


def test_a_file_of_any_name_goes_by_its_ending(tmp_path: Path) -> None:
    path = folder(tmp_path, "other.json", "other.model")
    shutil.copyfile(path / "vocab.txt", path / "words.txt")
    assert found(path / "words.txt") == ("compiled WordPiece", "words.txt")
    assert found(path / "other.json") == ("tokenizers", "other.json")
    assert found(path / "other.model") == ("sentencepiece", "other.model")


def test_a_vocabulary_of_paddlenlp_comes_first_and_it_is_said(tmp_path: Path) -> None:
    path = folder(tmp_path, "tokenizer.json")
    assert found(path) == ("compiled WordPiece", "vocab.txt")
    assert tokenizers.find(str(path), OPTIONS).notes == (
        "tokenizer.json is not used: PaddleNLP does not read it for this class",
    )


def test_a_vocabulary_of_another_class_leaves_it_to_the_file_beside(tmp_path: Path) -> None:
    path = folder(tmp_path, "tokenizer.json", kind="MPNetTokenizer")
    assert found(path) == ("tokenizers", "tokenizer.json")
    assert "vocab.txt is of MPNetTokenizer" in tokenizers.find(str(path), OPTIONS).why


def test_a_vocabulary_of_another_class_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="MPNetTokenizer, which is not offered"):
        found(folder(tmp_path, kind="MPNetTokenizer"))


def test_a_vocabulary_and_a_model_without_a_class_are_ambiguous(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"vocab\.txt and spm\.model.*tokenizer_class"):
        found(folder(tmp_path, "spm.model"))
    assert found(tmp_path / "vocab.txt") == ("compiled WordPiece", "vocab.txt")


def test_settings_against_the_files_are_noted(tmp_path: Path) -> None:
    chosen = tokenizers.find(str(folder(tmp_path)), Options(16, lowercase=False, strip_accents=True))
    assert chosen.case == "cased, without accents"
    assert len(chosen.notes) == 2
    assert chosen.why.endswith("with your settings")


def test_a_name_that_is_none_says_how_to_get_a_folder() -> None:
    with pytest.raises(
        UsageError, match=r"tokenizer\.path.*did you mean ernie-3\.0-base-zh.*ernie-3\.0-bas.*save_pretrained"
    ):
        tokenizers.load("ernie-3.0-bas", max_tokens=16)


@pytest.mark.parametrize("content", ["nothing", "other.bin"])
def test_a_folder_without_a_tokenizer(tmp_path: Path, content: str) -> None:
    (tmp_path / content).write_text("x")
    with pytest.raises(UsageError, match=r"holds no vocab\.txt, tokenizer\.json or a SentencePiece"):
        tokenizers.load(str(tmp_path), max_tokens=16)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_text("x")
    with pytest.raises(UsageError, match="not a tokenizer"):
        tokenizers.load(str(tmp_path / "model.bin"), max_tokens=16)


def test_no_path() -> None:
    with pytest.raises(UsageError, match=r"train\.model"):
        tokenizers.load("", max_tokens=16)


FIND = """
import sys
from headrace.ingest import tokenizers
print(tokenizers.find(sys.argv[1], tokenizers.Options(16)).kind)
print(sorted({"numba", "tokenizers", "sentencepiece"} & sys.modules.keys()))
"""


def test_finding_loads_no_library(vocabulary: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIND, str(vocabulary)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines() == ["compiled WordPiece", "[]"]
