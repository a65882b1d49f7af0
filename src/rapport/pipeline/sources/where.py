"""The option `where`: a condition in the language of channels, decided while reading. Pure. [PI-2,
CH-4]

Unlike filters that Spark hands over it belongs to what was loaded, and it works for streams.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.channel.query import tree
from rapport.channel.query.compiler import Matches, compile_condition
from rapport.channel.query.parser import parse_condition
from rapport.pipeline.sources.filters import Condition, condition

_OPERATIONS = {"=": "=", "<>": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


class Where(msgspec.Struct, frozen=True):
    """A condition in two parts that must both be true."""

    simple: tuple[Condition, ...] = ()
    """What is decided on whole columns."""
    rest: Matches | None = None
    """What has to look at each event."""


def read_where(text: str) -> Where:
    """The condition in a text ("" = everything); raises QueryError with its place."""
    if not text:
        return Where()
    whole = parse_condition(text)
    parts: Sequence[tree.Condition] = whole.parts if isinstance(whole, tree.And) else (whole,)
    simple = [(part, _simple(part)) for part in parts]
    others = tuple(part for part, found in simple if found is None)
    rest = None
    if others:
        rest = compile_condition(others[0] if len(others) == 1 else tree.And(others))
    return Where(tuple(found for _part, found in simple if found is not None), rest)


def _simple(part: tree.Condition) -> Condition | None:
    match part:
        case tree.Compare(operator, tree.Field((str(name),)), tree.Literal(value)):
            negated = operator == "<>"
            return condition(name, _OPERATIONS[operator], value, negated=negated)
        case tree.In(tree.Field((str(name),)), choices):
            return condition(name, "in", tuple(choice.value for choice in choices))
    return None
