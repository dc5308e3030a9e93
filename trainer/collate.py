"""Collate: a micro-batch of Arrow rows becomes the NumPy arrays that a model takes.

Shapes: B rows, S the longest row rounded up to the plan's `pad_multiple`. `input_ids`, `token_type_ids` and
`attention_mask` are [B, S] int64. The attention mask follows from the lengths, never from the ids, and no row is
without a token (`window.cut` drops those), so that no row is hidden as a whole.

Each task has a collate function and a screen, which says for every row why the task cannot use it, or null.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.schemas.errors import Reason
from headrace.trainer.masking import IGNORED, Masking, choose, has_ordinary, replace_chosen
from headrace.trainer.window import MicroBatch, Screen, row_lengths

Arrays = dict[str, npt.NDArray[np.int64]]

_MISSING = pa.scalar(Reason.MISSING_LABEL.value)
_UNKNOWN = pa.scalar(Reason.UNKNOWN_LABEL.value)
_EMPTY = pa.scalar(Reason.EMPTY_TEXT.value)
_KEEP = pa.scalar(None, pa.string())


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch as the model takes it."""

    arrays: Arrays
    count: int  # terms of the summed loss: rows, or masked tokens
    seed: int  # decides dropout; the same at any number of ranks
    lane: int
    tokens: int
    padded_tokens: int


Collate = Callable[[MicroBatch], Batch]


def pad(rows: pa.RecordBatch, pad_id: int, pad_multiple: int) -> Arrays:
    """The three arrays that every model takes. Vectorised: one scatter over the whole micro-batch."""
    lengths_B = row_lengths(rows)
    longest = int(lengths_B.max(initial=1))
    shape = (len(lengths_B), -(-longest // pad_multiple) * pad_multiple)
    positions_S = np.arange(shape[1])
    real_BS = positions_S < lengths_B[:, None]
    input_ids_BS = np.full(shape, pad_id, dtype=np.int64)
    input_ids_BS[real_BS] = rows.column("input_ids").flatten().to_numpy(zero_copy_only=False)
    # Without a second text it begins behind the last token.
    pair_start = pc.fill_null(rows.column("pair_start").cast(pa.int64()), shape[1])
    second_BS = positions_S >= np.asarray(pair_start)[:, None]
    return {
        "input_ids": input_ids_BS,
        "token_type_ids": (second_BS & real_BS).astype(np.int64),
        "attention_mask": real_BS.astype(np.int64),
    }


def class_numbers(rows: pa.RecordBatch, labels: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """The number of each row's first label, -1 where there is none or it is not in `labels`."""
    numbers = pc.index_in(_first_label(rows), value_set=pa.array(labels, pa.string()))
    return np.asarray(pc.fill_null(numbers, -1), dtype=np.int64)


def classification_screen(labels: tuple[str, ...]) -> Screen:
    """Keep rows with exactly one label, which must be one of `labels`."""

    def screen(rows: pa.RecordBatch) -> pa.StringArray:
        given = pc.list_value_length(rows.column("labels"))
        first = _first_label(rows)
        # A null among the labels is no label.
        missing = pc.or_(pc.equal(given, 0), pc.and_(pc.equal(given, 1), first.is_null()))
        known = pc.and_(pc.equal(given, 1), pc.is_in(first, value_set=pa.array(labels, pa.string())))
        return pc.if_else(missing, _MISSING, pc.if_else(known, _KEEP, _UNKNOWN))

    return screen


def classification_collate(labels: tuple[str, ...], pad_id: int) -> Collate:
    """Adds `labels` [B]: the number of the class. The loss has one term per row."""

    return _one_term_a_row(lambda rows: class_numbers(rows, labels), pad_id)


def _one_term_a_row(labels_of: Callable[[pa.RecordBatch], npt.NDArray[np.int64]], pad_id: int) -> Collate:
    def collate(micro: MicroBatch) -> Batch:
        arrays = pad(micro.rows, pad_id, micro.plan.pad_multiple)
        arrays["labels"] = labels_of(micro.rows)
        return batch_of(micro, arrays, micro.rows.num_rows)

    return collate


def label_sets(rows: pa.RecordBatch, labels: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """Which of `labels` each row has: [B, C], 1 where it has the label."""
    sets_BC = np.zeros((rows.num_rows, len(labels)), dtype=np.int64)
    given = rows.column("labels")
    numbers = pc.index_in(pc.list_flatten(given), value_set=pa.array(labels, pa.string()))
    known = np.asarray(numbers.is_valid())
    owners = np.asarray(pc.list_parent_indices(given), dtype=np.int64)[known]
    sets_BC[owners, np.asarray(numbers.drop_null(), dtype=np.int64)] = 1
    return sets_BC


def multi_label_screen(labels: tuple[str, ...]) -> Screen:
    """Keep rows of which every label is one of `labels`; also rows without any."""

    def screen(rows: pa.RecordBatch) -> pa.StringArray:
        given = rows.column("labels")
        # A null among the labels is no label.
        known = pc.is_in(pc.list_flatten(given), value_set=pa.array([*labels, None], pa.string()))
        strange = np.zeros(rows.num_rows, dtype=np.bool_)
        strange[np.asarray(pc.list_parent_indices(given), dtype=np.int64)[~np.asarray(known)]] = True
        return pc.if_else(pa.array(strange), _UNKNOWN, _KEEP)

    return screen


def multi_label_collate(labels: tuple[str, ...], pad_id: int) -> Collate:
    """Adds `labels` [B, C]. The loss has one term per row: the sum over the classes."""

    return _one_term_a_row(lambda rows: label_sets(rows, labels), pad_id)


def masked_lm_screen(masking: Masking) -> Screen:
    """Keep rows that have a token to mask: one that is not special. A row of nothing else has no text to learn from."""

    def screen(rows: pa.RecordBatch) -> pa.StringArray:
        return pc.if_else(pa.array(has_ordinary(rows, masking)), _KEEP, _EMPTY)

    return screen


def masked_lm_collate(masking: Masking, pad_id: int) -> Collate:
    """Masks, and adds `labels` [B, S]: the true id where a token is masked, IGNORED elsewhere.

    The loss has one term per masked token. What is masked depends on the seed, the lane, the origin of a row and the
    pass only.
    """

    def collate(micro: MicroBatch) -> Batch:
        arrays = pad(micro.rows, pad_id, micro.plan.pad_multiple)
        of_pass = replace(masking, pass_number=micro.before.pass_number)
        chosen_BS = choose(micro.rows, micro.lane, arrays["input_ids"], of_pass)
        arrays["labels"] = np.where(chosen_BS, arrays["input_ids"], IGNORED)
        arrays["input_ids"] = replace_chosen(micro.rows, micro.lane, arrays["input_ids"], chosen_BS, of_pass)
        return batch_of(micro, arrays, int(chosen_BS.sum()))

    return collate


def batch_of(micro: MicroBatch, arrays: Arrays, count: int) -> Batch:
    """`arrays` of a micro-batch, with what the trainer must know of it. `count`: terms of the summed loss."""
    return Batch(arrays, count, micro.seed, micro.lane, micro.tokens, micro.padded_tokens)


def _first_label(rows: pa.RecordBatch) -> pa.StringArray:
    """The first label of each row, null where there is none."""
    labels = rows.column("labels")
    # list_element refuses lists that are too short; take the first value by its place instead.
    first = pc.if_else(pc.greater(pc.list_value_length(labels), 0), labels.offsets.slice(0, len(labels)), None)
    return labels.values.take(first)
