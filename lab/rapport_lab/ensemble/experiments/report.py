"""Results of an experiment as plain data: tables, plots, and statements checked. [EN-12]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

Row = dict[str, Any]
"""One row of the results, by column."""


class Table(msgspec.Struct, frozen=True):
    """Rows for people; numbers are written as texts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Curves(msgspec.Struct, frozen=True, kw_only=True):
    """Several series over one axis."""

    name: str
    """Of the file, without ending."""
    title: str
    across: str
    up: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    in_tens: bool = False
    """The axis upwards goes by powers of ten."""


class Box(msgspec.Struct, frozen=True):
    """First quartile, median and third one of something; without its extremes, as in the source."""

    label: str
    first: float
    median: float
    third: float


class Boxes(msgspec.Struct, frozen=True, kw_only=True):
    """Quartiles beside each other."""

    name: str
    title: str
    up: str
    boxes: tuple[Box, ...]


class Statement(msgspec.Struct, frozen=True):
    """Something the source says or shows that can be true of our rows."""

    says: str
    holds: bool
    """In our runs."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that is shown of an experiment."""

    tables: tuple[Table, ...] = ()
    plots: tuple[Curves | Boxes, ...] = ()
    statements: tuple[Statement, ...] = ()


def averaged(rows: Iterable[Row], by: Sequence[str]) -> list[Row]:
    """One row for all that agree in the columns `by` (so: for all seeds), numbers averaged; in
    order of first appearance.
    """
    alike: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        alike.setdefault(tuple(row[name] for name in by), []).append(row)
    return [_mean(group, by) for group in alike.values()]


def _mean(group: list[Row], by: Sequence[str]) -> Row:
    found = dict(group[0])
    for name, value in group[0].items():
        if name not in by and isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = sum(row[name] for row in group) / len(group)
    return found


def whole(value: float | None) -> str:
    """A count as people read it; a dash for what is not known.

    >>> whole(36200.0), whole(None)
    ('36,200', '-')
    """
    return "-" if value is None else f"{value:,.0f}"


def seconds(value_ms: float | None) -> str:
    """Milliseconds as seconds.

    >>> seconds(5110.0)
    '5.1'
    """
    return "-" if value_ms is None else f"{value_ms / 1_000:,.1f}"


def percent(value: float | None) -> str:
    """A share.

    >>> percent(0.125)
    '12.5 %'
    """
    return "-" if value is None else f"{value:.1%}".replace("%", " %")


def is_rising(values: Sequence[float]) -> bool:
    """No value is below the one before."""
    return all(less <= more for less, more in pairwise(values))
