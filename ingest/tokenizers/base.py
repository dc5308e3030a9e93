"""What ingest needs of a tokenizer: Arrow strings in, Arrow lists of ids out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

#: As many parts of a text as the column `part` can count.
MAX_PARTS = 2**16


@dataclass(frozen=True, slots=True)
class Options:
    """What the user decides about a tokenizer, whatever its kind."""

    max_tokens: int  # of a row, special tokens included
    lowercase: bool | None = None  # None: as its own files say, else true
    strip_accents: bool | None = None  # None: as its own files say, else with `lowercase`
    special_in_text: bool = True  # a special token that stands literally in a text becomes its id; False: it stays text
    split: bool = False  # a long text gives several rows, cut at sentence ends; False: it is cut off
    words: str = ""  # dictionary for Chinese word boundaries: "jieba", or a file; empty: no boundaries


@dataclass(frozen=True, slots=True)
class Encoded:
    """One row per text, special tokens included, cut at `max_tokens`; with `Options.split` one or more per text."""

    input_ids: pa.ListArray  # of `schemas.tokens.ids_type(vocab_size)`
    pair_start: pa.UInt16Array | None  # where the second text begins, with its closing special tokens; None: no pairs
    too_long: pa.BooleanArray  # per text: had more than `max_tokens` before it was cut
    word_start: pa.ListArray | None = None  # of bool, beside `input_ids`; None where no boundaries were asked for
    text_of: npt.NDArray[np.int32] | None = None  # per row: the number of its text, ascending; None: row i is text i
    part: npt.NDArray[np.uint16] | None = None  # per row: which part of its text, from 0; None: all 0


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

    def encode(self, texts: pa.StringArray | pa.LargeStringArray, pairs: pa.StringArray | None) -> Encoded:
        """Tokenize texts, each with its pair where it has one; of pairs the longer text is cut first.

        With `Options.split`, a text that needs more than MAX_PARTS gives no row.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """Text for people to look at; special tokens are left out."""
