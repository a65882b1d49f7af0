"""Comparisons: their names, types and units, and how much they read. [PO-3]

Constants become root's: `86 degF` is `30 degC` where root measures in degC.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.policy.compiler.check_term import check_alias
from rapport.policy.compiler.operands import (
    ComparisonFault,
    OperandType,
    canonical_constant,
    operand_type,
)
from rapport.policy.compiler.scope import IDENTITY, AttributeRef, Scope
from rapport.policy.language.faults import Diagnostics, did_you_mean
from rapport.policy.language.tree import (
    AttributeOf,
    Call,
    Comparison,
    ConceptDef,
    Measured,
    Quantity,
    SourceSpan,
)
from rapport.policy.ontology import SiteFunction
from rapport.units.quantities import unit_named

_MOST_ALIASES = 2
_MOST_EVENTS = 2


class ComparisonCheck:
    """The checks of comparisons in one policy."""

    def __init__(
        self, scope: Scope, definitions: Sequence[ConceptDef], faults: Diagnostics
    ) -> None:
        self.scope, self.faults = scope, faults
        self.aliases = frozenset(definition.alias for definition in definitions)

    def checked(self, comparison: Comparison) -> Comparison:
        """The comparison with constants in root's units; as it was when faults were noted."""
        left, right = comparison.left, comparison.right
        known = [self._known(left), self._known(right)]
        if not all(known):
            return comparison
        if isinstance(left, Quantity) and isinstance(right, Quantity):
            message = "both sides are constants, so there is nothing to watch"
            hint = "write an attribute on one side, such as: temperature of S"
            self.faults.add("policy.constant_comparison", message, comparison.place, hint=hint)
            return comparison
        try:
            comparison = self._in_root(comparison)
        except ComparisonFault as fault:
            place = fault.place or comparison.place
            self.faults.add(fault.code, str(fault), place, hint=fault.hint)
            return comparison
        self._check_ends(comparison)
        return comparison

    def alias(self, alias: str, place: SourceSpan) -> bool:
        """True when the alias is defined, and of a concept that is there."""
        defined = check_alias(alias, place, self.aliases, self.faults)
        return defined and alias in self.scope.concepts

    def _known(self, operand: Measured) -> bool:
        """True when every name of the operand is known; else faults are noted."""
        match operand:
            case Quantity():
                return True
            case AttributeOf():
                return self._known_attribute(operand)
            case Call():
                return self._known_call(operand)

    def _known_attribute(self, operand: AttributeOf) -> bool:
        if not self.alias(operand.alias, operand.alias_place):
            return False
        attributes = self.scope.attributes_of(operand.alias)
        if operand.attribute in attributes or operand.attribute == IDENTITY:
            return True
        concept = self.scope.concepts[operand.alias]
        message = f"the concept {concept!r} has no attribute {operand.attribute!r}"
        hint = did_you_mean(operand.attribute, attributes)
        self.faults.add("policy.unknown_attribute", message, operand.place, hint=hint)
        return False

    def _known_call(self, call: Call) -> bool:
        known = [
            self.alias(alias, place)
            for alias, place in zip(call.aliases, call.alias_places, strict=True)
        ]
        function = self.scope.ontology.functions.get(call.function)
        if function is None:
            message = f"the site has no function named {call.function!r}"
            hint = did_you_mean(call.function, self.scope.ontology.functions)
            hint = hint or f"declare it: [functions.{call.function}] with of = [...] in site.toml"
            self.faults.add("policy.unknown_function", message, call.place, hint=hint)
            return False
        return all(known) and self._fits(call, function)

    def _fits(self, call: Call, function: SiteFunction) -> bool:
        wanted = [concept for concept, _ in function.of]
        given = [self.scope.concepts[alias] for alias in call.aliases]
        if wanted != given:
            message = f"{call.function!r} is of {_words(wanted)}, not of {_words(given)}"
            hint = f"write: {call.function}({', '.join(reversed(call.aliases))})"
            if wanted != given[::-1]:
                hint = f"aliases that fit: {self._fitting(wanted)}"
            self.faults.add("policy.wrong_arguments", message, call.place, hint=hint)
            return False
        ends = self.scope.ends_of_operand(call)
        if len(set(ends)) < len(ends):
            message = f"{call.function!r} would compare {call.aliases[0]!r} with itself"
            hint = "define a second alias of the same concept"
            self.faults.add("policy.same_alias", message, call.alias_places[-1], hint=hint)
            return False
        return True

    def _fitting(self, wanted: Sequence[str]) -> str:
        """The aliases of each concept wanted, for a hint."""
        known = self.scope.concepts
        found = {
            concept: [alias for alias, of in known.items() if of == concept]
            for concept in dict.fromkeys(wanted)
        }
        return "; ".join(f"{name}: {', '.join(own) or 'none'}" for name, own in found.items())

    def _in_root(self, comparison: Comparison) -> Comparison:
        """With both sides of one type and unit; raises Wrong."""
        left, right = (
            operand_type(each, self.scope) for each in (comparison.left, comparison.right)
        )
        measured = left if right is None or left is not None else right
        assert measured is not None, "not two constants"
        if left is not None and right is not None:
            _check_alike(left, right)
        if measured.type != "number" and comparison.operator not in ("=", "!="):
            what = "text" if measured.type == "text" else "true or false"
            message = f"{measured.shown} is {what} and has no order"
            raise ComparisonFault("policy.bad_operator", message, "use 'is' or 'is not'")
        changed = {
            side: canonical_constant(operand, measured)
            for side, operand in (("left", comparison.left), ("right", comparison.right))
            if isinstance(operand, Quantity)
        }
        return msgspec.structs.replace(comparison, **changed)

    def _check_ends(self, comparison: Comparison) -> None:
        """Notes a comparison that reads more than a step can hold together."""
        ends = self.scope.ends_of_comparison(comparison)
        events = [end for end in ends if end.from_events]
        aliases = dict.fromkeys(end.alias for end in ends)
        if len(aliases) > _MOST_ALIASES:
            message = f"this compares {len(aliases)} aliases: {', '.join(aliases)}"
            hint = "a comparison is about one or two aliases; split it into several"
        elif len(events) > _MOST_EVENTS:
            message = f"this reads {len(events)} attributes that come as events: {_ends(events)}"
            hint = "a comparison reads at most two; split it, or let a table give one of them"
        elif len(aliases) == _MOST_ALIASES and len({e.alias for e in events}) < len(events):
            other = next(alias for alias in aliases if alias != events[0].alias)
            message = f"this reads {_ends(events)}, which both come as events, beside {other!r}"
            hint = f"say it in two lines: one about {events[0].alias!r} alone, one with {other!r}"
        else:
            return
        self.faults.add("policy.too_many_ends", message, comparison.place, hint=hint)


