"""The plans of a family and what each of them says: for whom a match counts. [PO-13]"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from rapport.policy.runners.operators.table import Array, Columns, Mask, Rows, count, spread
from rapport.policy.runners.operators.varying import NEED, Varying

_REFUTED = "refuted"
_NONE: Rows = np.zeros(0, np.int64)


class FamilyMember(NamedTuple):
    """One plan: `constant` as the needs are compared with it, or the number of its value."""

    policy: str
    version: str
    constant: float


class FamilyMembers:
    """The members by constant; those for whom a row counts are found by two searches.

    `strict`: a row counts for constants larger than its need, else also for the equal one.
    """

    def __init__(self, varying: Varying | None, *, strict: bool = False) -> None:
        """Without `varying` the members are all alike."""
        self.varying = varying
        self._side: Literal["left", "right"] = "right" if strict else "left"
        self._values = 0
        self._members: dict[str, FamilyMember] = {}
        self.ordered: list[FamilyMember] = []
        """By constant."""
        self.ranks: Rows = _NONE
        """The place of each, as ordered, among the names."""
        self._constants: Array = np.zeros(0)

    def __len__(self) -> int:
        return len(self.ordered)

    def __contains__(self, policy: object) -> bool:
        return policy in self._members

    def add(self, *members: FamilyMember) -> None:
        """Takes plans in; costs a sort."""
        self._members |= {member.policy: member for member in members}
        self._arrange()

    def remove(self, policy: str) -> None:
        """Leaves a plan out."""
        del self._members[policy]
        self._arrange()

    def version(self, policy: str) -> str:
        """The version of a member's plan."""
        return self._members[policy].version

    def names(self) -> list[str]:
        """The policies."""
        return list(self._members)

    def refute(self, frame: Columns, counterexamples: list[Columns]) -> Columns:
        """Notes for whom matches do not count because of these."""
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
        """Every (row, place of a member as ordered) of the matches that count for somebody."""
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
