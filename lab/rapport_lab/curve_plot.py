"""Curves of an experiment as SVG: several series over one axis, straight or in powers of ten. Pure.
[CX-12, EN-12]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from rapport.pipeline.drawing.svg import dot, line, svg, text, told

Series = Mapping[str, Sequence[tuple[float, float]]]
"""By name the points of each curve, in order."""

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _LEGEND = 520, 300, 70, 30, 44, 190
_COLOURS = ("#2c6e91", "#b5533c", "#6b7a4f", "#e0a458", "#8a5a83", "#5b9bb8", "#444444", "#c98ba3")
_STYLE = (
    "<style>text{font:11px sans-serif;fill:#333}line{stroke:#ddd}"
    + "".join(
        f".c{number}{{stroke:{colour};stroke-width:2;fill:{colour}}}text.c{number}{{stroke:none}}"
        for number, colour in enumerate(_COLOURS)
    )
    + "</style>"
)


class Axis(NamedTuple):
    """What is shown along one side."""

    name: str
    in_tens: bool = False
    """Powers of ten have the same distance; what is not above 0 is left out."""


def curves_plot(title: str, across: Axis, up: Axis, series: Series) -> str:
    """All series in one plot, each with its name beside it."""
    shown = {name: _drawable(points, across, up) for name, points in series.items()}
    every = [point for points in shown.values() for point in points]
    if not every:
        return svg(title, "nothing to show", _WIDTH, 40, [text(10, 20, title, "")])
    columns = _Scale([x for x, _ in every], across, _LEFT, _LEFT + _WIDTH)
    rows = _Scale([y for _, y in every], up, _TOP + _HEIGHT, _TOP)
    parts = [_STYLE, text(_LEFT, 16, title, ""), *_frame(columns, rows, across, up)]
    for number, (name, points) in enumerate(shown.items()):
        parts += _curve(name, points, columns, rows, f"c{number % len(_COLOURS)}")
        legend_y = _TOP + 14 + 18 * number
        parts.append(dot(_LEFT + _WIDTH + 14, legend_y - 4, 4, f"c{number % len(_COLOURS)}"))
        parts.append(text(_LEFT + _WIDTH + 24, legend_y, name, ""))
    size = _LEFT + _WIDTH + _LEGEND, _TOP + _HEIGHT + _BOTTOM
    return svg(title, f"{up.name} over {across.name}: {', '.join(shown)}", *size, parts)


def _drawable(
    points: Sequence[tuple[float, float]], across: Axis, up: Axis
) -> list[tuple[float, float]]:
    return [
        (x, y)
        for x, y in points
        if math.isfinite(x) and math.isfinite(y)
        if not (across.in_tens and x <= 0) and not (up.in_tens and y <= 0)
    ]


class _Scale:
    """Places of values between the least and the greatest."""

    def __init__(self, values: Sequence[float], axis: Axis, start: float, end: float) -> None:
        self._in_tens = axis.in_tens
        self._start, self._end = start, end
        if axis.in_tens:
            self.least = 10.0 ** math.floor(math.log10(min(values)))
            self.most = 10.0 ** math.ceil(math.log10(max(values)))
            self.most = max(self.most, self.least * 10)
        else:
            self.least, self.most = min(0.0, *values), max(values)
            self.most = self.most if self.most > self.least else self.least + 1.0

    def place(self, value: float) -> float:
        """Where a value stands."""
        if self._in_tens:
            part = math.log(value / self.least) / math.log(self.most / self.least)
        else:
            part = (value - self.least) / (self.most - self.least)
        return self._start + part * (self._end - self._start)

    def marks(self) -> list[float]:
        """Values worth a line."""
        if not self._in_tens:
            return [self.least + (self.most - self.least) * step / 4 for step in range(5)]
        powers = round(math.log10(self.most / self.least))
        return [self.least * 10.0**power for power in range(powers + 1)]


def _frame(columns: _Scale, rows: _Scale, across: Axis, up: Axis) -> list[str]:
    parts = []
    for value in rows.marks():
        y = rows.place(value)
        parts += [line(_LEFT, y, _LEFT + _WIDTH, y), text(6, y + 4, _number(value), "")]
    for value in columns.marks():
        x = columns.place(value)
        parts += [line(x, _TOP, x, _TOP + _HEIGHT)]
        parts.append(text(x - 8, _TOP + _HEIGHT + 15, _number(value), ""))
    parts.append(text(_LEFT + _WIDTH / 3, _TOP + _HEIGHT + 34, f"{up.name} over {across.name}", ""))
    return parts


def _curve(
    name: str, points: Sequence[tuple[float, float]], columns: _Scale, rows: _Scale, style: str
) -> list[str]:
    places = [(columns.place(x), rows.place(y)) for x, y in points]
    parts = [line(*here, *there, style) for here, there in pairwise(places)]
    for place, (x, y) in zip(places, points, strict=True):
        parts.append(told(dot(*place, 3, style), f"{name}: {_number(y)} at {_number(x)}"))
    return parts


def _number(value: float) -> str:
    """As people read it.

    >>> _number(11_216.0), _number(0.123456)
    ('11,216', '0.1235')
    """
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"
