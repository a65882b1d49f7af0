"""The `concepts` section: `person A (status='guest')`, `room R with property
security='restricted'`. [PO-3]"""

from __future__ import annotations

import msgspec

from rapport.policy.language.comparing import begins_comparator
from rapport.policy.language.cursor import SyntaxFault, TokenCursor
from rapport.policy.language.faults import Diagnostics
from rapport.policy.language.printer import print_definition
from rapport.policy.language.properties import read_properties, read_property
from rapport.policy.language.tokens import Token
from rapport.policy.language.tree import ConceptDef, Property


def parse_definitions(lines: list[list[Token]], faults: Diagnostics) -> tuple[ConceptDef, ...]:
    """All definitions that could be read; each alias once."""
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
    """Those of the definition whose alias was just read; raises SyntaxFault."""
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
