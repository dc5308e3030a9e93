"""Charts: what is drawn lies inside the axes, a spike stays visible, ticks are round."""

from __future__ import annotations

import re

import pytest

from headrace.trainer.report_chart import Chart, Series, number, svg


def places(drawn: str) -> list[tuple[float, float]]:
    found = re.findall(r'points="([^"]+)"', drawn)
    return [tuple(map(float, pair.split(","))) for points in found for pair in points.split()]  # type: ignore[misc]


@pytest.mark.parametrize("values", [[1.0], [0.0, 0.0], [3e-5, 4e6], [0.5] * 1000, [float(n % 7) for n in range(5000)]])
@pytest.mark.parametrize("logarithmic", [False, True])
def test_everything_lies_inside_the_axes(values: list[float], logarithmic: bool) -> None:
    series = Series("a", list(enumerate(values, 1)))
    drawn = svg(Chart("Title", "seconds", [series], logarithmic=logarithmic))
    assert all(58 <= x <= 628 and 12 <= y <= 202 for x, y in places(drawn))
    assert ">step<" in drawn
    assert ">seconds<" in drawn


def test_a_spike_in_a_long_run_is_in_the_range_behind_the_line() -> None:
    values = [(float(step), 1.0) for step in range(10_000)]
    values[5000] = (5000.0, 100.0)
    drawn = svg(Chart("Loss", "mean loss", [Series("a", values)]))
    assert 'class="range' in drawn
    assert min(y for _, y in places(drawn)) < 30
    assert len(drawn) < 40_000


def test_names_are_escaped_and_nothing_is_said_to_be_nothing() -> None:
    assert "&lt;b&gt;" in svg(Chart("<b>", "share", [Series("<b>", [(1, 1)])]))
    assert "Nothing was measured" in svg(Chart("Loss", "mean loss", [Series("a", [])]))


@pytest.mark.parametrize(
    ("value", "text"), [(12_500, "12.5k"), (0.25, "0.25"), (3e6, "3M"), (0, "0"), (0.00075, "7.5e-4"), (0.001, "1e-3")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text
