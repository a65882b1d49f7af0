"""Quartiles of many runs as SVG: boxes beside each other, a line at the median. Pure. [EN-12]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rapport.pipeline.drawing.svg import box, line, svg, text, told

_HEIGHT, _LEFT, _TOP, _RIGHT = 260, 60, 30, 20
_LABEL_PIXELS = 6.2
_STYLE = (
    "<style>text{font:11px sans-serif;fill:#333}line{stroke:#ddd}"
    "rect.b{fill:#5b9bb8;fill-opacity:.55}line.m{stroke:#b5533c;stroke-width:2}</style>"
)


class BoxValues(NamedTuple):
    """One box."""

    label: str
    first: float
    median: float
    third: float


def boxes_plot(title: str, up: str, boxes: Sequence[BoxValues]) -> str:
    """All boxes in one plot over one scale from 0; labels stand below, turned."""
    if not boxes:
        return svg(title, "nothing to show", 400, 40, [text(10, 20, title, "")])
    step = 30 if len(boxes) <= 40 else 14
    most = max(one.third for one in boxes) or 1.0
    bottom = 16 + _LABEL_PIXELS * max(len(one.label) for one in boxes)
    width = max(_LEFT + step * len(boxes) + _RIGHT, _LEFT + _LABEL_PIXELS * len(title))
    parts = [_STYLE, text(_LEFT, 16, f"{title}: {up}", ""), *_marks(most, width)]
    for number, one in enumerate(boxes):
        parts += _box(one, _LEFT + step * (number + 0.5), step * 0.6, most)
    said = f"first quartile, median and third in {up}: {', '.join(one.label for one in boxes)}"
    return svg(title, said, width, _TOP + _HEIGHT + bottom, parts)


def _place(value: float, most: float) -> float:
    return _TOP + _HEIGHT * (1 - value / most)


def _marks(most: float, width: float) -> list[str]:
    parts = []
    for step in range(5):
        value = most * step / 4
        y = _place(value, most)
        parts += [line(_LEFT, y, width - _RIGHT, y), text(6, y + 4, f"{value:,.3g}", "")]
    return parts


def _box(one: BoxValues, middle: float, wide: float, most: float) -> list[str]:
    low, median, high = (_place(value, most) for value in (one.first, one.median, one.third))
    left = middle - wide / 2
    shape = box(left, high, wide, max(low - high, 1.0), "b")
    said = f"{one.label}: {one.first:,.4g}, {one.median:,.4g}, {one.third:,.4g}"
    below = _TOP + _HEIGHT + 10
    turned = f'<g transform="rotate(90 {middle - 4:.1f} {below:.1f})">'
    return [
        told(shape, said),
        line(left, median, left + wide, median, "m"),
        f"{turned}{text(middle - 4, below, one.label, '')}</g>",
    ]
