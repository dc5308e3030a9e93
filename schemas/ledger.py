"""Ledger rows: what became of every record, and what every step took from every lane.

Two tables, written with each checkpoint for what happened since its parent:

- `STEPS`: one row per step, lane and window that gave micro-batches: enough to cut the same windows again.
- `OUTCOMES`: one row per record that left a lane, and pass: trained, held out, dropped, skipped or excluded, in the
  order of the step.

They are kept when retention has deleted the tokens. Delta-coded Parquet brings an outcome to about three bytes.
"""

from __future__ import annotations

from enum import StrEnum

import pyarrow as pa


class Outcome(StrEnum):
    """What became of a record that reached a lane. Dead letters never reach one; they have their own topic."""

    TRAINED = "trained"
    HELD_OUT = "held_out"
    DROPPED = "dropped"
    SKIPPED = "skipped"  # its step was given up: a bad loss with `on_bad_loss: skip`
    EXCLUDED = "excluded"  # named in `train --skip`


_CODES = pa.dictionary(pa.int8(), pa.string())

STEPS = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("lane", pa.int32(), nullable=False),
        pa.field("before", pa.string(), nullable=False),  # cursor, as JSON
        pa.field("after", pa.string(), nullable=False),
        pa.field("micro_batches", pa.int32(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),  # real ones
        pa.field("padded_tokens", pa.int64(), nullable=False),  # with padding
        pa.field("oldest", pa.timestamp("ms")),  # earliest and latest `published` of the rows trained
        pa.field("newest", pa.timestamp("ms")),
        pa.field("stepped", pa.timestamp("ms"), nullable=False),  # when the optimizer had stepped
    ]
)

OUTCOMES = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("lane", pa.int32(), nullable=False),
        pa.field("outcome", _CODES, nullable=False),
        pa.field("reason", _CODES),  # where dropped or skipped
        pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("part", pa.uint16(), nullable=False),
        pa.field("pass", pa.uint16(), nullable=False),  # from 1
    ]
)

#: The columns that name one record, as in `record.Origin`.
ORIGIN_COLUMNS = ("topic", "partition", "offset", "row", "part")
