"""What ingest needs of a tokenizer: Arrow strings in, Arrow lists of ids out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Encoded:
    """One row per text, special tokens included, cut at `max_tokens`."""

    input_ids: pa.ListArray  # of `schemas.tokens.ids_type(vocab_size)`
    pair_start: pa.UInt16Array | None  # where the second text begins, with its closing special tokens; None: no pairs
    too_long: pa.BooleanArray  # had more than `max_tokens` before it was cut


class Tokenizer(Protocol):
    """Stateless after loading: the same texts give the same ids in every process that has the same `fingerprint`."""

    @property
    def fingerprint(self) -> str:
        """Stands for everything that decides ids: kind, output version, vocabulary, every setting."""

    @property
    def special_ids(self) -> Mapping[str, int]:
        """Ids of "cls", "sep", "pad", "mask" and "unk"; those that the vocabulary lacks are left out."""

    @property
    def vocab_size(self) -> int:
        """Every id is smaller."""

    def encode(self, texts: pa.StringArray, pairs: pa.StringArray | None) -> Encoded:
        """Tokenize texts, each with its pair where it has one; of pairs the longer text is cut first."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text for people to look at; special tokens are left out."""
