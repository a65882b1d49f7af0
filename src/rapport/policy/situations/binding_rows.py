"""The rows of several aliases: bindings that can matter.

Most pairs of instances are never near each other. Where a relationship must be true for a condition
to be, only the pairs for which it is or was true become rows. A row that is added later is
evaluated from as far back as its conditions look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rapport.policy.operators.columns import NO_ROWS, Array, Mask, Rows, spread
from rapport.policy.operators.spatial import Grid, Reach
from rapport.policy.relations import Relation
from rapport.policy.situations.present_values import (
    AllowedInstances,
    ConceptRows,
    in_parts,
    is_present,
)
from rapport.policy.situations.traces import (
    TRUE,
    ConstantScope,
    RowIndex,
    Step,
    Trace,
    distinct,
    first_of_runs,
)

_MOST_CODES = 1 << 31
_LARGEST_KEY = 1 << 62


class Stretches(NamedTuple):
    """Present values with the times in which they are: [begins, ends)."""

    rows: Rows
    begins: Rows
    ends: Rows
    values: Array

    def take(self, chosen: Any) -> Stretches:
        return Stretches(
            self.rows[chosen], self.begins[chosen], self.ends[chosen], self.values[chosen]
        )


def stretches(trace: Trace, step: Step, since: int, wanted: Mask) -> Stretches:
    """The values of the wanted rows of a trace from a time within the history to the end of the
    step."""
    points = trace.points
    points = points.take((points.times > since) & wanted[points.rows])
    rows = np.flatnonzero(wanted)
    first = trace.sample(rows, np.full(len(rows), since, np.int64))
    all_rows = np.concatenate([rows, points.rows])
    begins = np.concatenate([np.full(len(rows), since, np.int64), points.times])
    values = np.concatenate([first, points.values])
    order = np.argsort(all_rows, kind="stable")
    all_rows, begins, values = all_rows[order], begins[order], values[order]
    ends = np.full(len(all_rows), step.end, np.int64)
    ends[:-1] = np.where(all_rows[1:] != all_rows[:-1], step.end, begins[1:])
    found = Stretches(all_rows, begins, ends, in_parts(values))
    return found.take(is_present(values))


class Meetings(NamedTuple):
    """Pairs of instances with the times in which a relationship is true: [begins, ends)."""

    first: Rows
    second: Rows
    begins: Rows
    ends: Rows


class NearPairs:
    """The pairs of instances for which a relationship of two positions is true at some time."""

    def __init__(
        self, relation: Relation, parameter: float | None, first: Trace, second: Trace
    ) -> None:
        self._relation, self._parameter = relation, parameter
        self.first, self.second = first, second

    def find(
        self, step: Step, wanted: tuple[Mask, Mask], *, everything: bool
    ) -> tuple[Rows, Rows, Rows]:
        """The pairs (first, second) that may have become true in this step, and since when.

        `wanted`: which instances of each side matter; `everything`: also what was true before.
        """
        first = stretches(self.first, step, step.begin - 1, wanted[0])
        second = stretches(self.second, step, step.begin - 1, wanted[1])
        if everything:
            return self._join(first, second)
        is_fresh = first.begins > step.begin - 1
        other_is_fresh = second.begins > step.begin - 1
        fresh, other = first.take(is_fresh), second.take(other_is_fresh)
        parts = []
        if len(fresh.rows):
            parts.append(self._join(fresh, second))
        if len(other.rows):
            parts.append(self._join(first.take(~is_fresh), other))
        if not parts:
            return NO_ROWS, NO_ROWS, NO_ROWS
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))  # type: ignore[return-value]

    def meetings(self, step: Step, since: int, wanted: tuple[Mask, Mask]) -> Meetings:
        """All stretches in which the relationship is true, from a time within the history on."""
        first = stretches(self.first, step, since, wanted[0])
        return self._meetings(first, stretches(self.second, step, since, wanted[1]))

    def hold_now(self, first: Rows, second: Rows) -> Mask:
        """Whether the relationship is true of each pair, between steps."""
        values = in_parts(self.first.now)[first], in_parts(self.second.now)[second]
        found = is_present(values[0]) & is_present(values[1])
        chosen = np.flatnonzero(found)
        if len(chosen):
            found[chosen] = self._relation.holds_many(
                values[0][chosen], values[1][chosen], self._parameter
            )
        return found

    def _join(self, first: Stretches, second: Stretches) -> tuple[Rows, Rows, Rows]:
        found = self._meetings(first, second)
        return found.first, found.second, found.begins

    def _meetings(self, first: Stretches, second: Stretches) -> Meetings:
        if not len(first.rows) or not len(second.rows):
            return Meetings(NO_ROWS, NO_ROWS, NO_ROWS, NO_ROWS)
        if self._relation.shape == "contains":
            bounds = self._relation.bounds
            rectangles = second.values if bounds is None else bounds(second.values)
            if not Grid.can_hold(rectangles):
                owners, places = _all_pairs(len(first.rows), len(second.rows))
            else:
                owners, places = Grid(rectangles).candidates(first.values)
        else:
            reach = Reach(self._parameter or 0.0, self._relation.space)
            owners, places = _near_points(first, second, reach)
        begins = np.maximum(first.begins[owners], second.begins[places])
        ends = np.minimum(first.ends[owners], second.ends[places])
        met = np.flatnonzero(begins < ends)
        values = first.values[owners[met]], second.values[places[met]]
        met = met[self._relation.holds_many(*values, self._parameter)]
        rows = first.rows[owners[met]], second.rows[places[met]]
        return Meetings(*rows, begins[met], ends[met])


def _all_pairs(first: int, second: int) -> tuple[Rows, Rows]:
    return np.repeat(np.arange(first), second), np.tile(np.arange(second), first)


def _near_points(first: Stretches, second: Stretches, reach: Reach) -> tuple[Rows, Rows]:
    """Pairs (first, second) of stretches in neighbouring cells that may overlap in time.

    Time is cut so that a stretch lies in about two parts; a pair is found in the first one that
    both have.
    """
    low = min(int(first.begins.min()), int(second.begins.min()))
    lengths = np.concatenate((first.ends - first.begins, second.ends - second.begins))
    width = max(int(lengths.mean()), 1)
    owners, own_parts, own_first = _in_parts_of_time(first, low, width)
    places, parts, others_first = _in_parts_of_time(second, low, width)
    cells = reach.cells(second.values)
    known = distinct(cells)
    keys = parts * len(known) + np.searchsorted(known, cells)[places]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    own_cells = reach.cells(first.values)
    found = []
    for low_step, high_step in _runs(reach.around()):
        lows = np.searchsorted(known, own_cells + low_step)
        highs = np.searchsorted(known, own_cells + high_step, "right")
        is_known = np.flatnonzero((lows < highs)[owners])
        own = owners[is_known]
        earlier = own_parts[is_known] * len(known)
        begins = np.searchsorted(keys, earlier + lows[own]).astype(np.int64)
        ends = np.searchsorted(keys, earlier + highs[own]).astype(np.int64)
        queries, rows = spread(begins, ends)
        queries, rows = is_known[queries], order[rows]
        is_first = own_parts[queries] == np.maximum(own_first[queries], others_first[rows])
        found.append((owners[queries[is_first]], places[rows[is_first]]))
    return np.concatenate([one for one, _ in found]), np.concatenate([one for _, one in found])


def _runs(steps: Sequence[int]) -> list[tuple[int, int]]:
    """The runs of consecutive numbers."""
    found: list[tuple[int, int]] = []
    for step in sorted(steps):
        if found and found[-1][1] == step - 1:
            found[-1] = (found[-1][0], step)
        else:
            found.append((step, step))
    return found


def _in_parts_of_time(some: Stretches, low: int, width: int) -> tuple[Rows, Rows, Rows]:
    """For each part of time that a stretch lies in: the stretch, the part, and its first part."""
    begins, ends = (some.begins - low) // width, (some.ends - 1 - low) // width
    owners, parts = spread(begins, ends + 1)
    return owners, parts, begins[owners]


class Driver(NamedTuple):
    """Pairs of an alias bound before and the new one, of which a condition needs one."""

    pairs: NearPairs
    alias: str
    """The one bound before."""
    is_first: bool
    """Whether that is the first side of the pairs."""

    def wanted(self, bound: Mask, new: Mask) -> tuple[Mask, Mask]:
        """The instances of the alias bound before and of the new one, as the sides of the pairs."""
        return (bound, new) if self.is_first else (new, bound)

    def bound_trace(self) -> Trace:
        return self.pairs.first if self.is_first else self.pairs.second


def bound_codes(
    outer: ConceptRows | ConstantScope | JoinedRows,
    driver: Driver,
    allowed: AllowedInstances | None,
) -> Mask:
    """Which instances of the alias bound before an outer row has."""
    if allowed is not None:
        return allowed.could_hold()
    found = np.zeros(driver.bound_trace().scope.size, np.bool_)
    if isinstance(outer, JoinedRows):
        found[outer.columns[driver.alias].all()] = True
    return found


class PassingRows:
    """The rows of a step: bindings in a stretch of time in which one of some relationships is true.

    For conditions that are false elsewhere and remember nothing. Nothing about the rows is kept
    beyond the next step.
    """

    is_passing = True

    def __init__(
        self,
        outer: ConceptRows | ConstantScope | JoinedRows,
        outer_alias: str,
        outer_allowed: AllowedInstances | None,
        alias: str,
        allowed: AllowedInstances,
        different: Sequence[str],
        drivers: Sequence[Driver],
    ) -> None:
        """See JoinedRows."""
        self.outer = self._outer = outer
        self._outer_alias, self._outer_allowed = outer_alias, outer_allowed
        self._alias, self._allowed, self._different = alias, allowed, different
        self._drivers = drivers
        self.parents = RowIndex()
        names = outer.columns if isinstance(outer, JoinedRows) else (outer_alias,)
        self.columns = {name: RowIndex() for name in (*names, alias)}
        self.size = 0
        self.new_rows = self.new_since = self.found_at = self.new_until = NO_ROWS

    def run(self, step: Step) -> None:
        since = step.begin - 1
        if len(self._outer.new_rows):
            since = min(since, int(self._outer.new_since.min()))
        found = [self._of_driver(driver, step, since) for driver in self._drivers]
        parents, codes, begins, ends = (
            np.concatenate(column) for column in zip(*found, strict=True)
        )
        begins = np.maximum(begins, self._begun(step)[parents])
        chosen = (begins < ends) & self._allowed.could_hold()[codes]
        if self._outer_allowed is not None:
            chosen &= self._outer_allowed.could_hold()[parents]
        for name in self._different:
            chosen &= self._outer_codes(name, parents) != codes
        self._set(*joined_stretches(parents[chosen], codes[chosen], begins[chosen], ends[chosen]))

    def commit(self) -> None:
        """The rows stay until the next step."""
        self.new_rows = self.new_since = self.found_at = self.new_until = NO_ROWS

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Nothing was kept."""

    def clear(self) -> None:
        """Forgets the rows of the last step: those of the outer scope get other numbers."""
        self._set(NO_ROWS, NO_ROWS, NO_ROWS, NO_ROWS)
        self.commit()

    def _of_driver(self, driver: Driver, step: Step, since: int) -> tuple[Rows, Rows, Rows, Rows]:
        bound_to = bound_codes(self._outer, driver, self._outer_allowed)
        wanted = driver.wanted(bound_to, self._allowed.could_hold())
        met = driver.pairs.meetings(step, since, wanted)
        bound, codes = met.first, met.second
        if not driver.is_first:
            bound, codes = codes, bound
        if not isinstance(self._outer, JoinedRows):
            return bound, codes, met.begins, met.ends
        owners, parents = self._outer.columns[driver.alias].find(bound)
        return parents, codes[owners], met.begins[owners], met.ends[owners]

    def _begun(self, step: Step) -> Rows:
        """From when on each outer row is evaluated in this step."""
        found = np.full(self._outer.size, step.begin, np.int64)
        found[self._outer.new_rows] = self._outer.new_since
        return found

    def _outer_codes(self, alias: str, parents: Rows) -> Rows:
        if isinstance(self._outer, JoinedRows):
            return self._outer.columns[alias].targets(parents)
        return parents

    def _set(self, parents: Rows, codes: Rows, begins: Rows, ends: Rows) -> None:
        self.size = len(parents)
        self.new_rows = np.arange(self.size)
        self.new_since = self.found_at = begins
        self.new_until = ends
        for name, column in self.columns.items():
            column.keep(NO_ROWS)
            column.add(codes if name == self._alias else self._outer_codes(name, parents))
        self.parents.keep(NO_ROWS)
        self.parents.add(parents)


