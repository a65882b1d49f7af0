"""Shapes of SVG as text, for all plots of the pipeline; colours come from the page. Pure.
[PI-6, PI-9]
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def svg(title: str, said: str, width: float, height: float, parts: Sequence[str]) -> str:
    """A plot with a title and a description for who cannot see it."""
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:{width:.0f}px"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
        f"<title>{escape(title)}</title><desc>{escape(said)}</desc>{''.join(parts)}</svg>"
    )


def told(shape: str, said: str) -> str:
    """A shape that says what it is when it is pointed at."""
    return f"<g>{shape}<title>{escape(said)}</title></g>"


def box(x: float, y: float, width: float, height: float, style: str, *, round: int = 2) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{style}" {place} rx="{round}"/>'


def text(x: float, y: float, words: str, style: str) -> str:
    """Words that stand on the line `y`."""
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str = "") -> str:
    named = f' class="{style}"' if style else ""
    return f'<line{named} x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def dot(x: float, y: float, radius: float, style: str) -> str:
    return f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>'


def curve(x1: float, y1: float, x2: float, y2: float, style: str = "edge") -> str:
    """A soft line from left to right between two nodes of a graph."""
    middle = (x1 + x2) / 2
    way = f"M{x1:.1f} {y1:.1f}C{middle:.1f} {y1:.1f} {middle:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    return f'<path class="{style}" d="{way}"/>'
