"""Properties of aliases: the attribute exists, comes from tables, and the constant fits its type
and unit. [PO-3]"""

from __future__ import annotations

import msgspec

from rapport.policy.compiler.operands import (
    ComparisonFault,
    OperandType,
    canonical_constant,
    comparable,
    plan_value,
)
from rapport.policy.compiler.scope import Scope
from rapport.policy.language.faults import Diagnostics, did_you_mean
from rapport.policy.language.printer import print_expression
from rapport.policy.language.tree import AttributeOf, Comparison, ConceptDef, Property
from rapport.policy.plan import Constraint


def check_property(
    definition: ConceptDef, item: Property, scope: Scope, faults: Diagnostics
) -> Constraint | None:
    """The property of an alias that the scope knows as a constraint in root's unit, booleans as
    1.0 and 0.0; None with a fault noted.
    """
    try:
        return _constraint(definition, item, scope)
    except ComparisonFault as fault:
        faults.add(fault.code, str(fault), fault.place or item.place, hint=fault.hint)
        return None


def _constraint(definition: ConceptDef, item: Property, scope: Scope) -> Constraint:
    concept = scope.concepts[definition.alias]
    attributes = scope.attributes_of(definition.alias)
    kind = attributes.get(item.attribute)
    if kind is None:
        message = f"the concept {concept!r} has no attribute {item.attribute!r}"
        hint = did_you_mean(item.attribute, attributes)
        raise ComparisonFault("policy.unknown_attribute", message, hint)
    unit = scope.ontology.units.get(concept, {}).get(item.attribute, "")
    if f"{concept}.{item.attribute}" in scope.streams:
        is_comparable = kind not in ("point", "rectangle")
        raise _comes_as_events(definition, concept, item, unit, is_comparable=is_comparable)
    shown = repr(item.attribute)
    sort = OperandType(comparable(kind, shown, item.place), unit, shown, item.place)
    constant = canonical_constant(item.constant, sort)
    if kind != "number" and item.operator not in ("=", "!="):
        what = "text" if kind == "text" else "true or false"
        message = f"{shown} is {what} and has no order"
        raise ComparisonFault("policy.bad_operator", message, "use = or !=")
    return Constraint(item.attribute, item.operator, plan_value(constant, sort.type))


def _comes_as_events(
    definition: ConceptDef, concept: str, item: Property, unit: str, *, is_comparable: bool
) -> ComparisonFault:
    """A property is of what tables say; what changes with every reading is a condition."""
    message = f"{item.attribute!r} of {concept!r} comes as events, so it is no lasting property"
    hint = "use it in a relationship, in the conditions"
    if is_comparable:
        measured = AttributeOf(item.attribute, definition.alias, item.place, item.place)
        constant = item.constant
        if unit and not constant.unit and not isinstance(constant.value, str):
            constant = msgspec.structs.replace(constant, unit=unit)
        meant = Comparison(measured, item.operator, constant, False, item.place)
        hint = f"take it out here, and in the conditions write: {print_expression(meant)}"
    return ComparisonFault("policy.event_property", message, hint)
