"""Collate: shapes and masks right to the token, screens that say why, masking that depends on nothing but the row."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.trainer.collate import (
    Batch,
    Collate,
    class_numbers,
    classification_collate,
    classification_screen,
    label_sets,
    masked_lm_collate,
    masked_lm_screen,
    multi_label_collate,
    multi_label_screen,
    pad,
)
from headrace.trainer.masking import IGNORED, Masking
from headrace.trainer.window import MicroBatch, Screen, Window, cut
from tests.unit.trainer.made_up import META, PLAN, SPECIAL, VOCAB, keep_all, origins, rows_of, texts

CLASSES = ("a", "b", "c")
MASKING = Masking.of(META, seed=7, share=0.15)

ids = st.integers(5, VOCAB - 1)
some_texts = st.lists(st.lists(ids, min_size=1, max_size=40).map(lambda row: [1, *row, 2]), min_size=1, max_size=20)


def micro_batches(rows: pa.RecordBatch, screen: Screen = keep_all, lane: int = 0) -> list[MicroBatch]:
    return cut(Window.of(0, 9, [rows]), PLAN, lane, screen)


def by_origin(collate: Collate, micro: list[MicroBatch]) -> dict[str, tuple[list[int], list[int]]]:
    """Input ids and labels of every row, without padding."""
    found = {}
    for each in micro:
        batch = collate(each)
        for number, name in enumerate(origins(each.rows)):
            length = int(batch.arrays["attention_mask"][number].sum())
            found[name] = tuple(batch.arrays[key][number, :length].tolist() for key in ("input_ids", "labels"))
    return found


def test_padding_masks_and_types_to_the_token() -> None:
    arrays = pad(rows_of([[1, 7, 2, 8, 9, 2], [1, 6, 2]], pair_start=[3, None]), pad_id=0, pad_multiple=4)
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "input_ids": [[1, 7, 2, 8, 9, 2, 0, 0], [1, 6, 2, 0, 0, 0, 0, 0]],
        "token_type_ids": [[0, 0, 0, 1, 1, 1, 0, 0], [0] * 8],
        "attention_mask": [[1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0]],
    }
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.int64)}


@given(some_texts, st.integers(1, 16), st.integers(0, 3))
def test_padding_of_any_rows_and_of_slices_of_them(rows: list[list[int]], multiple: int, skip: int) -> None:
    batch = rows_of(rows).slice(skip)
    kept = rows[skip:]
    arrays = pad(batch, pad_id=3, pad_multiple=multiple)
    width = -(-max(map(len, kept), default=1) // multiple) * multiple
    assert arrays["input_ids"].shape == (len(kept), width)
    for number, row in enumerate(kept):
        assert arrays["input_ids"][number].tolist() == row + [3] * (width - len(row))
        assert arrays["attention_mask"][number].tolist() == [1] * len(row) + [0] * (width - len(row))


def test_a_token_that_equals_the_padding_is_not_masked_out() -> None:
    assert pad(rows_of([[1, 0, 2]]), pad_id=0, pad_multiple=4)["attention_mask"].tolist() == [[1, 1, 1, 0]]


def test_a_micro_batch_without_rows_has_arrays_without_rows() -> None:
    (micro,) = micro_batches(rows_of([[1, 5, 2]], labels=[[]]), classification_screen(CLASSES))
    for collate in (classification_collate(CLASSES, 0), masked_lm_collate(MASKING, 0), multi_label_collate(CLASSES, 0)):
        batch = collate(micro)
        assert (batch.count, batch.tokens, len(batch.arrays["input_ids"])) == (0, 0, 0)


def test_classification_takes_rows_with_exactly_one_known_label() -> None:
    labels: list[list[str | None]] = [["b"], [], ["x"], ["a", "b"], [None], ["c"], ["a", "x"]]
    rows = rows_of([[1, 5, 2]] * len(labels), labels=labels)
    reasons = classification_screen(CLASSES)(rows).to_pylist()
    assert reasons == [None, "missing-label", "unknown-label", "unknown-label", "missing-label", None, "unknown-label"]
    assert class_numbers(rows, CLASSES).tolist() == [1, -1, -1, 0, -1, 2, 0]
    assert classification_screen(CLASSES)(rows.slice(4)).to_pylist() == reasons[4:]
    assert class_numbers(rows.slice(4), CLASSES).tolist() == [-1, 2, 0]
    found = {}
    for micro in micro_batches(rows, classification_screen(CLASSES)):
        batch = classification_collate(CLASSES, 0)(micro)
        assert batch.count == micro.rows.num_rows
        found.update(zip(origins(micro.rows), batch.arrays["labels"].tolist(), strict=True))
    assert found == {"text/0@0": 1, "text/0@5": 2}


def test_several_labels_take_rows_with_any_number_of_known_ones() -> None:
    labels: list[list[str | None]] = [["b"], [], ["x"], ["c", "a"], [None], ["a", None, "a"], ["a", "x"]]
    rows = rows_of([[1, 5, 2]] * len(labels), labels=labels)
    reasons = multi_label_screen(CLASSES)(rows).to_pylist()
    assert reasons == [None, None, "unknown-label", None, None, None, "unknown-label"]
    assert label_sets(rows, CLASSES)[[0, 1, 3, 4, 5]].tolist() == [[0, 1, 0], [0] * 3, [1, 0, 1], [0] * 3, [1, 0, 0]]
    assert multi_label_screen(CLASSES)(rows.slice(5)).to_pylist() == reasons[5:]
    assert label_sets(rows.slice(3, 2), CLASSES).tolist() == [[1, 0, 1], [0, 0, 0]]
    found = {}
    for micro in micro_batches(rows, multi_label_screen(CLASSES)):
        batch = multi_label_collate(CLASSES, 0)(micro)
        assert batch.count == micro.rows.num_rows
        found.update(zip(origins(micro.rows), batch.arrays["labels"].tolist(), strict=True))
    assert found["text/0@3"] == [1, 0, 1]
    assert len(found) == 5


def test_a_batch_carries_the_seed_and_the_sums_of_its_micro_batch() -> None:
    for micro in micro_batches(rows_of(texts(50)), lane=2):
        batch = classification_collate(CLASSES, 0)(micro)
        assert (batch.seed, batch.lane) == (micro.seed, 2)
        assert (batch.tokens, batch.padded_tokens) == (micro.tokens, batch.arrays["input_ids"].size)
        assert batch.tokens == batch.arrays["attention_mask"].sum()


@given(some_texts, st.sampled_from(["token", "word"]))
def test_masking_keeps_what_it_does_not_mask_and_masks_something_in_every_row(rows: list[list[int]], unit: str) -> None:
    masking = replace(MASKING, unit=unit)  # type: ignore[arg-type]
    total = 0
    for micro in micro_batches(rows_of(rows), masked_lm_screen(masking)):
        batch = masked_lm_collate(masking, 0)(micro)
        true_ids = pad(micro.rows, 0, 8)["input_ids"]
        labels, inputs = batch.arrays["labels"], batch.arrays["input_ids"]
        masked = labels != IGNORED
        assert (labels[masked] == true_ids[masked]).all()
        assert (inputs[~masked] == true_ids[~masked]).all()
        assert masked.any(axis=1).all(), "a row without a masked token"
        assert not np.isin(true_ids[masked], list(SPECIAL.values())).any(), "a special token was masked"
        assert not np.isin(inputs[masked], [0, 1, 2, 4]).any(), "a random token must be an ordinary one"
        assert batch.count == masked.sum()
        total += micro.rows.num_rows
    assert total == len(rows)


@given(some_texts)
@settings(max_examples=20)
def test_masking_never_depends_on_the_other_rows_of_the_batch(rows: list[list[int]]) -> None:
    """So neither on ranks, nor on how windows were cut, nor on time."""
    batch = rows_of(rows)
    collate = masked_lm_collate(MASKING, 0)
    together = by_origin(collate, micro_batches(batch))
    alone = {}
    for number in range(len(rows)):
        alone.update(by_origin(collate, micro_batches(batch.slice(number, 1))))
    assert together == alone


def test_another_seed_or_lane_masks_otherwise() -> None:
    rows = rows_of(texts(40))
    results = [
        by_origin(masked_lm_collate(MASKING, 0), micro_batches(rows)),
        by_origin(masked_lm_collate(replace(MASKING, seed=8), 0), micro_batches(rows)),
        by_origin(masked_lm_collate(MASKING, 0), micro_batches(rows, lane=1)),
    ]
    assert all(one != other for number, one in enumerate(results) for other in results[:number])


def test_shares_of_masking_are_bert_s() -> None:
    rows = rows_of([[1, *[50] * 200, 2]] * 200)
    kinds = {"mask": 0, "random": 0, "kept": 0}
    masked = 0
    for micro in micro_batches(rows):
        arrays = masked_lm_collate(MASKING, 0)(micro).arrays
        chosen = arrays["input_ids"][arrays["labels"] != IGNORED]
        masked += len(chosen)
        kinds["mask"] += int((chosen == SPECIAL["mask"]).sum())
        kinds["kept"] += int((chosen == 50).sum())
    kinds["random"] = masked - kinds["mask"] - kinds["kept"]
    assert masked / 40_000 == pytest.approx(0.15, abs=0.01)
    assert {kind: count / masked for kind, count in kinds.items()} == pytest.approx(
        {"mask": 0.8, "random": 0.1, "kept": 0.1}, abs=0.03
    )


def test_rows_with_nothing_to_mask_are_dropped_with_a_reason() -> None:
    rows = rows_of([[1, 2], [1, 4, 4, 2], [1, 5, 2], [1, 4, 6, 2]])
    assert masked_lm_screen(MASKING)(rows).to_pylist() == ["empty-text", "empty-text", None, None]
    assert masked_lm_screen(MASKING)(rows.slice(1, 2)).to_pylist() == ["empty-text", None]


def test_words_are_masked_as_a_whole() -> None:
    random = np.random.default_rng(0)
    rows, starts = [], []
    for _ in range(60):
        words = random.integers(1, 5, 12)
        rows.append([1, *random.integers(5, VOCAB, int(words.sum())).tolist(), 2])
        starts.append([True, *(place == 0 for word in words for place in range(word)), True])
    batch = rows_of(rows, words=starts)
    whole = broken = 0
    for micro in micro_batches(batch):
        labels = masked_lm_collate(replace(MASKING, unit="word"), 0)(micro).arrays["labels"] != IGNORED
        for number, begins in enumerate(micro.rows.column("word_start").to_pylist()):
            edges = [place for place, begin in enumerate(begins) if begin]
            for first, last in pairwise(edges[1:]):
                masked = labels[number, first:last]
                whole += bool(masked.all())
                broken += bool(masked.any() and not masked.all())
    assert broken == 0
    assert whole > 50


def test_collate_is_deterministic() -> None:
    micro = micro_batches(rows_of(texts(30)))[0]

    def arrays(batch: Batch) -> dict[str, list[object]]:
        return {name: array.tolist() for name, array in batch.arrays.items()}

    assert arrays(masked_lm_collate(MASKING, 0)(micro)) == arrays(masked_lm_collate(MASKING, 0)(micro))
