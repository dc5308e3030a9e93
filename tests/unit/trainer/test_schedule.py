from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.errors import UsageError
from headrace.trainer.config import OptimizerConfig
from headrace.trainer.schedule import learning_rate

PEAK = 3e-4


def rates(steps: int, total_steps: int | None = None, **settings: object) -> list[float]:
    config = OptimizerConfig.model_validate({"learning_rate": PEAK, **settings})
    return [learning_rate(step, config, total_steps) for step in range(steps)]


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
    assert learning_rate(5, config, 1000) == pytest.approx(PEAK / 2)


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
    assert 0.0 <= learning_rate(step, config) <= PEAK * (1 + 1e-12)
