"""Token batches: the one codec for what lies on the tokens topic, in local topics and in archives.

One message is one Arrow IPC stream that holds exactly one record batch of schema `tokens_schema(...)`. What all rows
share stands in the schema's metadata (`TokensMeta`). Readers ignore columns they do not know, and everything from
outside is validated in full before a buffer is touched: an Arrow stream with wild offsets would otherwise read memory
that is not its own.

Cost: encoding copies once into the message; decoding copies nothing but validates O(bytes).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache

import pyarrow as pa

from headrace.schemas.errors import TokensInvalid

FORMAT_VERSION = 1
_META_KEY = b"headrace"
_MAX_UINT16 = 2**16

#: Largest value of the `bucket` column plus one; shares are fractions of it.
BUCKETS = 2**16


@dataclass(frozen=True, slots=True)
class TokensMeta:
    """What every row of a token batch has in common."""

    fingerprint: str  # of the tokenizer and every setting that decides ids
    vocab_size: int
    special_ids: Mapping[str, int]  # "cls", "sep", "pad", "mask", "unk"
    topic_ids: Mapping[str, str] = field(default_factory=dict)  # text topic name -> broker's id of it
    version: int = FORMAT_VERSION


def ids_type(vocab_size: int) -> pa.DataType:
    """uint16 where the vocabulary fits, else int32."""
    return pa.uint16() if vocab_size <= _MAX_UINT16 else pa.int32()


@cache
def tokens_schema(vocab_size: int, *, words: bool = False) -> pa.Schema:
    """Schema of a token batch; `words` adds `word_start` for whole-word masking."""
    columns = [
        pa.field("input_ids", pa.list_(ids_type(vocab_size)), nullable=False),  # with special tokens, no padding
        pa.field("pair_start", pa.uint16()),  # where the second text begins
        pa.field("labels", pa.list_(pa.string()), nullable=False),
        pa.field("id", pa.string()),
        pa.field("timestamp", pa.timestamp("ms")),  # the producer's
        pa.field("published", pa.timestamp("ms"), nullable=False),  # the broker's
        pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("part", pa.uint16(), nullable=False),
        pa.field("bucket", pa.uint16(), nullable=False),  # decides the held-out part
    ]
    if words:
        columns.append(pa.field("word_start", pa.list_(pa.bool_())))
    return pa.schema(columns)


def token_count(batch: pa.RecordBatch) -> int:
    """Tokens in a batch, special tokens included."""
    ids = batch.column("input_ids")
    return len(ids.flatten())


def encode(batch: pa.RecordBatch, meta: TokensMeta) -> bytes:
    """Write `batch` (of `tokens_schema`) as one message. The topic compresses; the stream does not."""
    # Not `asdict`, whose deep copy costs as much as the rest.
    shared = {part.name: getattr(meta, part.name) for part in fields(meta)}
    tagged = batch.replace_schema_metadata({_META_KEY: json.dumps(shared, sort_keys=True)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, tagged.schema) as stream:
        stream.write_batch(tagged)
    message: bytes = sink.getvalue().to_pybytes()
    return message


def decode(data: bytes | pa.Buffer) -> tuple[pa.RecordBatch, TokensMeta]:
    """Read and validate one message.

    Returns the batch with exactly the known columns (`word_start` where present) and its metadata.
    Raises TokensInvalid for anything else than one complete, valid batch of a version that this code reads.
    """
    try:
        with pa.ipc.open_stream(data) as stream:
            batches = list(stream)
        if len(batches) != 1:
            raise TokensInvalid(f"a token batch message holds one record batch, this one holds {len(batches)}")
        batch = batches[0]
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TokensInvalid(f"a message on the tokens topic is not a whole Arrow stream: {error}") from error
    meta = _read_meta(batch.schema)
    schema = tokens_schema(meta.vocab_size, words="word_start" in batch.schema.names)
    try:
        known = batch.select(schema.names).cast(schema)
    except (KeyError, pa.ArrowException) as error:
        raise TokensInvalid(f"a token batch lacks a column or has it in another type: {error}") from error
    _check_values(known, meta)
    return known, meta


def _read_meta(schema: pa.Schema) -> TokensMeta:
    raw = (schema.metadata or {}).get(_META_KEY)
    if raw is None:
        raise TokensInvalid("a message on the tokens topic carries no headrace metadata: another program writes there")
    try:
        meta = TokensMeta(**json.loads(raw))
    except (ValueError, TypeError) as error:
        raise TokensInvalid(f"unreadable token batch metadata: {error}") from error
    if meta.version != FORMAT_VERSION:
        raise TokensInvalid(
            f"token batch format {meta.version}, this headrace reads {FORMAT_VERSION}: update the older of the two"
        )
    return meta


def _check_values(batch: pa.RecordBatch, meta: TokensMeta) -> None:
    """Arrow's validation knows types, not meaning: ids must lie in the vocabulary, required columns hold no null."""
    for column in batch.schema:
        if not column.nullable and batch.column(column.name).null_count:
            raise TokensInvalid(f"a token batch has nulls in {column.name!r}")
    ids = batch.column("input_ids").flatten()
    if len(ids):
        numbers = ids.to_numpy(zero_copy_only=False)
        if int(numbers.max()) >= meta.vocab_size or int(numbers.min()) < 0:
            raise TokensInvalid(f"a token batch holds ids outside its vocabulary of {meta.vocab_size}")
