"""Which part of a condition an index can answer. Pure. [CH-4]

An index returns candidates: every match is among them, and the condition itself still decides. So a
plan may be too wide, never too narrow. Positions alone make a set when the keys decide the
condition; that does not hold for unindexable events: those with a time to live of their own, of a
large size, or with values that keys do not distinguish. Every indexed log has one more field with a
key for such events.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from rapport.channel.query.parser import TokenCursor, parse_field
from rapport.channel.query.query_kinds import Query
from rapport.channel.query.tree import (
    TURNED,
    And,
    Between,
    Compare,
    Condition,
    Field,
    In,
    Like,
    Literal,
    Or,
    Value,
    print_field,
)
from rapport.channel.query.values import is_xml
from rapport.channel.validation import TTL
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent
from rapport.store.field_keys import (
    AllOf,
    AnyOf,
    Lookup,
    Range,
    RangeLookup,
    key_of,
    points,
    text_key,
)

MOST_RANGES = 64
"""An IN with more choices is read, not looked up: each is a search of its own."""
_LAST_CHARACTER, _SURROGATES = 0x10FFFF, range(0xD800, 0xE000)
UNINDEXABLE = "(unusual)"
"""The path of that field; no field of an event can have it."""
LARGEST_INDEXABLE = 64 * 1024
"""Bytes of data."""
_NUL, _NUL_IN_JSON = "\0", b"\\u0000"


class IndexMatches(msgspec.Struct, frozen=True):
    """All candidates after the requested position, up to `through`, in order; when `events` is None
    everything up to `through` has to be read.
    """

    events: list[StoredEvent] | None
    through: int
    certain: Sequence[int] = ()
    """Positions of the next matches behind `through`, without a gap: not read, since the index
    alone decides. Each has at most LARGEST_INDEXABLE bytes of data and no time to live of its own.
    """
    decided: bool = False
    """Whether the index alone decided that all `events` match."""
    unread: Sequence[int] = ()
    """Positions up to `through` that the index knows and the log did not return."""


class Finder(Protocol):
    """Finds events that may match a query without reading all others. Called from any thread."""

    def find(
        self,
        log: str,
        query: Query,
        *,
        after: int,
        until: int,
        limit: int,
        read: int | None = None,
    ) -> IndexMatches | None:
        """Candidates of a log after a position, up to `until`; about `limit` of them. None when no
        index helps. `through` always lies after `after`, unless `read` is 0: with `read` only so
        many events are read, and the rest may be `certain` positions.
        """

    def fetch(self, log: str, positions: Collection[int]) -> list[StoredEvent]:
        """The events at positions, in order, as far as they are there."""


def index_path(text: str) -> str:
    """The canonical name of a field that may be indexed; raises InvalidInput for others."""
    cursor = TokenCursor(text)
    field = parse_field(cursor)
    if not cursor.sees("end"):
        raise cursor.fault("query.unexpected", "a field ends here", "one field per entry")
    if field.path[0] == "position":
        raise InvalidInput(
            "positions need no index", code="query.bad_index", hint="leave `position` out"
        )
    return print_field(field)


def plan_lookup(condition: Condition | None, indexed: Collection[str]) -> Lookup | None:
    """The index lookup for a condition, given the indexed fields; None when none helps.

    >>> from rapport.channel.query.parser import parse_condition
    >>> plan_lookup(parse_condition("type = 'a' AND data.x <> 5"), ["type", "data.x"])
    Within(path='type', ranges=(Range(low='a', high='a'),), text=True)
    """
    match condition:
        case And(parts):
            planned = [plan_lookup(part, indexed) for part in parts]
            known = tuple(part for part in planned if part is not None)
            return known[0] if len(known) == 1 else AllOf(known) if known else None
        case Or(parts):
            ways = [plan_lookup(part, indexed) for part in parts]
            every = tuple(way for way in ways if way is not None)
            return AnyOf(every) if len(every) == len(ways) <= MOST_RANGES else None
        case _:
            return _plan_leaf(condition, indexed)


def is_decided(condition: Condition | None, indexed: Collection[str]) -> bool:
    """Whether the keys of indexed fields decide a condition: an event with all keys of
    `plan_lookup` fulfils it, unless it is unindexable.

    >>> from rapport.channel.query.parser import parse_condition
    >>> is_decided(parse_condition("type = 'a' AND data.x >= 5"), ["type", "data.x"])
    True
    >>> is_decided(parse_condition("type = 'a' AND data.x > 5"), ["type", "data.x"])
    False
    """
    match condition:
        case And(parts) | Or(parts):
            return bool(parts) and all(is_decided(part, indexed) for part in parts)
        case Compare("=" | "<=" | ">=", left, right):
            return _is_exact(condition, indexed, (left, right))
        case Between(_operand, low, high):
            return _is_exact(condition, indexed, (low, high))
        case In(_operand, choices):
            return _is_exact(condition, indexed, choices)
        case _:
            return False


def _is_exact(condition: Condition, indexed: Collection[str], values: Sequence[Value]) -> bool:
    leaf = _plan_leaf(condition, indexed)
    texts = [each.value for each in values if isinstance(each, Literal)]
    return (
        isinstance(leaf, RangeLookup)
        and all(each.is_exact for each in leaf.ranges)
        and not any(isinstance(text, str) and "\0" in text for text in texts)
    )


def _plan_leaf(condition: Condition | None, indexed: Collection[str]) -> Lookup | None:
    match condition:
        case Compare(operator, Literal() as literal, right):
            return _within(right, indexed, _compared(TURNED[operator], literal), literal)
        case Compare(operator, left, Literal() as literal):
            return _within(left, indexed, _compared(operator, literal), literal)
        case Between(operand, Literal() as low, Literal() as high):
            return _within(operand, indexed, _between(low, high), low)
        case In(operand, choices) if len(choices) <= MOST_RANGES:
            keys = [key_of(choice.value) for choice in choices]
            ranges = points(*(key for key in keys if key is not None))
            return _within(operand, indexed, ranges, choices[0])
        case Like(operand, pattern, escape):
            return _within(operand, indexed, _beginning(pattern, escape), Literal(""))
        case Field():
            return _within(condition, indexed, points(1), Literal(True))
        case _:
            return None


def _within(
    operand: Value, indexed: Collection[str], ranges: tuple[Range, ...], literal: Literal
) -> RangeLookup | None:
    if not isinstance(operand, Field) or not ranges:
        return None
    path = print_field(operand)
    if path not in indexed:
        return None
    return RangeLookup(path, ranges, isinstance(literal.value, str))


def _compared(operator: str, literal: Literal) -> tuple[Range, ...]:
    key = key_of(literal.value)
    if key is None or (isinstance(literal.value, bool) and operator != "="):
        return ()
    match operator:
        case "=":
            return points(key)
        case "<" | "<=":
            return (Range(None, key),)
        case ">" | ">=":
            return (Range(key, None),)
        case _:
            return ()


def _between(low: Literal, high: Literal) -> tuple[Range, ...]:
    lowest, highest = key_of(low.value), key_of(high.value)
    is_range = isinstance(lowest, str) == isinstance(highest, str)
    if not is_range or isinstance(low.value, bool) or isinstance(high.value, bool):
        return ()
    return (Range(lowest, highest),)


def _beginning(pattern: str, escape: str) -> tuple[Range, ...]:
    """The texts that begin as the pattern does up to its first wildcard."""
    begins, is_escaped = "", False
    for sign in pattern:
        if not is_escaped and escape and sign == escape:
            is_escaped = True
            continue
        if not is_escaped and sign in "%_":
            low = text_key(begins)
            return (Range(low, _after_all(low)),) if low else ()
        begins, is_escaped = begins + sign, False
    return points(text_key(begins))


def _after_all(beginning: str) -> str | None:
    """A text greater than every text with this prefix; None when there is none."""
    for end in range(len(beginning) - 1, -1, -1):
        character = ord(beginning[end]) + 1
        if character in _SURROGATES:
            character = _SURROGATES.stop
        if character <= _LAST_CHARACTER:
            return beginning[:end] + chr(character)
    return None


def explain_query(query: Query, indexed: Collection[str]) -> str:
    """One sentence for people: which part of the query uses an index, or why the log is read."""
    if query.condition is None:
        return f"queries of kind {query.kind} are answered by reading"
    lookup = plan_lookup(query.condition, indexed)
    if lookup is None:
        fields = ", ".join(sorted(indexed)) or "none"
        return f"answered by reading: no indexed field is compared with a value (indexed: {fields})"
    return f"looked up: {_shown(lookup)}; then tried on what was found"


def _shown(lookup: Lookup) -> str:
    if isinstance(lookup, RangeLookup):
        return lookup.path
    word = " and " if isinstance(lookup, AllOf) else " or "
    return f"({word.join(_shown(part) for part in lookup.parts)})"


def needs_event(event: Event) -> bool:
    """Whether the event itself has to be looked at."""
    data, headers = event.data, event.headers
    if len(data) > LARGEST_INDEXABLE or _NUL_IN_JSON in data:
        return True
    if _NUL in event.type or _NUL in event.subject or _NUL in event.id or _NUL in event.source:
        return True
    if not headers:
        return False
    return TTL in headers or is_xml(headers) or any(_NUL in text for text in headers.values())


def unindexable_lookup() -> Lookup:
    return RangeLookup(UNINDEXABLE, points(1), False)
