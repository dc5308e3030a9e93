"""Files of texts: what they hold goes by their name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import BinaryIO, Literal

from headrace.schemas.errors import UsageError

LineFormat = Literal["text", "json"]

_FORMATS: dict[str, LineFormat] = {".txt": "text", ".jsonl": "json", ".ndjson": "json"}
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/")  # of a store; Path makes one slash of two
_COMPRESSED = {".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip"}


def file_format(path: Path, verb: str) -> LineFormat:
    """What a file's name says it holds. Raises UsageError for what is not read, saying how `headrace VERB` does."""
    text = str(path)
    if _ADDRESS.match(text):
        raise UsageError(f"{text}: files in stores are not read yet: copy it here, or pipe it into `headrace {verb} -`")
    if not path.exists():
        raise UsageError(f"{text}: there is no such file")
    if path.is_dir():
        raise UsageError(f"{text} is a folder: name the files in it, such as {text}/*.jsonl")
    suffix = path.suffix.lower()
    if suffix in _COMPRESSED:
        raise UsageError(
            f"{text}: compressed files are not read yet: decompress it and pipe it into `headrace {verb} -`"
        )
    if suffix not in _FORMATS:
        raise UsageError(
            f"{text}: files of this kind are not read: .txt (a text a line) and .jsonl (a JSON object a line) are; "
            f"pipe anything that prints such lines into `headrace {verb} -`"
        )
    return _FORMATS[suffix]


def open_file(path: Path) -> BinaryIO:
    """Raises UsageError naming the file."""
    try:
        return path.open("rb")
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): make it readable for this user") from error
