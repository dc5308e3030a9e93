"""Settings of ingest: workers, tokenizer, and what happens to long and bad texts."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from headrace.schemas.settings import Settings, Start


class LongText(StrEnum):
    """What becomes of a text of more than `max_tokens`."""

    TRUNCATE = "truncate"
    SPLIT = "split"
    DEAD_LETTER = "dead-letter"


class TokenizerConfig(Settings):
    """How texts become ids."""

    path: str = ""
    """Name of a model, folder with `vocab.txt`, `tokenizer.json` or a SentencePiece `*.model`, or such a file; empty
    means `train.model`."""
    max_tokens: int = Field(default=512, ge=4, le=65_535)
    """Most tokens of a row, special tokens included."""
    lowercase: bool | None = None
    """Lower-case texts; unset means as the tokenizer's own files say, and where they say nothing, true."""
    strip_accents: bool | None = None
    """Strip accents; unset means as the tokenizer's own files say, and where they say nothing, as `lowercase`."""
    special_in_text: bool = True
    """A special token that stands literally in a text, such as `[SEP]`, becomes its id, as in PaddleNLP; false keeps it
    as text, for producers that are not trusted."""
    words: str = ""
    """Dictionary for Chinese word boundaries: `jieba`, or a file with one word a line; empty means none, but `jieba`
    where `train.task.mask_unit` is `word`."""
    long_text: LongText = LongText.TRUNCATE
    """`truncate` cuts a long text at `max_tokens`, `split` makes several rows of it, `dead-letter` refuses it."""


class DeadLetterConfig(Settings):
    """Where bad records go, and when there are too many."""

    topic: str = ""
    """Topic of the dead letters; empty means TEXT_TOPIC.dead."""
    max_share: float = Field(default=0.5, gt=0, le=1)
    """Ingest stops when more than this share of the last 1000 records is bad: a wrong setting, not bad records."""


class IngestConfig(Settings):
    """The ingest stage."""

    workers: int = Field(default=2, ge=1, le=256)
    """Worker processes on this machine; more than the text topic has partitions stay idle."""
    interleave: int = Field(default=8, ge=1)
    """Splits that a worker reads in turn."""
    start: Start = "earliest"
    """Where a new `name` starts in the text topic: `earliest`, `latest` or `{time: T}`. Resolved once."""
    commit_ms: int = Field(default=500, ge=10, le=60_000)
    """Longest time that a read record waits to be committed: a bound on freshness while the stream is slow."""
    max_text_bytes: int = Field(default=1_000_000, ge=1)
    """A longer text is a dead letter."""
    poll_messages: int = Field(default=2000, ge=1, le=100_000)
    """Messages decoded and tokenized together."""
    restarts: int = Field(default=10, ge=0)
    """How often a worker that failed is restarted before the stage stops; counted anew after ten quiet minutes."""
    labels: Literal["keep", "check"] = "check"
    """`check` dead-letters a label that `train.task.labels` does not list (where it is set)."""
    dead_letters: DeadLetterConfig = DeadLetterConfig()
    """Where bad records go."""
