"""Families of plans that differ in one constant: for which members a row counts. [PO-13]

One number per row, the *need*, decides that. For ordered constants a row counts for every member
whose constant is larger than the need (or equal); otherwise the need is the number of a value and
counts for the members with that value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from rapport.policy.operators.columns import NO_ROWS, Array, Columns, Mask, Rows, count, spread
from rapport.policy.operators.identities import Codes, Identities, OneOfConstraint, StreamRows
from rapport.policy.operators.occurrences import Predicate, StreamOccurrences
from rapport.policy.plan import Constraint, Plan
from rapport.tables.instances import Instances

NEED = "need"
"""The column of needs."""
_REFUTED = "refuted"


class VaryingTerm:
    """The members differ in the constant of one term; needs are oriented so that smaller ones count
    for more members."""

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
        """The need of each row for which the least restrictive member's term holds."""
        number = predicate.measured(first, second, first_codes, second_codes)
        return np.asarray(number if self._sign > 0 else -number, np.float64)


class VaryingProperty:
    """The members differ in a constraint of one alias."""

    term = None

    def __init__(
        self, alias: str, attribute: str, *, absent: bool, sign: int, choice: ValueChoice | None
    ) -> None:
        """`choice`: the values of the members; None: numbers are compared, oriented by `sign`."""
        self.alias, self.absent = f"@{alias}", absent
        self.nested = choice is None
        self._attribute, self._sign, self._choice = attribute, sign, choice

    def needs(self, identities: Identities, codes: Codes) -> Array:
        values = identities.values(self._attribute, codes)[:, 0]
        if self._choice is not None:
            return self._choice.of(values)
        return np.asarray(values if self._sign > 0 else -values, np.float64)


Varying = VaryingTerm | VaryingProperty


class ValueChoice:
    """The values that members require with `=`, numbered.

    A constant is read as text, boolean or number, depending on the tables.
    """

    def __init__(self, instances: Instances, attribute: str, constants: Sequence[Any]) -> None:
        self._read = _reader(instances, attribute)
        self._numbers: dict[Any, int] = {}
        for constant in constants:
            self._numbers.setdefault(self._read(constant), len(self._numbers))

    def number(self, constant: Any) -> int:
        """The number of a constant, -1 if no member has it."""
        return self._numbers.get(self._read(constant), -1)

    def of(self, values: Array) -> Array:
        """The number of each value, -1 if no member has it."""
        get = self._numbers.get
        return np.fromiter((get(value, -1) for value in values.tolist()), np.int64, len(values))

    def constraint(self, attribute: str) -> Constraint:
        """The constraint that some member's value is met."""
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


class VariantMask:
    """Computes the needs of occurrences and matches of one plan; no columns if it is no family."""

    def __init__(
        self,
        plan: Plan,
        varying: Varying | None,
        predicates: Mapping[int, Predicate],
        identities_of: Callable[[str], Identities],
    ) -> None:
        """`predicates`: by term; `identities_of`: by alias."""
        self._plan, self._varying = plan, varying
        self._predicates, self._identities_of = predicates, identities_of

    def of_term(self, number: int) -> VaryingTerm | None:
        """The varying term if it is this one."""
        varying = self._varying
        return varying if isinstance(varying, VaryingTerm) and varying.term == number else None

    def of_values(
        self, number: int, first: Any, second: Any, first_codes: Rows, second_codes: Rows
    ) -> Columns:
        """The needs of identities and event values (None: from tables)."""
        varies = self.of_term(number)
        if varies is None:
            return {}
        predicate = self._predicates[number]
        return {NEED: varies.needs(predicate, first, second, first_codes, second_codes)}

    def of_rows(self, number: int, rows: StreamRows, occurred: StreamOccurrences) -> Columns:
        """The needs of occurrences of rows."""
        term = self._plan.terms[number]
        first, second = (
            rows.values[occurred.places] if side.stream is not None else None
            for side in (term.first, term.second)
        )
        codes = occurred.columns["first"], occurred.columns["second"]
        return self.of_values(number, first, second, *codes)

    def of_pairs(
        self, number: int, first: Columns, here: Rows, second: Columns, there: Rows
    ) -> Columns:
        """The needs of pairs of events."""
        if self.of_term(number) is None:
            return {}
        ends = first["value"][here], second["value"][there]
        codes = first["code"][here], second["code"][there]
        return self.of_values(number, *ends, *codes)

    def joined(self, frame: Columns) -> Columns:
        """Adds the needs of the varying alias once the frame has it and only absence
        mentions it."""
        varying = self._varying
        if not isinstance(varying, VaryingProperty) or not varying.absent or NEED in frame:
            return frame
        return self.of_alias(varying, frame) if varying.alias in frame else frame

    def of_alias(self, varying: VaryingProperty, frame: Columns) -> Columns:
        """Adds the needs of an alias of the frame."""
        identities = self._identities_of(varying.alias[1:])
        return frame | {NEED: varying.needs(identities, frame[varying.alias])}