def joined_stretches(
    parents: Rows, codes: Rows, begins: Rows, ends: Rows
) -> tuple[Rows, Rows, Rows, Rows]:
    """The stretches of each (parent, code), those that touch or overlap as one."""
    if not len(parents):
        return parents, codes, begins, ends
    keys = parents * _MOST_CODES + codes
    low, width = int(begins.min()), int(ends.max()) - int(begins.min()) + 1
    order = _order_of_stretches(parents, codes, begins - low, width)
    keys, begins, ends = keys[order], begins[order], ends[order]
    first = first_of_runs(keys)
    # The latest end so far of each key: keys are numbered, so that those of others are less.
    numbers = np.cumsum(first) - 1
    latest = np.maximum.accumulate(numbers * width + (ends - low)) - numbers * width + low
    starts = first.copy()
    starts[1:] |= begins[1:] > latest[:-1]
    places = np.flatnonzero(starts)
    last = np.append(places[1:], len(keys)) - 1
    chosen = order[places]
    return parents[chosen], codes[chosen], begins[places], latest[last]


def _order_of_stretches(parents: Rows, codes: Rows, begins: Rows, width: int) -> Rows:
    """By parent, code and begin; one number that sorts so is cheaper than three keys."""
    most = int(codes.max()) + 1
    if (int(parents.max()) + 1) * most * width < _LARGEST_KEY:
        keys = (parents * most + codes) * width + begins
        return np.asarray(np.argsort(keys, kind="stable"))
    return np.asarray(np.lexsort((begins, codes, parents)))


