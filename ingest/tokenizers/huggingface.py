"""Tokenizers through the `tokenizers` library: a `tokenizer.json`, whose pipeline can be any.

Cost: about 100 microseconds a short text, on one core: workers set TOKENIZERS_PARALLELISM=false, for they share the
cores out by process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tokenizers as library

from headrace.ingest.tokenizers import layout
from headrace.ingest.tokenizers.base import Encoded, Options
from headrace.schemas.errors import UsageError
from headrace.schemas.fingerprint import fingerprint
from headrace.schemas.tokens import ids_type

#: Changes whenever the same files and settings give other ids.
OUTPUT_VERSION = 1

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


def make(file: Path, options: Options) -> HuggingFaceTokenizer:
    """Load a `tokenizer.json`. Raises UsageError for a damaged one, and for settings that it decides itself."""
    layout.refuse_compiled_only(options, f"a {file.name}")
    if options.lowercase is not None:
        raise UsageError(f"tokenizer.lowercase: a {file.name} says itself whether it lower-cases: remove the setting")
    content = file.read_bytes()
    try:
        inner = library.Tokenizer.from_buffer(content)
    except ValueError as error:
        raise UsageError(f"tokenizer.path: {str(file)!r} is not a tokenizer of this library: {error}") from error
    inner.encode_special_tokens = not options.special_in_text
    vocabulary = inner.get_vocab(with_added_tokens=True)
    special_ids = _special_ids(file, vocabulary)
    room = options.max_tokens - inner.num_special_tokens_to_add(is_pair=True)
    if room < 1:
        least = options.max_tokens + 1 - room
        raise UsageError(f"tokenizer.max_tokens: {options.max_tokens} leaves no room for text: at least {least}")
    inner.no_padding()
    inner.enable_truncation(options.max_tokens, strategy="longest_first")
    fields: dict[str, object] = {
        "kind": "tokenizer.json",
        "content": hashlib.sha256(content).hexdigest(),
        "library": "huggingface",
        "version": OUTPUT_VERSION,
        "max_tokens": options.max_tokens,
        "pairs": "longest-first",
        "special_ids": special_ids,
    }
    if not options.special_in_text:
        fields["special_in_text"] = False
    return HuggingFaceTokenizer(
        inner=inner,
        max_tokens=options.max_tokens,
        special_ids=special_ids,
        vocab_size=max(vocabulary.values()) + 1,
        fingerprint=fingerprint(fields),
    )


def _special_ids(file: Path, vocabulary: Mapping[str, int]) -> dict[str, int]:
    """Special tokens as the files beside a tokenizer.json name them, else by their usual names."""
    named: dict[str, str] = {}
    for beside in (layout.CONFIG, layout.SPECIAL_TOKENS):
        named.update(layout.token_names(layout.read_json(file.with_name(beside))))
    found: dict[str, int] = {}
    for key, candidates in _CANDIDATES.items():
        name = named.get(layout.SPECIAL[key])
        names = candidates if name is None else (name,)
        token = next((name for name in names if name in vocabulary), None)
        if token is not None:
            found[key] = vocabulary[token]
    return found


def _pair_start(encoding: library.Encoding) -> int | None:
    """Where the second text begins; where nothing of it is left, its closing special token."""
    if encoding.n_sequences < 2:
        return None
    sequences = encoding.sequence_ids
    if 1 in sequences:
        return int(sequences.index(1))
    kinds = encoding.type_ids
    return int(kinds.index(1)) if 1 in kinds else None
