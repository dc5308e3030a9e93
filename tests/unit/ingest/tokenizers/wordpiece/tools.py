"""A small tokenizer whose tokens can be read, and Arrow arrays that hold any bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from headrace.ingest.tokenizers.base import Encoded, Options
from headrace.ingest.tokenizers.wordpiece.spec import WordPieceSpec
from headrace.ingest.tokenizers.wordpiece.tokenizer import WordPieceTokenizer, make

SPECIAL = {"pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]", "unk": "[UNK]"}
TOKENS = [
    *SPECIAL.values(),
    *"中国人民大学生活好很不错今天气在北京上海的了是，。！？；：“”（）～￥①…",
    *"abcdefghijklmnopqrstuvwxyz0123456789.,!?;:()[]-'\"",
    *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123456789"),
    *[
        "hello",
        "world",
        "##ing",
        "work",
        "##ed",
        "unbreak",
        "##able",
        "abcabcab",
        "abcabcabc",
        "abcabcabcabcabca",
        "ᄀ",
        "##ᅡ",
        "α",
        "##σ",
        "é",
        "É",
        "I",
        "A",
    ],
]
VOCABULARY = {token: number for number, token in enumerate(TOKENS)}

#: Characters of every kind that the tables tell apart, and enough of the usual ones.
ALPHABET = (
    "中国人民大学生好，。！？“”（）～￥①…\u3007\u4e59"
    "abcxyzABCXYZ0189 .,!?[]()-'\"\n\t\r\u3000\u00a0\u2028\x00\x1c\x85\u200b\ufffd"
    "éÉàñİıſKÅΩΣσςßẞﬁ한글ᄀ\u0301\u0308\u0323\u302e\u302f\U0001d165\U0001d16e\U0001f600\U0001f468\u200d\ufe0f"
    "\ue000\u0378豈\U0002f800かカ๐א\u0591\u0903\u0b47"
)
LITERAL_PARTS = ("[SEP]", "[MASK]", "[sep]", "[SE", "P]", "[", "]")


def texts(max_size: int = 30) -> st.SearchStrategy[str]:
    long_words = st.text("abceÉéšŁK", min_size=7, max_size=20)
    part = st.one_of(st.text(ALPHABET, max_size=8), long_words, st.sampled_from(LITERAL_PARTS), st.text(max_size=3))
    return st.lists(part, max_size=max_size // 4).map("".join)


def spec(**changes: object) -> WordPieceSpec:
    literal = {token: VOCABULARY[token] for token in SPECIAL.values()}
    return WordPieceSpec(**{"vocabulary": VOCABULARY, "special": SPECIAL, "literal": literal, **changes})  # type: ignore[arg-type]


def tokenizer(options: Options, *, lowercase: bool = True, strip_accents: bool = True) -> WordPieceTokenizer:
    """Made once for all lengths: no table depends on them."""
    made = _made(replace(options, max_tokens=64, split=False), lowercase, strip_accents)
    return replace(made, options=options)


@cache
def _made(options: Options, lowercase: bool, strip_accents: bool) -> WordPieceTokenizer:
    return make(spec(lowercase=lowercase, strip_accents=strip_accents), options)


def tokens(encoded: Encoded) -> list[list[str]]:
    return [[TOKENS[number] for number in row] for row in encoded.input_ids.to_pylist()]


def array(values: Sequence[bytes], kind: pa.DataType | None = None) -> pa.Array:
    """Strings of any bytes, valid or not."""
    large = kind is not None and pa.types.is_large_string(kind)
    ends = np.cumsum([0, *map(len, values)], dtype=np.int64 if large else np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(kind or pa.string(), len(values), buffers)
