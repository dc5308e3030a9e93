"""Tokenizers through the `tokenizers` library: a `tokenizer.json`, or a BERT WordPiece over a `vocab.txt`.

A `vocab.txt` gets the pipeline that BERT's and ERNIE's own fast tokenizers have: control characters removed, every CJK
character a word, lower case without accents (where `lowercase`), split at white space and punctuation, then greedy
longest match. Cost: about 100 microseconds a short text, on one core: workers set TOKENIZERS_PARALLELISM=false, for
they share the cores out by process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tokenizers as library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from headrace.ingest.tokenizers.base import Encoded
from headrace.schemas.errors import UsageError
from headrace.schemas.fingerprint import fingerprint
from headrace.schemas.tokens import ids_type

#: Changes whenever the same files and settings give other ids.
OUTPUT_VERSION = 1

_SPECIAL = {"cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]", "unk": "[UNK]"}
_MAX_CHARS_PER_WORD = 100

# Names of the special tokens in a tokenizer.json that no file beside it names.
_CANDIDATES = {
    "cls": ("[CLS]", "<s>", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>"),
    "pad": ("[PAD]", "<pad>", "<|padding|>"),
    "mask": ("[MASK]", "<mask>"),
    "unk": ("[UNK]", "<unk>"),
}


@dataclass(frozen=True, slots=True)
class HuggingFaceTokenizer:
    """A tokenizer of the library, set up to truncate and never to pad."""

    inner: library.Tokenizer
    max_tokens: int
    special_ids: Mapping[str, int]
    vocab_size: int
    fingerprint: str

    def encode(self, texts: pa.StringArray, pairs: pa.StringArray | None) -> Encoded:
        items: list[Any] = texts.to_numpy(zero_copy_only=False).tolist()
        if pairs is not None:
            seconds = pairs.to_numpy(zero_copy_only=False).tolist()
            items = [text if pair is None else (text, pair) for text, pair in zip(items, seconds, strict=True)]
        encodings = self.inner.encode_batch_fast(items)
        ids = [encoding.ids for encoding in encodings]
        ends = np.cumsum([0, *map(len, ids)], dtype=np.int32)
        kind = ids_type(self.vocab_size)
        flat = np.fromiter(chain.from_iterable(ids), kind.to_pandas_dtype(), int(ends[-1]))
        too_long = [
            len(row) == self.max_tokens and bool(encoding.overflowing)
            for row, encoding in zip(ids, encodings, strict=True)
        ]
        return Encoded(
            input_ids=pa.ListArray.from_arrays(pa.array(ends), pa.array(flat)),
            pair_start=None if pairs is None else pa.array(map(_pair_start, encodings), pa.uint16()),
            too_long=pa.array(too_long, pa.bool_()),
        )

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.inner.decode([int(number) for number in ids]))


def from_json(file: Path, lowercase: bool, max_tokens: int) -> HuggingFaceTokenizer:
    """Load a `tokenizer.json`, which says itself whether it lower-cases. Raises UsageError for a damaged one."""
    content = file.read_bytes()
    try:
        inner = library.Tokenizer.from_buffer(content)
    except ValueError as error:
        raise UsageError(f"tokenizer.path: {str(file)!r} is not a tokenizer of this library: {error}") from error
    vocabulary = inner.get_vocab(with_added_tokens=True)
    special_ids = _special_ids(file, vocabulary)
    return _finish(inner, vocabulary, special_ids, max_tokens, {"kind": "tokenizer.json", "content": _digest(content)})


def from_vocab(file: Path, lowercase: bool, max_tokens: int) -> HuggingFaceTokenizer:
    """Build a BERT WordPiece. Raises UsageError when the vocabulary is not UTF-8 or lacks a special token."""
    content = file.read_bytes()
    vocabulary = _read_vocab(file, content)
    missing = [token for token in _SPECIAL.values() if token not in vocabulary]
    if missing:
        raise UsageError(
            f"tokenizer.path: the vocabulary {str(file)!r} lacks {', '.join(missing)}: one token a line is expected, "
            "these among them"
        )
    inner = library.Tokenizer(
        models.WordPiece(
            vocab=vocabulary,
            unk_token=_SPECIAL["unk"],
            continuing_subword_prefix="##",
            max_input_chars_per_word=_MAX_CHARS_PER_WORD,
        )
    )
    inner.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=lowercase, lowercase=lowercase
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special_ids = {name: vocabulary[token] for name, token in _SPECIAL.items()}
    inner.add_special_tokens(list(_SPECIAL.values()))
    inner.post_processor = processors.BertProcessing(
        (_SPECIAL["sep"], special_ids["sep"]), (_SPECIAL["cls"], special_ids["cls"])
    )
    inner.decoder = decoders.WordPiece(prefix="##")
    fields = {"kind": "vocab.txt", "content": _digest(content), "lowercase": lowercase}
    return _finish(inner, vocabulary, special_ids, max_tokens, fields)


def _finish(
    inner: library.Tokenizer,
    vocabulary: Mapping[str, int],
    special_ids: Mapping[str, int],
    max_tokens: int,
    fields: Mapping[str, object],
) -> HuggingFaceTokenizer:
    room = max_tokens - inner.num_special_tokens_to_add(is_pair=True)
    if room < 1:
        raise UsageError(
            f"tokenizer.max_tokens: {max_tokens} leaves no room for text: at least {max_tokens + 1 - room}"
        )
    inner.no_padding()
    inner.enable_truncation(max_tokens, strategy="longest_first")
    return HuggingFaceTokenizer(
        inner=inner,
        max_tokens=max_tokens,
        special_ids=special_ids,
        vocab_size=max(vocabulary.values()) + 1,
        fingerprint=fingerprint(
            {
                **fields,
                "library": "huggingface",
                "version": OUTPUT_VERSION,
                "max_tokens": max_tokens,
                "pairs": "longest-first",
                "special_ids": dict(special_ids),
            }
        ),
    )


def _read_vocab(file: Path, content: bytes) -> dict[str, int]:
    """One token a line, the line number its id; of a token that stands twice the last counts, as in PaddleNLP."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"tokenizer.path: the vocabulary {str(file)!r} is not UTF-8: {error}") from error
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return {token: number for number, token in enumerate(lines)}


