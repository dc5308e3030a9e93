"""Vocabulary: texts -> a WordPiece vocabulary for ERNIE's tokenizer.

    1. divide each text into words as that tokenizer does, and count them: Words
    2. the alphabet: the most frequent characters; of equally frequent ones those with the smaller code point
    3. pieces: pairs of tokens that stand side by side in words are joined, the most frequent first
    4. the vocabulary: special tokens, alphabet, alphabet inside words (`##a`), pieces in the order of their joining

Every CJK character, punctuation mark and symbol is a word of its own, so it is never joined and has no `##` form: for
Chinese the alphabet is what decides. A word of the alphabet's characters is never [UNK], be it new or not.

The same words give the same vocabulary. The joining is the `tokenizers` library's, which breaks ties by the tokens' ids
and gives those of `##a` in the order of a hash table; here they get their ids beforehand, in order. It would also close
the gap that a character outside the alphabet leaves in a word: such words, unknown anyhow, are left out.

Cost: 0.2 microseconds a character, 0.3 a word of several characters, and 10 seconds of joining for a million different
words. Memory: the different words, `MAX_WORDS` of them at most.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import tokenizers as library
from tokenizers import models, pre_tokenizers, trainers

from headrace.ingest.tokenizers.wordpiece import unicode
from headrace.ingest.tokenizers.wordpiece.spec import MAX_WORD_CHARS
from headrace.schemas.errors import UsageError

#: In ERNIE's order.
SPECIAL_TOKENS = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]")
INSIDE = "##"

#: Different words that are counted at a time; the rarest are forgotten beyond that. About 1 GB with the library's copy.
MAX_WORDS = 3_000_000

_FED_WORDS = 2000  # handed to the library at a time


@dataclass(frozen=True, slots=True)
class Limits:
    """What a vocabulary may hold."""

    size: int  # tokens, special ones included
    min_frequency: int = 2  # a piece of several characters occurs so often at least
    characters: int | None = None  # kept of the alphabet; None: all that occur


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id, and how well they fit the texts they were learned from."""

    tokens: tuple[str, ...]
    characters: int  # in the alphabet
    inside: int  # of them also inside words
    pieces: int  # of several characters
    character_share: float  # of the texts' characters, white space left out, that are in the alphabet
    word_share: float  # of the words that are no [UNK]


class _Table(dict[int, str]):
    """For `str.translate`: what becomes of a character, worked out when it is first met."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, code_point: int) -> str:
        self[code_point] = self._rule(chr(code_point))
        return self[code_point]


class _Moves(Exception):
    """NFD may put this character in another place, so the text cannot be divided character by character."""


def splitter(*, cased: bool) -> Callable[[str], list[str]]:
    """Return the function that divides a text into words as PaddleNLP's ErnieTokenizer does before it looks them up."""

    def cleaned(char: str) -> str:
        return "".join(map(_cleaned, char if cased else char.lower()))

    def apart(char: str) -> str:
        if not cased and unicodedata.category(char) == "Mn":
            return ""
        return f" {char} " if unicode.is_symbol(char) else char

    def at_once(char: str) -> str:
        found = cleaned(char)
        if not cased:
            found = unicodedata.normalize("NFD", found)
            if any(unicodedata.combining(part) and apart(part) for part in found):
                raise _Moves
        return "".join(map(apart, found))

    table, first, second = _Table(at_once), _Table(cleaned), _Table(apart)

    def words(text: str) -> list[str]:
        try:
            return text.translate(table).split()
        except _Moves:
            return unicode.nfd(text.translate(first)).translate(second).split()

    return words


def _cleaned(char: str) -> str:
    if unicode.is_removed(char):
        return ""
    if unicode.is_space(char):
        return " "
    return f" {char} " if unicode.is_cjk(char) else char


