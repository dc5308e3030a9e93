"""The development set is tokenized as the lanes are, and a line that cannot be used is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.ingest import tokenizers
from headrace.ingest.config import TokenizerConfig
from headrace.ingest.development import tokenize_file
from headrace.pipeline.config import FieldNames
from headrace.schemas.errors import UsageError
from headrace.schemas.tokens import decode


@pytest.fixture
def settings(tmp_path: Path) -> TokenizerConfig:
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"路灯坏了"]) + "\n")
    return TokenizerConfig(path=str(tmp_path / "vocab.txt"), max_tokens=16)


def test_every_line_becomes_a_row_with_its_number(tmp_path: Path, settings: TokenizerConfig) -> None:
    file = tmp_path / "dev.jsonl"
    file.write_text('{"text": "路灯", "label": "a"}\n\n{"text": "坏了坏", "label": "b"}\n')
    rows, meta = decode(tokenize_file(file, FieldNames(), settings))
    assert rows.column("input_ids").to_pylist() == [[2, 5, 6, 3], [2, 7, 8, 7, 3]]
    assert rows.column("labels").to_pylist() == [["a"], ["b"]]
    assert rows.column("offset").to_pylist() == [1, 3]
    loaded = tokenizers.find(settings.path, tokenizers.options(settings)).load()
    assert meta.fingerprint == loaded.fingerprint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "路", "label": "a"}\n{"label": "a"}\n', "line 2: missing-text"),
        ('{"text": "路", "label": "a"}\nno JSON\n', "line 2: invalid-json"),
        ("\n", "holds no records"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, settings: TokenizerConfig, content: str, message: str) -> None:
    file = tmp_path / "dev.jsonl"
    file.write_text(content)
    with pytest.raises(UsageError, match=message):
        tokenize_file(file, FieldNames(), settings)


def test_a_file_of_another_kind_is_refused(tmp_path: Path, settings: TokenizerConfig) -> None:
    (tmp_path / "dev.txt").write_text("路\n")
    with pytest.raises(UsageError, match=r"not a \.jsonl file"):
        tokenize_file(tmp_path / "dev.txt", FieldNames(), settings)
