"""What is visible in an interpretation: its own and all that it inherits. [ME-5]

Inherited as in section 4.2.1: types add up; a mapping of the same source and direction, a rule with
the identical pattern and a conversion of the same name override what the parent has.
"""

from __future__ import annotations

from collections.abc import Mapping as Dict
from collections.abc import Sequence

import msgspec

from rapport.core.errors import InterpretationError, Problem, nearest_names
from rapport.mediation.model.conversions import Conversion
from rapport.mediation.model.interpretation import (
    EXPLORE,
    Direction,
    Interpretation,
    Mapping,
    Rule,
)
from rapport.mediation.model.patterns import BoundPattern, Pattern, bind, parse_pattern
from rapport.mediation.model.type_checks import check_types
from rapport.mediation.model.types import Type, Types


class BoundRule(msgspec.Struct, frozen=True):
    """A rule with the meaning of its pattern, and the interpretation that declared it."""

    rule: Rule
    pattern: BoundPattern
    owner: str


class Scope:
    """All that counts in one interpretation, ready to be resolved; never changes.

    Made by `make_scope` from interpretations that may be faulty: `problems` says what was left out.
    """

    def __init__(self, chain: Sequence[Interpretation]) -> None:
        self.name = chain[-1].name
        self.problems: list[Problem] = []
        self.types = self._visible_types(chain)
        self.conversions: Dict[str, Conversion] = {
            each.name: each for one in chain for each in one.conversions
        }
        self.mappings: Dict[tuple[str, Direction], Mapping] = {
            (each.source, each.direction): each for one in chain for each in one.mappings
        }
        self.bound: tuple[BoundRule, ...] = tuple(
            found for one in chain for rule in one.rules if (found := self._bind(rule, one.name))
        )

    def rules(self, direction: Direction) -> tuple[BoundRule, ...]:
        """Rules of this direction, in order, without those overridden by an identical pattern."""
        found: dict[BoundPattern, BoundRule] = {}
        for each in self.bound:
            if each.rule.holds_for(direction):
                found.pop(each.pattern, None)
                found[each.pattern] = each
        return tuple(found.values())

    def mapping_of(self, name: str, direction: Direction) -> Mapping | None:
        """The mapping for a type: its own, else that of its nearest super-type."""
        levels = self.types.levels(name)
        for super_type in sorted(levels, key=lambda each: self.types.nearness(name, each)):
            found = self.mappings.get((super_type, direction))
            if found is not None:
                return found
        return None

    def _visible_types(self, chain: Sequence[Interpretation]) -> Types:
        visible: dict[str, Type] = {}
        for one in chain:
            for each in one.types:
                if visible.get(each.name) == each and one is not chain[0]:
                    continue  # saying again what the parent says is no fault
                if each.name in visible:
                    self.problems.append(_declared_twice(one, each))
                visible[each.name] = each
        faults = check_types(tuple(visible.values()))
        if faults:
            raise InterpretationError([*self.problems, *faults])
        return Types(visible.values())

    def _bind(self, rule: Rule, owner: str) -> BoundRule | None:
        parsed = parse_pattern(rule.pattern)
        found = bind(parsed, self.types) if isinstance(parsed, Pattern) else parsed
        if isinstance(found, Problem):
            self.problems.append(found)
            return None
        fault = self._fault_of(rule, found)
        if fault is not None:
            self.problems.append(fault)
            return None
        return BoundRule(rule, found, owner)

    def _fault_of(self, rule: Rule, pattern: BoundPattern) -> Problem | None:
        """What is wrong between a rule's pattern and its conversion."""
        if rule.conversion == EXPLORE:
            return None
        conversion = self.conversions.get(rule.conversion)
        if conversion is None:
            nearest = nearest_names(rule.conversion, self.conversions, 1)
            return Problem(
                code="rule.unknown_conversion",
                message=f"rule {rule}: there is no conversion {rule.conversion!r}",
                hint=f"did you mean {nearest[0]!r}?" if nearest else "declare it",
            )
        if not conversion.is_single:
            return Problem(
                code="rule.argument",
                message=f"rule {rule}: {conversion.signature()} is not from one value to one",
                hint="conversions of several values are for merging and splitting in a mapping",
            )
        takes_all = conversion.argument == "json"
        if not takes_all and not self.types.is_subtype(pattern.last.type, conversion.argument):
            return Problem(
                code="rule.argument",
                message=f"rule {rule}: expected {conversion.argument}, found {pattern.last.type}",
                hint=f"{conversion.name} takes {conversion.argument}",
            )
        return None


def make_scope(chain: Sequence[Interpretation]) -> Scope:
    """The scope of the last of `chain`, which begins with root.

    Linear in all declarations. Raises InterpretationError only for faulty types, without which
    nothing else can be said; other faults are in `problems`.
    """
    return Scope(chain)


def _declared_twice(owner: Interpretation, declared: Type) -> Problem:
    return Problem(
        code="type.duplicate",
        message=f"{owner.name} declares type {declared.name!r}, which exists already",
        hint="give it another name; a type in use is changed by a replacement",
    )
