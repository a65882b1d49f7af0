"""How near a relationship or comparison came to holding, in numbers and in words. [PO-11]"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rapport.policy import relations
from rapport.policy.explaining.attempts import Attempt, TimeSpan, attempts
from rapport.policy.explaining.geometry import distance, distances_outside
from rapport.policy.explaining.holding import operands, values
from rapport.policy.explaining.wording import Wording, approximate, value_text
from rapport.policy.explaining.world import Evidence
from rapport.policy.plan import StateTerm


class Proximity:
    """Measures attempts at the terms of one policy."""

    def __init__(self, world: Evidence, wording: Wording) -> None:
        self.world, self.wording = world, wording

    def measured(self, term: StateTerm, attempt: Attempt) -> str:
        """What a relationship or comparison saw, in numbers."""
        bindings = attempt.bindings
        if term.compared is not None:
            left, right = operands(self.world, term, bindings, attempt.events)
            unit = self.wording.unit(term)
            if self.wording.is_truth(term):
                left, right = (one if one is None else bool(one) for one in (left, right))
            said = [f"{value_text(one)} {unit}".rstrip() for one in (left, right)]
            if left is None or right is None:
                return f"{said[0]} and {said[1]} cannot be compared"
            word = "is" if attempt.truth else "is not"
            return f"{said[0]} {word} {term.compared.operator} {said[1]}"
        first, second = values(self.world, term, bindings, attempt.events)
        names = bindings[term.first.alias], bindings[term.second.alias]
        if first is None or second is None:
            side = term.first if first is None else term.second
            return f"{side.attribute} of {bindings[side.alias]} is missing"
        shape = relations.get(term.function).shape
        if shape == "distance":
            return f"{names[0]} and {names[1]} were {approximate(distance(first, second))} m apart"
        if shape == "contains":
            out = float(distances_outside(first, np.array([second]))[0])
            where = "inside" if out == 0 else f"{approximate(out)} m outside"
            return f"{names[0]} was {where} {names[1]}"
        holds = "holds" if attempt.truth else "does not hold"
        return f"it {holds} of {names[0]} and {names[1]}"

    def nearest(
        self, term: StateTerm, bindings: Mapping[str, str], span: TimeSpan, most: int
    ) -> list[dict[str, str]]:
        """The different identities that came nearest to a term, nearest first."""
        tried = attempts(self.world, term, bindings, span)
        tried.sort(key=lambda one: self.rank(term, one, span))
        found: list[dict[str, str]] = []
        for one in tried:
            if one.bindings not in found and len(found) < most:
                found.append(one.bindings)
        return found

    def rank(self, term: StateTerm, attempt: Attempt, span: TimeSpan) -> tuple[float, int]:
        """Nearest to holding first, then nearest in time."""
        time = min((span.distance(one.time) for one in attempt.events.values()), default=0)
        return (self._margin(term, attempt), time)

    def _margin(self, term: StateTerm, attempt: Attempt) -> float:
        if term.compared is not None:
            left, right = operands(self.world, term, attempt.bindings, attempt.events)
            if isinstance(left, float | int) and isinstance(right, float | int):
                return abs(left - right)
            return 0.0
        first, second = values(self.world, term, attempt.bindings, attempt.events)
        if first is None or second is None:
            return float("inf")
        shape = relations.get(term.function).shape
        if shape == "distance":
            return distance(first, second)
        if shape == "contains":
            return float(distances_outside(first, np.array([second]))[0])
        return 0.0
