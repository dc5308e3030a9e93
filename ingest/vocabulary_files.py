"""A vocabulary's folder, as PaddleNLP's `ErnieTokenizer.from_pretrained` and `tokenizer.path` read it.

Each file appears whole or not at all, `vocab.txt` last: only with it the folder is a tokenizer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from headrace.ingest.tokenizers import layout
from headrace.ingest.vocabulary import SPECIAL_TOKENS
from headrace.schemas.errors import UsageError

_VOCABULARY = "vocab.txt"

#: Files of other tokenizers, and what was added to one: they would be read in place of the vocabulary, or beside it.
_OTHERS = ("tokenizer.json", layout.ADDED_TOKENS, layout.SPECIAL_TOKENS)
_OTHER_KINDS = "*.model"


def check_folder(folder: Path, *, force: bool) -> None:
    """Raises UsageError where a vocabulary would be overwritten without `force`, or not be read once it is there."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise UsageError(f"--out: {nearest} is not a folder: name one")
    there = [name for name in (_VOCABULARY, layout.CONFIG) if (folder / name).exists()]
    if there and not force:
        raise UsageError(f"--out: {folder / there[0]} is there already: name another folder, or overwrite with --force")
    others = [folder / name for name in _OTHERS if (folder / name).exists()] or sorted(folder.glob(_OTHER_KINDS))
    if others:
        raise UsageError(f"--out: {others[0]} belongs to another tokenizer: name another folder, or remove it")


def write(folder: Path, tokens: Sequence[str], *, cased: bool, force: bool) -> Path:
    """Write both files durably and return the vocabulary's. Raises UsageError as `check_folder` does."""
    special = {f"{token.strip('[]').lower()}_token": token for token in SPECIAL_TOKENS}
    content = json.dumps({"do_lower_case": not cased, **special, "tokenizer_class": "ErnieTokenizer"}, indent=2)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_folder(folder, force=force)
        _replace(folder / layout.CONFIG, f"{content}\n")
        _replace(folder / _VOCABULARY, "".join(f"{token}\n" for token in tokens))
    except OSError as error:
        raise UsageError(f"--out: {folder} cannot be written ({error.strerror}): name another folder") from error
    return folder / _VOCABULARY


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
