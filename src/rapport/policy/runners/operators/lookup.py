"""Query terms: which instances stand in the relationship with the value an event brings. [PO-6]"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from rapport.policy.plan import ConstraintTerm, QueryTerm, Side
from rapport.policy.runners.operators.compare import complete_rows
from rapport.policy.runners.operators.grid import Grid
from rapport.policy.runners.operators.identities import Codes, Identities, satisfies
from rapport.policy.runners.operators.predicate import Predicate
from rapport.policy.runners.operators.table import Rows

_MOST_PAIRS = 1 << 21
_NONE = np.zeros(0, np.int64)


class Lookup:
    """The instances of one side that satisfy its constraints, asked for many event values at once.

    Points in rectangles go through a grid; any other function is tried on every instance.
    """

    def __init__(self, term: QueryTerm, identities: Identities, predicate: Predicate) -> None:
        self._event_is_first = term.first.stream is not None
        side = term.second if self._event_is_first else term.first
        self._predicate = predicate
        self._codes = instance_codes(side, identities, term.compared is None)
        self._values = None
        if term.compared is None:
            values = identities.values(side.attribute, self._codes)
            # What misses its value stands in no relationship; one such would forbid the grid.
            complete = complete_rows(values)
            self._codes, self._values = self._codes[complete], values[complete]
        self._grid = None
        if predicate.contains and self._event_is_first and self._values is not None:
            self._grid = Grid(self._values) if Grid.can_hold(self._values) else None

    def find(self, values: npt.NDArray[Any], codes: Codes) -> tuple[Rows, Codes]:
        """Pairs (row of `values`, code of an instance) that stand in the relationship, by row;
        `codes` say whose values they are.
        """
        if not len(self._codes) or not len(values):
            return _NONE, _NONE
        if self._grid is not None:
            rows, found = self._grid.candidates(values)
            return self._holding(values, codes, rows, found)
        step = max(_MOST_PAIRS // len(self._codes), 1)
        parts = [
            self._every(values, codes, first, min(first + step, len(values)))
            for first in range(0, len(values), step)
        ]
        return np.concatenate([part[0] for part in parts]), np.concatenate([p[1] for p in parts])

    def _every(
        self, values: npt.NDArray[Any], codes: Codes, first: int, last: int
    ) -> tuple[Rows, Codes]:
        rows = np.repeat(np.arange(first, last), len(self._codes))
        found = np.tile(np.arange(len(self._codes)), last - first)
        return self._holding(values, codes, rows, found)

    def _holding(
        self, values: npt.NDArray[Any], codes: Codes, rows: Rows, found: Rows
    ) -> tuple[Rows, Codes]:
        event, whose, with_whom = values[rows], _NONE, _NONE
        instance: npt.NDArray[Any] | None = None
        if self._values is not None:  # a relationship looks at values only
            instance = self._values[found]
        else:
            whose, with_whom = codes[rows], self._codes[found]
        if self._event_is_first:
            mask = self._predicate.holds(event, instance, whose, with_whom)
        else:
            mask = self._predicate.holds(instance, event, with_whom, whose)
        return rows[mask], self._codes[found[mask]]


def instance_codes(side: Side, identities: Identities, with_value: bool) -> Codes:
    """Codes of the instances that satisfy the side's constraints, in the order of the tables; none
    when no table gives the attribute and that is asked for.
    """
    instances = identities.instances
    if with_value and not identities.has(side.attribute):
        return _NONE
    rows = np.flatnonzero(satisfies(instances, side.constraints))
    return identities.encode_list([instances.ids[row] for row in rows])


def constraint_pairs(
    term: ConstraintTerm, first: Identities, second: Identities, predicate: Predicate
) -> tuple[Codes, Codes]:
    """Codes of all pairs of instances that stand in a relationship no event takes part in; of all
    instances, each with itself, when both sides are one alias.
    """
    found = [(_NONE, _NONE)]
    with_value = term.compared is None
    ours = instance_codes(term.first, first, with_value)
    theirs = instance_codes(term.second, second, with_value)
    one_alias = term.first.alias == term.second.alias and len(ours) == len(theirs)
    for left, right in [(ours, theirs)] if one_alias else _every_pair(ours, theirs):
        mask = predicate.holds(None, None, left, right)
        found.append((left[mask], right[mask]))
    return np.concatenate([pair[0] for pair in found]), np.concatenate([p[1] for p in found])


def _every_pair(ours: Codes, theirs: Codes) -> Iterator[tuple[Codes, Codes]]:
    step = max(_MOST_PAIRS // max(len(theirs), 1), 1)
    for start in range(0, len(ours), step):
        some = ours[start : start + step]
        yield np.repeat(some, len(theirs)), np.tile(theirs, len(some))
