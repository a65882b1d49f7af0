"""Finds matches: joins occurrences on aliases within time ranges and decides whether they satisfy
the positive clauses of a plan. [PO-6, PO-7, PO-13]

A path begins with the new occurrences of one term and joins the others one by one. Paths with equal
beginnings share their first steps: a step is identified by the tables joined so far.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rapport.policy.operators.absence import SearchSpan, counterexamples, refuted
from rapport.policy.operators.columns import (
    Array,
    Columns,
    Mask,
    Table,
    concatenate,
    count,
    different,
    take,
)
from rapport.policy.operators.plan_shape import (
    ClauseShape,
    Combination,
    NotFollowed,
    NotPreceded,
    Occurs,
    OrderedTerms,
    Part,
    PlanShape,
)
from rapport.policy.operators.shared_cache import SharedCache, is_shareable, renamed
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
    names = window.alias_columns(term)
    return JoinOperand(window.occurrences[term], names, str(term), window.is_constraint(term))


def attach(window: Window, frame: Columns, term: int, low: Array, high: Array) -> Columns:
    """Joins a term: each row once per occurrence with its identities and an end in [low, high)."""
    return window.apart(attached(frame, operand(window, term), low, high))


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
    owners, rows = table.agreeing(other.names, frame, first, last)
    return take(frame, owners) | other.columns(take(table.columns, rows))


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
        known = sum(alias in self._aliases for alias in set(self._window.aliases[term]))
        return known, self._several(term)

    def add(self, term: int, *, old_only: bool) -> None:
        suffix = str(len(self.steps))
        first, second = map(self._name, self._window.aliases[term])
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
            if both and self._window.are_comparable(first, second):
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


NEVER = np.int64(2**62)
"""The time at which an unsatisfied condition is satisfied."""

Outcome = tuple[Mask, Array, Array | None]
"""Which rows satisfy a part, when, and the end that counts for windows (None: no time)."""


def matched_at(
    window: Window, shape: PlanShape, number: int, frame: Columns, *, assume_absence: bool = False
) -> Array:
    """When each row is a minimal match of the combination; NEVER if it is none.

    `assume_absence`: treats awaited absence as given, as a first filter before it is known.
    """
    combination = shape.combinations[number]
    when = _satisfied_at(window, combination, frame, assume_absence)
    if not assume_absence:
        for other in combination.smaller:
            smaller = _satisfied_at(window, shape.combinations[other], frame, False)
            when = np.where(smaller < NEVER, NEVER, when)
    return when


def _satisfied_at(
    window: Window, combination: Combination, frame: Columns, assume_absence: bool
) -> Array:
    aliases = aliases_of(window, combination)
    bound = {name: frame[name] for name in aliases}
    t0 = latest_end(window, combination, frame)
    outcomes: dict[Part, Outcome] = {}
    best = np.full(count(frame), NEVER)
    for choice in combination.choices:
        for part in choice:
            if part not in outcomes:
                outcomes[part] = part_outcome(window, part, frame, bound, t0, assume_absence)
        best = np.minimum(best, _choice_at(window, [outcomes[part] for part in choice]))
    return best


def _choice_at(window: Window, outcomes: list[Outcome]) -> Array:
    """When all parts of a choice hold with their ends within one window."""
    holds = np.logical_and.reduce([outcome[0] for outcome in outcomes])
    when = np.maximum.reduce([outcome[1] for outcome in outcomes])
    ends = [outcome[2] for outcome in outcomes if outcome[2] is not None]
    if len(ends) > 1:
        apart = np.maximum.reduce(ends) - np.minimum.reduce(ends)
        holds = holds & (apart < window.plan.window_ms)
    return np.where(holds, when, NEVER)


def part_outcome(
    window: Window,
    part: Part,
    frame: Columns,
    bound: Columns,
    t0: Array,
    assume_absence: bool = False,
) -> Outcome:
    """Rule 5 for one part; `bound` holds the identities for which absence is evaluated."""
    always = np.ones(len(t0), np.bool_)
    if isinstance(part, Occurs):
        if window.is_constraint(part.term):
            return always, t0, None
        end = frame[f"end{part.term}"]
        return always, end, end
    if isinstance(part, OrderedTerms):
        second = frame[f"end{part.second}"]
        return _ordered(part, frame), second, second
    if isinstance(part, NotFollowed):
        end = frame[f"end{part.first}"]
        when = end + part.window_ms
    else:
        end = when = frame[f"end{part.second}"]
    if assume_absence and is_awaited(window, part):
        return always, when, end
    return ~refuted(window, part.absent, bound, _span(window, part, frame, end)), when, end


def _ordered(part: OrderedTerms, frame: Columns) -> Mask:
    """One certainly before the other, given clock uncertainty, and within the window."""
    first, second = frame[f"end{part.first}"], frame[f"end{part.second}"]
    surely = first + blur_of(frame, part.first) < second - blur_of(frame, part.second)
    return np.asarray(surely & (second < first + part.window_ms), np.bool_)


def _span(
    window: Window, part: NotFollowed | NotPreceded, frame: Columns, end: Array
) -> SearchSpan:
    """The range of ends of occurrences that must be absent."""
    unsure_ms = window.uncertainty_ms
    if isinstance(part, NotFollowed):
        blur = blur_of(frame, part.first)
        return SearchSpan(end - blur + 1, end + blur + part.window_ms, unsure_ms=unsure_ms)
    blur = blur_of(frame, part.second)
    return SearchSpan(end - blur - part.window_ms + 1, end + blur, unsure_ms=unsure_ms)


def blur_of(frame: Columns, term: int) -> Array | int:
    """The clock uncertainty of the ends of a term's occurrences."""
    return frame.get(f"blur{term}", 0)


