"""Plots of the report: steps of a funnel, shares, spreads of durations, events over time. Pure.
[PI-6]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from rapport.core.times import format_time
from rapport.pipeline.drawing.svg import box, dot, line, svg, text, told
from rapport.pipeline.figures.rows import SeriesPoint, Spread
from rapport.pipeline.figures.text import share, shown_duration, shown_micros

_LABEL, _LENGTH, _ROW = 190, 560, 28
_WIDTH = _LABEL + _LENGTH + 150
_MARKS_MS = {
    1: "1 ms",
    10: "10 ms",
    100: "0.1 s",
    1_000: "1 s",
    10_000: "10 s",
    60_000: "1 min",
    600_000: "10 min",
    3_600_000: "1 h",
    36_000_000: "10 h",
    86_400_000: "1 d",
    864_000_000: "10 d",
    8_640_000_000: "100 d",
}
_MARKS_US = {
    1: "1 us",
    10: "10 us",
    100: "0.1 ms",
    1_000: "1 ms",
    10_000: "10 ms",
    100_000: "0.1 s",
    1_000_000: "1 s",
    10_000_000: "10 s",
    60_000_000: "1 min",
    600_000_000: "10 min",
}
_SPARK_HEIGHT = 34

Parts = Sequence[tuple[str, str, int]]
"""Style, what it is, and how many."""


def steps_plot(steps: Sequence[tuple[str, int]], title: str) -> str:
    """Bars one below the other, each with its share of the first."""
    most = max((count for _name, count in steps), default=0) or 1
    first = steps[0][1] if steps else 0
    parts = []
    for place, (name, count) in enumerate(steps):
        top, length = place * 34, max(count / most * _LENGTH, 1)
        parts.append(text(_LABEL - 10, top + 20, name, "end"))
        bar = box(_LABEL, top + 4, length, 24, "bar", round=3)
        parts.append(told(bar, f"{name}: {count:,}"))
        said = f"{count:,}" + (f" · {share(count, first)}" if place and first else "")
        parts.append(text(_LABEL + length + 8, top + 20, said, "small"))
    said = ", ".join(f"{name}: {count:,}" for name, count in steps)
    return svg(title, said, _WIDTH, len(steps) * 34 + 4, parts)


def shares_plot(rows: Sequence[tuple[str, Parts]], title: str) -> str:
    """A bar of full length for each name, cut into its parts."""
    drawn = [part for place, row in enumerate(rows) for part in _shares(place, *row)]
    bottom = len(rows) * _ROW + 8
    left = float(_LABEL)
    for style, name, _count in rows[0][1] if rows else ():
        drawn.append(box(left, bottom, 14, 14, style))
        drawn.append(text(left + 20, bottom + 12, name, "small"))
        left += 50 + 6.5 * len(name)
    said = "; ".join(
        f"{label}: " + ", ".join(f"{name} {count:,}" for _style, name, count in parts)
        for label, parts in rows
    )
    return svg(title, said, _WIDTH, bottom + 24, drawn)


def _shares(place: int, label: str, parts: Parts) -> list[str]:
    top, left = place * _ROW, float(_LABEL)
    whole = sum(count for _style, _name, count in parts)
    drawn = [text(_LABEL - 10, top + 18, _cut(label), "end")]
    for style, name, count in parts:
        width = count / whole * _LENGTH if whole else 0.0
        if width:
            bar = box(left, top + 4, width, _ROW - 9, style)
            drawn.append(told(bar, f"{label}: {name} {count:,} ({share(count, whole)})"))
            if width > 46:
                words = share(count, whole)
                drawn.append(text(left + width / 2, top + 18, words, f"small middle on-{style}"))
        left += width
    drawn.append(text(_LABEL + _LENGTH + 10, top + 18, f"of {whole:,}", "small"))
    return drawn


def spreads_plot(rows: Sequence[tuple[str, Spread]], title: str, *, in_micros: bool = False) -> str:
    """Durations on a scale of tens: a dot at the median, a thick line to 90 %, a thin one to 99 %,
    a mark at the longest. `in_micros`: they are microseconds.
    """
    marks, shown = (_MARKS_US, shown_micros) if in_micros else (_MARKS_MS, shown_duration)
    scale = _Scale([value for _label, one in rows for value in (one.median, one.longest)], marks)
    bottom = len(rows) * _ROW + 6
    parts = []
    for x, words in scale.marks():
        parts.append(line(x, 0, x, bottom))
        parts.append(text(x, bottom + 16, words, "small middle"))
    for place, (label, one) in enumerate(rows):
        parts += _spread(place, label, one, scale, shown)
    parts.append(text(_LABEL, bottom + 38, _SPREAD_LEGEND, "small"))
    said = "; ".join(
        f"{label}: median {shown(one.median)}, 90 % {shown(one.p90)}, longest {shown(one.longest)}"
        for label, one in rows
    )
    return svg(title, said, _WIDTH, bottom + 46, parts)


_SPREAD_LEGEND = "● median   ━ up to 90 %   ─ up to 99 %   | longest"


def _spread(
    place: int, label: str, one: Spread, scale: _Scale, shown: Callable[[int], str]
) -> list[str]:
    y = place * _ROW + _ROW / 2
    median, p90, p99, longest = map(scale.place, (one.median, one.p90, one.p99, one.longest))
    said = (
        f"{label}: median {shown(one.median)}, 90 % {shown(one.p90)}, "
        f"99 % {shown(one.p99)}, longest {shown(one.longest)} of {one.timed:,}"
    )
    shapes = [
        line(median, y, p99, y, "thin"),
        line(median, y, p90, y, "thick"),
        line(longest, y - 6, longest, y + 6, "thin"),
        dot(median, y, 5, "bar"),
    ]
    return [
        text(_LABEL - 10, y + 4, _cut(label), "end"),
        told("".join(shapes), said),
        text(_LABEL + _LENGTH + 14, y + 4, shown(one.median), "small"),
    ]


class _Scale:
    """Places of durations between whole marks; what is shorter than the first of them, or before
    its time, stands at the left end.
    """

    def __init__(self, values: Sequence[int], names: Mapping[int, str]) -> None:
        least, most = max(min(values, default=1), 1), max(*values, 10) if values else 10
        self._names, marks = names, list(names)
        self._first = max((mark for mark in marks if mark <= least), default=1)
        self._last = min((mark for mark in marks if mark >= most), default=max(most, 1))
        if self._last <= self._first:
            self._last = self._first * 10

    def place(self, value: int) -> float:
        """Where a duration stands."""
        whole = math.log(self._last / self._first)
        part = math.log(max(value, self._first) / self._first)
        return _LABEL + min(part / whole, 1.0) * _LENGTH

    def marks(self) -> list[tuple[float, str]]:
        """Marks on the scale and their names."""
        return [
            (self.place(mark), name)
            for mark, name in self._names.items()
            if self._first <= mark <= self._last
        ]


def series_plot(points: Mapping[str, Sequence[SeriesPoint]], step_ms: int, title: str) -> str:
    """Events over time, a strip for each channel with a height of its own."""
    every = [point.begin for own in points.values() for point in own]
    first, last = min(every), max(every) + step_ms
    width = _LENGTH / max((last - first) // step_ms, 1)
    parts = []
    for place, (channel, own) in enumerate(points.items()):
        bottom = (place + 1) * (_SPARK_HEIGHT + 8)
        most = max(point.events for point in own)
        parts.append(text(_LABEL - 10, bottom - 4, _cut(channel), "end"))
        parts.append(line(_LABEL, bottom, _LABEL + _LENGTH, bottom))
        for point in own:
            height = max(point.events / most * _SPARK_HEIGHT, 1)
            left = _LABEL + (point.begin - first) // step_ms * width
            bar = box(left, bottom - height, max(width - 0.5, 0.8), height, "bar", round=0)
            parts.append(told(bar, f"{channel} {format_time(point.begin)}: {point.events:,}"))
        parts.append(text(_LABEL + _LENGTH + 10, bottom - 4, f"at most {most:,}", "small"))
    low = len(points) * (_SPARK_HEIGHT + 8) + 16
    parts.append(text(_LABEL, low, format_time(first)[:16].replace("T", " "), "small"))
    parts.append(text(_LABEL + _LENGTH, low, format_time(last)[:16].replace("T", " "), "small end"))
    said = f"{len(points)} channels from {format_time(first)} to {format_time(last)}."
    return svg(title, said, _WIDTH, low + 8, parts)


def _cut(label: str) -> str:
    return label if len(label) <= 25 else f"{label[:24]}…"
