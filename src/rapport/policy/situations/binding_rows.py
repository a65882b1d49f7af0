"""The rows of several aliases: bindings that can matter.

Most pairs of instances are never near each other. Where a relationship must be true for a condition
to be, only the pairs for which it is or was true become rows. A row that is added later is
evaluated from as far back as its conditions look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rapport.policy.operators.columns import NO_ROWS, Array, Rows, spread
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
    renumbering,
)

_MOST_CODES = 1 << 31


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


def stretches(trace: Trace, step: Step, since: int, rows: Rows | None = None) -> Stretches:
    """The values of a trace from a time within the history to the end of the step."""
    points = trace.points
    chosen = points.times > since
    if rows is None:
        rows = np.arange(trace.scope.size)
    else:
        chosen &= np.isin(points.rows, rows)
    points = points.take(chosen)
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


class NearPairs:
    """The pairs of instances for which a relationship of two positions is true at some time."""

    def __init__(
        self, relation: Relation, parameter: float | None, first: Trace, second: Trace
    ) -> None:
        self._relation, self._parameter = relation, parameter
        self.first, self.second = first, second

    def find(self, step: Step, *, everything: bool) -> tuple[Rows, Rows, Rows]:
        """The pairs (first, second) that may have become true in this step, and since when.

        `everything`: also those that were true before.
        """
        first, second = (self._of_step(trace, step) for trace in (self.first, self.second))
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

    def find_of(
        self, step: Step, rows: Rows, since: int, *, of_first: bool
    ) -> tuple[Rows, Rows, Rows]:
        """The pairs of some instances of one side, from a time within the history on."""
        rows = distinct(rows)
        first = stretches(self.first, step, since, rows if of_first else None)
        second = stretches(self.second, step, since, None if of_first else rows)
        return self._join(first, second)

    def _of_step(self, trace: Trace, step: Step) -> Stretches:
        return stretches(trace, step, step.begin - 1)

    def _join(self, first: Stretches, second: Stretches) -> tuple[Rows, Rows, Rows]:
        if not len(first.rows) or not len(second.rows):
            return NO_ROWS, NO_ROWS, NO_ROWS
        if self._relation.shape == "contains":
            bounds = self._relation.bounds
            rectangles = second.values if bounds is None else bounds(second.values)
            if not Grid.can_hold(rectangles):
                owners, places = _all_pairs(len(first.rows), len(second.rows))
            else:
                owners, places = Grid(rectangles).candidates(first.values)
        else:
            reach = Reach(self._parameter or 0.0, self._relation.space)
            owners, places = _near_points(first.values, second.values, reach)
        begins = np.maximum(first.begins[owners], second.begins[places])
        ends = np.minimum(first.ends[owners], second.ends[places])
        met = begins < ends
        owners, places, begins = owners[met], places[met], begins[met]
        holds = self._relation.holds_many(
            first.values[owners], second.values[places], self._parameter
        )
        return first.rows[owners[holds]], second.rows[places[holds]], begins[holds]


def _all_pairs(first: int, second: int) -> tuple[Rows, Rows]:
    return np.repeat(np.arange(first), second), np.tile(np.arange(second), first)


def _near_points(first: Array, second: Array, reach: Reach) -> tuple[Rows, Rows]:
    """Pairs (first, second) of points in neighbouring cells."""
    cells = reach.cells(second)
    order = np.argsort(cells, kind="stable")
    cells = cells[order]
    own = reach.cells(first)
    found = []
    for step in reach.around():
        begins = np.searchsorted(cells, own + step).astype(np.int64)
        ends = np.searchsorted(cells, own + step, "right").astype(np.int64)
        owners, places = spread(begins, ends)
        found.append((owners, order[places]))
    return np.concatenate([one for one, _ in found]), np.concatenate([one for _, one in found])


class Driver(NamedTuple):
    """Pairs of an alias bound before and the new one, of which a condition needs one."""

    pairs: NearPairs
    alias: str
    """The one bound before."""
    is_first: bool
    """Whether that is the first side of the pairs."""


class BindingRows:
    """The rows of an outer scope, each with instances of one more alias."""

    def __init__(
        self,
        outer: ConceptRows | ConstantScope | BindingRows,
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
        self._outer, self._outer_alias, self._outer_allowed = outer, outer_alias, outer_allowed
        self._alias, self._allowed, self._different = alias, allowed, different
        self._drivers, self._look_back = drivers, look_back_ms
        self.parents = RowIndex()
        self.columns: dict[str, RowIndex] = {}
        if isinstance(outer, BindingRows):
            self.columns = {name: RowIndex() for name in outer.columns}
        elif isinstance(outer, ConceptRows):
            self.columns = {outer_alias: RowIndex()}
        self.columns[alias] = RowIndex()
        self.size = 0
        self._keys: Rows = NO_ROWS
        self._is_restored = True
        self._forget_new()

    def _forget_new(self) -> None:
        self.new_rows = self.new_since = self.found_at = NO_ROWS

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
        found = []
        for driver in self._drivers:
            pairs = driver.pairs.find(step, everything=everything)
            found.append(self._joined(driver, pairs))
            new = self._outer.new_rows
            if isinstance(self._outer, BindingRows) and len(new):
                since = int(self._outer.new_since.min())
                codes = self._outer_codes(driver.alias, new)
                pairs = driver.pairs.find_of(step, codes, since, of_first=driver.is_first)
                found.append(self._joined(driver, pairs))
        return tuple(np.concatenate(column) for column in zip(*found, strict=True))  # type: ignore[return-value]

    def _joined(self, driver: Driver, pairs: tuple[Rows, Rows, Rows]) -> tuple[Rows, Rows, Rows]:
        bound, codes, times = pairs if driver.is_first else (pairs[1], pairs[0], pairs[2])
        if not isinstance(self._outer, BindingRows):
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
        if isinstance(self._outer, BindingRows):
            return self._outer.columns[alias].targets(parents)
        return parents

    def _add(self, step: Step, parents: Rows, codes: Rows, found_at: Rows) -> None:
        if not len(parents):
            return
        since = np.maximum(found_at - self._look_back, step.start)
        since = np.maximum(since, step.begin - self._look_back)
        if isinstance(self._outer, BindingRows) and len(self._outer.new_rows):
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

    def keep_rows(self, kept: Rows, outer: Rows | None) -> None:
        """Renumbers the rows; `outer`: the kept rows of the outer scope, None: all."""
        renumbered = None if outer is None else renumbering(outer, int(outer.max(initial=-1)) + 1)
        self.parents.keep(kept, renumbered)
        for column in self.columns.values():
            column.keep(kept)
        self.size = len(kept)
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
        self._keys = np.sort(self.parents.all() * _MOST_CODES + self.columns[self._alias].all())
        self._is_restored = True