def _check_alike(left: OperandType, right: OperandType) -> None:
    """Raises Wrong when two measured things cannot be compared."""
    if left.type != right.type:
        message = f"{left.shown} is {_a(left)}, but {right.shown} is {_a(right)}"
        raise ComparisonFault(
            "policy.wrong_type", message, "compare a number with a number, text with text"
        )
    if left.unit != right.unit:
        units = [each.unit or "without a unit" for each in (left, right)]
        message = f"{left.shown} is in {units[0]}, but {right.shown} is in {units[1]}"
        message = message.replace("in without", "without")
        raise ComparisonFault("policy.wrong_units", message, _why_not_alike(left.unit, right.unit))


def _why_not_alike(first: str, second: str) -> str:
    """What to do about two units that are not the same."""
    if first and second:
        kinds = [unit_named(unit).dimension for unit in (first, second)]
        if kinds[0] != kinds[1]:
            return f"one is a {kinds[0]}, the other a {kinds[1]}; compare each with a constant"
    return "the site must give both in one unit: [concepts.*.units] and [functions.*] in site.toml"


def _a(sort: OperandType) -> str:
    return {"number": "a number", "text": "text", "boolean": "true or false"}[sort.type]


def _words(concepts: Sequence[str]) -> str:
    return " and ".join(repr(concept) for concept in concepts)


def _ends(ends: Sequence[AttributeRef]) -> str:
    return ", ".join(f"{end.attribute} of {end.alias}" for end in ends)
