"""Warm up: compile what ingest workers run, into the cache on disk, before there are workers.

The stage's parent does it for its own settings, so that workers only load, and do not all compile the same thing at
once. `python -m headrace.ingest.warm` does it for every setting, which is what an image is built with. Cost: some
seconds for each kind of tokenizer that was never used with this cache, else tenths of a second.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import orjson

from headrace.ingest.config import LongText
from headrace.ingest.decode import decode
from headrace.ingest.fields import FieldRules
from headrace.ingest.formats import Rules
from headrace.ingest.rows import tokenize
from headrace.ingest.tokenizers import Tokenizer
from headrace.pipeline.config import FieldNames
from headrace.pipeline.topics import Message
from headrace.schemas.record import TextFormat

SLOW_S = 2.0

_log = logging.getLogger(__name__)


def warm_up(tokenizer: Tokenizer, names: FieldNames, long_text: LongText) -> None:
    """Take a record without a pair and one with a pair through decoding and tokenizing."""
    with _told_when_slow():
        _warm_up(tokenizer, names, long_text)


def _warm_up(tokenizer: Tokenizer, names: FieldNames, long_text: LongText) -> None:
    rules = Rules("warm", TextFormat.JSON, FieldRules(names, max_text_bytes=1000))
    for record in ({names.text: "text"}, {names.text: "text", names.pair: "pair", names.label: "a"}):
        message = Message(0, 0, 0, orjson.dumps(record))
        for decoded in decode([message], rules, {}):
            tokenize(decoded, tokenizer, long_text)


@contextmanager
def _told_when_slow() -> Iterator[None]:
    """Who waits should know for what."""
    timer = threading.Timer(SLOW_S, _log.warning, ["compiling ingest's code, once for this machine: some 20 s"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _main() -> None:
    """For all settings of the compiled tokenizer, with vocabularies of both sizes."""
    from headrace.ingest.tokenizers.base import Options
    from headrace.ingest.tokenizers.wordpiece.spec import WordPieceSpec
    from headrace.ingest.tokenizers.wordpiece.tokenizer import make

    special = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    vocabulary = {token: number for number, token in enumerate(special.values())}
    for more in ({}, {"large": 2**16}):
        tokenizer = make(WordPieceSpec({**vocabulary, **more}, special), Options(max_tokens=16))
        warm_up(tokenizer, FieldNames(), LongText.TRUNCATE)
        splits = replace(tokenizer, options=replace(tokenizer.options, split=True))
        warm_up(splits, FieldNames(), LongText.SPLIT)


if __name__ == "__main__":
    _main()
