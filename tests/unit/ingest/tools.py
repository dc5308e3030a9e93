"""What tests of ingest share: messages, rules, a small vocabulary, a local broker with its topics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from headrace.ingest.decode import Decoded, Rules, decode
from headrace.ingest.fields import FieldRules
from headrace.pipeline.config import FieldNames
from headrace.pipeline.topics import Broker, Message
from headrace.schemas import tokens
from headrace.schemas.record import ARROW_TYPE, TextFormat

PUBLISHED_MS = 1_700_000_000_000

CHARACTERS = "交通拥堵严重希望尽快解决教育医疗住房环保空气水质很好不错差评天"
VOCABULARY = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
    *CHARACTERS,
    *"abcdefghijklmnopqrstuvwxyz0123456789", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123456789"),
    "traffic", "jam", "##s", ".", ",", "。", "，", "!",
]  # fmt: skip


def write_vocabulary(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in dict.fromkeys(VOCABULARY)), encoding="utf-8")
    return folder


def rules(
    form: TextFormat = TextFormat.AUTO,
    *,
    names: FieldNames | None = None,
    labels: Iterable[str] | None = None,
    max_text_bytes: int = 1_000_000,
) -> Rules:
    known = None if labels is None else frozenset(labels)
    return Rules("text", form, FieldRules(names or FieldNames(), max_text_bytes, known))


def message(value: bytes | str | dict[str, Any], *, offset: int = 0, partition: int = 0, kind: str = "") -> Message:
    data = value if isinstance(value, bytes) else value.encode() if isinstance(value, str) else orjson.dumps(value)
    return Message(partition, offset, PUBLISHED_MS, data, headers=(("content-type", kind.encode()),) if kind else ())


def arrow_stream(*batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def bulk(columns: dict[str, Any], *, offset: int = 0, partition: int = 0) -> Message:
    return message(arrow_stream(pa.record_batch(columns)), offset=offset, partition=partition, kind=ARROW_TYPE)


def decode_all(messages: Sequence[Message], how: Rules, **positions: Any) -> Decoded:
    """One Decoded of everything; fails when there is not exactly one."""
    (decoded,) = decode(messages, how, positions.get("positions", {}))
    return decoded


def read_topic(broker: Broker, topic: str) -> list[Message]:
    """Everything committed, partition by partition."""
    ends = broker.ends(topic)
    reader = broker.reader(topic, {partition: end.first for partition, end in ends.items()})
    found: list[Message] = []
    try:
        while True:
            fetched = reader.poll(1000, 0.05)
            found += fetched.messages
            if not fetched.messages and fetched.at_end.keys() == ends.keys():
                return sorted(found, key=lambda message: (message.partition, message.offset))
    finally:
        reader.close()


def emitted_rows(broker: Broker, topic: str) -> list[dict[str, Any]]:
    """Every row on a tokens topic."""
    return [row for message in read_topic(broker, topic) for row in tokens.decode(message.value)[0].to_pylist()]
