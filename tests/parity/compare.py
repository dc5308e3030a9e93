"""Rows through a tokenizer of PaddleNLP and through ours, and what differs, cut down to the fewest characters."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tests.parity.sides import SETTINGS, Reference, Tokenized, encode
from tests.parity.texts import Row


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that differs, and the fewest characters of it that still do."""

    setting: str
    kind: str
    number: int
    row: Row
    wanted: Tokenized
    wanted_tokens: tuple[str, ...]
    found: Tokenized
    found_tokens: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.setting}: {self.kind} {self.number}, max_tokens {self.row.max_tokens}"]
        for name, text in (("text", self.row.text), ("pair", self.row.pair)):
            if text is not None:
                lines += [f"  {name} {text!r}", *(f"    {point(char)}" for char in text[:20])]
        lines += [
            f"  PaddleNLP {_told(self.wanted, self.wanted_tokens)}",
            f"  ours      {_told(self.found, self.found_tokens)}",
        ]
        return "\n".join(lines)


def _told(tokenized: Tokenized, tokens: tuple[str, ...]) -> str:
    return f"{list(tokens)!r} pair_start {tokenized.pair_start}, too_long {tokenized.too_long}"


def point(char: str) -> str:
    """A code point for people: number, category, combining class, name."""
    name = unicodedata.name(char, "no name")
    return f"U+{ord(char):04X} {unicodedata.category(char)} {unicodedata.combining(char)} {name}"


class Comparison:
    """One setting, both sides."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self.folder = folder
        self.reference = Reference(SETTINGS[name], folder)

    def run(self, kind: str, rows: Sequence[tuple[int, Row]], most: int = 10) -> tuple[int, list[Difference]]:
        """How many of the numbered rows differ, and the first `most` of them, cut down."""
        different: list[tuple[int, Row]] = []
        for _, group in groupby(rows, key=lambda item: item[1].max_tokens):
            numbered = list(group)
            # Either array type and offset in turn, so that both are compared at every kind.
            found = encode(self.folder, [row for _, row in numbered], sliced=bool(numbered[0][0] % 2))
            wanted = [self.reference.tokenize(row) for _, row in numbered]
            different += [item for item, one, other in zip(numbered, wanted, found, strict=True) if one != other]
        return len(different), [self._cut_down(kind, number, row) for number, row in different[:most]]

    def _cut_down(self, kind: str, number: int, row: Row) -> Difference:
        if self._differs(row):
            row = row._replace(text=shrink(row.text, lambda text: self._differs(row._replace(text=text))))
            if row.pair is not None:
                row = row._replace(pair=shrink(row.pair, lambda pair: self._differs(row._replace(pair=pair))))
        wanted = self.reference.tokenize(row)
        (found,) = encode(self.folder, [row], sliced=False)
        tokens = self.reference.tokens
        return Difference(
            self._name, kind, number, row, wanted, tuple(tokens(wanted.ids)), found, tuple(tokens(found.ids))
        )

    def _differs(self, row: Row) -> bool:
        return encode(self.folder, [row], sliced=False) != [self.reference.tokenize(row)]


def shrink(text: str, differs: Callable[[str], bool]) -> str:
    """The text without every part, long or short, that the difference does not need."""
    size = max(1, len(text) // 2)
    while True:
        begin = 0
        while begin < len(text):
            shorter = text[:begin] + text[begin + size :]
            if differs(shorter):
                text = shorter
            else:
                begin += size
        if size == 1:
            return text
        size //= 2
