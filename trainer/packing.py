"""Packing: the documents of a micro-batch share rows, as long as the longest document, for causal language models.

First fit by falling length; among equal lengths the earlier document first. It depends on the micro-batch alone, so
cursors and ledger know nothing of it, and a packed micro-batch is never larger than its padded rows were. Documents are
told apart by number, and positions begin again with each, so that the loss is that of one document per row.

Windows are sorted by length before they are cut, so large windows leave little to pack: it is small windows (a live
stream, the end of one) and the shortest documents that gain. Longer rows than these would fill better and cost more:
attention over a row grows with the square of its length.

Shapes: R rows, S the longest document rounded up to the plan's `pad_multiple`. Cost: O(documents * rows), vectorised
over the rows; 20 ms for 4 000 documents.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.schemas.errors import Reason
from headrace.trainer.collate import Batch, Collate, batch_of
from headrace.trainer.masking import IGNORED
from headrace.trainer.window import MicroBatch, padded_lengths, row_lengths

Integers = npt.NDArray[np.int64]


def causal_lm_screen(rows: pa.RecordBatch) -> pa.StringArray:
    """Keep documents of at least two tokens: one to predict, and one to predict it from."""
    short = pc.less(pc.list_value_length(rows.column("input_ids")), 2)
    return pc.if_else(short, pa.scalar(Reason.EMPTY_TEXT.value), pa.scalar(None, pa.string()))


def causal_lm_collate(pad_id: int) -> Collate:
    """`input_ids`, `position_ids`, `documents` (1, 2, …; 0 is padding) and `labels`, all [R, S] int64.

    `labels` holds the next token of the document, IGNORED at its last one and in padding. The loss has one term per
    predicted token.
    """

    def collate(micro: MicroBatch) -> Batch:
        lengths_B = row_lengths(micro.rows)
        width = int(padded_lengths(lengths_B.max(initial=1, keepdims=True), micro.plan.pad_multiple)[0])
        rows_B, starts_B = first_fit(lengths_B)
        shape = (int(rows_B.max(initial=-1)) + 1, width)
        tokens = np.asarray(micro.rows.column("input_ids").flatten(), dtype=np.int64)
        within = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths_B) - lengths_B, lengths_B)
        places = (np.repeat(rows_B, lengths_B), np.repeat(starts_B, lengths_B) + within)
        following = np.append(tokens[1:], IGNORED)
        following[np.cumsum(lengths_B) - 1] = IGNORED
        arrays = {
            "input_ids": _scattered(shape, pad_id, places, tokens),
            "position_ids": _scattered(shape, 0, places, within),
            "documents": _scattered(shape, 0, places, np.repeat(np.arange(1, len(lengths_B) + 1), lengths_B)),
            "labels": _scattered(shape, IGNORED, places, following[: len(tokens)]),
        }
        return batch_of(micro, arrays, int(np.maximum(lengths_B - 1, 0).sum()))

    return collate


def first_fit(lengths: Integers) -> tuple[Integers, Integers]:
    """For documents of these lengths the row of each and the place in it where it starts."""
    capacity = int(lengths.max(initial=0))
    rows, starts = np.zeros_like(lengths), np.zeros_like(lengths)
    room = np.full(len(lengths), capacity)
    for document in np.argsort(-lengths, kind="stable"):
        row = int(np.argmax(room >= lengths[document]))
        rows[document], starts[document] = row, capacity - room[row]
        room[row] -= lengths[document]
    return rows, starts


def _scattered(shape: tuple[int, int], fill: int, places: tuple[Integers, Integers], values: Integers) -> Integers:
    array = np.full(shape, fill, dtype=np.int64)
    array[places] = values
    return array
