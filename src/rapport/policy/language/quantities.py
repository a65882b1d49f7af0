"""Reads constants with their units (`30 degC`, `15 %`, `'open'`, `true`) and durations (`within 5
s`, `for 2 hours`, `at most once per 10 min`). [PO-3]"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from rapport.core.errors import InvalidInput
from rapport.core.times import format_duration, parse_duration
from rapport.policy.language.lexer import SyntaxFault, Token, TokenCursor, span
from rapport.policy.language.tree import Quantity

TIMING_WORDS = ("for", "within")
"""Words that begin a time after a condition; never units."""
_LONGEST_MS = 366 * 86_400_000


def read_constant(cursor: TokenCursor, is_unit: Callable[[TokenCursor], bool]) -> Quantity | None:
    """Reads a constant; None if there is none. Raises SyntaxFault for a too large number.

    `is_unit` decides whether the word after a number belongs to it.
    """
    token = cursor.peek()
    if token is None:
        return None
    if token.kind == "number":
        return _number(cursor, is_unit)
    if token.kind == "text":
        return Quantity(cursor.take().text, "", token.place)
    if token.kind == "word" and token.text.lower() in ("true", "false"):
        return Quantity(cursor.take().text.lower(), "", token.place)
    return None


def _number(cursor: TokenCursor, is_unit: Callable[[TokenCursor], bool]) -> Quantity:
    number = cursor.take()
    value = float(number.text)
    if not math.isfinite(value):
        message = "the number is too large"
        raise SyntaxFault("policy.bad_number", message, number.place, "at most 1e308")
    if not cursor.sees("unit") and not (cursor.sees("word") and is_unit(cursor)):
        return Quantity(value, "", number.place)
    unit = cursor.take()
    return Quantity(value, unit.text, span(number.place, unit.place))


class Timing(NamedTuple):
    """The use of a duration: its name, fault code and example in messages."""

    name: str
    code: str
    example: str


WINDOW = Timing("a window", "policy.bad_window", "within 5 s")
DURATION = Timing("a duration", "policy.bad_duration", "for 10 min")
THROTTLE = Timing("a duration", "policy.bad_duration", "at most once per 10 min")


def read_duration(cursor: TokenCursor, timing: Timing) -> int:
    """Reads a number and a unit as milliseconds; raises SyntaxFault."""
    hint = f"write a number and its unit, such as: {timing.example}"
    number = cursor.take_if("number")
    if number is None:
        found = cursor.peek()
        shown = f", found {found.text!r}" if found is not None else ""
        raise cursor.fault(timing.code, f"expected {timing.name}{shown}", hint=hint)
    unit = _unit(cursor)
    if unit is None:
        message = f"{number.text!r} has no unit of time"
        raise SyntaxFault(timing.code, message, number.place, hint)
    duration_ms = _milliseconds(number, unit, timing, hint)
    _refuse_second_part(cursor, duration_ms, timing)
    return duration_ms


def _unit(cursor: TokenCursor) -> Token | None:
    token = cursor.peek()
    if token is None or (token.kind == "word" and token.text.lower() in TIMING_WORDS):
        return None
    return cursor.take() if token.kind in ("word", "unit") else None


def _milliseconds(number: Token, unit: Token, timing: Timing, hint: str) -> int:
    if unit.text == "m":
        raise SyntaxFault(
            "policy.ambiguous_unit",
            "'m' can be metres or minutes",
            unit.place,
            f"write {number.text} min for minutes",
        )
    written = number.text + unit.text
    try:
        duration_ms = parse_duration(written)
    except (InvalidInput, OverflowError):
        message = f"{written[:40]!r} is not {timing.name}"
        hint = f"{hint}; units are ms, s, min, h, d"
        raise SyntaxFault(timing.code, message, span(number.place, unit.place), hint) from None
    if not 0 < duration_ms <= _LONGEST_MS:
        message = f"{timing.name} is longer than nothing and at most 366 days"
        raise SyntaxFault(timing.code, message, number.place, hint)
    return duration_ms


def _refuse_second_part(cursor: TokenCursor, duration_ms: int, timing: Timing) -> None:
    """Rejects `1 h 30 min` with a hint that names the sum."""
    number, unit = cursor.peek(), cursor.peek(1)
    if number is None or number.kind != "number":
        return
    hint = "write all of it in the smaller unit"
    if unit is not None and unit.kind == "word":
        try:
            more_ms = parse_duration(number.text + unit.text)
            hint = f"write {format_duration(duration_ms + more_ms)}"
        except (InvalidInput, OverflowError):
            hint = "leave it out"
    raise cursor.fault(timing.code, f"{timing.name} has one number and one unit", hint=hint)
