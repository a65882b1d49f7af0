"""Whether a relationship or a comparison holds of given identities and readings, and of which
values. [PO-3, PO-11]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from rapport.policy import measures, relations
from rapport.policy.explaining.world import Evidence, Reading, Value, complete
from rapport.policy.plan import (
    Constant,
    ConstraintTerm,
    CorrelationTerm,
    LookedUp,
    Measure,
    Operand,
    QueryTerm,
    ReadingTerm,
    Side,
    SideValue,
    StateTerm,
)
from rapport.policy.runners.operators.compare import OPERATIONS

Events = Mapping[int, Reading]
"""The reading at each side (0 first, 1 second) that comes as events."""
Bindings = Mapping[str, str]


class Operands(NamedTuple):
    """What is compared: numbers, texts or truths; None where something is missing."""

    left: Any
    right: Any


def sides_of(term: StateTerm) -> tuple[Side, Side]:
    """Both sides; those of a comparison of one alias may be the same."""
    return (term.first, term.second)


def event_places(term: StateTerm) -> tuple[int, ...]:
    """Which sides come as events."""
    match term:
        case ReadingTerm():
            return (0,)
        case ConstraintTerm():
            return ()
        case CorrelationTerm():
            return (0, 1)
        case QueryTerm():
            return (0,) if term.first.stream is not None else (1,)


def truth(world: Evidence, term: StateTerm, bindings: Bindings, events: Events) -> bool | None:
    """None: unknown, because a reading or a value that is compared is missing. A relationship that
    misses a value does not hold.
    """
    if any(place not in events for place in event_places(term)):
        return None
    if term.compared is None:
        first, second = values(world, term, bindings, events)
        if first is None or second is None:
            return False
        return bool(relations.get(term.function).holds(first, second, term.parameter))
    left, right = operands(world, term, bindings, events)
    if left is None or right is None:
        return None
    return bool(OPERATIONS[term.compared.operator](*_alike(left, right)))


def values(
    world: Evidence, term: StateTerm, bindings: Bindings, events: Events
) -> tuple[Value | None, Value | None]:
    """What a relationship compares: the value of each side."""
    first, second = (
        _value(world, term, SideValue(place, sides_of(term)[place].attribute), bindings, events)
        for place in (0, 1)
    )
    return first, second


def operands(world: Evidence, term: StateTerm, bindings: Bindings, events: Events) -> Operands:
    """What a comparison compares."""
    assert term.compared is not None
    left, right = (
        _operand(world, term, each, bindings, events)
        for each in (term.compared.left, term.compared.right)
    )
    return Operands(left, right)


def _operand(
    world: Evidence, term: StateTerm, operand: Operand, bindings: Bindings, events: Events
) -> Any:
    match operand:
        case Constant(value):
            return value
        case SideValue():
            found = _value(world, term, operand, bindings, events)
            return None if found is None else found[0]
        case Measure(function, of) | LookedUp(function, of):
            given = [_value(world, term, each, bindings, events) for each in of]
            known = [value for value in given if value is not None]
            if len(known) < len(given):
                return None
            if isinstance(operand, LookedUp):
                number = world.pull.pairs(function).get(tuple(value[0] for value in known))
            else:
                number = float(measures.get(function).one(*known))
            return None if number is None or math.isnan(number) else number


def _value(
    world: Evidence, term: StateTerm, value: SideValue, bindings: Bindings, events: Events
) -> Value | None:
    side = sides_of(term)[value.side]
    if side.stream is not None and value.attribute == side.attribute:
        found = events[value.side].value
        return complete(found) if world.has_missing_parts else found
    return world.in_tables(side.concept, value.attribute, bindings[side.alias])


def _alike(left: Any, right: Any) -> tuple[Any, Any]:
    """A constant is written as text; beside a truth it is one."""
    if isinstance(left, bool) and isinstance(right, str):
        return left, right.lower() == "true"
    if isinstance(right, bool) and isinstance(left, str):
        return left.lower() == "true", right
    return left, right