class FamilyMember(NamedTuple):
    """One plan; `constant` as compared with needs, or the number of its value."""

    policy: str
    version: str
    constant: float


class FamilyMembers:
    """The members by constant; two binary searches find those for which a row counts.

    `strict`: a row counts for constants larger than its need, else also for an equal one.
    """

    def __init__(self, varying: Varying | None, *, strict: bool = False) -> None:
        """`varying` None: the members are equal."""
        self.varying = varying
        self._side: Literal["left", "right"] = "right" if strict else "left"
        self._values = 0
        self._members: dict[str, FamilyMember] = {}
        self.ordered: list[FamilyMember] = []
        """By constant."""
        self.ranks: Rows = NO_ROWS
        """The rank by name of each ordered member."""
        self._constants: Array = np.zeros(0)

    def __len__(self) -> int:
        return len(self.ordered)

    def __contains__(self, policy: object) -> bool:
        return policy in self._members

    def add(self, *members: FamilyMember) -> None:
        self._members |= {member.policy: member for member in members}
        self._arrange()

    def remove(self, policy: str) -> None:
        del self._members[policy]
        self._arrange()

    def version(self, policy: str) -> str:
        return self._members[policy].version

    def refute(self, frame: Columns, counterexamples: list[Columns]) -> Columns:
        """Records the members for which counterexamples refute matches."""
        rows = count(frame)
        nested = self.varying is None or self.varying.nested
        for found in counterexamples:
            if nested:
                least = frame.get(NEED, np.full(rows, np.inf)).copy()
                np.minimum.at(least, found["row"], found[NEED])
                frame = frame | {NEED: least}
            else:
                refuted = frame.get(_REFUTED, np.zeros((rows, self._values), np.bool_)).copy()
                known = (found[NEED] >= 0) & (found[NEED] < self._values)
                refuted[found["row"][known], found[NEED][known]] = True
                frame = frame | {_REFUTED: refuted}
        return frame

    def pairs(self, frame: Columns) -> tuple[Rows, Rows]:
        """Every (row, index of an ordered member) for which the match counts."""
        rows, everybody = count(frame), len(self.ordered)
        zeros, most = np.zeros(rows, np.int64), np.full(rows, everybody)
        if _REFUTED in frame:
            first, second = np.nonzero(self._not_refuted(frame[_REFUTED]))
            return first, second
        if self.varying is None or NEED not in frame:
            return spread(zeros, most)
        needs = frame[NEED]
        if not self.varying.nested:
            last = np.searchsorted(self._constants, needs, "right")
            return spread(np.searchsorted(self._constants, needs, "left"), last)
        first = np.searchsorted(self._constants, needs, self._side)
        return spread(zeros, first) if self.varying.absent else spread(first, most)

    def _not_refuted(self, refuted: Mask) -> Mask:
        return np.asarray(~refuted[:, self._constants.astype(np.int64)])

    def _arrange(self) -> None:
        self.ordered = sorted(self._members.values(), key=lambda one: (one.constant, one.policy))
        self._constants = np.array([member.constant for member in self.ordered])
        names = sorted(self._members)
        places = {name: place for place, name in enumerate(names)}
        self.ranks = np.array([places[member.policy] for member in self.ordered], np.int64)
        if self.varying is not None and not self.varying.nested:
            self._values = int(self._constants.max(initial=-1)) + 1