class JoinedRows:
    """The rows of an outer scope, each with instances of one more alias."""

    is_passing = False

    def __init__(
        self,
        outer: ConceptRows | ConstantScope | JoinedRows,
        outer_alias: str,
        outer_allowed: AllowedInstances | None,
        alias: str,
        allowed: AllowedInstances,
        different: Sequence[str],
        drivers: Sequence[Driver] | None,
        look_back_ms: int,
    ) -> None:
        """`outer_alias`: of a concept's rows, with `outer_allowed`; `different`: aliases that are
        bound to other instances; `drivers`: one of these pairs is needed; None: none is."""
        self.outer = self._outer = outer
        self._outer_alias, self._outer_allowed = outer_alias, outer_allowed
        self._alias, self._allowed, self._different = alias, allowed, different
        self._drivers, self._look_back = drivers, look_back_ms
        self.parents = RowIndex()
        self.columns: dict[str, RowIndex] = {}
        if isinstance(outer, JoinedRows):
            self.columns = {name: RowIndex() for name in outer.columns}
        elif isinstance(outer, ConceptRows):
            self.columns = {outer_alias: RowIndex()}
        self.columns[alias] = RowIndex()
        self.size = 0
        self._keys: Rows = NO_ROWS
        self._is_restored = True
        self._forget_new()

    def _forget_new(self) -> None:
        self.new_rows = self.new_since = self.new_until = self.found_at = NO_ROWS

    # --- a step ---

    def run(self, step: Step) -> None:
        """Adds the rows that can matter from this step on."""
        parents, codes, found_at = self._candidates(step)
        chosen = self._allowed.could_hold()[codes]
        if self._outer_allowed is not None:
            chosen &= self._outer_allowed.could_hold()[parents]
        for name in self._different:
            chosen &= self._outer_codes(name, parents) != codes
        parents, codes, found_at = parents[chosen], codes[chosen], found_at[chosen]
        keys = parents * _MOST_CODES + codes
        order = np.lexsort((found_at, keys))
        order = order[first_of_runs(keys[order])]
        order = order[~np.isin(keys[order], self._keys, assume_unique=True)]
        self._add(step, parents[order], codes[order], found_at[order])
        self._is_restored = False

    def commit(self) -> None:
        self._forget_new()

    def _candidates(self, step: Step) -> tuple[Rows, Rows, Rows]:
        """Parents, codes of the new alias, and since when both can matter."""
        everything = self._is_restored or self._allowed_changed()
        if self._drivers is None:
            return self._all_candidates(step, everything=everything)
        found, codes = [], self._allowed.could_hold()
        for driver in self._drivers:
            wanted = driver.wanted(bound_codes(self._outer, driver, self._outer_allowed), codes)
            pairs = driver.pairs.find(step, wanted, everything=everything)
            found.append(self._joined(driver, pairs))
            new = self._outer.new_rows
            if isinstance(self._outer, JoinedRows) and len(new):
                since = int(self._outer.new_since.min())
                begun = np.zeros_like(wanted[0 if driver.is_first else 1])
                begun[self._outer_codes(driver.alias, new)] = True
                met = driver.pairs.meetings(step, since, driver.wanted(begun, codes))
                found.append(self._joined(driver, (met.first, met.second, met.begins)))
        return tuple(np.concatenate(column) for column in zip(*found, strict=True))  # type: ignore[return-value]

    def _joined(self, driver: Driver, pairs: tuple[Rows, Rows, Rows]) -> tuple[Rows, Rows, Rows]:
        bound, codes, times = pairs if driver.is_first else (pairs[1], pairs[0], pairs[2])
        if not isinstance(self._outer, JoinedRows):
            return bound, codes, times
        owners, parents = self._outer.columns[driver.alias].find(bound)
        return parents, codes[owners], times[owners]

    def _allowed_changed(self) -> bool:
        """Whether the tables may have changed who is allowed; new identities are found by their
        readings."""
        return self._allowed.tables_changed

    def _all_candidates(self, step: Step, *, everything: bool) -> tuple[Rows, Rows, Rows]:
        codes = np.flatnonzero(self._allowed.could_hold())
        parents = np.arange(self._outer.size)
        if everything:
            chosen = [(parents, codes)]
        else:
            chosen = [(self._new_parents(), codes), (parents, self._new_codes(self._allowed))]
        pairs = [_all_pairs(len(one), len(other)) for one, other in chosen]
        owners = np.concatenate([one[0][pair[0]] for one, pair in zip(chosen, pairs, strict=True)])
        found = np.concatenate([one[1][pair[1]] for one, pair in zip(chosen, pairs, strict=True)])
        since = max(step.start, step.begin - self._look_back)
        return owners, found, np.full(len(owners), since, np.int64)

    def _new_parents(self) -> Rows:
        if self._outer_allowed is not None:
            return self._new_codes(self._outer_allowed)
        return self._outer.new_rows

    @staticmethod
    def _new_codes(allowed: AllowedInstances) -> Rows:
        return distinct(allowed.fresh.rows[allowed.fresh.values == TRUE])

    def _outer_codes(self, alias: str, parents: Rows) -> Rows:
        if isinstance(self._outer, JoinedRows):
            return self._outer.columns[alias].targets(parents)
        return parents

    def _add(self, step: Step, parents: Rows, codes: Rows, found_at: Rows) -> None:
        if not len(parents):
            return
        since = np.maximum(found_at - self._look_back, step.start)
        since = np.maximum(since, step.begin - self._look_back)
        if isinstance(self._outer, JoinedRows) and len(self._outer.new_rows):
            begun = np.full(self._outer.size, np.iinfo(np.int64).min)
            begun[self._outer.new_rows] = self._outer.new_since
            since = np.maximum(since, begun[parents])
        self.new_rows = np.arange(self.size, self.size + len(parents))
        self.new_since, self.found_at = since, np.maximum(found_at, since)
        for name, column in self.columns.items():
            column.add(codes if name == self._alias else self._outer_codes(name, parents))
        self.parents.add(parents)
        self._keys = distinct(np.concatenate((self._keys, parents * _MOST_CODES + codes)))
        self.size += len(parents)

    # --- rows and state ---

    @property
    def may_drop(self) -> bool:
        """Whether rows are added again when they matter."""
        return self._drivers is not None

    def near_rows(self) -> Rows:
        """The rows for which a driver is true now, between steps."""
        found = np.zeros(self.size, np.bool_)
        for driver in self._drivers or ():
            bound, new = self.columns[driver.alias].all(), self.columns[self._alias].all()
            first, second = (bound, new) if driver.is_first else (new, bound)
            found |= driver.pairs.hold_now(first, second)
        return np.flatnonzero(found)

    def keep_rows(self, kept: Rows) -> None:
        """Renumbers the rows: the kept ones get the numbers 0, 1, 2, ..."""
        self.parents.keep(kept)
        for column in self.columns.values():
            column.keep(kept)
        self.size = len(kept)
        self._note_keys()

    def renumber_parents(self, renumbered: Rows) -> None:
        """The rows of the outer scope got other numbers."""
        self.parents.keep(np.arange(self.size), renumbered)
        self._note_keys()

    def _note_keys(self) -> None:
        self._keys = np.sort(self.parents.all() * _MOST_CODES + self.columns[self._alias].all())

    def state(self) -> dict[str, Any]:
        columns = {name: column.all() for name, column in self.columns.items()}
        return {"parents": self.parents.all(), "columns": columns}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.parents.keep(NO_ROWS)
        self.parents.add(state["parents"])
        for name, column in self.columns.items():
            column.keep(NO_ROWS)
            column.add(state["columns"][name])
        self.size = len(self.parents)
        self._note_keys()
        self._is_restored = True
