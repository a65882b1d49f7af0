"""The `concepts` section: `person A (status='guest')`, `room R with property
security='restricted'`. [PO-3]"""

from __future__ import annotations

import math

from rapport.policy.language.comparisons import OPERATORS, read_operator
from rapport.policy.language.cursor import Cursor, SyntaxFault
from rapport.policy.language.faults import Faults
from rapport.policy.language.tokens import Token
from rapport.policy.language.tree import ConceptDef, Property


def parse_definitions(lines: list[list[Token]], faults: Faults) -> tuple[ConceptDef, ...]:
    """All definitions that could be read; each alias once."""
    found: dict[str, ConceptDef] = {}
    for line in lines:
        cursor = Cursor(line)
        try:
            while cursor.peek() is not None:
                _keep(_definition(cursor), found, faults)
        except SyntaxFault as fault:
            faults.add(fault.code, fault.message, fault.place, hint=fault.hint)
    return tuple(found.values())


def _keep(definition: ConceptDef, found: dict[str, ConceptDef], faults: Faults) -> None:
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


def _definition(cursor: Cursor) -> ConceptDef:
    concept = _name(cursor, "policy.expected_concept", "a concept", "write it as: person A")
    hint = f"write a concept and an alias, such as: {concept.text} A"
    alias = _name(cursor, "policy.missing_alias", f"an alias for {concept.text!r}", hint)
    properties: tuple[Property, ...] = ()
    if cursor.take_if("mark", "("):
        properties = _properties(cursor)
        if not cursor.take_if("mark", ")"):
            raise cursor.fault(
                "policy.unclosed_parenthesis",
                "the properties end with a closing parenthesis",
                hint="write them as (status='guest' floor=3)",
            )
    elif cursor.reads("with"):
        cursor.take()
        if cursor.reads("property") or cursor.reads("properties"):
            cursor.take()
        properties = _properties(cursor)
    elif cursor.sees("word", "property", "properties", ahead=1):
        hint = f"did you mean: {concept.text} {alias.text} with property ...?"
        raise cursor.fault("policy.bare_property", "expected 'with' before a property", hint=hint)
    elif cursor.sees("operator", ahead=1):
        named = f"{concept.text} {alias.text}"
        hint = f"write {named} (...) or {named} with property ..."
        raise cursor.fault("policy.bare_property", "properties stand in parentheses", hint=hint)
    return ConceptDef(concept.text, alias.text, properties, concept.place, alias.place)


def _name(cursor: Cursor, code: str, what: str, hint: str) -> Token:
    token = cursor.take_if("word")
    if token is not None:
        return token
    found = cursor.peek()
    if found is not None and found.kind == "keyword":
        message = f"expected {what}, but {found.text.upper()} is a word of the language"
        raise cursor.fault("policy.reserved_name", message, hint="choose another name")
    raise cursor.fault(code, f"expected {what}", hint=hint)


def _properties(cursor: Cursor) -> tuple[Property, ...]:
    properties = [_property(cursor)]
    while True:
        joined = cursor.take_if("mark", ",") or cursor.take_if("keyword", "and")
        if not joined and not cursor.sees("operator", ahead=1):
            return tuple(properties)
        properties.append(_property(cursor))


def _property(cursor: Cursor) -> Property:
    attribute = _name(
        cursor, "policy.expected_property", "an attribute", "write a property as status='guest'"
    )
    if not cursor.sees("operator"):
        known = ", ".join(OPERATORS)
        raise cursor.fault(
            "policy.expected_operator",
            f"expected one of {known} after {attribute.text!r}",
            hint="write a property as status='guest'",
        )
    operator = read_operator(cursor)
    return Property(attribute.text, operator, _value(cursor), attribute.place)


def _value(cursor: Cursor) -> str | float:
    token = cursor.peek()
    if token is not None and token.kind == "text":
        return cursor.take().text
    if token is not None and token.kind == "number":
        return _number(cursor)
    if token is not None and token.text.lower() in ("true", "false"):
        return cursor.take().text.lower()
    hint = "put text in quotes, write numbers without"
    if token is not None and token.kind in ("word", "keyword", "header"):
        hint = f"put text in quotes: '{token.text}'"
    raise cursor.fault("policy.expected_value", "expected a quoted text or a number", hint=hint)


def _number(cursor: Cursor) -> float:
    token = cursor.take()
    number = float(token.text)
    if not math.isfinite(number):
        raise SyntaxFault(
            "policy.bad_number", "the number is too large", token.place, "at most 1e308"
        )
    after = cursor.peek()
    glued = after is not None and after.glued and after.kind == "word"
    if glued or cursor.sees("unit") or (cursor.sees("word") and cursor.sees("mark", ")", ahead=1)):
        raise cursor.fault(
            "policy.unsupported",
            "a property takes no unit",
            hint=f"write {token.text} in the unit of the table, or a comparison in the conditions",
        )
    return number
