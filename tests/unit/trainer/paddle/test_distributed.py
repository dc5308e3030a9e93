from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.errors import RankLost
from headrace.trainer.distributed import Ranks, buckets, failure_vector, join, raise_failure

sizes = st.lists(st.integers(0, 100), max_size=50)


@given(sizes, st.integers(4, 1000))
def test_buckets_hold_every_parameter_once_in_order(sizes: list[int], bucket_bytes: int) -> None:
    runs = buckets(sizes, bucket_bytes)
    assert [position for run in runs for position in run] == list(range(len(sizes)))
    assert all(len(run) for run in runs)


@given(sizes, st.integers(4, 1000))
def test_a_bucket_is_over_its_size_only_for_a_single_parameter(sizes: list[int], bucket_bytes: int) -> None:
    for run in buckets(sizes, bucket_bytes):
        assert len(run) == 1 or 4 * sum(sizes[position] for position in run) <= bucket_bytes


def test_a_rank_that_failed_is_named_to_the_others() -> None:
    vector = failure_vector(Ranks(2, 4), True)
    np.testing.assert_array_equal(vector, [0, 0, 1, 0])
    with pytest.raises(RankLost, match="rank 2 failed"):
        raise_failure(Ranks(0, 4), vector, None)
    with pytest.raises(ValueError, match="mine"):
        raise_failure(Ranks(2, 4), vector, ValueError("mine"))
    raise_failure(Ranks(0, 4), np.zeros(4), None)


def test_one_rank_meets_nobody() -> None:
    assert join({}) == Ranks(0, 1)