@dataclass(slots=True)
class Words:
    """The words of texts, counted."""

    split: Callable[[str], list[str]]
    max_words: int = MAX_WORDS
    counts: Counter[str] = field(default_factory=Counter)
    too_long: int = 0  # words of more than `MAX_WORD_CHARS`, which are [UNK] whatever the vocabulary
    forgotten: int = 0  # rare words that made room for others
    beside: Counter[str] = field(default_factory=Counter)  # characters of words that are not in `counts`

    def add(self, texts: Iterable[str]) -> None:
        for text in texts:
            words = self.split(text)
            if max(map(len, words), default=0) > MAX_WORD_CHARS:
                words = self._without_long(words)
            self.counts.update(words)
        if len(self.counts) > self.max_words:
            self._forget()

    def characters(self) -> Counter[str]:
        """Every character of the texts but white space."""
        found = Counter(self.beside)
        for word, count in self.counts.items():
            for char in word:
                found[char] += count
        return found

    def _without_long(self, words: list[str]) -> list[str]:
        long = [word for word in words if len(word) > MAX_WORD_CHARS]
        self.too_long += len(long)
        self.beside.update("".join(long))
        return [word for word in words if len(word) <= MAX_WORD_CHARS]

    def _forget(self) -> None:
        """Forget the rarest words of several characters until half of the room is free."""
        rare = 0
        while len(self.counts) > self.max_words // 2 and rare < max(self.counts.values()):
            rare += 1
            for word in [word for word, count in self.counts.items() if count <= rare and len(word) > 1]:
                count = self.counts.pop(word)
                self.forgotten += count
                for char in word:
                    self.beside[char] += count


def build(words: Words, limits: Limits) -> Vocabulary:
    """Learn a vocabulary. Raises UsageError where there are no words, or more characters than fit in."""
    characters = words.characters()
    if not characters:
        raise UsageError("there is no text: every record is empty; name files, or a topic, that hold texts")
    by_frequency = sorted(characters, key=lambda char: (-characters[char], char))
    alphabet = by_frequency[: limits.characters]
    inside = [INSIDE + char for char in alphabet if _joins(char)]
    needed = len(SPECIAL_TOKENS) + len(alphabet) + len(inside)
    if limits.size < needed:
        raise UsageError(
            f"--size {limits.size} is too small: {len(SPECIAL_TOKENS)} special tokens, {len(alphabet)} characters and "
            f"{len(inside)} of them inside words take {needed}: set --size to {needed} or more, or keep fewer "
            "characters with --limit-characters"
        )
    kept = set(alphabet)
    known = {word: count for word, count in words.counts.items() if kept.issuperset(word)}
    pieces = _pieces(known, sorted(filter(_joins, alphabet)), limits.size - needed, limits.min_frequency)
    return Vocabulary(
        tokens=(*SPECIAL_TOKENS, *alphabet, *inside, *pieces),
        characters=len(alphabet),
        inside=len(inside),
        pieces=len(pieces),
        character_share=sum(characters[char] for char in alphabet) / characters.total(),
        word_share=sum(known.values()) / (words.counts.total() + words.too_long),
    )


def _joins(char: str) -> bool:
    """Whether it can stand beside others in a word."""
    return not unicode.is_cjk(char) and not unicode.is_symbol(char)


def _pieces(words: dict[str, int], alphabet: Sequence[str], count: int, min_frequency: int) -> list[str]:
    """Learn up to `count` tokens of several characters, the first joined first."""
    if not count:
        return []
    begin = [*SPECIAL_TOKENS, *(INSIDE + char for char in alphabet)]
    tokenizer = library.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=len(begin) + len(alphabet) + count,
        min_frequency=min_frequency,
        special_tokens=begin,
        initial_alphabet=list(alphabet),
        continuing_subword_prefix=INSIDE,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_fed(words), trainer)
    learned = tokenizer.get_vocab()
    return sorted(learned, key=lambda token: learned[token])[len(begin) + len(alphabet) :]


def _fed(words: dict[str, int]) -> Iterator[str]:
    """Words of several characters, each as often as it occurs: the library counts for itself."""
    chunk: list[str] = []
    for word, count in words.items():
        if len(word) == 1:
            continue
        while count:
            taken = min(count, _FED_WORDS - len(chunk))
            chunk += [word] * taken
            count -= taken
            if len(chunk) == _FED_WORDS:
                yield " ".join(chunk)
                chunk.clear()
    yield " ".join(chunk)
