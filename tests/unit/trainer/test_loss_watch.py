from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from headrace.schemas.errors import LossNotFinite, LossSpike
from headrace.trainer.config import TrainConfig
from headrace.trainer.loss_watch import LossWatch


def watch(**settings: Any) -> LossWatch:
    return LossWatch(TrainConfig.model_validate({"task": {"type": "masked-lm"}, **settings}))


@pytest.mark.parametrize(
    ("loss", "norm", "what"),
    [(math.nan, 1.0, "loss is nan"), (math.inf, math.inf, "loss is inf"), (1.0, math.inf, "norm is inf")],
)
def test_what_is_not_finite_is_bad(loss: float, norm: float, what: str) -> None:
    bad = watch().judge(loss, norm)
    assert bad is not None
    assert bad.error is LossNotFinite
    assert what in bad.what


def test_a_spike_is_measured_by_the_median_of_the_last_good_steps() -> None:
    spikes = watch(spike_factor=2.0, spike_steps=3)
    for loss in (9.0, 1.0, 2.0):
        assert spikes.judge(100.0, 1.0) is None  # too few steps to know
        spikes.learnt(loss)
    assert spikes.judge(4.0, 1.0) is None
    bad = spikes.judge(4.001, 1.0)
    assert bad is not None
    assert (bad.error, bad.bound) == (LossSpike, 4.0)
    assert spikes.judge(4.001, math.inf) == bad  # the loss says whose fault it is
    spikes.learnt(1.0)  # the oldest is forgotten: the median is 1
    assert spikes.judge(2.001, 1.0) is not None


def test_without_a_factor_nothing_is_a_spike() -> None:
    quiet = watch(spike_steps=1)
    quiet.learnt(1.0)
    assert quiet.judge(1e9, 1.0) is None


def test_skips_are_bounded_in_a_row() -> None:
    skipping = watch(on_bad_loss="skip", most_skips=2)
    for _ in range(2):
        assert skipping.skips
        skipping.skipped()
    assert not skipping.skips
    assert "train.most_skips" in skipping.cure
    skipping.learnt(1.0)
    assert skipping.skips
    assert not watch().skips


def test_another_process_goes_on_with_the_same_decisions() -> None:
    one, other = (watch(on_bad_loss="skip", spike_factor=2.0, spike_steps=3, most_skips=2) for _ in range(2))
    for loss in (1.0, 2.0, 3.0):
        one.learnt(loss)
    one.skipped()
    other.load(one.array())
    assert other.judge(4.5, 1.0) == one.judge(4.5, 1.0)
    other.skipped()
    assert not other.skips


def test_a_shorter_memory_keeps_the_newest_losses() -> None:
    short = watch(spike_factor=2.0, spike_steps=2)
    short.load(np.array([0, 100.0, 1.0, 1.0]))
    assert short.judge(2.5, 1.0) is not None
