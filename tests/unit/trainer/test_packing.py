"""Packing: every document once, whole, and apart from the others in its row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.trainer.collate import Batch
from headrace.trainer.masking import IGNORED
from headrace.trainer.packing import causal_lm_collate, causal_lm_screen, first_fit
from headrace.trainer.window import MicroBatch, Window, cut
from tests.unit.trainer.made_up import PLAN, VOCAB, rows_of, texts

PAD = 0
documents = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=40), min_size=1, max_size=30)


def micro_batches(rows: pa.RecordBatch, **plan: int) -> list[MicroBatch]:
    return cut(Window.of(0, 9, [rows]), replace(PLAN, **plan), 0, causal_lm_screen)  # type: ignore[arg-type]


def unpacked(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """Ids and labels of every document, by its place in the micro-batch; positions are those of its tokens."""
    numbers = batch.arrays["documents"]
    found = []
    for document in range(1, int(numbers.max(initial=0)) + 1):
        where = numbers == document
        assert len(set(np.nonzero(where)[0])) == 1, "a document in two rows"
        assert batch.arrays["position_ids"][where].tolist() == list(range(where.sum()))
        found.append((batch.arrays["input_ids"][where].tolist(), batch.arrays["labels"][where].tolist()))
    return found


@given(documents, st.sampled_from([1, 8]), st.integers(40, 400))
def test_every_document_is_there_once_and_predicts_its_own_next_tokens(
    rows: list[list[int]], pad_multiple: int, micro_tokens: int
) -> None:
    seen = []
    for micro in micro_batches(rows_of(rows), pad_multiple=pad_multiple, micro_tokens=micro_tokens):
        batch = causal_lm_collate(PAD)(micro)
        ids = micro.rows.column("input_ids").to_pylist()
        assert unpacked(batch) == [(row, [*row[1:], IGNORED]) for row in ids]
        outside = batch.arrays["documents"] == 0
        assert (batch.arrays["labels"][outside] == IGNORED).all()
        assert (batch.arrays["input_ids"][outside] == PAD).all()
        assert batch.count == sum(len(row) - 1 for row in ids) == (batch.arrays["labels"] != IGNORED).sum()
        assert batch.arrays["input_ids"].size <= micro.padded_tokens
        assert {array.dtype for array in batch.arrays.values()} == {np.dtype(np.int64)}
        seen += ids
    assert sorted(seen) == sorted(rows)


@given(st.lists(st.integers(1, 50), max_size=60))
def test_first_fit_never_overfills_a_row_and_opens_none_without_need(lengths: list[int]) -> None:
    rows, starts = first_fit(np.array(lengths, dtype=np.int64))
    taken: dict[int, int] = {}
    for document in sorted(range(len(lengths)), key=lambda each: (rows[each], starts[each])):
        assert starts[document] == taken.get(rows[document], 0)
        taken[rows[document]] = starts[document] + lengths[document]
    assert sorted(taken) == list(range(len(taken)))
    filled = sorted(taken.values())
    assert all(each <= max(lengths) for each in filled)
    assert not filled[1:] or filled[0] + filled[1] > max(lengths), "two rows that fit into one"


def test_short_documents_share_rows() -> None:
    rows = [[5] * 12, [6] * 4, [7] * 7, [8] * 5, [9] * 3]
    (micro,) = micro_batches(rows_of(rows), pad_multiple=1)
    batch = causal_lm_collate(PAD)(micro)
    assert sorted(sorted(set(row)) for row in batch.arrays["input_ids"].tolist()) == [[0, 6, 9], [5], [7, 8]]


def test_packing_depends_on_the_micro_batch_alone() -> None:
    first, second = (causal_lm_collate(PAD)(micro_batches(rows_of(texts(30)))[1]) for _ in range(2))
    assert {name: array.tolist() for name, array in first.arrays.items()} == {
        name: array.tolist() for name, array in second.arrays.items()
    }
    assert (first.seed, first.lane, first.count) == (second.seed, second.lane, second.count)


def test_a_document_without_a_next_token_is_dropped() -> None:
    rows = rows_of([[1], [1, 2], [], [1, 2, 3]])
    assert causal_lm_screen(rows).to_pylist() == ["empty-text", None, "empty-text", None]
    assert causal_lm_screen(rows.slice(2)).to_pylist() == ["empty-text", None]


def test_a_micro_batch_without_rows_has_arrays_without_rows() -> None:
    (micro,) = micro_batches(rows_of([[1]]))
    batch = causal_lm_collate(PAD)(micro)
    assert batch.count == 0
    assert all(len(array) == 0 for array in batch.arrays.values())
