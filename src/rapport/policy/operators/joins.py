"""Joins occurrences on aliases within time ranges, and plans the order of joins. [PO-6, PO-13]

A path begins with the new occurrences of one term and joins the others one by one. Paths with equal
beginnings share their first steps: a step is identified by the tables joined so far.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from rapport.policy.operators.columns import Array, Columns, Table, count, spread, take
from rapport.policy.operators.sharing import SharedCache
from rapport.policy.operators.variants import NEED
from rapport.policy.operators.window import Window
from rapport.policy.plan import TermStep

PARTS = ("end", "event", "other", "blur")
"""The prefixes of the columns of a term with events."""


class JoinOperand(NamedTuple):
    """The occurrences of a term and its column names in matches."""

    table: Table
    names: tuple[str, str]
    """The columns of its identities."""
    suffix: str
    """The suffix of the columns of its end and events."""
    is_fact: bool

    def columns(self, rows: Columns) -> Columns:
        """Rows of the table under the names of a match."""
        columns = dict(zip(self.names, (rows["first"], rows["second"]), strict=True))
        if NEED in rows:
            columns[NEED] = rows[NEED]
        if not self.is_fact:
            columns |= {f"{part}{self.suffix}": rows[part] for part in PARTS if part in rows}
        return columns


def operand(window: Window, term: int) -> JoinOperand:
    step = window.plan.terms[term]
    names = f"@{step.first.alias}", f"@{step.second.alias}"
    return JoinOperand(window.occurrences[term], names, str(term), window.is_constraint(term))


def attach(window: Window, frame: Columns, term: int, low: Array, high: Array) -> Columns:
    """Joins a term: each row once per occurrence with its identities and an end in [low, high)."""
    return apart(window, attached(frame, operand(window, term), low, high))


def attached(
    frame: Columns, other: JoinOperand, low: Array, high: Array, *, old_only: bool = False
) -> Columns:
    """The same with given column names; `old_only`: without the latest batch."""
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
    """Pairs (row of the frame, row of an occurrence table) with equal identities, within ranges of
    rows."""
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
    """The rows in which aliases declared distinct differ."""
    pairs = [
        (f"@{first}", f"@{second}")
        for first, second in window.plan.distinct
        if f"@{first}" in frame and f"@{second}" in frame and are_comparable(window, first, second)
    ]
    return different(frame, pairs)


def different(frame: Columns, pairs: Iterable[tuple[str, str]]) -> Columns:
    """The rows in which the columns of each pair differ."""
    for first, second in pairs:
        frame = take(frame, frame[first] != frame[second])
    return frame


def are_comparable(window: Window, first: str, second: str) -> bool:
    """Whether two aliases have the same concept, so that they may name the same instance."""
    return window.alias_concept(first) == window.alias_concept(second)


Several = Callable[[int], bool]
"""Whether several plans have the table of a term."""


class JoinStep(NamedTuple):
    term: int
    operand: JoinOperand
    old_only: bool
    apart: tuple[tuple[str, str], ...]
    """Columns that must differ from here on."""
    key: Hashable
    """Everything the result up to here depends on besides readings; None: not shared."""


class JoinPath(NamedTuple):
    """All steps and the plan's column names."""

    steps: tuple[JoinStep, ...]
    names: dict[str, str]
    reach_ms: int

    def rows(self, shared: SharedCache) -> Columns:
        """Every set of occurrences, one per term, with equal identities and near ends: a new one of
        the first term, old ones of the terms before it."""
        frame = self._upto(len(self.steps) - 1, shared)
        return {self.names[name]: column for name, column in frame.items()}

    def _upto(self, place: int, shared: SharedCache) -> Columns:
        step = self.steps[place]
        known: Columns | None = None if step.key is None else shared.batch_result(step.key)
        shared.wanted += place > 0
        if known is not None:
            shared.wanted += max(place - 1, 0)
            return known
        if not place:
            frame = _started(step)
        else:
            frame = self._upto(place - 1, shared)
            shared.computed += 1
            if count(frame):
                frame = self._joined(frame, step)
        if step.key is not None:
            shared.store_batch_result(step.key, for_reading(frame))
        return frame

    def _joined(self, frame: Columns, step: JoinStep) -> Columns:
        low, high = frame["latest"] - self.reach_ms + 1, frame["earliest"] + self.reach_ms
        frame = attached(frame, step.operand, low, high, old_only=step.old_only)
        frame = different(frame, step.apart)
        if not step.operand.is_fact:
            end = frame[f"end{step.operand.suffix}"]
            frame["latest"] = np.maximum(frame["latest"], end)
            frame["earliest"] = np.minimum(frame["earliest"], end)
        return frame


