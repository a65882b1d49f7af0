"""Putting occurrences together: natural joins on aliases within spans of time. [PO-6]"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from rapport.policy.runners.operators.table import Array, Columns, Table, spread, take
from rapport.policy.runners.operators.varying import NEED
from rapport.policy.runners.operators.window import Window

PARTS = ("end", "event", "other", "blur")
"""What the columns of a term that has events begin with."""


class JoinOperand(NamedTuple):
    """A term as a join sees it: its occurrences, and what its columns are called in matches."""

    table: Table
    names: tuple[str, str]
    """Of the columns of its identities."""
    suffix: str
    """Of the columns of its end and events."""
    is_fact: bool

    def columns(self, rows: Columns) -> Columns:
        """Rows of the table under the names a match uses."""
        columns = dict(zip(self.names, (rows["first"], rows["second"]), strict=True))
        if NEED in rows:
            columns[NEED] = rows[NEED]
        if not self.is_fact:
            columns |= {f"{part}{self.suffix}": rows[part] for part in PARTS if part in rows}
        return columns


def operand(window: Window, term: int) -> JoinOperand:
    """A term under the names of its aliases."""
    step = window.plan.terms[term]
    names = f"@{step.first.alias}", f"@{step.second.alias}"
    return JoinOperand(window.occurrences[term], names, str(term), window.is_constraint(term))


def attach(window: Window, frame: Columns, term: int, low: Array, high: Array) -> Columns:
    """Joins a term: each row once per occurrence with its identities and an end in [low, high)."""
    return apart(window, attached(frame, operand(window, term), low, high))


def attached(
    frame: Columns, other: JoinOperand, low: Array, high: Array, *, old_only: bool = False
) -> Columns:
    """The same, whatever the columns are called; `old_only`: without those of the latest batch."""
    table = other.table
    if other.is_fact:
        first, last = np.zeros(len(low), np.int64), np.full(len(low), len(table))
    else:
        first, last = table.rows_from(low), table.rows_from(high)
        if old_only:
            last = np.minimum(last, table.first_new)
    owners, rows = _agreeing(table, other.names, frame, first, last)
    return take(frame, owners) | other.columns(take(table.columns, rows))


def matching(
    window: Window, table: Table, term: int, frame: Columns, first: Array, last: Array
) -> tuple[Array, Array]:
    """Pairs (row of the frame, row of an occurrence table) with equal identities, within spans of
    rows.
    """
    step = window.plan.terms[term]
    names = f"@{step.first.alias}", f"@{step.second.alias}"
    return _agreeing(table, names, frame, first, last)


def _agreeing(
    table: Table, names: tuple[str, str], frame: Columns, first: Array, last: Array
) -> tuple[Array, Array]:
    sides = zip(("first", "second"), names, strict=True)
    bound = [(name, alias) for name, alias in sides if alias in frame]
    name, codes = (bound[0][0], frame[bound[0][1]]) if bound else (None, None)
    owners, places = spread(*table.find(name, codes, first, last))
    rows = table.rows_at(name, places)
    for other, alias in bound[1:]:
        mask = table.columns[other][rows] == frame[alias][owners]
        owners, rows = owners[mask], rows[mask]
    return owners, rows


def apart(window: Window, frame: Columns) -> Columns:
    """The rows that keep aliases apart which the policy calls distinct."""
    pairs = [
        (f"@{first}", f"@{second}")
        for first, second in window.plan.distinct
        if f"@{first}" in frame and f"@{second}" in frame and are_comparable(window, first, second)
    ]
    return different(frame, pairs)


def different(frame: Columns, pairs: Iterable[tuple[str, str]]) -> Columns:
    """The rows in which the two columns of each pair differ."""
    for first, second in pairs:
        frame = take(frame, frame[first] != frame[second])
    return frame


def are_comparable(window: Window, first: str, second: str) -> bool:
    """Whether two aliases stand for the same concept, so that they can name the same instance."""
    return window.alias_concept(first) == window.alias_concept(second)
