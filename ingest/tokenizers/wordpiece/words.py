"""Words: boundaries of Chinese words, for whole-word masking.

Longest match against a dictionary, from the left, over runs of CJK characters that nothing separates; a character that
begins no word of the dictionary is a word. Other words begin where WordPiece begins them. This is not jieba, which
weighs frequencies: on the places where it matters for masking the two agree mostly, and this costs nanoseconds.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from headrace.ingest.compiled import compiled
from headrace.ingest.tokenizers.wordpiece import marks as mark
from headrace.ingest.tokenizers.wordpiece import trie, unicode
from headrace.ingest.tokenizers.wordpiece.assemble import Flat
from headrace.schemas.errors import UsageError

JIEBA = "jieba"


@dataclass(frozen=True, slots=True)
class Dictionary:
    """Words of two and more CJK characters."""

    words: trie.Trie
    digest: str  # SHA-256 of the words


def load(name_or_file: str) -> Dictionary:
    """Read jieba's dictionary or a file: a word begins each line, whatever follows it. Raises UsageError."""
    try:
        file = _jieba_file() if name_or_file == JIEBA else Path(name_or_file).expanduser()
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"tokenizer.words: {name_or_file!r} cannot be read: {error}: name jieba, or a UTF-8 file of one word a line"
        ) from error
    found = sorted({line.split(maxsplit=1)[0] for line in lines if line and not line.isspace()})
    found = [word for word in found if len(word) > 1 and all(map(unicode.is_cjk, word))]
    if not found:
        raise UsageError(f"tokenizer.words: {name_or_file!r} holds no Chinese word of two or more characters")
    try:
        return Dictionary(trie.words(found), hashlib.sha256("\n".join(found).encode()).hexdigest())
    except ValueError as error:
        raise UsageError(f"tokenizer.words: {name_or_file!r} is too large: {error}") from error


def mark_words(flat: Flat, dictionary: Dictionary) -> None:
    """Set WORD in the ids (int32) of tokens that begin a word."""
    _mark_words(flat.ids, flat.ends, flat.marks, dictionary.words.edges, dictionary.words.values)


def _jieba_file() -> Path:
    found = find_spec("jieba")
    if found is None or found.origin is None:
        raise UsageError(
            "tokenizer.words: jieba is not installed: pip install jieba, or name a file with one word a line"
        )
    return Path(found.origin).with_name("dict.txt")


@compiled
def _mark_words(ids, ends, marks, edges, values):  # type: ignore[no-untyped-def]
    for number in range(ends.shape[0] - 1):
        at, end = ends[number], ends[number + 1]
        while at < end:
            if marks[at] & mark.PIECE == 0:
                ids[at] |= mark.WORD
            longest = at + 1
            if marks[at] & mark.CJK != 0:
                node = 1
                i = at
                while i < end and marks[i] & mark.CJK != 0 and (i == at or marks[i] & mark.GAP == 0):
                    node = trie.child(edges, node, marks[i] & mark.CODE_POINT)
                    if node < 0:
                        break
                    i += 1
                    if values[node] >= 0:
                        longest = i
            at = longest
