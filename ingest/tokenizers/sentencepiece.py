"""Tokenizers through the `sentencepiece` library: a `*.model`.

The library cuts into pieces; special tokens are put around them here: [CLS] A [SEP] B [SEP] where the model has those
two, else <s> A </s> B </s>. Of a pair that is too long, the longer text loses tokens first, one by one; of two equally
long ones the second. Ids come from the library as arrays and stay arrays. Cost: 30 microseconds for 90 characters.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import sentencepiece as library

from headrace.ingest.tokenizers import layout
from headrace.ingest.tokenizers.base import Encoded, Options
from headrace.schemas.errors import UsageError
from headrace.schemas.fingerprint import fingerprint
from headrace.schemas.tokens import ids_type

#: Changes whenever the same files and settings give other ids.
OUTPUT_VERSION = 1

# Classes whose ids are the model's and whose layout is the one above; an unnamed class is taken for such.
CLASSES = frozenset({"", "RemBertTokenizer"})

# Names of the special tokens where no file beside the model names them.
_FAMILIES = (
    {"cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]", "unk": "[UNK]"},
    {"cls": "<s>", "sep": "</s>", "pad": "<pad>", "mask": "<mask>", "unk": "<unk>"},
)

_LEAST_TOKENS = 4  # the special tokens of a pair, and one more

Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SentencePieceTokenizer:
    """A model, and what stands around its pieces."""

    inner: library.SentencePieceProcessor
    max_tokens: int
    lowercase: bool
    special_ids: Mapping[str, int]
    literal: Mapping[str, int]  # tokens that are cut out of a text as they stand
    cut: re.Pattern[str] | None
    vocab_size: int
    fingerprint: str

    def encode(self, texts: pa.StringArray | pa.LargeStringArray, pairs: pa.StringArray | None) -> Encoded:
        first, first_lengths = self._pieces(texts.to_pylist())
        if pairs is None:
            second, second_lengths = first[:0], np.zeros_like(first_lengths)
            paired = np.zeros(len(first_lengths), bool)
        else:
            paired = pairs.is_valid().to_numpy(zero_copy_only=False)
            second, second_lengths = self._pieces(pairs.fill_null("").to_pylist())
            second_lengths = np.where(paired, second_lengths, 0)
        room = self.max_tokens - 2 - paired
        kept, second_kept = longest_first(first_lengths, second_lengths, room)
        lengths = 2 + kept + np.where(paired, second_kept + 1, 0)
        ends = np.concatenate(([0], np.cumsum(lengths)))
        begins = ends[:-1]
        kind = ids_type(self.vocab_size)
        flat = np.full(ends[-1], self.special_ids["sep"], kind.to_pandas_dtype())
        flat[begins] = self.special_ids["cls"]
        _place(flat, begins + 1, first, first_lengths, kept)
        _place(flat, begins + 2 + kept, second, second_lengths, second_kept)
        return Encoded(
            input_ids=pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(flat)),
            pair_start=None if pairs is None else pa.array(kept + 2, pa.uint16(), mask=~paired),
            too_long=pa.array(first_lengths + second_lengths > room),
        )

    def decode(self, ids: Sequence[int]) -> str:
        special = set(self.special_ids.values()) | set(self.literal.values())
        return str(self.inner.decode([int(number) for number in ids if number not in special]))

    def _pieces(self, texts: list[str]) -> tuple[npt.NDArray[np.int32], Lengths]:
        """Ids of all texts behind each other, and how many are of each."""
        rows = self.inner.encode([self._lower(text) for text in texts], return_type="numpy")
        if self.cut is not None:
            for number, text in enumerate(texts):
                if self.cut.search(text):
                    rows[number] = self._around_literals(self.cut.split(text))
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return np.concatenate(rows) if rows else np.empty(0, np.int32), lengths

    def _around_literals(self, parts: list[str]) -> npt.NDArray[np.int32]:
        """Every second part is a literal token; white space beside one is dropped, as in PaddleNLP."""
        last = len(parts) - 1
        found = []
        for number, part in enumerate(parts):
            if number % 2:
                found.append(np.array([self.literal[part]], np.int32))
            else:
                text = part.lstrip() if number else part
                text = text.rstrip() if number < last else text
                found.append(self.inner.encode(self._lower(text), return_type="numpy"))
        return np.concatenate(found)

    def _lower(self, text: str) -> str:
        """By single characters, as PaddleNLP: a final sigma is none."""
        return "".join(map(str.lower, text)) if self.lowercase else text


def longest_first(first: Lengths, second: Lengths, room: Lengths) -> tuple[Lengths, Lengths]:
    """How much of each text is kept when single tokens are taken from the longer, of equal ones from the second."""
    kept = np.where(first + second <= room, first, np.minimum(first, np.maximum(room - second, (room + 1) // 2)))
    return kept, np.minimum(second, room - kept)


def _place(flat: npt.NDArray[Any], begins: Lengths, ids: npt.NDArray[np.int32], had: Lengths, kept: Lengths) -> None:
    """Copy the first `kept` of every `had` ids to where its row begins."""
    within = np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept)
    flat[np.repeat(begins, kept) + within] = ids[np.repeat(np.cumsum(had) - had, kept) + within]


def make(file: Path, options: Options) -> SentencePieceTokenizer:
    """Load a model. Raises UsageError for one that is damaged, or whose ids or layout would be another's."""
    layout.refuse_compiled_only(options, f"a SentencePiece model ({file.name})")
    content = file.read_bytes()
    try:
        inner = library.SentencePieceProcessor(model_proto=content)
    except RuntimeError as error:
        raise UsageError(f"tokenizer.path: {str(file)!r} is not a SentencePiece model: {error}") from error
    config = layout.read_json(file.with_name(layout.CONFIG))
    _refuse(file, config)
    if options.max_tokens < _LEAST_TOKENS:
        raise UsageError(
            f"tokenizer.max_tokens: {options.max_tokens} leaves no room for text: at least {_LEAST_TOKENS}"
        )
    special_ids, literal = _special(file, inner, config)
    if not options.special_in_text:
        _refuse_matched(inner, literal)
        literal = {}
    stated = bool(config.get("do_lower_case", False))
    lowercase = stated if options.lowercase is None else options.lowercase
    vocab_size = max(inner.get_piece_size(), *(number + 1 for number in special_ids.values()))
    fields = {
        "library": "sentencepiece",
        "version": OUTPUT_VERSION,
        "content": hashlib.sha256(content).hexdigest(),
        "max_tokens": options.max_tokens,
        "lowercase": lowercase,
        "pairs": "longest-first",
        "special_ids": special_ids,
        "literal": literal,
    }
    tokens = sorted(literal, key=len, reverse=True)
    return SentencePieceTokenizer(
        inner=inner,
        max_tokens=options.max_tokens,
        lowercase=lowercase,
        special_ids=special_ids,
        literal=literal,
        cut=re.compile(f"({'|'.join(map(re.escape, tokens))})") if tokens else None,
        vocab_size=vocab_size,
        fingerprint=fingerprint(fields),
    )


