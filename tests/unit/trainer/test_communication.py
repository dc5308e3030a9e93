from __future__ import annotations

import pytest
from pydantic import ValidationError

from headrace.trainer.communication import BucketCost, CommunicationConfig, SumCosts, Traffic


def test_costs_of_a_step_are_those_of_its_slowest_rank() -> None:
    costs = SumCosts()
    fast = Traffic((BucketCost(1000, 0.010, 0.002), BucketCost(500, 0.004, 0.004)), meet_s=0.5)
    slow = Traffic((BucketCost(1000, 0.030, 0.001), BucketCost(500, 0.006, 0.006)))
    for _ in range(2):
        costs.add([(0.1, fast.to_json()), (0.08, slow.to_json())])
    assert costs.last == [[1000, 0.030, 0.002], [500, 0.006, 0.006]]
    assert costs.figures() == {"step_s": 0.2, "sent_bytes": 3000, "sum_s": 0.072, "exposed_sum_s": 0.016}
    assert costs.text() == (
        "sums between ranks: 0.00 MB in 2 buckets, 36.0 ms a step; 8.0% of the steps' time was not hidden"
    )


def test_a_step_of_one_rank_sends_nothing() -> None:
    costs = SumCosts()
    costs.add([(0.1, Traffic().to_json())])
    assert costs.figures() == {"step_s": 0.1, "sent_bytes": 0, "sum_s": 0.0, "exposed_sum_s": 0.0}


def test_costs_of_a_step_add_up() -> None:
    first, second = Traffic((BucketCost(8, 0.25, 0.125),), 1.0), Traffic((BucketCost(4, 0.5, 0.5),), 2.0)
    both = first + second
    assert (both.size_bytes, both.seconds, both.exposed_s, both.meet_s) == (12, 0.75, 0.625, 3.0)


def test_an_interval_of_no_steps_is_refused() -> None:
    with pytest.raises(ValidationError):
        CommunicationConfig.model_validate({"local_steps": 0})
