"""Checks the form of a JSON Schema (draft 2020-12): known keywords, values of the right kind.
Pure. [CO-14]

Contents are checked against schemas that pass here (`contents/fitting.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput, nearest_names

LARGEST_SCHEMA_BYTES = 64 * 1024
_DEEPEST = 40
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")

_SCHEMA = (
    *("items", "contains", "not", "if", "then", "else", "additionalProperties", "propertyNames"),
    *("unevaluatedItems", "unevaluatedProperties", "contentSchema"),
)
_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_TEXTS = (
    *("$schema", "$id", "$anchor", "$dynamicAnchor", "$comment", "title", "description", "format"),
    *("contentEncoding", "contentMediaType"),
)
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COUNTS = (
    *("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains"),
    *("minProperties", "maxProperties"),
)
_Fits = tuple[Callable[[Any], bool], str]
_FLAG: _Fits = (lambda value: isinstance(value, bool), "true or false")


def check_schema(schema: Any) -> None:
    """Raises InvalidInput, naming the place, unless this is a JSON Schema with references into
    itself only.
    """
    try:
        size = len(msgspec.json.encode(schema))
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise _fault("", f"it is no JSON: {error}") from None
    if size > LARGEST_SCHEMA_BYTES:
        raise _fault("", f"it has {size} bytes; {LARGEST_SCHEMA_BYTES} are allowed")
    if not isinstance(schema, dict):
        raise _fault("", "it is not an object", 'such as {"type": "object", "properties": {...}}')
    _Check(schema).schema("", schema, 0)


class _Check:
    """One schema; places are written as JSON pointers."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._followed: set[str] = set()

    def schema(self, place: str, value: Any, depth: int) -> None:
        if isinstance(value, bool):
            return
        if not isinstance(value, dict):
            raise _fault(place, "a schema is an object, true or false")
        if depth > _DEEPEST:
            raise _fault(place, "schemas are nested too deeply", f"at most {_DEEPEST} levels")
        for keyword, given in value.items():
            self._keyword(f"{place}/{keyword}", keyword, given, depth + 1)

    def _keyword(self, place: str, keyword: str, value: Any, depth: int) -> None:
        if keyword in _SCHEMA:
            self.schema(place, value, depth)
        elif keyword in _SCHEMAS:
            if not isinstance(value, list) or not value:
                raise _fault(place, "a list of schemas stands here")
            for at, each in enumerate(value):
                self.schema(f"{place}/{at}", each, depth)
        elif keyword in _BY_NAME:
            self._by_name(place, keyword, value, depth)
        elif keyword == "$ref":
            self._reference(place, value, depth)
        elif keyword in _PLAIN:
            fits, wanted = _PLAIN[keyword]
            if not fits(value):
                raise _fault(place, f"{wanted} stands here")
        elif not keyword.startswith("x-"):
            near = nearest_names(keyword, _KNOWN, limit=1)
            hint = f"did you mean {near[0]!r}?" if near else "own keywords begin with x-"
            raise _fault(place, "JSON Schema has no such keyword", hint)

    def _by_name(self, place: str, keyword: str, value: Any, depth: int) -> None:
        if not isinstance(value, dict):
            raise _fault(place, "an object with a schema for each name stands here")
        for name, each in value.items():
            if keyword == "patternProperties" and not _is_pattern(name):
                raise _fault(place, f"{name[:40]!r} is no regular expression")
            self.schema(f"{place}/{name}", each, depth)

    def _reference(self, place: str, value: Any, depth: int) -> None:
        if not isinstance(value, str) or not (value == "#" or value.startswith("#/")):
            raise _fault(
                place, "a reference leads into the schema itself", 'such as "#/$defs/name"'
            )
        found: Any = self._root
        for step in value.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                raise _fault(place, f"the reference {value[:60]!r} leads nowhere")
        if value not in self._followed:
            # It may lead to where no keyword does, such as below an own one.
            self._followed.add(value)
            self.schema(value.removeprefix("#"), found, depth)


def _is_pattern(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        # Classes of Unicode are no fault, though Python's expressions lack them.
        re.compile(re.sub(r"\\[pP]\{[^}]*\}", ".", value))
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value)) and len(set(value)) == len(value)


def _is_type(value: Any) -> bool:
    names = [value] if isinstance(value, str) else value
    return bool(names) and _is_texts(names) and all(name in TYPES for name in names)


_TEXT: _Fits = (_is_text, "a text")
_NUMBER: _Fits = (_is_number, "a number")
_COUNT: _Fits = (_is_count, "a whole number from 0 on")
_PLAIN: dict[str, _Fits] = {
    **dict.fromkeys(_TEXTS, _TEXT),
    **dict.fromkeys(_NUMBERS, _NUMBER),
    **dict.fromkeys(_COUNTS, _COUNT),
    **dict.fromkeys(["uniqueItems", "deprecated", "readOnly", "writeOnly"], _FLAG),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "required": (_is_texts, "a list of different names"),
    "dependentRequired": (
        lambda value: isinstance(value, dict) and all(map(_is_texts, value.values())),
        "an object with a list of names for each name",
    ),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list of values"),
    "examples": (lambda value: isinstance(value, list), "a list of values"),
    "const": (lambda _value: True, ""),
    "default": (lambda _value: True, ""),
    "type": (_is_type, f"one or more of {', '.join(TYPES)}"),
    "pattern": (_is_pattern, "a regular expression"),
}
_KNOWN = (*_SCHEMA, *_SCHEMAS, *_BY_NAME, "$ref", *_PLAIN)


def _fault(place: str, message: str, hint: str = "") -> InvalidInput:
    where = f" at {place[:120]}" if place else ""
    return InvalidInput(
        f"this is no JSON Schema{where}: {message}", code="info.bad_schema", hint=hint
    )
