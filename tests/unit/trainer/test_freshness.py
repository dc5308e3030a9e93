"""Freshness is a number: quantiles within 5 %, merged over ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.trainer.freshness import Ages


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=300), st.sampled_from([0.5, 0.99, 1.0]))
def test_quantiles_are_right_within_five_percent(ages_s: list[float], share: float) -> None:
    ages = Ages()
    ages.add(np.array(ages_s))
    exact = float(np.quantile(ages_s, share, method="inverted_cdf"))
    assert ages.quantile_s(share) == pytest.approx(exact, rel=0.051)


@given(st.lists(st.lists(st.floats(0, 1e4), max_size=20), min_size=1, max_size=4))
def test_ranks_counts_add_up(ranks: list[list[float]]) -> None:
    whole, merged = Ages(), Ages()
    whole.add(np.array([age for rank in ranks for age in rank]))
    for rank in ranks:
        part = Ages()
        part.add(np.array(rank))
        merged.merge(Ages(part.counts))
    assert merged.counts == whole.counts


def test_clocks_that_disagree_count_as_zero() -> None:
    ages = Ages()
    ages.add(np.array([-5.0, 0.0]))
    assert ages.quantile_s(1.0) == pytest.approx(0.001)


def test_no_record_no_number() -> None:
    assert Ages().quantile_s(0.5) is None