def _special_ids(file: Path, vocabulary: Mapping[str, int]) -> dict[str, int]:
    """Special tokens as the files beside a tokenizer.json name them, else by their usual names."""
    named: dict[str, str] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        beside = file.with_name(name)
        if beside.is_file():
            try:
                named.update(_token_names(json.loads(beside.read_bytes())))
            except ValueError as error:
                raise UsageError(
                    f"tokenizer.path: {str(beside)!r} is not JSON: {error}: repair or remove it"
                ) from error
    found: dict[str, int] = {}
    for key, candidates in _CANDIDATES.items():
        names = [named[key]] if key in named else candidates
        token = next((name for name in names if name in vocabulary), None)
        if token is not None:
            found[key] = vocabulary[token]
    return found


def _token_names(fields: Mapping[str, Any]) -> dict[str, str]:
    """Both `"cls_token": "[CLS]"` and `"cls_token": {"content": "[CLS]"}` are written by the library."""
    names: dict[str, str] = {}
    for key in _CANDIDATES:
        token = fields.get(f"{key}_token")
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            names[key] = content
    return names


def _pair_start(encoding: library.Encoding) -> int | None:
    """Where the second text begins; where nothing of it is left, its closing special token."""
    if encoding.n_sequences < 2:
        return None
    sequences = encoding.sequence_ids
    if 1 in sequences:
        return int(sequences.index(1))
    kinds = encoding.type_ids
    return int(kinds.index(1)) if 1 in kinds else None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
