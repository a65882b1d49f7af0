"""Comparisons in own terms as comparisons of root. Pure. [ME-9, PO-3]

A number without a unit is in the interpretation's unit of what it is compared with, and becomes the
float of root at which the comparison turns. A number with a unit means that quantity, whoever says
it. What one comparison of root cannot say is refused: two of them could be satisfied by different
events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import isclose
from typing import NamedTuple

import msgspec

from rapport.core.errors import RapportError
from rapport.core.terms import ABSENT, Linear, Same, Term, at
from rapport.policy import measures
from rapport.policy.compiler.operands import ComparisonFault, function_unit
from rapport.policy.compiler.scope import IDENTITY
from rapport.policy.language.tree import (
    AttributeOf,
    Call,
    Comparison,
    Measured,
    Operator,
    Property,
    Quantity,
)
from rapport.policy.ontology import Ontology, SiteFunction
from rapport.policy.own_terms.properties import UntranslatableTerm, canonical_properties
from rapport.units.catalogue import UNITS
from rapport.units.quantities import converter, unit_named

MIRRORED: dict[Operator, Operator] = {
    "=": "=",
    "!=": "!=",
    "<": ">",
    ">": "<",
    "<=": ">=",
    ">=": "<=",
}
_USE_CANONICAL = "write this policy in root's terms"


class OwnConcept(NamedTuple):
    """What an alias is: root's concept, and how the interpretation sees it."""

    concept: str
    whole: Term


class UnknownAttribute(Exception):
    """The interpretation has no such attribute of the operand's alias."""

    def __init__(self, operand: AttributeOf) -> None:
        super().__init__(operand.attribute)
        self.operand = operand


