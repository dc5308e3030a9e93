"""Which tokens are masked, and by what: BERT's recipe, decided by keyed hashes.

Every unit (a token, or the tokens of a word) of a row gets a number from (seed, lane, pass, origin of the row,
position). Units with a number below `share` are chosen, and in a row where none is, the unit with the least number. So
what is masked in a row never depends on the other rows of its batch, on ranks or on time. Special tokens are never
chosen; the unknown token is one of them, because nothing can be learnt from guessing it.

Of the chosen tokens 80 % become the mask token, 10 % a random ordinary token, 10 % stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.schemas.tokens import TokensMeta
from headrace.trainer.keyed import Keys, Purpose, fold, key_of, origin_keys, pass_numbers

#: The label of a token that is not masked: no term of the loss.
IGNORED = -100

_MASK_SHARE = 0.8
_RANDOM_SHARE = 0.1

Booleans = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Masking:
    """Everything that decides what is masked."""

    seed: int
    share: float
    mask_id: int
    special_ids: tuple[int, ...]
    vocab_size: int
    unit: Literal["token", "word"] = "token"  # "word" needs the column `word_start`; rows without it go by tokens
    pass_number: int = 1

    @classmethod
    def of(cls, meta: TokensMeta, seed: int, share: float, unit: Literal["token", "word"] = "token") -> Masking:
        """With the ids of the tokenizer that made the token batches."""
        special_ids = tuple(sorted(set(meta.special_ids.values())))
        return cls(seed, share, meta.special_ids["mask"], special_ids, meta.vocab_size, unit)


def has_ordinary(rows: pa.RecordBatch, masking: Masking) -> Booleans:
    """Whether each row has a token that may be masked."""
    ids = rows.column("input_ids")
    ordinary = _ordinary(ids.flatten().to_numpy(zero_copy_only=False).astype(np.int64), masking)
    counts = np.concatenate(([0], np.cumsum(ordinary)))
    bounds = np.asarray(ids.offsets, dtype=np.int64)
    bounds = bounds - bounds[0]  # of a slice, relative to its own first token
    return np.asarray(counts[bounds[1:]] > counts[bounds[:-1]])


def choose(rows: pa.RecordBatch, lane: int, input_ids: Integers, masking: Masking) -> Booleans:
    """Which tokens of the padded `input_ids` [B, S] are masked: at least one per row that has an ordinary one."""
    lengths_B = np.diff(np.asarray(rows.column("input_ids").offsets, dtype=np.int64))
    positions_S = np.arange(input_ids.shape[1])
    ordinary_BS = _ordinary(input_ids, masking) & (positions_S < lengths_B[:, None])
    units_BS = _units(rows, positions_S, masking)
    numbers_BS = fold(_row_keys(rows, lane, masking), units_BS)
    least_B = np.where(ordinary_BS, numbers_BS, np.uint64(2**64 - 1)).min(axis=1, initial=2**64 - 1)
    threshold_B = np.maximum(least_B, np.uint64(int(masking.share * 2**64)))
    return np.asarray(ordinary_BS & (numbers_BS <= threshold_B[:, None]))


def replace_chosen(
    rows: pa.RecordBatch, lane: int, input_ids: Integers, chosen: Booleans, masking: Masking
) -> Integers:
    """`input_ids` with the chosen tokens replaced, each token by its own chance."""
    row_M, position_M = np.nonzero(chosen)  # M: the chosen tokens
    tokens_M = fold(_row_keys(rows, lane, masking)[row_M, 0], position_M)
    how_M = fold(tokens_M, np.array([1])) / 2.0**64
    at_random_M = (how_M >= _MASK_SHARE) & (how_M < _MASK_SHARE + _RANDOM_SHARE)
    random_ids = np.flatnonzero(_ordinary_ids(masking.vocab_size, masking.special_ids))
    which_M = (fold(tokens_M, np.array([2])) % np.uint64(len(random_ids))).astype(np.int64)
    ids_M = np.where(how_M < _MASK_SHARE, masking.mask_id, input_ids[row_M, position_M])
    replaced = input_ids.copy()
    replaced[row_M, position_M] = np.where(at_random_M, random_ids[which_M], ids_M)
    return replaced


def _row_keys(rows: pa.RecordBatch, lane: int, masking: Masking) -> Keys:
    """One key per row, [B, 1]."""
    key = key_of(Purpose.MASK, masking.seed, lane, *pass_numbers(masking.pass_number))
    return origin_keys(key, rows)[:, None]


def _units(rows: pa.RecordBatch, positions: Integers, masking: Masking) -> Integers:
    """For each token the position at which its unit begins: [B, S], or [1, S] where every token is a unit."""
    if masking.unit == "token" or "word_start" not in rows.schema.names:
        return positions[None, :]
    starts = rows.column("word_start")
    begins_BS = np.ones((rows.num_rows, len(positions)), dtype=np.bool_)
    for number, row in enumerate(starts):
        if row.is_valid:
            flags = np.asarray(row.values.fill_null(True))[: len(positions)]
            begins_BS[number, : len(flags)] = flags
    return np.asarray(np.maximum.accumulate(np.where(begins_BS, positions, 0), axis=1))


def _ordinary(ids: Integers, masking: Masking) -> Booleans:
    return _ordinary_ids(masking.vocab_size, masking.special_ids)[ids]


@lru_cache(maxsize=4)
def _ordinary_ids(vocab_size: int, special_ids: tuple[int, ...]) -> Booleans:
    """For every id of the vocabulary whether it is ordinary. A table: looking up is quicker than comparing."""
    ordinary = np.ones(vocab_size, dtype=np.bool_)
    ordinary[list(special_ids)] = False
    return ordinary
