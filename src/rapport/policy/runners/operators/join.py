"""Putting occurrences together: natural joins on aliases within spans of time. [PO-6]"""

from __future__ import annotations

import numpy as np

from rapport.policy.runners.operators.shapes import Combination
from rapport.policy.runners.operators.table import (
    Array,
    Columns,
    Table,
    concatenate,
    count,
    spread,
    take,
)
from rapport.policy.runners.operators.varying import NEED
from rapport.policy.runners.operators.window import Window


def columns_of(window: Window, term: int, rows: Columns) -> Columns:
    """An occurrence table's rows under the names a match uses: `@alias`, and the term's end and
    events.
    """
    step = window.plan.terms[term]
    columns = {f"@{step.first.alias}": rows["first"], f"@{step.second.alias}": rows["second"]}
    if NEED in rows:
        columns[NEED] = rows[NEED]
    if not window.is_constraint(term):
        columns |= {
            f"end{term}": rows["end"],
            f"event{term}": rows["event"],
            f"other{term}": rows["other"],
        }
        if "blur" in rows:
            columns[f"blur{term}"] = rows["blur"]
    return columns


def new_rows(window: Window, combination: Combination) -> Columns | None:
    """Every set of occurrences, one per term, with equal identities and near ends, that has a new
    one.

    Each is found once: by its first term with a new occurrence (terms before it contribute old ones
    only).
    """
    found = []
    for place, term in enumerate(combination.terms):
        table = window.occurrences[term]
        if window.is_constraint(term) or table.first_new == len(table):
            continue
        new = {name: column[table.first_new :] for name, column in table.columns.items()}
        frame = columns_of(window, term, new)
        frame["latest"] = frame["earliest"] = new["end"]
        frame = apart(window, frame)
        old = frozenset(combination.terms[:place])
        frame = _join_rest(window, frame, combination, term, old)
        if count(frame):
            found.append(frame)
    if not found:
        return None
    names = sorted(found[0])
    return concatenate([{name: frame[name] for name in names} for frame in found])


def _join_rest(
    window: Window, frame: Columns, combination: Combination, start: int, old: frozenset[int]
) -> Columns:
    reach = window.plan.window_ms + combination.longest_sequence_ms()
    rest = [term for term in combination.terms if term != start]
    while rest and count(frame):
        term = max(rest, key=lambda other: _shared(window, other, frame))
        rest.remove(term)
        low, high = frame["latest"] - reach + 1, frame["earliest"] + reach
        frame = attach(window, frame, term, low, high, old_only=term in old)
        if not window.is_constraint(term):
            frame["latest"] = np.maximum(frame["latest"], frame[f"end{term}"])
            frame["earliest"] = np.minimum(frame["earliest"], frame[f"end{term}"])
    return frame


def _shared(window: Window, term: int, frame: Columns) -> int:
    step = window.plan.terms[term]
    return sum(f"@{alias}" in frame for alias in {step.first.alias, step.second.alias})


def attach(
    window: Window, frame: Columns, term: int, low: Array, high: Array, *, old_only: bool = False
) -> Columns:
    """Joins a term: each row once per occurrence with its identities and an end in [low, high)."""
    table = window.occurrences[term]
    if window.is_constraint(term):
        first, last = np.zeros(len(low), np.int64), np.full(len(low), len(table))
    else:
        first, last = table.rows_from(low), table.rows_from(high)
        if old_only:
            last = np.minimum(last, table.first_new)
    owners, rows = matching(window, table, term, frame, first, last)
    joined = take(frame, owners)
    joined |= columns_of(window, term, take(table.columns, rows))
    return apart(window, joined)


def matching(
    window: Window, table: Table, term: int, frame: Columns, first: Array, last: Array
) -> tuple[Array, Array]:
    """Pairs (row of the frame, row of an occurrence table) with equal identities, within spans of
    rows.
    """
    step = window.plan.terms[term]
    sides = (("first", f"@{step.first.alias}"), ("second", f"@{step.second.alias}"))
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
    for first, second in window.plan.distinct:
        if f"@{first}" in frame and f"@{second}" in frame and are_comparable(window, first, second):
            frame = take(frame, frame[f"@{first}"] != frame[f"@{second}"])
    return frame


def are_comparable(window: Window, first: str, second: str) -> bool:
    """Whether two aliases stand for the same concept, so that they can name the same instance."""
    return window.alias_concept(first) == window.alias_concept(second)
