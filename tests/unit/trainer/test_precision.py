from __future__ import annotations

import pytest

from headrace.schemas.errors import UsageError
from headrace.trainer.precision import GROW_STEPS, LossScale, Precision, choose


def test_an_overflow_halves_the_scale_down_to_one() -> None:
    scale = LossScale(4.0)
    assert scale.after(overflow=True) == LossScale(2.0)
    for _ in range(5):
        scale = scale.after(overflow=True)
    assert scale == LossScale(1.0)
    assert scale.lowest


def test_many_good_steps_in_a_row_double_the_scale() -> None:
    scale = LossScale(8.0)
    for _ in range(GROW_STEPS - 1):
        scale = scale.after(overflow=False)
    assert scale == LossScale(8.0, GROW_STEPS - 1)
    assert scale.after(overflow=True) == LossScale(4.0, 0)
    assert scale.after(overflow=False) == LossScale(16.0, 0)


def test_auto_is_bf16_where_the_gpu_has_it_and_fp32_elsewhere() -> None:
    assert choose("auto", on_gpu=True, bf16_supported=True) == Precision("bfloat16")
    assert choose("auto", on_gpu=True, bf16_supported=False) == Precision()
    assert choose("auto", on_gpu=False, bf16_supported=False) == Precision()


def test_only_fp16_is_scaled() -> None:
    assert choose("fp16", on_gpu=True, bf16_supported=True) == Precision("float16", scaled=True)


@pytest.mark.parametrize("precision", ("bf16", "fp16"))
def test_a_low_precision_that_the_cpu_would_ignore_is_refused(precision: str) -> None:
    with pytest.raises(UsageError, match="needs a GPU"):
        choose(precision, on_gpu=False, bf16_supported=False)


def test_bf16_is_refused_where_the_gpu_has_none() -> None:
    with pytest.raises(UsageError, match="set fp16"):
        choose("bf16", on_gpu=True, bf16_supported=False)
