"""Query terms: which instances stand in the relationship with the value an event brings. [PO-6]"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rapport.policy import relations
from rapport.policy.plan import ConstraintTerm, QueryTerm, Side
from rapport.policy.runners.operators.grid import Grid
from rapport.policy.runners.operators.identities import Codes, Identities, satisfies
from rapport.policy.runners.operators.table import Rows

_MOST_PAIRS = 1 << 21


class Lookup:
    """The instances of one side that satisfy its constraints, asked for many event values at once.

    Points in rectangles go through a grid; any other function is tried on every instance.
    """

    def __init__(self, term: QueryTerm, identities: Identities) -> None:
        self._event_is_first = term.first.stream is not None
        side = term.second if self._event_is_first else term.first
        self._relation = relations.get(term.function)
        self._parameter = term.parameter
        self._codes, self._values = instance_values(side, identities)
        contains = self._relation.shape == "contains" and self._event_is_first
        self._grid = Grid(self._values) if contains and Grid.can_hold(self._values) else None

    def find(self, values: npt.NDArray[Any]) -> tuple[Rows, Codes]:
        """Pairs (row of `values`, code of an instance) that stand in the relationship, by row."""
        if not len(self._codes) or not len(values):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        if self._grid is not None:
            rows, found = self._grid.candidates(values)
            return self._holding(values, rows, found)
        step = max(_MOST_PAIRS // len(self._codes), 1)
        parts = [
            self._every(values[first : first + step], first)
            for first in range(0, len(values), step)
        ]
        return np.concatenate([part[0] for part in parts]), np.concatenate([p[1] for p in parts])

    def _every(self, values: npt.NDArray[Any], first: int) -> tuple[Rows, Codes]:
        rows = np.repeat(np.arange(len(values)), len(self._codes))
        found = np.tile(np.arange(len(self._codes)), len(values))
        chosen, codes = self._holding(values, rows, found)
        return chosen + first, codes

    def _holding(self, values: npt.NDArray[Any], rows: Rows, found: Rows) -> tuple[Rows, Codes]:
        events, instances = values[rows], self._values[found]
        first, second = (events, instances) if self._event_is_first else (instances, events)
        mask = self._relation.holds_many(first, second, self._parameter)
        return rows[mask], self._codes[found[mask]]


def instance_values(side: Side, identities: Identities) -> tuple[Codes, npt.NDArray[Any]]:
    """Codes and values (n, parts) of the instances that satisfy the side's constraints."""
    instances = identities.instances
    column = instances.columns.get(side.attribute)
    if column is None:
        return np.zeros(0, np.int64), np.zeros((0, 1))
    rows = np.flatnonzero(satisfies(instances, side.constraints))
    codes = identities.encode_list([instances.ids[row] for row in rows])
    values = column[rows]
    return codes, values if values.ndim == 2 else values.reshape(-1, 1)


def constraint_pairs(
    term: ConstraintTerm, first: Identities, second: Identities
) -> tuple[Codes, Codes]:
    """Codes of all pairs of instances that stand in a relationship no event takes part in."""
    relation = relations.get(term.function)
    first_codes, first_values = instance_values(term.first, first)
    second_codes, second_values = instance_values(term.second, second)
    found: list[tuple[Codes, Codes]] = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    for code, value in zip(first_codes, first_values, strict=True):
        repeated = np.broadcast_to(value, (len(second_codes), len(value)))
        mask = relation.holds_many(repeated, second_values, term.parameter)
        found.append((np.full(int(mask.sum()), code), second_codes[mask]))
    return np.concatenate([pair[0] for pair in found]), np.concatenate([p[1] for p in found])
