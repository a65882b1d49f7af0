"""Properties of aliases: the attribute exists, comes from tables, and the constant fits its type.
[PO-3]"""

from __future__ import annotations

from collections.abc import Mapping

from rapport.core.schema import AttributeType
from rapport.policy.language.faults import Faults, did_you_mean
from rapport.policy.language.tree import ConceptDef, Property
from rapport.policy.plan import Constraint

TRUTHS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}


def check_property(
    concept: ConceptDef,
    item: Property,
    attributes: Mapping[str, AttributeType],
    streams: Mapping[str, AttributeType],
    faults: Faults,
) -> Constraint | None:
    """The property as a constraint, None with a fault noted; booleans become 1.0 and 0.0."""
    kind = attributes.get(item.attribute)
    if kind is None:
        message = f"the concept {concept.concept!r} has no attribute {item.attribute!r}"
        hint = did_you_mean(item.attribute, attributes)
        faults.add("policy.unknown_attribute", message, item.place, hint=hint)
        return None
    if f"{concept.concept}.{item.attribute}" in streams:
        given = f"{item.attribute!r} of {concept.concept!r}"
        message = f"{given} comes as events; a property comes from a table"
        hint = "use it in a relationship instead"
        if kind in ("number", "text", "boolean"):
            example = f"{item.attribute} of {concept.alias} {item.operator} ..."
            hint = f"put it on a line of its own in the conditions: {example}"
        faults.add("policy.unsupported", message, item.place, hint=hint)
        return None
    match kind:
        case "text":
            return _text(item, faults)
        case "number":
            return _number(item, faults)
        case "boolean":
            return _boolean(item, faults)
        case _:
            message = f"{item.attribute!r} is a {kind}, which cannot be compared with a constant"
            faults.add("policy.wrong_type", message, item.place, hint="use it in a relationship")
            return None


def _text(item: Property, faults: Faults) -> Constraint | None:
    if not isinstance(item.value, str):
        message = f"{item.attribute!r} is text, but {item.value:g} is a number"
        hint = f"put it in quotes: '{item.value:g}'"
        faults.add("policy.wrong_type", message, item.place, hint=hint)
        return None
    return _equality(item, item.value, "text", faults)


def _number(item: Property, faults: Faults) -> Constraint | None:
    if isinstance(item.value, str):
        message = f"{item.attribute!r} is a number, but {item.value!r} is text"
        faults.add("policy.wrong_type", message, item.place, hint="write a number without quotes")
        return None
    return Constraint(item.attribute, item.operator, item.value)


def _boolean(item: Property, faults: Faults) -> Constraint | None:
    truth = TRUTHS.get(item.value.lower()) if isinstance(item.value, str) else None
    if truth is None:
        message = f"{item.attribute!r} is either true or false"
        faults.add("policy.wrong_type", message, item.place, hint=f"write {item.attribute}=true")
        return None
    return _equality(item, truth, "true or false", faults)


def _equality(item: Property, value: str | float, what: str, faults: Faults) -> Constraint | None:
    if item.operator not in ("=", "!="):
        message = f"{item.attribute!r} is {what} and has no order"
        faults.add("policy.bad_operator", message, item.place, hint="use = or !=")
        return None
    return Constraint(item.attribute, item.operator, value)
