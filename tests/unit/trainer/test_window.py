"""Windows: every row exactly once, the same cut however the rows came, budgets kept."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.cursor import Cursor, CuttingPlan
from headrace.schemas.errors import Reason, ResumeRefused
from headrace.trainer.window import UNTRAINED, MicroBatch, Window, cut, padded_lengths, row_lengths
from tests.unit.trainer.made_up import PLAN, Given, keep_all, origins, rows_of, texts

lengths = st.lists(st.integers(0, 90), max_size=60)


def _rows(of_lengths: Sequence[int], **more: object) -> pa.RecordBatch:
    return rows_of([[5] * length for length in of_lengths], **more)  # type: ignore[arg-type]


def _cut(rows: Sequence[pa.RecordBatch], plan: CuttingPlan = PLAN, lane: int = 3) -> list[MicroBatch]:
    return cut(Window.of(10, 90, rows), plan, lane, keep_all)


@given(lengths, st.floats(0, 0.5), st.randoms())
def test_every_row_exactly_once_trained_or_not(of_lengths: list[int], share: float, random: object) -> None:
    buckets = [random.randrange(2**16) for _ in of_lengths]  # type: ignore[attr-defined]
    rows = _rows(of_lengths, buckets=buckets)
    micro_batches = _cut([rows], replace(PLAN, hold_out_share=share))
    outcome = [origin for micro in micro_batches for part in (micro.rows, micro.untrained) for origin in origins(part)]
    assert sorted(outcome) == sorted(origins(rows))
    held_out = [origin for micro in micro_batches for origin in origins(micro.held_out)]
    names = origins(rows)
    assert held_out == [
        name
        for name, bucket, length in zip(names, buckets, of_lengths, strict=True)
        if bucket < share * 2**16 and length
    ]


@given(lengths, st.integers(8, 300), st.integers(1, 16))
def test_no_micro_batch_is_over_the_budget_but_a_single_long_row(
    of_lengths: list[int], budget: int, multiple: int
) -> None:
    for micro in _cut([_rows(of_lengths)], replace(PLAN, micro_tokens=budget, pad_multiple=multiple)):
        longest = int(row_lengths(micro.rows).max(initial=0))
        assert micro.padded_tokens == micro.rows.num_rows * -(-longest // multiple) * multiple
        assert micro.padded_tokens <= budget or micro.rows.num_rows == 1
        assert micro.tokens == int(row_lengths(micro.rows).sum())


@given(lengths)
def test_greedy_no_two_neighbours_would_fit_into_one(of_lengths: list[int]) -> None:
    padded = [padded_lengths(row_lengths(micro.rows), 8) for micro in _cut([_rows(of_lengths)]) if micro.rows.num_rows]
    padded.sort(key=lambda row: (row.min(), row.max(), -len(row)))
    for one, following in itertools.pairwise(padded):
        assert (len(one) + 1) * following.min() > PLAN.micro_tokens


@given(lengths, st.lists(st.integers(0, 60), max_size=6), st.randoms())
def test_the_cut_does_not_depend_on_token_batches_or_on_the_order_in_them(
    of_lengths: list[int], bounds: list[int], random: object
) -> None:
    rows = _rows(of_lengths)
    edges = [0, *sorted(min(bound, len(of_lengths)) for bound in bounds), len(of_lengths)]
    parts = [rows.slice(first, last - first) for first, last in itertools.pairwise(edges)]
    shuffled = list(range(len(of_lengths)))
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    expected = [Given.of(micro).rows for micro in _cut([rows])]
    assert [Given.of(micro).rows for micro in _cut(parts)] == expected
    assert [Given.of(micro).rows for micro in _cut([rows.take(pa.array(shuffled, pa.int64()))])] == expected


def test_other_seeds_lanes_and_windows_give_other_orders() -> None:
    rows = _rows([8] * 200)
    orders = {
        tuple(name for micro in micro_batches for name in origins(micro.rows))
        for micro_batches in (
            _cut([rows]),
            _cut([rows], replace(PLAN, seed=8)),
            _cut([rows], lane=4),
            cut(Window.of(11, 90, [rows]), PLAN, 3, keep_all),
        )
    }
    assert len(orders) == 4


def test_micro_batches_do_not_come_sorted_by_length() -> None:
    longest = [int(row_lengths(micro.rows).max()) for micro in _cut([rows_of(texts(400))])]
    assert longest != sorted(longest)
    assert longest != sorted(longest, reverse=True)


@given(lengths)
def test_cursors_chain_and_the_last_closes_the_window(of_lengths: list[int]) -> None:
    micro_batches = _cut([_rows(of_lengths)])
    assert [micro.before.taken for micro in micro_batches] == list(range(len(micro_batches)))
    for micro, following in itertools.pairwise(micro_batches):
        assert micro.after == following.before == Cursor(10, 90, 1, following.before.taken, PLAN)
    assert micro_batches[-1].after == Cursor.at(90)
    assert len({micro.seed for micro in micro_batches}) == len(micro_batches)
    assert all(0 <= micro.seed < 2**63 for micro in micro_batches)


def test_a_window_of_nothing_to_train_still_moves_the_cursor_and_records_every_row() -> None:
    def drop_all(rows: pa.RecordBatch) -> pa.StringArray:
        return pa.array([Reason.MISSING_LABEL.value] * rows.num_rows)

    rows = _rows([8] * 5)
    (micro,) = cut(Window.of(10, 90, [rows]), PLAN, 3, drop_all)
    assert (micro.rows.num_rows, micro.tokens, micro.padded_tokens) == (0, 0, 0)
    assert micro.after == Cursor.at(90)
    assert micro.untrained.schema == UNTRAINED
    assert micro.untrained.column("outcome").to_pylist() == ["dropped"] * 5
    assert micro.untrained.column("reason").to_pylist() == ["missing-label"] * 5
    (empty,) = cut(Window.of(10, 90, [_rows([])]), PLAN, 3, keep_all)
    assert (empty.rows.num_rows, empty.after) == (0, Cursor.at(90))


def test_untrained_rows_ride_on_the_first_micro_batch_only() -> None:
    first, *others = _cut([_rows([8] * 300, buckets=[0, 60_000, 60_000] * 100)], replace(PLAN, hold_out_share=0.1))
    assert first.untrained.num_rows == first.held_out.num_rows == 100
    assert first.untrained.column("outcome").to_pylist() == ["held_out"] * 100
    assert first.untrained.column("reason").null_count == 100
    assert {(micro.untrained.num_rows, micro.held_out.num_rows) for micro in others} == {(0, 0)}


def test_a_row_that_the_task_cannot_use_is_not_held_out_for_evaluation() -> None:
    def drop_first(rows: pa.RecordBatch) -> pa.StringArray:
        return pa.array(["unknown-label", *[None] * (rows.num_rows - 1)], pa.string())

    micro = cut(Window.of(0, 9, [_rows([8, 8], buckets=[0, 0])]), replace(PLAN, hold_out_share=0.5), 0, drop_first)[0]
    assert micro.untrained.column("outcome").to_pylist() == ["dropped", "held_out"]
    assert origins(micro.held_out) == ["text/0@1"]


def test_a_row_without_tokens_is_dropped_because_its_mask_would_hide_everything() -> None:
    micro = _cut([_rows([0, 8])])[0]
    assert micro.untrained.column("reason").to_pylist() == [Reason.EMPTY_TEXT.value]
    assert origins(micro.rows) == ["text/0@1"]


def test_held_out_share_is_kept() -> None:
    buckets = np.random.default_rng(0).integers(0, 2**16, 20_000).tolist()
    held_out = _cut([_rows([1] * 20_000, buckets=buckets)], replace(PLAN, hold_out_share=0.01))[0].held_out
    assert 140 <= held_out.num_rows <= 260


def test_dictionaries_of_token_batches_are_unified() -> None:
    batches = [rows_of(texts(3), topic=topic) for topic in ("orders", "reviews", "orders")]
    names = sorted(name for micro in _cut(batches) for name in origins(micro.rows))
    expected = sorted(f"{topic}/0@{offset}" for topic in ("orders", "reviews", "orders") for offset in range(3))
    assert names == expected


def test_token_batches_with_and_without_word_starts_go_together() -> None:
    batches = [rows_of([[1, 5, 2]], words=[[True, True, True]]), rows_of([[1, 6, 2]], first_offset=1)]
    (micro,) = _cut(batches)
    words = dict(zip(origins(micro.rows), micro.rows.column("word_start").to_pylist(), strict=True))
    assert words == {"text/0@0": [True, True, True], "text/0@1": None}


def test_a_plan_of_another_version_is_refused_by_name() -> None:
    with pytest.raises(ResumeRefused, match="lane 3: the open window from offset 10 was cut by version 99"):
        _cut([_rows([8])], replace(PLAN, version=99))


def test_padding_of_texts_as_reviews_are() -> None:
    """Lengths as of Chinese reviews (mean 75): what sorting leaves beside the rounding to 8 is small."""
    random = np.random.default_rng(0)
    of_lengths = np.clip(random.lognormal(4.0, 0.8, 14_000).astype(int), 3, 512).tolist()
    micro_batches = _cut([_rows(of_lengths)], CuttingPlan(7, micro_tokens=8192, window_tokens=2**20))
    tokens = sum(micro.tokens for micro in micro_batches)
    padded = sum(micro.padded_tokens for micro in micro_batches)
    rounded = int(padded_lengths(np.array(of_lengths), 8).sum())
    assert (padded - rounded) / padded < 0.02
    assert (padded - tokens) / padded < 0.07
    fill = padded / (len(micro_batches) * 8192)
    assert fill > 0.95
