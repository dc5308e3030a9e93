"""What defines a WordPiece tokenizer of the BERT family, as PaddleNLP understands it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Longer words are unknown (`WordpieceTokenizer.max_input_chars_per_word`).
MAX_WORD_CHARS = 100


@dataclass(frozen=True, slots=True)
class WordPieceSpec:
    """Vocabulary and settings, read from whatever files hold them."""

    vocabulary: Mapping[str, int]  # token -> id, without tokens that were added to it
    special: Mapping[str, str]  # "cls", "sep", "pad", "mask", "unk" -> token, all five in the vocabulary
    lowercase: bool = True
    strip_accents: bool = True  # PaddleNLP's None means: as `lowercase`
    split_cjk: bool = True  # every CJK character is a word
    #: Tokens that are cut out of the raw text as they stand, with their ids: special ones, and others of the user's.
    literal: Mapping[str, int] = field(default_factory=dict)
    #: Words that are matched whole, as they stand, should they come out of step 3 (reference.py): the special tokens in
    #: BertTokenizer and RobertaChineseTokenizer, nothing in ErnieTokenizer.
    kept_words: frozenset[str] = frozenset()
