"""Texts of the demo: distinct, the same for the same seed, and all of their characters in the vocabulary."""

from __future__ import annotations

from collections import Counter

from headrace.demo_text import LABELS, NEW_SENTENCES, SPECIAL_TOKENS, vocabulary, work_orders


def test_texts_are_distinct_and_repeatable() -> None:
    orders = list(work_orders(20_000, seed=1))
    assert len({order.text for order in orders}) == len({order.id for order in orders}) == 20_000
    assert orders == list(work_orders(20_000, seed=1))
    assert {order.text for order in orders}.isdisjoint(NEW_SENTENCES)
    assert orders[:100] != list(work_orders(100, seed=2))


def test_a_prefix_does_not_depend_on_the_count() -> None:
    assert list(work_orders(50, seed=3)) == list(work_orders(100, seed=3))[:50]


def test_classes_are_balanced() -> None:
    counts = Counter(order.label for order in work_orders(6000, seed=1))
    assert set(counts) == set(LABELS) and min(counts.values()) > 800


def test_no_placeholder_is_left() -> None:
    assert not any("{" in order.text or "}" in order.text for order in work_orders(5000, seed=1))


def test_the_vocabulary_holds_every_character_once() -> None:
    texts = [order.text for order in work_orders(1000, seed=1)]
    words = vocabulary(texts)
    assert tuple(words[:5]) == SPECIAL_TOKENS and len(words) == len(set(words))
    assert set("".join(texts)) - set(words) == set()
    assert "##7" in words and "##交" not in words
