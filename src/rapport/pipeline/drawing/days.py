"""Plots of a back-test as SVG drawn by hand: a calendar, hours and weekdays, bars. Each has a title
and a description for who cannot see it; colours come from the page. Pure. [PI-9]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from itertools import pairwise

from rapport.pipeline.drawing.calendar import MONTHS, WEEKDAYS, Month, level, shades
from rapport.pipeline.drawing.svg import box, dot, line, svg, text, told

_CELL_WIDTH, _CELL_HEIGHT, _GAP = 34, 30, 2
_MONTHS_IN_A_ROW = 4
_MONTH_GAP, _MONTH_HEADING = 26, 38
_HOUR, _LEFT = 30, 44
_BAR_HEIGHT, _BAR_LENGTH, _BAR_LABEL = 22, 420, 195
_CHART_WIDTH, _CHART_HEIGHT = 940, 180
_CURVE_WIDTH, _CURVE_HEIGHT = 460, 140


def calendar_plot(months: Sequence[Month], title: str) -> str:
    """A block for each month, weeks as its rows, each day shaded by its count."""
    most = max((day or 0 for month in months for day in month.days), default=0)
    columns = min(len(months), _MONTHS_IN_A_ROW)
    wide = 7 * (_CELL_WIDTH + _GAP) + _MONTH_GAP
    high = 6 * (_CELL_HEIGHT + _GAP) + _MONTH_HEADING + 12
    rows = -(-len(months) // _MONTHS_IN_A_ROW)
    parts = []
    for number, month in enumerate(months):
        left, top = number % _MONTHS_IN_A_ROW * wide, number // _MONTHS_IN_A_ROW * high
        parts += _month(month, most, left, top)
    bottom = rows * high
    parts += _legend(most, 0, bottom)
    total = sum(month.total for month in months)
    said = f"{total:,} in {len(months)} months; the most on one day are {most:,}."
    return svg(title, said, max(columns * wide - _MONTH_GAP, 480), bottom + 24, parts)


def hours_plot(hours: Sequence[Sequence[int]], title: str) -> str:
    """Weekdays as rows, hours as columns."""
    most = max(max(row) for row in hours)
    parts = [
        text(_LEFT + hour * (_HOUR + _GAP) + _HOUR / 2, 12, str(hour), "small middle")
        for hour in range(24)
    ]
    for day, (name, row) in enumerate(zip(WEEKDAYS, hours, strict=True)):
        top = 20 + day * (_CELL_HEIGHT + _GAP)
        parts.append(text(0, top + 20, name, "small"))
        for hour, count in enumerate(row):
            left = _LEFT + hour * (_HOUR + _GAP)
            said = f"{name} {hour:02}:00: {count:,}"
            parts += _cell(left, top, _HOUR, count, most, said)
    bottom = 26 + 7 * (_CELL_HEIGHT + _GAP)
    parts += _legend(most, _LEFT, bottom)
    busiest = max(((sum(row), name) for name, row in zip(WEEKDAYS, hours, strict=True)))
    said = f"Most are on {busiest[1]} ({busiest[0]:,}); the most in one hour of the week {most:,}."
    return svg(title, said, _LEFT + 24 * (_HOUR + _GAP), bottom + 24, parts)


def bars_plot(pairs: Sequence[tuple[str, int]], title: str) -> str:
    """A bar for each name, the longest first."""
    most = max((count for _name, count in pairs), default=1)
    parts = []
    for place, (name, count) in enumerate(pairs):
        top = place * _BAR_HEIGHT
        length = max(count / most * _BAR_LENGTH, 1)
        shown = name if len(name) <= 24 else f"{name[:23]}…"
        parts.append(text(_BAR_LABEL - 8, top + 15, shown, "end"))
        parts.append(box(_BAR_LABEL, top + 3, length, _BAR_HEIGHT - 6, "bar"))
        parts.append(text(_BAR_LABEL + length + 6, top + 15, f"{count:,}", "small"))
    said = ", ".join(f"{name}: {count:,}" for name, count in pairs)
    return svg(title, said, _BAR_LABEL + _BAR_LENGTH + 70, len(pairs) * _BAR_HEIGHT + 4, parts)


def curve_plot(points: Sequence[tuple[float, float]], title: str, unit: str) -> str:
    """A curve over numbers that rise; values from 0 up."""
    low, high = points[0][0], points[-1][0]
    most = max((value for _at, value in points), default=0.0)
    width, height = _CURVE_WIDTH - 40, _CURVE_HEIGHT - 20
    places = [
        (
            20 + (at - low) / (high - low or 1) * width,
            _CURVE_HEIGHT - (value / most * height if most else 0),
        )
        for at, value in points
    ]
    parts = [text(0, 12, f"{title}, at most {most:,.6g}", "small")]
    parts.append(line(0, _CURVE_HEIGHT, _CURVE_WIDTH, _CURVE_HEIGHT))
    for (x1, y1), (x2, y2) in pairwise(places):
        parts.append(line(x1, y1, x2, y2, "curve"))
    for (x, y), (at, value) in zip(places, points, strict=True):
        parts.append(told(dot(x, y, 3, "bar"), f"{at:g} {unit}: {value:,.6g}"))
    for place in _marked(len(points)):
        label = f"{points[place][0]:g}"
        parts.append(text(places[place][0], _CURVE_HEIGHT + 16, label, "small middle"))
    said = ", ".join(f"{at:g} {unit}: {value:,.6g}" for at, value in points)
    return svg(title, said, _CURVE_WIDTH, _CURVE_HEIGHT + 22, parts)


def difference_plot(
    days: Sequence[tuple[str, tuple[int, int, int]]], labels: tuple[str, str], title: str
) -> str:
    """Over time, above the line what each version found alone and what both found, stacked; days
    are taken together into weeks or months where there are many.
    """
    unit, grouped = _grouped(days)
    most = max((sum(counts) for _name, counts in grouped), default=0)
    width = min(_CHART_WIDTH / max(len(grouped), 1), 40.0)
    parts = [text(0, 12, f"{most:,} per {unit}", "small"), _rule(18), _rule(_CHART_HEIGHT)]
    for place, (name, counts) in enumerate(grouped):
        bottom = float(_CHART_HEIGHT)
        for style, count in zip(("both", "first", "second"), counts, strict=True):
            height = count / most * (_CHART_HEIGHT - 18) if most else 0.0
            if height:
                bottom -= height
                bar = box(place * width, bottom, max(width - 1, 1), height, style)
                parts.append(told(bar, f"{name}: {_part(style, labels)} {count:,}"))
    for place in _marked(len(grouped)):
        anchor = "small" if place == 0 else "small middle"
        parts.append(text(place * width, _CHART_HEIGHT + 16, grouped[place][0], anchor))
    left = 0.0
    for style in ("both", "first", "second"):
        parts.append(box(left, _CHART_HEIGHT + 30, 14, 14, style))
        parts.append(text(left + 20, _CHART_HEIGHT + 42, _part(style, labels), "small"))
        left += 60 + 7 * len(_part(style, labels))
    sums = [sum(counts[place] for _name, counts in grouped) for place in range(3)]
    said = f"{sums[0]:,} by both, {sums[1]:,} only by {labels[0]}, {sums[2]:,} only by {labels[1]}."
    return svg(title, said, _CHART_WIDTH, _CHART_HEIGHT + 50, parts)


def _part(style: str, labels: tuple[str, str]) -> str:
    return {"both": "both", "first": f"only {labels[0]}", "second": f"only {labels[1]}"}[style]


def _grouped(
    days: Sequence[tuple[str, tuple[int, int, int]]],
) -> tuple[str, list[tuple[str, tuple[int, int, int]]]]:
    if len(days) <= 62:
        return "day", list(days)
    unit = "week" if len(days) <= 430 else "month"
    found: dict[str, list[int]] = {}
    for day, counts in days:
        sums = found.setdefault(_start_of(day, unit), [0, 0, 0])
        for place, count in enumerate(counts):
            sums[place] += count
    return unit, [(name, (sums[0], sums[1], sums[2])) for name, sums in found.items()]


def _start_of(day: str, unit: str) -> str:
    if unit == "month":
        return day[:7]
    moment = date.fromisoformat(day)
    return date.fromordinal(max(moment.toordinal() - moment.weekday(), 1)).isoformat()


def _marked(count: int) -> Iterable[int]:
    """Places that have room for a label."""
    return range(0, count, max(-(-count // 9), 1))


def _month(month: Month, most: int, left: int, top: int) -> list[str]:
    year, number = int(month.name[:4]), int(month.name[5:7])
    name = f"{MONTHS[number - 1]} {year}"
    right = left + 7 * (_CELL_WIDTH + _GAP) - _GAP
    parts = [text(left, top + 14, name, "strong")]
    parts.append(text(right, top + 14, f"{month.total:,}", "end strong"))
    for place, weekday in enumerate(WEEKDAYS):
        x = left + place * (_CELL_WIDTH + _GAP) + _CELL_WIDTH / 2
        parts.append(text(x, top + 31, weekday[:2], "small middle"))
    offset = date(year, number, 1).weekday()
    for day, count in enumerate(month.days):
        if count is not None:
            row, column = divmod(day + offset, 7)
            x = left + column * (_CELL_WIDTH + _GAP)
            y = top + _MONTH_HEADING + row * (_CELL_HEIGHT + _GAP)
            said = f"{month.name}-{day + 1:02}: {count:,}"
            parts += _cell(x, y, _CELL_WIDTH, count, most, said, corner=str(day + 1))
    return parts


def _cell(
    x: float, y: float, width: float, count: int, most: int, said: str, *, corner: str = ""
) -> list[str]:
    shade = level(count, most)
    parts = [told(box(x, y, width, _CELL_HEIGHT, f"s{shade}", round=4), said)]
    if corner:
        parts.append(text(x + 3, y + 9, corner, f"tiny on{shade}"))
    if count:
        low = y + (23 if corner else 19)
        parts.append(text(x + width / 2, low, _short(count), f"small middle on{shade}"))
    return parts


def _short(count: int) -> str:
    """Fits into a cell."""
    if count < 10_000:
        return str(count)
    return f"{count // 1_000}k" if count < 1_000_000 else f"{count / 1e6:.1f}M"


def _legend(most: int, left: float, top: float) -> list[str]:
    parts = [box(left, top, 14, 14, "s0", round=3), text(left + 20, top + 12, "none", "small")]
    left += 70
    for low, high in shades(most):
        said = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        parts.append(box(left, top, 14, 14, f"s{level(high, most)}", round=3))
        parts.append(text(left + 20, top + 12, said, "small"))
        left += 44 + 7 * len(said)
    return parts


def _rule(y: float) -> str:
    return line(0, y, _CHART_WIDTH, y)
