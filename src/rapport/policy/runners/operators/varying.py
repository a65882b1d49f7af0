"""What a family of plans differs in, as the operator sees it: one number per row, the *need*, says
for whom of them the row counts. [PO-13]

Where constants are ordered, a row counts for every member whose constant is larger than the need
(or as large); else the need is the number of the value, and counts for those who named that value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rapport.policy.plan import Constraint
from rapport.policy.runners.operators.identities import Codes, Identities, OneOfConstraint
from rapport.policy.runners.operators.predicate import Predicate
from rapport.policy.runners.operators.table import Array
from rapport.tables.instances import Instances

NEED = "need"
"""The column."""


class VaryingTerm:
    """The members differ in the constant of one term: what that is compared with, turned so that
    smaller needs count for more members.
    """

    nested, alias = True, None

    def __init__(self, term: int, *, absent: bool, sign: int) -> None:
        self.term, self.absent, self._sign = term, absent, sign

    def needs(
        self,
        predicate: Predicate,
        first: Array | None,
        second: Array | None,
        first_codes: Codes,
        second_codes: Codes,
    ) -> Array:
        """The need of each row of which the term holds for the member with the largest constant."""
        number = predicate.measured(first, second, first_codes, second_codes)
        return np.asarray(number if self._sign > 0 else -number, np.float64)


class VaryingProperty:
    """The members differ in what they ask of one alias's instance."""

    term = None

    def __init__(
        self, alias: str, attribute: str, *, absent: bool, sign: int, choice: ValueChoice | None
    ) -> None:
        """`choice`: the values asked for; None: a number is compared, turned by `sign`."""
        self.alias, self.absent = f"@{alias}", absent
        self.nested = choice is None
        self._attribute, self._sign, self._choice = attribute, sign, choice

    def needs(self, identities: Identities, codes: Codes) -> Array:
        """The need of each identity."""
        values = identities.values(self._attribute, codes)[:, 0]
        if self._choice is not None:
            return self._choice.of(values)
        return np.asarray(values if self._sign > 0 else -values, np.float64)


Varying = VaryingTerm | VaryingProperty


class ValueChoice:
    """Values that members ask for with `=`, numbered; asked by column, a dictionary look-up each.

    How a constant is read depends on what the tables hold: texts, truths or numbers.
    """

    def __init__(self, instances: Instances, attribute: str, constants: Sequence[Any]) -> None:
        self._read = _reader(instances, attribute)
        self._numbers: dict[Any, int] = {}
        for constant in constants:
            self._numbers.setdefault(self._read(constant), len(self._numbers))

    def number(self, constant: Any) -> int:
        """The number of a constant, -1 when none of the members asked for it."""
        return self._numbers.get(self._read(constant), -1)

    def of(self, values: Array) -> Array:
        """The number of each value; -1 where nobody asks for it."""
        get = self._numbers.get
        return np.fromiter((get(value, -1) for value in values.tolist()), np.int64, len(values))

    def constraint(self, attribute: str) -> Constraint:
        """The constraint that somebody's value is met."""
        return OneOfConstraint(attribute, "=", "", choice=self)


def _reader(instances: Instances, attribute: str) -> Any:
    column = instances.columns.get(attribute)
    if column is None:
        return str
    if column.dtype != object:
        return float
    some = next((value for value in column.tolist() if value is not None), None)
    return _truth if isinstance(some, bool) else str


def _truth(constant: Any) -> bool:
    return constant.lower() == "true" if isinstance(constant, str) else bool(constant)