def is_awaited(window: Window, part: Part) -> bool:
    """Whether the part cannot be decided at its end: events that must not follow, or, with
    uncertain clocks, may still turn out to have preceded."""
    return isinstance(part, NotFollowed) or (
        isinstance(part, NotPreceded) and window.uncertainty_ms > 0
    )


def decided_at(window: Window, part: Part, frame: Columns) -> Array:
    """When an awaited part can be decided."""
    after, [term] = window.uncertainty_ms, part.needs()
    if isinstance(part, NotFollowed):
        after += part.window_ms
    return np.asarray(frame[f"end{term}"] + blur_of(frame, term) + after)


def absence_in_family(
    window: Window, clause: ClauseShape, bound: Columns, t0: Array
) -> tuple[Mask, list[Columns]]:
    """Rule 4 for a family: the matches without a counterexample for every member, and the
    counterexamples that count for some members, with their needs."""
    span = SearchSpan(t0, t0 + clause.window_ms, t0)
    holds, some = np.ones(len(t0), np.bool_), []
    for terms in clause.counterexamples:
        window.count_search()
        found = counterexamples(window, terms, bound, span)
        if NEED in found:
            some.append(found)
        else:
            holds[found["row"]] = False
    return holds, some


def absence_wait_ms(window: Window, clause: ClauseShape) -> int:
    """How long events may refute the clause's absence; 0 if only tables can."""
    terms = {term for terms in clause.counterexamples for term in terms}
    return 0 if all(map(window.is_constraint, terms)) else clause.window_ms


def latest_end(window: Window, combination: Combination, frame: Columns) -> Array:
    """t0 of each row."""
    ends = [frame[f"end{term}"] for term in combination.terms if not window.is_constraint(term)]
    latest: Array = np.maximum.reduce(ends)
    return latest


def aliases_of(window: Window, combination: Combination) -> list[str]:
    """The `@alias` columns of a combination."""
    named = {alias for term in combination.terms for alias in window.aliases[term]}
    return sorted(f"@{alias}" for alias in named)


_NOTHING: Columns = {}


