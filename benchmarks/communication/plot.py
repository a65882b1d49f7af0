"""The grid as a table for the terminal and as a plot in SVG. Pure. [CO-7]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rapport.pipeline.drawing.svg import box, line, svg, text, told

Grid = Mapping[tuple[int, int], float]
"""(workers, peers) to messages handled per second."""

_BAR, _GAP, _HEIGHT, _LEFT, _TOP, _BOTTOM = 26, 22, 220, 70, 30, 46
_COLOURS = ("#2c6e91", "#5b9bb8", "#e0a458", "#b5533c", "#6b7a4f", "#8a5a83")
_STYLE = (
    "<style>text{font:11px sans-serif;fill:#333}line{stroke:#ccc}"
    + "".join(f".c{number}{{fill:{colour}}}" for number, colour in enumerate(_COLOURS))
    + "</style>"
)


def grid_lines(grid: Grid) -> list[str]:
    """A row for each number of workers, a column for each number of peers.

    >>> print(*grid_lines({(1, 10): 50_000.4, (5, 10): 61_234.0}), sep="\\n")
    workers    10 peers
          1      50,000
          5      61,234
    """
    workers, peers = _axes(grid)
    lines = ["workers" + "".join(f"{f'{each} peers':>12}" for each in peers)]
    for row in workers:
        lines.append(f"{row:>7}" + "".join(f"{grid[row, each]:>12,.0f}" for each in peers))
    return lines


def grid_plot(grid: Grid, goal: float) -> str:
    """Bars for each number of workers, one for each number of peers, with the goal as a line."""
    workers, peers = _axes(grid)
    highest = max(*grid.values(), goal) * 1.05
    group = len(peers) * _BAR + _GAP
    width, height = _LEFT + len(workers) * group + 10, _TOP + _HEIGHT + _BOTTOM
    parts = [_STYLE, *_scale(highest, width), *_goal(goal, highest, width)]
    for row, count in enumerate(workers):
        left = _LEFT + row * group
        for column, each in enumerate(peers):
            rate = grid[count, each]
            tall = rate / highest * _HEIGHT
            bar = box(left + column * _BAR, _TOP + _HEIGHT - tall, _BAR - 3, tall, f"c{column}")
            parts.append(told(bar, f"{count} workers, {each} peers: {rate:,.0f}/s"))
        parts.append(text(left, _TOP + _HEIGHT + 16, f"{count} workers", ""))
    for column, each in enumerate(peers):
        left = _LEFT + column * 90
        parts.append(box(left, height - 18, 10, 10, f"c{column}"))
        parts.append(text(left + 14, height - 9, f"{each} peers", ""))
    return svg("Messages handled per second", "workers by peers", width, height, parts)


def _axes(grid: Grid) -> tuple[Sequence[int], Sequence[int]]:
    return sorted({workers for workers, _ in grid}), sorted({peers for _, peers in grid})


def _scale(highest: float, width: float) -> list[str]:
    parts = []
    for step in range(5):
        value = highest * step / 4
        height = _TOP + _HEIGHT - _HEIGHT * step / 4
        parts.append(line(_LEFT, height, width, height))
        parts.append(text(4, height + 4, f"{value / 1000:,.0f} k/s", ""))
    return parts


def _goal(goal: float, highest: float, width: float) -> list[str]:
    height = _TOP + _HEIGHT - goal / highest * _HEIGHT
    return [line(_LEFT, height, width, height), text(_LEFT, height - 4, f"goal {goal:,.0f}", "")]
