"""What must be true of an alias: `(status='guest' floor=3)`, `with property length above 12 m`.
[PO-3]"""

from __future__ import annotations

from functools import partial

from rapport.core.errors import InvalidInput
from rapport.policy.language.comparing import CONTRARY, begins_comparator, read_comparator
from rapport.policy.language.cursor import TokenCursor
from rapport.policy.language.quantities import read_constant
from rapport.policy.language.tree import Property, Quantity
from rapport.units.quantities import unit_named


def read_properties(cursor: TokenCursor, *, enclosed: bool) -> tuple[Property, ...]:
    """The properties that come next, at least one; raises SyntaxFault.

    `enclosed`: they stand in parentheses, so that nothing else can follow a number.
    """
    properties = [read_property(cursor, enclosed=enclosed)]
    while True:
        joined = cursor.take_if("mark", ",") or cursor.take_if("keyword", "and")
        if not joined and not (cursor.sees("word") and begins_comparator(cursor, ahead=1)):
            return tuple(properties)
        properties.append(read_property(cursor, enclosed=enclosed))


def read_property(cursor: TokenCursor, *, enclosed: bool = True) -> Property:
    """`status='guest'`, `length above 12 m`; raises SyntaxFault."""
    attribute = cursor.name(
        "policy.expected_property", "an attribute", "write a property as status='guest'"
    )
    between = f"{attribute.text} at least ... and {attribute.text} at most ..."
    said = read_comparator(cursor, attribute.text, "12 m", between)
    if said is None:
        message = f"expected how {attribute.text!r} is compared, and with what"
        hint = f"such as: {attribute.text}='guest', or with a number: {attribute.text} above 3"
        raise cursor.fault("policy.expected_operator", message, hint=hint)
    value = _value(cursor, enclosed)
    # Of tables there are no readings whose absence could be meant, so NOT is just the contrary.
    operator = CONTRARY[said.operator] if said.negated else said.operator
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
    """Whether the word after a number is its unit, or else begins the next property or, without
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
