"""What generated transformers call to read a field: a value or Rejected. [ME-8, ME-11]"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from rapport.core.codec import DATA_ENCODING, DATA_TYPE
from rapport.core.errors import InvalidInput
from rapport.core.event import ADDED_FIELDS, MAX_NAME, Event
from rapport.core.times import parse_time
from rapport.mediation.as_declared import TRUTHS
from rapport.mediation.formats.payload import added_fields
from rapport.mediation.rejection import Rejected
from rapport.units.quantities import DecimalMark, looks_like_number, parse_number
from rapport.units.timeformats import from_epoch, from_iso, from_pattern

MISSING: Any = msgspec.UNSET
"""Stands for a field that is not there, as against one that is null."""

_DECODE = msgspec.json.Decoder().decode
_SHOWN = 60
_DIGITS = re.compile(r"-?\d{1,19}")
_OF_RAW_DATA = frozenset((DATA_TYPE, DATA_ENCODING, ADDED_FIELDS))


def decode_object(raw: Event) -> dict[str, Any]:
    """The payload as a JSON object, with the fields that its transport added."""
    try:
        data = _DECODE(raw.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise Rejected("payload.not_json", f"the payload cannot be read: {error}") from None
    if data.__class__ is not dict:
        raise Rejected(
            "payload.not_an_object",
            f"the payload is {_kind(data)}, not an object",
            'a payload looks like {"reader": "r7", "tag": "E200-34"}; one value alone needs an '
            'interpretation with format = "value"',
        )
    return data if ADDED_FIELDS not in raw.headers else data | added_fields(raw)


def number(value: Any, field: str) -> float:
    """A JSON number as a finite float; text and truth values are not numbers."""
    kind = value.__class__
    if kind is float or kind is int:
        try:
            found = float(value)
        except OverflowError:
            found = math.inf
        if math.isfinite(found):
            return found
        not_finite(field)
    if kind is str:
        mark = looks_like_number(value)
        hint = f'if numbers come as text, declare decimal = "{mark}"' if mark else ""
        raise Rejected("value.not_a_number", f"{field} is the text {_cut(value)}", hint)
    _wrong(value, field, "value.not_a_number", "a number")


def number_or_text(value: Any, field: str, decimal: DecimalMark) -> float:
    """A JSON number, or text that writes one with the declared decimal mark."""
    if value.__class__ is not str:
        return number(value, field)
    try:
        found = parse_number(value, decimal)
    except InvalidInput as error:
        raise Rejected(error.code, f"{field}: {error.message}", error.hint) from None
    if math.isfinite(found):
        return found
    not_finite(field)


def text(value: Any, field: str) -> str:
    """A JSON string."""
    if value.__class__ is str:
        return value
    _wrong(value, field, "value.not_text", "text")


def truth(value: Any, field: str) -> bool:
    """A JSON true or false."""
    if value is True or value is False:
        return value
    _wrong(value, field, "value.not_a_boolean", "true or false")


def truth_or_text(value: Any, field: str) -> bool:
    """A JSON true or false, or text that says it: `true`, `off`, `1`."""
    if value.__class__ is not str:
        return truth(value, field)
    found = TRUTHS.get(value.strip().lower())
    if found is None:
        raise Rejected("value.not_a_boolean", f"{field} is the text {_cut(value)}")
    return found


def name(value: Any, field: str) -> str:
    """What identifies something: text, or a whole number as its digits."""
    if isinstance(value, str) and value:
        return value
    if value.__class__ is int and -(10**30) < value < 10**30:
        return str(value)
    if value == "":
        raise Rejected("identity.empty", f"{field} is empty")
    _wrong(value, field, "identity.not_a_name", "text or a whole number")


def subject(concept_and_slash: str, key: str) -> str:
    """`concept/key` as an envelope can carry it."""
    whole = concept_and_slash + key
    if len(whole) > MAX_NAME or not whole.isprintable():
        fault = "is too long" if len(whole) > MAX_NAME else "has unprintable characters"
        raise Rejected("identity.bad_name", f"the identity {_cut(key)} {fault}")
    return whole


def kept_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Of a raw event's headers those that are true of its reading too, whose data are JSON: not
    that they came as CSV, or as octets in base64, nor which fields were added.
    """
    if _OF_RAW_DATA.isdisjoint(headers):
        return headers
    return {name: told for name, told in headers.items() if name not in _OF_RAW_DATA}


def epoch_time(value: Any, field: str, unit_ms: float, decimal: DecimalMark | None = None) -> int:
    """A number of seconds or milliseconds since 1970; with `decimal` it may come as text."""
    found = number(value, field) if decimal is None else number_or_text(value, field, decimal)
    return _time(field, from_epoch, found, unit_ms)


def iso_time(value: Any, field: str, zone: str) -> int:
    """ISO 8601 text."""
    return _time(field, from_iso, text(value, field), zone)


def pattern_time(value: Any, field: str, pattern: str, zone: str) -> int:
    """Text in a declared pattern."""
    return _time(field, from_pattern, text(value, field), pattern, zone)


def root_time(value: Any, field: str, zone: str = "") -> int:
    """Integer milliseconds, or ISO 8601 text with an offset or in the zone."""
    if value.__class__ is int or (value.__class__ is str and _DIGITS.fullmatch(value.strip())):
        return _time(field, parse_time, value)
    if value.__class__ is not str:
        _wrong(value, field, "time.bad_time", "integer milliseconds or ISO 8601 text")
    return _time(field, from_iso, value, zone)


def not_finite(field: str) -> NoReturn:
    """The number is NaN, infinite, or too large for a float."""
    raise Rejected("value.not_finite", f"{field} is not a finite number")


def _time(field: str, read: Any, *arguments: Any) -> int:
    try:
        found: int = read(*arguments)
    except InvalidInput as error:
        raise Rejected(error.code, f"{field}: {error.message}", error.hint) from None
    return found


def _wrong(value: Any, field: str, code: str, wanted: str) -> NoReturn:
    if value is MISSING:
        raise Rejected("field.missing", f"the payload has no field {field}")
    raise Rejected(code, f"{field} is {_kind(value)}, not {wanted}")


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    return "null" if value is None else kinds.get(value.__class__, "a number")


def _cut(value: str) -> str:
    return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "...")
