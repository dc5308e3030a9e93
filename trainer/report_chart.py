"""Charts: lines over steps as inline SVG, drawn by hand, since a report must open anywhere and fetch nothing.

A chart is 640 by 240 units and scales with the page. Long runs are drawn through at most `_MOST_POINTS` means of
neighbouring steps, with the range that they cover behind the line, so a page stays small and a spike stays visible.
Colours are CSS variables of the page, which follow the reader's light or dark setting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]

_WIDTH, _HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 12, 38
_MOST_POINTS = 300
_TICKS = 5


@dataclass(frozen=True, slots=True)
class Series:
    """A line, or dots where there are few points."""

    name: str
    points: Sequence[Point]  # (step, value), by step
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn in one pair of axes. `most` fixes the top, for shares; `logarithmic` is for times."""

    title: str
    unit: str
    series: Sequence[Series]
    most: float | None = None
    from_zero: bool = True
    logarithmic: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    logarithmic: bool = False

    def part(self, value: float) -> float:
        """Where a value lies between the ends, from 0 to 1."""
        if self.logarithmic:
            value, low, high = (math.log10(max(each, self.low)) for each in (value, self.low, self.high))
            return (value - low) / (high - low)
        return (value - self.low) / (self.high - self.low)


def svg(chart: Chart) -> str:
    """The chart with its title, legend and axes; a sentence where there is nothing to draw."""
    title = f"<h3>{escape(chart.title)}</h3>"
    drawn = [series for series in chart.series if series.points]
    if not drawn:
        return f'<figure>{title}<p class="none">Nothing was measured.</p></figure>'
    points = [point for series in drawn for point in series.points]
    steps = _Axis(min(x for x, _ in points), max(max(x for x, _ in points), min(x for x, _ in points) + 1))
    values = _value_axis(chart, [y for _, y in points])
    parts = [_grid(chart, steps, values)]
    parts += [_line(series, number, steps, values) for number, series in enumerate(drawn)]
    note = f"<figcaption>{escape(chart.note)}</figcaption>" if chart.note else ""
    label = escape(f"{chart.title}, in {chart.unit}, by step")
    return (
        f"<figure>{title}{_legend(drawn)}"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>{note}</figure>'
    )


def _value_axis(chart: Chart, values: Sequence[float]) -> _Axis:
    if chart.logarithmic:
        low, high = max(min(values), 1e-4), max(values)
        return _Axis(10 ** math.floor(math.log10(low)), 10 ** max(_ceil(high), math.floor(math.log10(low)) + 1), True)
    low = 0.0 if chart.from_zero else min(values)
    high = chart.most if chart.most is not None else max(values)
    pad = 0.0 if chart.most is not None else 0.05 * (high - low)
    return _Axis(low, high + pad if high + pad > low else low + 1)


def _ceil(value: float) -> int:
    return math.ceil(math.log10(max(value, 1e-4)))


def _ticks(axis: _Axis) -> list[float]:
    """Round numbers between the ends of an axis."""
    if axis.logarithmic:
        powers = range(round(math.log10(axis.low)), round(math.log10(axis.high)) + 1)
        return [10.0**power for power in powers]
    rough = (axis.high - axis.low) / _TICKS
    power = 10 ** math.floor(math.log10(rough))
    width = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    first = math.ceil(axis.low / width - 1e-9)
    last = math.floor(axis.high / width + 1e-9)
    return [number * width for number in range(first, last + 1)]


def number(value: float) -> str:
    """Short: 12.5k, 0.25, 3M, 2.5e-4."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    if 0 < abs(value) < 0.01:
        digits, _, power = f"{value:.2e}".partition("e")
        return f"{float(digits):g}e{int(power)}"
    return f"{value:.3g}"


def _x(axis: _Axis, value: float) -> float:
    return _LEFT + axis.part(value) * (_WIDTH - _LEFT - _RIGHT)


def _y(axis: _Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - axis.part(value) * (_HEIGHT - _TOP - _BOTTOM)


def _grid(chart: Chart, steps: _Axis, values: _Axis) -> str:
    parts = []
    for tick in _ticks(values):
        y = _y(values, tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>')
    foot = _HEIGHT - _BOTTOM
    for tick in (tick for tick in _ticks(steps) if tick == round(tick)):
        x = _x(steps, tick)
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{foot}" y2="{foot + 4}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{foot + 17}" text-anchor="middle">{number(tick)}</text>')
    middle = (_TOP + foot) / 2
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{foot}" y2="{foot}"/>')
    parts.append(f'<text class="name" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 4}">step</text>')
    parts.append(
        f'<text class="name" transform="translate(13 {middle}) rotate(-90)" x="0" y="0">{escape(chart.unit)}</text>'
    )
    return "".join(parts)


def _line(series: Series, colour: int, steps: _Axis, values: _Axis) -> str:
    kind = f"series c{colour % 4}"
    groups = _grouped(series.points)
    path = " ".join(f"{_x(steps, x):.1f},{_y(values, _clamped(values, y)):.1f}" for x, y, _, _ in groups)
    parts = []
    if any(low < high for _, _, low, high in groups):
        above = [f"{_x(steps, x):.1f},{_y(values, _clamped(values, high)):.1f}" for x, _, _, high in groups]
        below = [f"{_x(steps, x):.1f},{_y(values, _clamped(values, low)):.1f}" for x, _, low, _ in reversed(groups)]
        parts.append(f'<polygon class="range c{colour % 4}" points="{" ".join(above + below)}"/>')
    parts.append(f'<polyline class="{kind}" points="{path}"/>')
    if series.dots or len(groups) == 1:
        parts += [
            f'<circle class="dot c{colour % 4}" cx="{_x(steps, x):.1f}" cy="{_y(values, _clamped(values, y)):.1f}" '
            f'r="3.5"><title>step {x:g}: {y:.4g}</title></circle>'
            for x, y, _, _ in groups
        ]
    return "".join(parts)


def _clamped(axis: _Axis, value: float) -> float:
    return min(max(value, axis.low), axis.high)


def _grouped(points: Sequence[Point]) -> list[tuple[float, float, float, float]]:
    """(step, mean, least, most) of runs of neighbours."""
    size = -(-len(points) // _MOST_POINTS)
    groups = [points[first : first + size] for first in range(0, len(points), size)]
    return [
        (
            group[len(group) // 2][0],
            sum(y for _, y in group) / len(group),
            min(y for _, y in group),
            max(y for _, y in group),
        )
        for group in groups
    ]


def _legend(series: Sequence[Series]) -> str:
    items = [f'<li class="c{number % 4}">{escape(each.name)}</li>' for number, each in enumerate(series)]
    return f'<ul class="legend">{"".join(items)}</ul>'
