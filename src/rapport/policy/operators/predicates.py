"""Evaluates terms in bulk: the function of a relationship, or a comparison. [PO-1, PO-3, PO-6]"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from rapport.policy import measures, relations
from rapport.policy.operators.base import PullData
from rapport.policy.operators.columns import (
    Array,
    Columns,
    Mask,
    Rows,
    compare,
    complete_rows,
    present,
)
from rapport.policy.operators.identities import Codes, Identities
from rapport.policy.plan import (
    Compared,
    Constant,
    LastingTerm,
    LookedUp,
    Measure,
    Operand,
    Plan,
    Side,
    SideValue,
    SilentTerm,
    StateTerm,
    TermStep,
    state_atoms,
)

_SMALLER = ("<", "<=")
_LARGER = (">", ">=")
_NEVER = Compared(Constant(math.nan), "=", Constant(math.nan))


class RowOperands(NamedTuple):
    """For both sides the values (n, parts) from events, and the codes.

    Values of a side without a stream may be None: tables give them by code.
    """

    values: tuple[Array | None, Array | None]
    codes: tuple[Codes, Codes]


class Predicate:
    """One term, evaluated for many rows at once; missing values never satisfy it.

    Costs the function; table attributes are gathered by code, looked-up numbers cost a dictionary
    access per row.
    """

    def __init__(
        self, term: StateTerm, identities: Mapping[str, Identities], pull: PullData
    ) -> None:
        self._sides = (term.first, term.second)
        self._identities = tuple(identities[side.concept] for side in self._sides)
        self._pull, self._compared, self._parameter = pull, term.compared, term.parameter
        self._relation = None if term.compared is not None else relations.get(term.function)
        self.contains = self._relation is not None and self._relation.shape == "contains"
        """Whether the term is: the first value, a point, lies in the second, a closed rectangle."""
        compared = term.compared or _NEVER
        self._left, self._right = self._operand(compared.left), self._operand(compared.right)
        self.reach = self._reach()
        """The largest distance of two event points for which it can hold; None: unlimited."""

    def holds(
        self, first: Array | None, second: Array | None, first_codes: Codes, second_codes: Codes
    ) -> Mask:
        """For each row whether it holds."""
        operands = RowOperands((first, second), (first_codes, second_codes))
        if self._relation is not None:
            ends = self._own_value(operands, 0), self._own_value(operands, 1)
            return self._relation.holds_many(*ends, self._parameter)
        assert self._compared is not None
        return compare(self._left(operands), self._compared.operator, self._right(operands))

    def holds_of(self, first: Columns, here: Rows, second: Columns, there: Rows) -> Mask:
        """The same for rows of two tables of events."""
        values = first["value"][here], second["value"][there]
        if self._relation is not None:
            return self._relation.holds_many(*values, self._parameter)
        return self.holds(*values, first["code"][here], second["code"][there])

    def measured(
        self, first: Array | None, second: Array | None, first_codes: Codes, second_codes: Codes
    ) -> Array:
        """The number that is compared with the term's constant: for a distance its square (with the
        rounding of `relations.WITHIN`), else the other operand."""
        operands = RowOperands((first, second), (first_codes, second_codes))
        if self._compared is None:
            here, there = self._own_value(operands, 0), self._own_value(operands, 1)
            dx, dy = here[:, 0] - there[:, 0], here[:, 1] - there[:, 1]
            return np.asarray(dx * dx + dy * dy, np.float64)
        is_left = isinstance(self._compared.right, Constant)
        return np.asarray((self._left if is_left else self._right)(operands), np.float64)

    def known(
        self, first: Array | None, second: Array | None, first_codes: Codes, second_codes: Codes
    ) -> Mask:
        """For each row whether all values are present: only then not holding means false."""
        operands = RowOperands((first, second), (first_codes, second_codes))
        if self._relation is not None:
            return complete_rows(self._own_value(operands, 0)) & complete_rows(
                self._own_value(operands, 1)
            )
        rows = len(first_codes)
        return present(self._left(operands), rows) & present(self._right(operands), rows)

    def _own_value(self, operands: RowOperands, place: int) -> Array:
        given = operands.values[place]
        if given is not None:
            return given
        return self._from_tables(operands, place, self._sides[place].attribute)

    def _value(self, value: SideValue) -> Callable[[RowOperands], Array]:
        """Values (n, parts) of an attribute of one side."""
        place, side = value.side, self._sides[value.side]
        if side.stream is not None and value.attribute == side.attribute:
            return lambda operands: self._own_value(operands, place)
        return lambda operands: self._from_tables(operands, place, value.attribute)

    def _from_tables(self, operands: RowOperands, place: int, attribute: str) -> Array:
        return self._identities[place].values(attribute, operands.codes[place])

    def _operand(self, operand: Operand) -> Callable[[RowOperands], Any]:
        """One value per row, or a scalar."""
        if isinstance(operand, Constant):
            return lambda _: operand.value
        if isinstance(operand, SideValue):
            value = self._value(operand)
            return lambda operands: value(operands)[:, 0]
        values = [self._value(value) for value in operand.of]
        if isinstance(operand, Measure):
            measuring = measures.get(operand.function)
            return lambda operands: _measured(measuring, [value(operands) for value in values])
        pairs = self._pull.pairs(operand.function)
        return lambda operands: _looked_up(pairs, [value(operands)[:, 0] for value in values])

    def _reach(self) -> float | None:
        if self._compared is not None:
            return self._compared_reach(self._compared)
        assert self._relation is not None
        return float(self._parameter or 0.0) if self._relation.shape == "distance" else None

    def _compared_reach(self, compared: Compared) -> float | None:
        """The reach of `distance(A, B) < c` and similar comparisons."""
        near, bound = compared.left, compared.right
        if compared.operator in _LARGER:
            near, bound = bound, near
        elif compared.operator not in _SMALLER:
            return None
        if not isinstance(near, Measure) or not _is_distance(near, self._sides):
            return None
        if isinstance(bound, Constant):
            reach = float(bound.value)
        elif isinstance(bound, LookedUp):
            known = self._pull.pairs(bound.function).values()
            reach = max((number for number in known if not math.isnan(number)), default=0.0)
        else:
            return None
        return max(reach, 0.0) if math.isfinite(reach) else None


def _is_distance(measure: Measure, sides: tuple[Side, Side]) -> bool:
    """Whether it is the distance of the two points that events bring."""
    own = {place for place, side in enumerate(sides) if side.stream is not None}
    ends = {value.side for value in measure.of if value.attribute == sides[value.side].attribute}
    return own == ends == {0, 1} and measures.get(measure.function).shape == "distance"


def _measured(measuring: measures.Measuring, values: list[Array]) -> Array:
    """Evaluates a measure; NaN where a part is missing."""
    complete = np.logical_and.reduce([complete_rows(value) for value in values])
    if complete.all():
        return measuring.many(*values)
    found = np.full(len(complete), math.nan)
    if complete.any():
        found[complete] = measuring.many(*(value[complete] for value in values))
    return found


def _looked_up(pairs: Mapping[tuple[str, ...], float], texts: list[Array]) -> Array:
    keys = zip(*(column.tolist() for column in texts), strict=True)
    return np.fromiter((pairs.get(key, math.nan) for key in keys), np.float64, len(texts[0]))


def looked_up(plan: Plan) -> frozenset[str]:
    """The looked-up site functions of a plan."""
    found: set[str] = set()
    for term in plan.terms:
        for compared in _comparisons(term):
            operands = (compared.left, compared.right)
            found |= {one.function for one in operands if isinstance(one, LookedUp)}
    return frozenset(found)


def is_built_in(term: StateTerm) -> bool:
    """Whether it uses no Python function of the site."""
    if term.compared is None:
        return term.function in relations.BUILT_IN
    operands = (term.compared.left, term.compared.right)
    return all(one.function in measures.BUILT_IN for one in operands if isinstance(one, Measure))


def is_of_tables_alone(term: StateTerm) -> bool:
    """Whether only instances decide it: no function or looked-up table of the site."""
    ends = () if term.compared is None else (term.compared.left, term.compared.right)
    return is_built_in(term) and not any(isinstance(one, LookedUp) for one in ends)


def _comparisons(term: TermStep) -> Iterator[Compared]:
    if isinstance(term, LastingTerm):
        for atom in state_atoms(term.state):
            yield from _comparisons(atom.term)
    elif not isinstance(term, SilentTerm) and term.compared is not None:
        yield term.compared