class ComparisonRewriter:
    """The comparisons of one policy; `scale` says by how much an interpretation multiplies all
    parts of one of root's attributes.
    """

    def __init__(
        self,
        aliases: Mapping[str, OwnConcept],
        ontology: Ontology,
        scale: Callable[[str, str], Fraction | None],
    ) -> None:
        self._aliases, self._ontology, self._scale = aliases, ontology, scale

    def rewritten(self, comparison: Comparison) -> Comparison:
        """The comparison in root; raises Unsayable and UnknownAttribute.

        What has an unknown alias or function stays as it is: the check names it.
        """
        if isinstance(comparison.left, Quantity):
            comparison = msgspec.structs.replace(
                comparison,
                left=comparison.right,
                operator=MIRRORED[comparison.operator],
                right=comparison.left,
            )
        match comparison.left, comparison.right:
            case AttributeOf() as attribute, Quantity() as constant:
                return self._threshold(comparison, attribute, constant)
            case Call() as call, Quantity() as constant:
                right = self._length(call, constant)
                return msgspec.structs.replace(comparison, right=right)
            case Quantity(), _:
                return comparison
            case left, right:
                return self._of_two(comparison, left, right)

    def property_in_root(self, alias: str, item: Property) -> tuple[Property, ...]:
        """The property of an alias that is known, said in root; none when it always holds. Raises
        Unsayable and UnknownAttribute.
        """
        operand = AttributeOf(item.attribute, alias, item.place, item.place)
        term = at(self._aliases[alias].whole, (item.attribute,))
        if term == ABSENT:
            raise UnknownAttribute(operand)
        if item.unit:
            name = self._named(operand, term, explicit=True).attribute
            return (msgspec.structs.replace(item, attribute=name),)
        return tuple(
            msgspec.structs.replace(each, unit=self._unit_of_value(alias, each))
            for each in canonical_properties(item, term)
        )

    def root_attribute(self, operand: AttributeOf) -> str:
        """Root's name of an attribute; raises Unsayable when it is made of several."""
        term = self._term(operand)
        path = getattr(term, "path", None) if term is not None else (operand.attribute,)
        if path is None or len(path) != 1:
            raise UntranslatableTerm("is no attribute of root by itself", _USE_CANONICAL)
        return str(path[0])

    def _term(self, operand: AttributeOf) -> Term | None:
        """How the attribute comes from root; None when it needs no words."""
        own = self._aliases.get(operand.alias)
        if own is None or operand.attribute == IDENTITY:
            return None
        term = at(own.whole, (operand.attribute,))
        if term == ABSENT:
            raise UnknownAttribute(operand)
        return term

    def _threshold(
        self, comparison: Comparison, attribute: AttributeOf, constant: Quantity
    ) -> Comparison:
        term = self._term(attribute)
        if term is None:
            return comparison
        if constant.unit:
            left = self._named(attribute, term, explicit=True)
            return msgspec.structs.replace(comparison, left=left)
        written = Property(
            attribute.attribute, comparison.operator, constant.value, comparison.place
        )
        found = canonical_properties(written, term)
        if not found:
            raise UntranslatableTerm("always holds here", "leave this comparison out")
        if len(found) > 1:
            message = "takes several comparisons of root, which different events could satisfy"
            raise UntranslatableTerm(
                message, "compare with < or >, or write this policy in root's terms"
            )
        (root,) = found
        unit = self._unit_of_value(attribute.alias, root)
        return msgspec.structs.replace(
            comparison,
            left=msgspec.structs.replace(attribute, attribute=root.attribute),
            operator=root.operator,
            right=msgspec.structs.replace(constant, value=root.value, unit=unit),
        )

    def _named(self, attribute: AttributeOf, term: Term, *, explicit: bool) -> AttributeOf:
        """The attribute under root's name, whose numbers are root's but for their unit."""
        name = self.root_attribute(attribute)
        unit = self._unit(attribute.alias, name)
        if isinstance(term, Same) or (isinstance(term, Linear) and not term.steps):
            return msgspec.structs.replace(attribute, attribute=name)
        if explicit and isinstance(term, Linear) and _converts_units(term, unit):
            return msgspec.structs.replace(attribute, attribute=name)
        message = "is calculated from root's, so its unit is not known"
        raise UntranslatableTerm(
            message, "write the number without a unit, as it is in these terms"
        )

    def _unit_of_value(self, alias: str, root: Property) -> str:
        return "" if isinstance(root.value, str) else self._unit(alias, root.attribute)

    def _unit(self, alias: str, attribute: str) -> str:
        return self._ontology.units.get(self._aliases[alias].concept, {}).get(attribute, "")

    def _length(self, call: Call, constant: Quantity) -> Quantity:
        """A constant beside a function: a bare one beside a distance is in the unit of positions;
        any other needs its unit.
        """
        function = self._ontology.functions.get(call.function)
        if function is None or constant.unit or isinstance(constant.value, str):
            return constant
        try:
            unit = function_unit(function)
        except ComparisonFault:
            return constant  # the check says why
        if unit in ("", "1"):
            return constant
        scales = {self._scale(*end) for end in function.of} if _is_distance(function) else {None}
        scale = scales.pop()
        if scales or scale is None:
            message = "has no one unit in these terms"
            raise UntranslatableTerm(message, f"write the unit, such as: {constant.value:g} {unit}")
        value = float(Fraction(repr(constant.value)) / scale)
        return msgspec.structs.replace(constant, value=value, unit=unit)

    def _of_two(self, comparison: Comparison, left: Measured, right: Measured) -> Comparison:
        """Two measured things: as root gives them, or both calculated in the same way.

        Calculating alike keeps the order, so root's numbers are compared themselves.
        """
        terms = [
            self._term(each) if isinstance(each, AttributeOf) else None for each in (left, right)
        ]
        if all(isinstance(each, Linear) and each.steps for each in terms):
            return self._alike(comparison, left, right, *terms)
        named = [
            self._named(each, term, explicit=False)
            if isinstance(each, AttributeOf) and term is not None
            else each
            for each, term in zip((left, right), terms, strict=True)
        ]
        return msgspec.structs.replace(comparison, left=named[0], right=named[1])

    def _alike(
        self,
        comparison: Comparison,
        left: Measured,
        right: Measured,
        first: Term | None,
        second: Term | None,
    ) -> Comparison:
        assert isinstance(left, AttributeOf)
        assert isinstance(right, AttributeOf)
        assert isinstance(first, Linear)
        assert isinstance(second, Linear)
        if first.steps != second.steps:
            raise UntranslatableTerm("two attributes calculated differently", _USE_CANONICAL)
        operator = comparison.operator
        return msgspec.structs.replace(
            comparison,
            left=msgspec.structs.replace(left, attribute=self.root_attribute(left)),
            operator=MIRRORED[operator] if first.turns else operator,
            right=msgspec.structs.replace(right, attribute=self.root_attribute(right)),
        )


def _is_distance(function: SiteFunction) -> bool:
    try:
        return bool(function.measure) and measures.get(function.measure).shape == "distance"
    except RapportError:
        return False  # the check says why


def _converts_units(term: Linear, root: str) -> bool:
    """True when the calculation is the conversion of root's unit into another of its dimension."""
    if not root:
        return False
    scale, offset = Fraction(1), Fraction(0)
    for step in term.steps:
        scale = scale * Fraction(step.multiply) / Fraction(step.divide)
        offset = (offset * Fraction(step.multiply) + Fraction(step.add)) / Fraction(step.divide)
    dimension = unit_named(root).dimension
    known = (converter(root, unit.symbol) for unit in UNITS if unit.dimension == dimension)
    return any(
        isclose(each.scale, scale, rel_tol=1e-12)
        and isclose(each.offset, offset, rel_tol=1e-12, abs_tol=1e-12)
        for each in known
    )