class MatchFinder:
    """Finds the matches of one combination of terms, batch by batch.

    If all tables are shared, the result is shared too; if some are, the first joins are.
    """

    def __init__(self, window: Window, shape: PlanShape, number: int, shared: SharedCache) -> None:
        self._window, self._shape, self._number, self._shared = window, shape, number, shared
        self._combination = shape.combinations[number]
        self.awaited = [part for part in shape.parts_around(number) if is_awaited(window, part)]
        """Parts that are not known when the terms occur."""
        self._terms = self._combination.terms
        self._timed = tuple(term for term in self._terms if not window.is_constraint(term))
        self._several: frozenset[int] | None = None
        self._paths: dict[int, JoinPath] = {}
        self._names: dict[str, str] = {}
        self._key: Hashable = None

    def new_matches(self) -> Columns | None:
        """Rows completed by new occurrences, with `t0` and `when` the last clause is satisfied
        unless an awaited part fails; None if there are none."""
        tables = self._window.occurrences
        starts = [term for term in self._timed if tables[term].first_new < len(tables[term])]
        if not starts:
            return None
        self._arrange()
        if self._key is None:
            return self._found(starts) or None
        known = self._shared.batch_result(self._key)
        if known is not None:
            self._shared.wanted += sum(len(self._paths[term].steps) - 1 for term in starts)
        else:
            known = self._commonly_named(self._found(starts))
            self._shared.store_batch_result(self._key, for_reading(known))
        return {self._names[name]: column for name, column in known.items()} or None

    def _found(self, starts: list[int]) -> Columns:
        found = [self._paths[term].rows(self._shared) for term in starts]
        found = [frame for frame in found if count(frame)]
        if not found:
            return _NOTHING
        frame = concatenate(found)
        assume = bool(self.awaited)
        when = matched_at(self._window, self._shape, self._number, frame, assume_absence=assume)
        chosen = when < NEVER
        if not chosen.any():
            return _NOTHING
        if not chosen.all():
            frame, when = take(frame, chosen), when[chosen]
        return frame | {"t0": latest_end(self._window, self._combination, frame), "when": when}

    def _commonly_named(self, frame: Columns) -> Columns:
        own = {name: common for common, name in self._names.items()}
        return {own[name]: column for name, column in frame.items()}

    def _arrange(self) -> None:
        """Plans the joins again when the sharing of tables has changed."""
        common = self._window.common
        several = frozenset(term for term in self._timed if common.is_read_by_several(term))
        if several == self._several:
            return
        self._several, window = several, self._window
        order = self._terms
        if several and len(order) > 1:
            order = joining_order(window.plan.terms, order)
        reach_ms = window.plan.window_ms + self._combination.longest_sequence_ms()
        self._paths = {
            term: make_path(window, order, term, reach_ms, self._has_others) for term in self._timed
        }
        self._key = self._whole_key(order) if len(several) == len(self._timed) else None

    def _has_others(self, term: int) -> bool:
        assert self._several is not None
        if self._window.is_constraint(term):
            return is_shareable(self._window.plan.terms[term])
        return term in self._several

    def _whole_key(self, order: tuple[int, ...]) -> Hashable:
        """Everything the result depends on besides readings; None if it cannot be shared."""
        places = {term: place for place, term in enumerate(order)}
        paths = [self._paths[term] for term in order if term in self._paths]
        sieve = self._sieve(places)
        if sieve is None or any(path.steps[-1].key is None for path in paths):
            return None
        self._names = self._common_names(order)
        steps = [(path.steps[-1].key, *(places[one.term] for one in path.steps)) for path in paths]
        window_ms = self._window.plan.window_ms if len(paths) > 1 else 0
        return (MatchFinder, tuple(steps), window_ms, sieve)

    def _sieve(self, places: dict[int, int]) -> Hashable:
        """The conditions that filter rows to matches; None if they include absence."""
        combinations, own = self._shape.combinations, self._combination
        smaller = () if self.awaited else own.smaller
        around = [own, *(combinations[number] for number in smaller)]
        if any(self._is_sought(part) for one in around for part in one.parts()):
            return None
        ways = tuple(frozenset(_ways(one, places)) for one in around)
        return (bool(self.awaited), ways)

    def _is_sought(self, part: Part) -> bool:
        absent = isinstance(part, NotFollowed | NotPreceded)
        return absent and not is_awaited(self._window, part)

    def _common_names(self, order: tuple[int, ...]) -> dict[str, str]:
        """Shared column names, and this plan's names."""
        names = {name: name for name in ("t0", "when", "latest", "earliest")}
        _, aliases = renamed(self._window.plan.terms[term] for term in order)
        names |= {f"@{common}": f"@{alias}" for alias, common in aliases.items()}
        for place, term in enumerate(order):
            names |= {f"{part}{place}": f"{part}{term}" for part in PARTS}
        return names


def _ways(combination: Combination, places: dict[int, int]) -> Iterator[Hashable]:
    """The choices of a combination with terms by position; awaited parts count as given."""
    for choice in combination.choices:
        yield frozenset(
            (type(part), *(places[term] for term in part.needs()), getattr(part, "window_ms", None))
            for part in choice
        )
