"""What tokenizers are measured on: the reviews, the same mixed with English and emoji, a vocabulary for both."""

from __future__ import annotations

import random
from pathlib import Path

from bench.prose import english_words
from bench.reviews import reviews
from headrace.ingest import vocabulary

SIZE = 18_000
EMOJI = "😀😂🤣😍😭👍👏🙏🔥🎉❤🌹😡🤔💯✨"


def chinese() -> list[str]:
    return [text for text, _ in reviews()]


def mixed(texts: list[str], seed: int = 1) -> list[str]:
    """Each as long as it was, about half of it not Chinese: phrases, numbers and emoji between clauses."""
    rng = random.Random(seed)
    return [_mix(text, rng) for text in texts]


def _mix(text: str, rng: random.Random) -> str:
    parts: list[str] = []
    length = position = 0
    while length < len(text):
        clause = text[position : position + rng.randint(6, 18)]
        position += len(clause)
        parts += [clause, _foreign(rng)]
        length += len(parts[-1]) + len(clause)
    return "".join(parts)


def _foreign(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.7:
        words = english_words()
        begin = rng.randrange(len(words) - 4)
        return f" {' '.join(words[begin : begin + rng.randint(1, 3)])} "
    if kind < 0.9:
        return f"{rng.randrange(10 ** rng.randint(1, 5))}{rng.choice(('', '%', '元', '.5', 'GB'))}"
    return "".join(rng.choices(EMOJI, k=rng.randint(1, 3)))


def share_not_chinese(texts: list[str]) -> float:
    """Of the characters, those that are no CJK ideographs."""
    total = sum(map(len, texts))
    return 1 - sum("\u4e00" <= char <= "\u9fff" for text in texts for char in text) / total


def write_vocabulary(texts: list[str], folder: Path) -> None:
    """A WordPiece vocabulary of the size of ERNIE's, trained on the texts and on what is mixed from them."""
    words = vocabulary.Words(vocabulary.splitter(cased=False))
    words.add(texts)
    words.add(mixed(texts))
    learned = vocabulary.build(words, vocabulary.Limits(size=SIZE))
    (folder / "vocab.txt").write_text("\n".join(learned.tokens) + "\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "ErnieTokenizer", "do_lower_case": true}')
