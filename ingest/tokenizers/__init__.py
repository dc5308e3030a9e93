"""Tokenizers by the file that defines them. `load` finds the file; a new kind is a new entry of `KINDS`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.ingest.tokenizers import huggingface
from headrace.ingest.tokenizers.base import Encoded, Tokenizer
from headrace.schemas.errors import UsageError

__all__ = ["Encoded", "Tokenizer", "load"]

#: File name -> function(file, lowercase, max_tokens). Of several in a folder the first is taken.
KINDS: dict[str, Callable[[Path, bool, int], Tokenizer]] = {
    "tokenizer.json": huggingface.from_json,
    "vocab.txt": huggingface.from_vocab,
}


def load(path: str, *, lowercase: bool, max_tokens: int) -> Tokenizer:
    """Load the tokenizer of a folder or file. Raises UsageError when there is none, saying how to get one."""
    file = find(path)
    make = KINDS.get(file.name) or next(
        (make for name, make in KINDS.items() if Path(name).suffix == file.suffix), None
    )
    if make is None:
        raise UsageError(f"tokenizer.path: {path!r} is not a tokenizer: {_expected()} is expected")
    return make(file, lowercase, max_tokens)


def find(path: str) -> Path:
    """The file that defines the tokenizer."""
    if not path:
        raise UsageError(f"tokenizer.path (or train.model) is not set: name a folder with {_expected()}")
    given = Path(path).expanduser()
    if given.is_file():
        return given
    if given.is_dir():
        for name in KINDS:
            if (given / name).is_file():
                return given / name
        raise UsageError(
            f"tokenizer.path: the folder {path!r} holds neither {' nor '.join(KINDS)}: copy the model's there"
        )
    raise UsageError(
        f"tokenizer.path: there is no folder or file {path!r}: a folder with {_expected()} is expected. "
        f'A hub name is not a folder; get one with: python -c "from paddlenlp.transformers import AutoTokenizer as T; '
        f"T.from_pretrained('{path}').save_pretrained('tokenizer')\", then set tokenizer.path to ./tokenizer"
    )


def _expected() -> str:
    return " or ".join(KINDS)
