"""The development set: a .jsonl file of labelled records becomes one token batch, made as the lanes' are.

Decoding and tokenizing are those of the worker, with the line's number for an offset. A record that would be a dead
letter on a topic is an error here: a set is small, and a score over part of it says something else.
Cost: the file in memory, once as text and once as ids.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from headrace.ingest import tokenizers
from headrace.ingest.config import LongText, TokenizerConfig
from headrace.ingest.decode import decode
from headrace.ingest.fields import FieldRules
from headrace.ingest.formats import Rules
from headrace.ingest.rows import tokenize
from headrace.ingest.sources.files import open_file
from headrace.ingest.sources.lines import lines
from headrace.pipeline.config import FieldNames
from headrace.pipeline.topics import Message
from headrace.schemas.errors import UsageError
from headrace.schemas.record import TextFormat
from headrace.schemas.tokens import TokensMeta, encode

_MOST_BYTES = 1_000_000
_CHUNK_BYTES = 1_048_576


def tokenize_file(path: Path, fields: FieldNames, settings: TokenizerConfig) -> bytes:
    """One message as on the tokens topic. Raises UsageError naming the first line that cannot be used."""
    if not path.is_file():
        raise UsageError(f"evaluate.data: {path}: there is no such file: correct the path, or remove the key")
    if path.suffix.lower() != ".jsonl":
        raise UsageError(f"evaluate.data: {path} is not a .jsonl file: a JSON object a line, with text and label")
    tokenizer = tokenizers.find(settings.path, tokenizers.options(settings)).load()
    rules = Rules(path.name, TextFormat.JSON, FieldRules(fields, _MOST_BYTES, None))
    batches = []
    for decoded in decode(_messages(path), rules, {}):
        rows, bad = tokenize(decoded, tokenizer, LongText(settings.long_text))
        if bad:
            first = min(bad, key=lambda letter: letter.origin.offset)
            raise UsageError(
                f"evaluate.data: {path} line {first.origin.offset}: {first.reason}: {first.detail}: correct the file"
            )
        batches.append(pa.Table.from_batches([rows]))
    if not any(map(len, batches)):
        raise UsageError(f"evaluate.data: {path} holds no records: name a file that does, or remove the key")
    whole = pa.concat_tables(batches).unify_dictionaries().combine_chunks()
    meta = TokensMeta(tokenizer.fingerprint, tokenizer.vocab_size, tokenizer.special_ids)
    return encode(whole.to_batches()[0], meta)


def _messages(path: Path) -> list[Message]:
    """Its lines that are not blank, each as the message that publishing would make of it."""
    with open_file(path) as file:
        chunks = iter(lambda: file.read(_CHUNK_BYTES), b"")
        found = lines(str(path), chunks, _MOST_BYTES)
        return [Message(0, line.number, 0, line.text) for line in found if line is not None and line.text.strip()]
