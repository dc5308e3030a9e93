"""WordPieceTokenizer: a compiled tokenizer that gives PaddleNLP's ids.

Arrow buffers ── kernel.py ──> ids ──┬────────────────────────────────────────> rows   (single texts, cut off)
                     └ a few texts ──┤                                           ▲
                       reference.py ─┴── words.py, assemble.py (pairs, parts) ───┘
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.ingest.tokenizers.base import Encoded, Options
from headrace.ingest.tokenizers.wordpiece import assemble, kernel, marks, reference, short_words, tables, trie, words
from headrace.ingest.tokenizers.wordpiece.assemble import Flat
from headrace.ingest.tokenizers.wordpiece.reference import Reference
from headrace.ingest.tokenizers.wordpiece.spec import MAX_WORD_CHARS, WordPieceSpec
from headrace.ingest.tokenizers.wordpiece.strings import Strings, pooled
from headrace.schemas.errors import UsageError
from headrace.schemas.fingerprint import fingerprint
from headrace.schemas.tokens import ids_type

#: Changes whenever the same files and settings give other ids, boundaries or parts.
OUTPUT_VERSION = 1

_UNBOUNDED = 2**31 - 1 - kernel.SPARE
_SHORTEST = 4  # [CLS] a [SEP] b, and no room for the last [SEP]


@dataclass(frozen=True, slots=True)
class WordPieceTokenizer:
    """See `Tokenizer`. Safe for several threads: the kernel holds no lock and keeps no state."""

    options: Options
    special_ids: Mapping[str, int]
    vocab_size: int
    fingerprint: str
    tables: tables.Tables
    direct: assemble.Ids  # of `tables.direct`
    short: short_words.ShortWords
    pieces: trie.Trie
    reference: Reference
    kept: int  # kernel.KEPT_…
    literals: tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
    dictionary: words.Dictionary | None
    names: Mapping[int, str]  # id -> token

    def encode(self, texts: pa.StringArray | pa.LargeStringArray, pairs: pa.StringArray | None) -> Encoded:
        if pairs is not None and len(pairs) != len(texts):
            raise ValueError(f"{len(texts)} texts and {len(pairs)} pairs")
        if pairs is None and not self.options.split:
            return self._single(Strings.of(texts))
        return self._assembled(Strings.of(texts), None if pairs is None else Strings.of(pairs))

    def decode(self, ids: Sequence[int]) -> str:
        special = set(self.special_ids.values())
        tokens = [self.names.get(int(number), "") for number in ids if int(number) not in special]
        return " ".join(tokens).replace(" ##", "")

    def _single(self, texts: Strings) -> Encoded:
        flat, too_long = self._tokens(texts, self.options.max_tokens - 2, around=True)
        if self.dictionary is not None:
            words.mark_words(flat, self.dictionary)
        return self._encoded(flat.ids, flat.ends, None, too_long)

    def _assembled(self, texts: Strings, pairs: Strings | None) -> Encoded:
        split, most = self.options.split, self.options.max_tokens
        limit = _UNBOUNDED if split else most
        first, _ = self._tokens(texts, limit)
        second, _ = self._tokens(pairs or Strings.none(len(texts)), limit)
        if self.dictionary is not None:
            words.mark_words(first, self.dictionary)
            words.mark_words(second, self.dictionary)
        has_pair = np.zeros(len(texts), np.bool_) if pairs is None else pairs.valid
        if split:
            plan = assemble.plan_parts(first, second, has_pair, most, self.dictionary is not None)
        else:
            plan = assemble.plan_pairs(first, second, has_pair, most)
        begin = 0 if self.dictionary is None else marks.WORD
        rows = assemble.write(plan, first, second, self.special_ids["cls"] | begin, self.special_ids["sep"] | begin)
        pair_start = None if pairs is None else pa.array(rows.pair_start, mask=rows.pair_start == 0)
        return self._encoded(rows.ids, rows.ends, pair_start, plan.too_long, plan.text_of if split else None)

    def _tokens(self, texts: Strings, limit: int, *, around: bool = False) -> tuple[Flat, npt.NDArray[np.bool_]]:
        """Tokens of each text, at most `limit` and with [CLS] and [SEP] `around` them, and which had more."""
        count = len(texts)
        marked = self.options.split or self.dictionary is not None
        out = pooled(self._room(texts, limit), np.int32 if marked else self._ids_type().to_pandas_dtype())
        flat = Flat(out, np.zeros(count + 1, np.int32), pooled(len(out), np.int32) if marked else None)
        outcomes = np.empty(count, np.uint8)
        special = self.special_ids
        lead, trail = (special["cls"], special["sep"]) if around else (-1, -1)
        kernel.encode(
            texts.data,
            texts.starts,
            texts.ends,
            (self.tables.actions, self.tables.expansions, self.direct),
            (self.short.keys, self.short.numbers),
            (self.pieces.edges, self.pieces.values),
            self.literals,
            (special["unk"], lead, trail, limit, self.reference.spec.lowercase, self.kept),
            np.empty(MAX_WORD_CHARS + 1, np.int32),
            flat.ids,
            flat.ends,
            outcomes,
            flat.marks,
        )
        too_long = outcomes == kernel.TOO_LONG
        given_up = np.flatnonzero(outcomes == kernel.GIVEN_UP)
        if len(given_up):
            found = [list(islice(self.reference.tokens(texts[int(number)]), limit + 1)) for number in given_up]
            too_long[given_up] = [len(tokens) > limit for tokens in found]
            begin, end = [(lead, 0)] * around, [(trail, 0)] * around
            flat = assemble.replaced(flat, given_up, [[*begin, *tokens[:limit], *end] for tokens in found])
        return flat, too_long

    def _room(self, texts: Strings, limit: int) -> int:
        """Items that the kernel may write."""
        most = (texts.ends - texts.starts) * self.tables.items_per_byte
        return int(np.minimum(most, limit).sum()) + 2 * len(texts) + kernel.SPARE

    def _encoded(
        self,
        ids: assemble.Ids,
        ends: assemble.Int32s,
        pair_start: pa.UInt16Array | None,
        too_long: npt.NDArray[np.bool_],
        text_of: assemble.Int32s | None = None,
    ) -> Encoded:
        count = int(ends[-1])
        offsets = pa.array(ends)
        ids = ids[:count]
        word_start = None
        if self.dictionary is not None:
            word_start = pa.ListArray.from_arrays(offsets, pa.array((ids & marks.WORD) != 0))
        kind = self._ids_type()
        plain = ids if ids.dtype == kind.to_pandas_dtype() else (ids & ~marks.WORD).astype(kind.to_pandas_dtype())
        return Encoded(
            input_ids=pa.ListArray.from_arrays(offsets, pa.array(plain)),
            pair_start=pair_start,
            too_long=pa.array(too_long),
            word_start=word_start,
            text_of=text_of,
            part=None if text_of is None else _parts(text_of),
        )

    def _ids_type(self) -> pa.DataType:
        return ids_type(self.vocab_size)


def make(spec: WordPieceSpec, options: Options) -> WordPieceTokenizer:
    """Work the tables out. Raises UsageError for a vocabulary or setting that cannot be used."""
    if options.max_tokens < _SHORTEST:
        raise UsageError(f"tokenizer.max_tokens: {options.max_tokens} leaves no room for text: at least {_SHORTEST}")
    literals = sorted(spec.literal) if options.special_in_text else []
    try:
        pieces = trie.build(*trie.split_pieces(spec.vocabulary))
    except ValueError as error:
        raise UsageError(f"tokenizer.path: the vocabulary is too large: {error}") from error
    every = {**spec.vocabulary, **spec.literal}
    found = tables.build(spec, literals)
    dictionary = words.load(options.words) if options.words else None
    vocab_size = max(every.values()) + 1
    return WordPieceTokenizer(
        options=options,
        special_ids={name: every[token] for name, token in spec.special.items()},
        vocab_size=vocab_size,
        fingerprint=_fingerprint(spec, options, found, dictionary),
        tables=found,
        direct=tables.direct(found, ids_type(vocab_size).to_pandas_dtype()),
        short=short_words.build(spec.vocabulary),
        pieces=pieces,
        reference=reference.make(spec, literals),
        kept=_kept(spec) if literals else kernel.KEPT_NEVER,
        literals=_bytes(literals, fold=spec.lowercase),
        dictionary=dictionary,
        names={number: token for token, number in every.items()},
    )


def _bytes(literals: Sequence[str], *, fold: bool) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    encoded = [token.encode().lower() if fold else token.encode() for token in literals]
    ends = np.cumsum([len(token) for token in encoded], dtype=np.int64)
    return np.array(list(b"".join(encoded)), np.uint8), ends


def _kept(spec: WordPieceSpec) -> int:
    """In lower-cased text, no word comes out that has a capital letter."""
    if not spec.lowercase:
        return kernel.KEPT_ALTERED if spec.kept_words else kernel.KEPT_NEVER
    return kernel.KEPT_ALWAYS if any(word == word.lower() for word in spec.kept_words) else kernel.KEPT_NEVER


def _parts(text_of: assemble.Int32s) -> npt.NDArray[np.uint16]:
    """0, 1, 2 … within each text."""
    count = np.arange(len(text_of))
    return (count - np.searchsorted(text_of, text_of)).astype(np.uint16)


def _fingerprint(
    spec: WordPieceSpec, options: Options, found: tables.Tables, dictionary: words.Dictionary | None
) -> str:
    """The tables are in it: they stand for this Python's Unicode and for case, accents and CJK."""
    fields: dict[str, Any] = {
        "kind": "wordpiece",
        "version": OUTPUT_VERSION,
        "vocabulary": _digest(repr(sorted(spec.vocabulary.items())).encode()),
        "tables": _digest(found.actions.tobytes() + found.expansions.tobytes()),
        "literal": dict(spec.literal) if options.special_in_text else {},
        "special": dict(spec.special),
        "kept_words": sorted(spec.kept_words),
        "max_tokens": options.max_tokens,
        "split": options.split,
        "words": None if dictionary is None else dictionary.digest,
    }
    return fingerprint(fields)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
