"""Settings of the pipe: the broker and its topics, which every stage has in common."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from headrace.schemas.record import TextFormat
from headrace.schemas.settings import Settings

#: Correctness rests on these, so they are not the user's to set.
RESERVED_CLIENT_OPTIONS = frozenset(
    {
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "isolation.level",
        "transactional.id",
    }
)


class FieldNames(Settings):
    """Names of a JSON record's fields; a dotted name reaches into nested objects."""

    text: str = "text"
    """The text. A record without it is a dead letter."""
    pair: str = "pair"
    """A second text, for tasks on pairs."""
    label: str = "label"
    """One label, or a list of labels; numbers are written as their decimal text."""
    id: str = "id"
    """The producer's id; decides whether the record is held out, so that a re-published text stays on its side."""
    timestamp: str = "timestamp"
    """The producer's time: ISO 8601 or milliseconds since 1970."""


class TextConfig(Settings):
    """Where the text comes from."""

    topic: str = ""
    """Topic of the text; empty means the configuration's `name`."""
    format: TextFormat = TextFormat.AUTO
    """`json`, `text` or `arrow`; `auto` goes by the content-type header, then by the first byte."""
    fields: FieldNames = FieldNames()
    """Names of the fields of a JSON record."""
    partitions: int = Field(default=4, ge=1)
    """Partitions of the topic, when headrace creates it."""
    files: tuple[str, ...] = ()
    """Files that `publish` reads when none is named on the command line; also the only roots that are read."""
    shuffle_seed: int | None = None
    """Seed of the order in which files are published; unset keeps their order."""


class TokensConfig(Settings):
    """The shared queue of token batches."""

    topic: str = ""
    """Topic of the token batches; empty means NAME.tokens."""
    lanes: int = Field(default=8, ge=1, le=4096)
    """Partitions of the topic: the most ranks one will ever want. Fixed for the life of the topic."""
    retention_h: float = Field(default=168.0, gt=0)
    """Hours that token batches are kept, when headrace creates the topic."""
    batch_tokens: int = Field(default=65_536, ge=256)
    """Tokens in one token batch, about."""
    backlog_tokens: int = Field(default=50_000_000, ge=1)
    """Ingest waits while so many tokens lie between what it emitted and what is trained."""


class BrokerConfig(Settings):
    """How the broker is reached."""

    broker: str = "local:./data"
    """`kafka://host:9092,host:9092`, or `local:DIR` for the embedded store."""
    kafka: dict[str, Any] = Field(default_factory=dict)
    """Any client option of librdkafka (TLS, SASL, sizes), but not those that exactly-once rests on."""

    @field_validator("broker")
    @classmethod
    def _known_scheme(cls, value: str) -> str:
        scheme, _, rest = value.partition(":")
        if scheme not in {"kafka", "local"} or not rest.strip("/"):
            raise ValueError(f"{value!r} is not a broker: write kafka://host:9092 or local:DIR")
        return value

    @model_validator(mode="after")
    def _free_options_only(self) -> BrokerConfig:
        taken = sorted(RESERVED_CLIENT_OPTIONS & set(self.kafka))
        if taken:
            raise ValueError(f"kafka.{taken[0]} is set by headrace, exactly-once rests on it: remove it")
        return self


class MetricsConfig(Settings):
    """Where metrics are exported."""

    port: int | None = Field(default=None, ge=1, le=65_535)
    """Serve Prometheus metrics of all stage processes of a command on this port. Unset: not served."""
