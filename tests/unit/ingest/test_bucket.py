"""Buckets must never change: what was held out would be trained."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.ingest.bucket import buckets


def test_values_are_pinned() -> None:
    ids = pa.array(["1", "order-17", None, None, "订单-九"])
    texts = pa.array(["x", "y", "交通拥堵", "1", "w"])
    assert buckets(ids, texts).tolist() == [51282, 29883, 36907, 51282, 1275]


def test_the_id_decides_so_that_a_corrected_text_stays_on_its_side() -> None:
    first, second = buckets(pa.array(["a", "a"]), pa.array(["text", "corrected text"]))
    assert first == second


def test_shares_are_met_even_by_consecutive_ids() -> None:
    ids = pa.array([str(number) for number in range(100_000)])
    found = buckets(ids, ids)
    for share in (0.01, 0.1, 0.5):
        assert abs(float(np.mean(found < share * 2**16)) - share) < 0.005


def test_no_rows() -> None:
    assert buckets(pa.array([], pa.string()), pa.array([], pa.string())).tolist() == []
