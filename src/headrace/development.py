"""The development set on its way from ingest's tokenizer to the trainer's ranks: a file beside this run of the parent.

Ingest and trainer import nothing of each other, so the parent tokenizes (a second or so for ten thousand records).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.config import Config
from headrace.ingest.development import tokenize_file


@contextmanager
def tokenized(config: Config) -> Iterator[str]:
    """Path of the set as one token batch, there for as long as the context is; empty where there is no set."""
    if not config.evaluate.data:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        file = Path(folder) / "development.arrow"
        data = tokenize_file(Path(config.evaluate.data).expanduser(), config.text.fields, config.tokenizer)
        file.write_bytes(data)
        yield str(file)
