"""Parses the `concepts` section: `person A (status='guest')`, `room R with property
security='restricted'`. [PO-3]"""

from __future__ import annotations

from functools import partial

import msgspec

from rapport.core.errors import InvalidInput
from rapport.policy.language.comparisons import begins_comparator, read_comparator
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.lexer import SyntaxFault, Token, TokenCursor
from rapport.policy.language.printer import print_definition
from rapport.policy.language.quantities import read_constant
from rapport.policy.language.tree import NEGATED_OPERATORS, ConceptDef, Property, Quantity
from rapport.units.quantities import unit_named


def read_properties(cursor: TokenCursor, *, enclosed: bool) -> tuple[Property, ...]:
    """Reads one or more properties; raises SyntaxFault.

    `enclosed`: they stand in parentheses, so nothing else can follow a number.
    """
    properties = [read_property(cursor, enclosed=enclosed)]
    while True:
        joined = cursor.take_if("mark", ",") or cursor.take_if("keyword", "and")
        if not joined and not (cursor.sees("word") and begins_comparator(cursor, ahead=1)):
            return tuple(properties)
        properties.append(read_property(cursor, enclosed=enclosed))


def read_property(cursor: TokenCursor, *, enclosed: bool = True) -> Property:
    """Reads `status='guest'` or `length above 12 m`; raises SyntaxFault."""
    attribute = cursor.name(
        "policy.expected_property", "an attribute", "write a property as status='guest'"
    )
    between = f"{attribute.text} at least ... and {attribute.text} at most ..."
    comparator = read_comparator(cursor, attribute.text, "12 m", between)
    if comparator is None:
        message = f"expected how {attribute.text!r} is compared, and with what"
        hint = f"such as: {attribute.text}='guest', or with a number: {attribute.text} above 3"
        raise cursor.fault("policy.expected_operator", message, hint=hint)
    value = _value(cursor, enclosed)
    # Tables have no readings that could be absent, so NOT only inverts the operator.
    operator = NEGATED_OPERATORS[comparator.operator] if comparator.negated else comparator.operator
    return Property(attribute.text, operator, value.value, attribute.place, value.unit, value.place)


def _value(cursor: TokenCursor, enclosed: bool) -> Quantity:
    value = read_constant(cursor, partial(_is_unit, enclosed=enclosed))
    if value is not None:
        return value
    token = cursor.peek()
    hint = "put text in quotes, write numbers without"
    if token is not None and token.kind in ("word", "keyword", "header"):
        hint = f"put text in quotes: '{token.text}'"
    raise cursor.fault("policy.expected_value", "expected a text in quotes or a number", hint=hint)


def _is_unit(cursor: TokenCursor, *, enclosed: bool) -> bool:
    """Whether the word after a number is its unit, rather than the next property or, without
    parentheses, the next definition (`floor=3 room R`)."""
    word = cursor.peek()
    assert word is not None
    if word.glued:
        return True
    if begins_comparator(cursor, ahead=1):
        return False
    return enclosed or not cursor.sees("word", ahead=1) or _is_known_unit(word.text)


def _is_known_unit(name: str) -> bool:
    try:
        unit_named(name)
    except InvalidInput:
        return False
    return True


def parse_definitions(lines: list[list[Token]], faults: Diagnostics) -> tuple[ConceptDef, ...]:
    """Parses all definitions; each alias may be defined once."""
    found: dict[str, ConceptDef] = {}
    for line in lines:
        cursor = TokenCursor(line)
        try:
            while cursor.peek() is not None:
                _keep(_definition(cursor), found, faults)
        except SyntaxFault as fault:
            faults.add(fault.code, fault.message, fault.place, hint=fault.hint)
    return tuple(found.values())


def _keep(definition: ConceptDef, found: dict[str, ConceptDef], faults: Diagnostics) -> None:
    if definition.alias in found:
        first = found[definition.alias].alias_place
        faults.add(
            "policy.duplicate_alias",
            f"the alias {definition.alias!r} is already defined in line {first.line}",
            definition.alias_place,
            hint="give each thing an alias of its own",
        )
        return
    found[definition.alias] = definition


def _definition(cursor: TokenCursor) -> ConceptDef:
    concept = cursor.name("policy.expected_concept", "a concept", "write it as: person A")
    hint = f"write a concept and an alias, such as: {concept.text} A"
    alias = cursor.name("policy.missing_alias", f"an alias for {concept.text!r}", hint)
    definition = ConceptDef(concept.text, alias.text, (), concept.place, alias.place)
    return msgspec.structs.replace(definition, properties=_properties(cursor, definition))


def _properties(cursor: TokenCursor, definition: ConceptDef) -> tuple[Property, ...]:
    """Reads the properties after an alias; raises SyntaxFault."""
    if cursor.take_if("mark", "("):
        properties = read_properties(cursor, enclosed=True)
        if not cursor.take_if("mark", ")"):
            raise _unclosed(cursor)
        return properties
    if cursor.reads("with"):
        cursor.take()
        if cursor.reads("property") or cursor.reads("properties"):
            cursor.take()
        return read_properties(cursor, enclosed=False)
    named = f"{definition.concept} {definition.alias}"
    if cursor.sees("word", "property", "properties", ahead=1):
        hint = f"did you mean: {named} with property ...?"
        raise cursor.fault("policy.bare_property", "expected 'with' before a property", hint=hint)
    if cursor.sees("word") and begins_comparator(cursor, ahead=1):
        fault = cursor.fault("policy.bare_property", "properties stand in parentheses")
        meant = msgspec.structs.replace(definition, properties=(read_property(cursor),))
        fault.hint = f"write: {print_definition(meant)}"
        raise fault
    return ()


def _unclosed(cursor: TokenCursor) -> SyntaxFault:
    token = cursor.peek()
    if token is not None and token.kind == "keyword" and token.text == "or":
        message = "all properties of an alias must hold, so OR cannot join them"
        hint = "join them with AND, or write one policy for each"
        return cursor.fault("policy.or_in_properties", message, hint=hint)
    message = "the properties end with a closing parenthesis"
    hint = "write them as (status='guest' floor=3)"
    return cursor.fault("policy.unclosed_parenthesis", message, hint=hint)
