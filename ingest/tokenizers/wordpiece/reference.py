"""Reference: the tokens of one text, character by character, as PaddleNLP arrives at them.

    1. lower case, character by character, literal tokens excepted
    2. cut out the literal tokens (special tokens and the user's own)
    3. in what is between: drop control characters, space out CJK characters, split at white space
    4. of each word: NFD without accents, punctuation and symbols apart
    5. greedy longest match of what is left, from the left; a word that cannot be matched whole is unknown

The kernel does the same for all but a few texts, and leaves those to this: texts with literal tokens, and with marks
that NFD puts in order. Cost: about 50 microseconds a text, in Python.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from headrace.ingest.tokenizers.wordpiece import marks, unicode
from headrace.ingest.tokenizers.wordpiece.spec import MAX_WORD_CHARS, WordPieceSpec

#: An id, and its mark (marks.py).
Token = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Reference:
    """Tokens of texts, without the special tokens around them."""

    spec: WordPieceSpec
    literal: re.Pattern[str] | None  # the longest that begins at a place; None: texts are not searched for any
    kept: re.Pattern[str] | None  # what keeps its case: the same tokens, the first in alphabetical order

    def tokens(self, text: str) -> Iterator[Token]:
        """One by one, so that who wants a few does not pay for all."""
        before = 0  # flags of the white space before the next token
        for segment, is_literal in self._segments(text):
            if is_literal:
                yield self.spec.literal[segment], before
                before = 0
                continue
            for word, flags in self._words(segment):
                if not word:
                    before |= flags
                    continue
                first, *others = self._pieces(word)
                yield first, flags | before
                yield from ((number, marks.PIECE) for number in others)
                before = 0

    def _segments(self, text: str) -> Iterator[tuple[str, bool]]:
        """Step 2: stretches of lower-cased text, and the literal tokens between them."""
        if self.literal is None or self.kept is None:
            yield self._lower(text), False
            return
        lowered = "".join(
            part if number % 2 else self._lower(part) for number, part in enumerate(self.kept.split(text))
        )
        for number, part in enumerate(self.literal.split(lowered)):
            if part:
                yield part, number % 2 == 1

    def _lower(self, text: str) -> str:
        """Step 1. Never as a whole: a capital sigma at a word's end would become another letter."""
        return "".join(map(str.lower, text)) if self.spec.lowercase else text

    def _words(self, segment: str) -> Iterator[tuple[str, int]]:
        """Steps 3 and 4: words, each with its flags; white space is an empty word."""
        letters: list[str] = []
        for char in segment:
            if unicode.is_removed(char):
                continue
            spaced = self.spec.split_cjk and unicode.is_cjk(char)
            if not spaced and not unicode.is_space(char):
                letters.append(char)
                continue
            yield from self._parts("".join(letters))
            letters.clear()
            if spaced:
                yield (unicode.without_accents(char) if self.spec.strip_accents else char), marks.CJK | ord(char)
            else:
                yield "", marks.GAP | (marks.LINE if char in marks.LINE_BREAKS else 0)
        yield from self._parts("".join(letters))

    def _parts(self, word: str) -> Iterator[tuple[str, int]]:
        """Step 4: what punctuation and symbols divide a word into."""
        bare = unicode.without_accents(word) if self.spec.strip_accents else word
        kept = next((kept for kept in (word, bare) if kept in self.spec.kept_words), None)
        if kept is not None and self.literal is not None:
            yield kept, 0
            return
        letters = ""
        for char in bare:
            if not unicode.is_symbol(char):
                letters += char
                continue
            if letters:
                yield letters, 0
            letters = ""
            yield char, ord(char)
        if letters:
            yield letters, 0

    def _pieces(self, word: str) -> list[int]:
        """Step 5."""
        vocabulary = self.spec.vocabulary
        unknown = [vocabulary[self.spec.special["unk"]]]
        if len(word) > MAX_WORD_CHARS:
            return unknown
        found = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(len(word), start, -1):
                number = vocabulary.get(prefix + word[start:end])
                if number is not None:
                    break
            else:
                return unknown
            found.append(number)
            start = end
        return found


def make(spec: WordPieceSpec, literals: Collection[str]) -> Reference:
    """The reference of a tokenizer that looks for `literals` in texts."""
    by_length = sorted(literals, key=len, reverse=True)
    return Reference(spec, _any_of(by_length), _any_of(sorted(literals)))


def _any_of(tokens: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile(f"({'|'.join(map(re.escape, tokens))})") if tokens else None