def _refuse(file: Path, config: Mapping[str, Any]) -> None:
    kind = layout.tokenizer_class(config)
    if kind not in CLASSES:
        raise UsageError(
            f"tokenizer.path: {layout.CONFIG} beside {str(file)!r} names {kind}, whose ids or order of special tokens "
            "are not plainly the model's: use a tokenizer.json of it"
        )


def _special(
    file: Path, inner: library.SentencePieceProcessor, config: Mapping[str, Any]
) -> tuple[dict[str, int], dict[str, int]]:
    """Ids of the special tokens, and the tokens that are cut out of texts."""
    named = layout.token_names({**config, **layout.read_json(file.with_name(layout.SPECIAL_TOKENS))})
    added = layout.added_tokens(file)
    unknown = inner.unk_id()

    def number_of(token: str) -> int | None:
        number = added.get(token, inner.piece_to_id(token))
        return number if number != unknown or token == inner.id_to_piece(unknown) else None

    family = next((each for each in _FAMILIES if number_of(each["cls"]) is not None), _FAMILIES[0])
    tokens = {name: named.get(key, family[name]) for name, key in layout.SPECIAL.items()}
    found = {name: number for name, token in tokens.items() if (number := number_of(token)) is not None}
    missing = [tokens[name] for name in ("cls", "sep") if name not in found]
    if missing:
        raise UsageError(
            f"tokenizer.path: the model {str(file)!r} has no {' and no '.join(missing)}: name its own in a "
            f"{layout.SPECIAL_TOKENS} beside it (cls_token, sep_token)"
        )
    found.setdefault("unk", unknown)
    if inner.pad_id() >= 0:
        found.setdefault("pad", inner.pad_id())
    return found, {tokens[name]: number for name, number in found.items() if number_of(tokens[name]) is not None}


def _refuse_matched(inner: library.SentencePieceProcessor, literal: Mapping[str, int]) -> None:
    for token, number in literal.items():
        if number in inner.encode(token) and number != inner.unk_id():
            raise UsageError(
                f"tokenizer.special_in_text: false is not offered here, for the model itself matches {token} in texts: "
                "remove the setting"
            )
