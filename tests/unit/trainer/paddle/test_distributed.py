from __future__ import annotations

import numpy as np
import pytest

from headrace.schemas.errors import RankLost
from headrace.trainer.distributed import Ranks, failure_vector, join, raise_failure


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