def _started(step: JoinStep) -> Columns:
    table = step.operand.table
    new = {name: column[table.first_new :] for name, column in table.columns.items()}
    frame = step.operand.columns(new)
    frame["latest"] = frame["earliest"] = new["end"]
    return different(frame, step.apart)


def for_reading(frame: Columns) -> Columns:
    """Makes the columns read-only for several readers."""
    for column in frame.values():
        column.flags.writeable = False
    return frame


def make_path(
    window: Window, order: Sequence[int], start: int, reach_ms: int, several: Several
) -> JoinPath:
    """The path that begins with the new occurrences of the term `start`. Of the terms before it in
    the order only old occurrences count, so each set is found by one path. The next term is the one
    with most known aliases, preferably a shared one."""
    made = _PathMaker(window, reach_ms, several)
    old, rest = set(order[: order.index(start)]), [term for term in order if term != start]
    made.add(start, old_only=False)
    while rest:
        term = max(rest, key=made.preference)
        rest.remove(term)
        made.add(term, old_only=term in old)
    return JoinPath(tuple(made.steps), made.names, reach_ms)


class _PathMaker:
    """Names aliases and terms by their position in the path."""

    def __init__(self, window: Window, reach_ms: int, several: Several) -> None:
        self._window, self._reach_ms, self._several = window, reach_ms, several
        self._aliases: dict[str, str] = {}
        self._apart: set[tuple[str, str]] = set()
        self.steps: list[JoinStep] = []
        self.names = {name: name for name in ("latest", "earliest", NEED)}

    def preference(self, term: int) -> tuple[int, bool]:
        """Larger values are joined first."""
        step = self._window.plan.terms[term]
        known = sum(alias in self._aliases for alias in {step.first.alias, step.second.alias})
        return known, self._several(term)

    def add(self, term: int, *, old_only: bool) -> None:
        step, suffix = self._window.plan.terms[term], str(len(self.steps))
        first, second = (self._name(side.alias) for side in (step.first, step.second))
        fact = self._window.is_constraint(term)
        operand = JoinOperand(self._window.occurrences[term], (first, second), suffix, fact)
        for part in PARTS:
            self.names[f"{part}{suffix}"] = f"{part}{term}"
        apart = self._newly_apart()
        key: Hashable = None
        before = self.steps[-1].key if self.steps else ()
        if before is not None and self._several(term):
            reach_ms = self._reach_ms if self.steps and not fact else 0
            key = (before, reach_ms, operand, old_only, apart)
        self.steps.append(JoinStep(term, operand, old_only, apart, key))

    def _name(self, alias: str) -> str:
        name = self._aliases.setdefault(alias, f"@{len(self._aliases)}")
        self.names[name] = f"@{alias}"
        return name

    def _newly_apart(self) -> tuple[tuple[str, str], ...]:
        """The distinct aliases that are both present since this step."""
        found = []
        for first, second in self._window.plan.distinct:
            both = first in self._aliases and second in self._aliases
            if both and are_comparable(self._window, first, second):
                pair = self._aliases[first], self._aliases[second]
                found.append((min(pair), max(pair)))
        new = sorted(set(found) - self._apart)
        self._apart |= set(new)
        return tuple(new)


def joining_order(terms: Sequence[TermStep], numbers: Sequence[int]) -> tuple[int, ...]:
    """The terms in an order that depends neither on names nor on other terms."""
    return tuple(sorted(numbers, key=lambda number: (_unnamed(terms[number]), number)))


def _unnamed(term: TermStep) -> tuple[str, ...]:
    sides = [
        (side.concept, side.attribute, side.stream or "") for side in (term.first, term.second)
    ]
    compared = repr(getattr(term, "compared", None))
    return (type(term).__name__, term.function, str(term.parameter), *sides[0], *sides[1], compared)
