"""Keywords of JSON Schema that look at one value alone: what is wanted when it does not fit. Pure.
[CO-14]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from rapport.communication.contents.equality import frozen, is_kind, is_multiple, is_number
from rapport.communication.contents.patterns import LONGEST_MATCHED, python_pattern

_SHOWN = 200

Judge = Callable[[Any, Any], str]
"""What the keyword says and the value, to what is wanted; empty when the value fits."""

_KINDS = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a text",
}


def _type(given: Any, value: Any) -> str:
    names = [given] if isinstance(given, str) else given
    if any(is_kind(value, name) for name in names):
        return ""
    return f"{' or '.join(_KINDS[name] for name in names)} is wanted"


def _enum(given: Any, value: Any) -> str:
    if frozen(value) in map(frozen, given):
        return ""
    return f"one of {_shown(given)} is wanted"


def _const(given: Any, value: Any) -> str:
    return "" if frozen(value) == frozen(given) else f"{_shown(given)} is wanted"


def _pattern(given: Any, value: Any) -> str:
    compiled = python_pattern(given) if isinstance(value, str) else None
    if compiled is None or (len(value) <= LONGEST_MATCHED and compiled.search(value)):
        return ""
    return f"a text like {given[:_SHOWN]} is wanted"


def _unique(given: Any, value: Any) -> str:
    if not given or not isinstance(value, list) or len(set(map(frozen, value))) == len(value):
        return ""
    return "items that all differ are wanted"


def _required(given: Any, value: Any) -> str:
    missing = [name for name in given if name not in value] if isinstance(value, dict) else []
    return f"{_shown(missing[0])} is missing" if missing else ""


def _dependent(given: Any, value: Any) -> str:
    if not isinstance(value, dict):
        return ""
    for name in given:
        missing = [one for one in given[name] if name in value and one not in value]
        if missing:
            return f"{_shown(missing[0])} is missing, which belongs to {_shown(name)}"
    return ""


def _number(fits: Callable[[Any, Any], bool], wanted: str) -> Judge:
    def judge(given: Any, value: Any) -> str:
        return "" if not is_number(value) or fits(value, given) else f"{wanted} {given} is wanted"

    return judge


def _size(
    kind: type[str | list[Any] | dict[str, Any]], fits: Callable[[int, int], bool], wanted: str
) -> Judge:
    def judge(given: Any, value: Any) -> str:
        if not isinstance(value, kind) or fits(len(value), given):
            return ""
        return f"{wanted.format(given)} are wanted"

    return judge


def _least(size: int, given: int) -> bool:
    return size >= given


def _most(size: int, given: int) -> bool:
    return size <= given


PLAIN: dict[str, Judge] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "pattern": _pattern,
    "uniqueItems": _unique,
    "required": _required,
    "dependentRequired": _dependent,
    "minimum": _number(lambda value, given: bool(value >= given), "at least"),
    "maximum": _number(lambda value, given: bool(value <= given), "at most"),
    "exclusiveMinimum": _number(lambda value, given: bool(value > given), "more than"),
    "exclusiveMaximum": _number(lambda value, given: bool(value < given), "less than"),
    "multipleOf": _number(is_multiple, "a multiple of"),
    "minLength": _size(str, _least, "at least {} characters"),
    "maxLength": _size(str, _most, "at most {} characters"),
    "minItems": _size(list, _least, "at least {} items"),
    "maxItems": _size(list, _most, "at most {} items"),
    "minProperties": _size(dict, _least, "at least {} properties"),
    "maxProperties": _size(dict, _most, "at most {} properties"),
}


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
