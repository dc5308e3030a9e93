from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.errors import UsageError
from headrace.trainer.config import OptimizerConfig
from headrace.trainer.reach import Range, Reach
from headrace.trainer.schedule import Bounds, learning_rate

PEAK = 3e-4


def rates(steps: int, total_steps: int | None = None, **settings: object) -> list[float]:
    config = OptimizerConfig.model_validate({"learning_rate": PEAK, **settings})
    return [learning_rate(Reach(step), config, Bounds(total_steps)) for step in range(steps)]


def test_warmup_rises_in_a_line_and_its_first_step_learns() -> None:
    assert rates(5, warmup_steps=4) == pytest.approx([PEAK / 4, PEAK / 2, PEAK * 3 / 4, PEAK, PEAK])


def test_linear_falls_to_zero_at_the_end_and_stays_there() -> None:
    found = rates(8, schedule="linear", warmup_steps=2, total_steps=6)
    assert found == pytest.approx([PEAK / 2, PEAK, PEAK, PEAK * 3 / 4, PEAK / 2, PEAK / 4, 0, 0][:8])


def test_cosine_is_halfway_down_in_the_middle() -> None:
    found = rates(11, schedule="cosine", total_steps=10)
    assert found[0] == pytest.approx(PEAK)
    assert found[5] == pytest.approx(PEAK / 2)
    assert found[10] == 0.0


def test_auto_is_constant_without_an_end_and_linear_with_one() -> None:
    assert rates(3) == [PEAK] * 3
    assert rates(4, total_steps=4)[-1] == pytest.approx(PEAK / 4)


def test_the_setting_goes_before_the_runs_length() -> None:
    config = OptimizerConfig(learning_rate=PEAK, total_steps=10)
    assert learning_rate(Reach(5), config, Bounds(1000)) == pytest.approx(PEAK / 2)


def test_a_share_of_warmup_is_of_all_steps() -> None:
    assert rates(3, total_steps=20, warmup_share=0.1)[:2] == pytest.approx([PEAK / 2, PEAK])


@pytest.mark.parametrize("settings", [{"schedule": "linear"}, {"schedule": "cosine"}, {"warmup_share": 0.1}])
def test_a_schedule_that_needs_an_end_is_refused_without_one(settings: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"optimizer\.total_steps"):
        rates(1, **settings)


@given(
    st.sampled_from(["constant", "linear", "cosine"]),
    st.integers(0, 50),
    st.integers(1, 100),
    st.integers(0, 200),
)
def test_never_above_the_peak_nor_below_zero(schedule: str, warmup: int, total: int, step: int) -> None:
    config = OptimizerConfig.model_validate(
        {"learning_rate": PEAK, "schedule": schedule, "warmup_steps": warmup, "total_steps": total}
    )
    assert 0.0 <= learning_rate(Reach(step), config) <= PEAK * (1 + 1e-12)


def test_a_schedule_in_tokens_does_not_look_at_steps() -> None:
    config = OptimizerConfig(learning_rate=PEAK, schedule="linear", warmup_tokens=100, total_tokens=300)
    found = [learning_rate(Reach(steps=7, tokens=tokens, step_tokens=50), config) for tokens in (0, 50, 100, 200, 300)]
    assert found == pytest.approx([PEAK / 2, PEAK, PEAK, PEAK / 2, 0.0])


def test_a_warmup_in_steps_goes_with_an_end_in_tokens() -> None:
    config = OptimizerConfig(learning_rate=PEAK, schedule="linear", warmup_steps=4, total_tokens=100)
    assert learning_rate(Reach(steps=1, tokens=20), config) == pytest.approx(PEAK * 0.5 * 0.8)
    assert learning_rate(Reach(steps=9, tokens=90), config) == pytest.approx(PEAK * 0.1)


BY_RANGE = Bounds(by_range=True)
WHOLE = Range({0: 0.0}, {0: 10}, whole=True)
LATE = Range({0: 5.0}, {0: 10}, whole=False)


def at(share: float, share_after: float, range_: Range = WHOLE) -> Reach:
    return Reach(3, 0, 0, share, share_after, range_)


def test_a_share_of_the_lanes_range_is_a_measure() -> None:
    config = OptimizerConfig(learning_rate=PEAK, schedule="linear", warmup_share=0.2)
    found = [learning_rate(at(share, share + 0.1), config, BY_RANGE) for share in (0.0, 0.1, 0.2, 0.6, 1.0)]
    assert found == pytest.approx([PEAK / 2, PEAK, PEAK, PEAK / 2, 0.0])


def test_until_the_ends_of_the_lanes_are_known_nothing_decays() -> None:
    config = OptimizerConfig(learning_rate=PEAK, schedule="cosine", warmup_steps=2)
    assert learning_rate(Reach(0), config, BY_RANGE) == pytest.approx(PEAK / 2)
    assert learning_rate(Reach(9), config, BY_RANGE) == PEAK
    assert learning_rate(at(0.5, 0.6, LATE), config, BY_RANGE) == pytest.approx(PEAK / 2)


def test_auto_is_linear_where_the_whole_range_was_known_and_constant_where_it_came_late() -> None:
    config = OptimizerConfig(learning_rate=PEAK)
    assert learning_rate(at(0.75, 0.8), config, BY_RANGE) == pytest.approx(PEAK / 4)
    assert learning_rate(at(0.75, 0.8, LATE), config, BY_RANGE) == PEAK
    assert learning_rate(Reach(9), config, BY_RANGE) == PEAK


def test_a_warmup_share_of_a_range_that_is_not_known_is_refused() -> None:
    with pytest.raises(UsageError, match=r"optimizer\.warmup_share.*warmup_tokens"):
        learning_rate(Reach(0), OptimizerConfig(warmup_share=0.1), BY_RANGE)


@pytest.mark.parametrize(
    "settings", [{"total_steps": 5, "total_tokens": 5}, {"warmup_tokens": 5, "warmup_steps": 5}], ids=str
)
def test_two_measures_of_one_thing_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="set one"):
        OptimizerConfig.model_validate(settings)
