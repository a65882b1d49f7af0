"""JSON Schemas for message contents: each type of message may have one, checked on arrival. [CO-14]

`check_schema` checks the form of a schema (draft 2020-12): known keywords, values of the right
kind, references into itself only. Content is read as JSON. Content that does not look like JSON may
also fit as plain text, so that a schema can limit the length of words; not so when the message
declares JSON as its language.

`jsonschema-rs` validates; its patterns take linear time, or are given up after a fixed number of
steps. It has no limit on the work of one validation, and contents come from strangers: a schema
that applies itself twice to the same value takes twice as long for each level of nesting.
`_WorkBound` therefore computes in advance how many schemas can be applied to one value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import jsonschema_rs
import msgspec

from rapport.communication.texts import printable
from rapport.core.errors import InvalidInput, nearest_names
from rapport.core.message import Message

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
        raise _schema_fault("", f"it is no JSON: {error}") from None
    if size > LARGEST_SCHEMA_BYTES:
        raise _schema_fault("", f"it has {size} bytes; {LARGEST_SCHEMA_BYTES} are allowed")
    if not isinstance(schema, dict):
        raise _schema_fault(
            "", "it is not an object", 'such as {"type": "object", "properties": {...}}'
        )
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
            raise _schema_fault(place, "a schema is an object, true or false")
        if depth > _DEEPEST:
            raise _schema_fault(
                place, "schemas are nested too deeply", f"at most {_DEEPEST} levels"
            )
        for keyword, given in value.items():
            self._keyword(f"{place}/{keyword}", keyword, given, depth + 1)

    def _keyword(self, place: str, keyword: str, value: Any, depth: int) -> None:
        if keyword in _SCHEMA:
            self.schema(place, value, depth)
        elif keyword in _SCHEMAS:
            if not isinstance(value, list) or not value:
                raise _schema_fault(place, "a list of schemas stands here")
            for at, each in enumerate(value):
                self.schema(f"{place}/{at}", each, depth)
        elif keyword in _BY_NAME:
            self._by_name(place, keyword, value, depth)
        elif keyword == "$ref":
            self._reference(place, value, depth)
        elif keyword in _PLAIN:
            fits, wanted = _PLAIN[keyword]
            if not fits(value):
                raise _schema_fault(place, f"{wanted} stands here")
        elif not keyword.startswith("x-"):
            near = nearest_names(keyword, _KNOWN, limit=1)
            hint = f"did you mean {near[0]!r}?" if near else "own keywords begin with x-"
            raise _schema_fault(place, "JSON Schema has no such keyword", hint)

    def _by_name(self, place: str, keyword: str, value: Any, depth: int) -> None:
        if not isinstance(value, dict):
            raise _schema_fault(place, "an object with a schema for each name stands here")
        for name, each in value.items():
            if keyword == "patternProperties" and not _is_pattern(name):
                raise _schema_fault(place, f"{name[:40]!r} is no regular expression")
            self.schema(f"{place}/{name}", each, depth)

    def _reference(self, place: str, value: Any, depth: int) -> None:
        if not isinstance(value, str) or not (value == "#" or value.startswith("#/")):
            raise _schema_fault(
                place, "a reference leads into the schema itself", 'such as "#/$defs/name"'
            )
        try:
            found = _resolved(self._root, value)
        except (LookupError, TypeError):
            raise _schema_fault(place, f"the reference {value[:60]!r} leads nowhere") from None
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


def _schema_fault(place: str, message: str, hint: str = "") -> InvalidInput:
    where = f" at {place[:120]}" if place else ""
    return InvalidInput(
        f"this is no JSON Schema{where}: {message}", code="info.bad_schema", hint=hint
    )


# --- contents ---


BAD_CONTENT = "message.bad_content"
JSON_LANGUAGES = ("json", "application/json")
MOST_WORK = 5_000_000
"""Pairs of schema and value in one validation, at most: about half a second."""
DEEPEST = 64
"""Levels of nesting in a content that has a schema."""
_BACKTRACK_LIMIT = 100_000
_SHOWN = 300
_TOO_MUCH = "it is too large or too deep to be checked"

Schema = dict[str, Any] | bool


class ContentFault(msgspec.Struct, frozen=True, kw_only=True):
    """Why a content is refused."""

    code: str = BAD_CONTENT
    place: str = ""
    """A JSON pointer into the content; empty = the whole of it."""
    message: str
    hint: str

    def as_error(self) -> InvalidInput:
        return InvalidInput(self.message, code=self.code, hint=self.hint)


class Contents(Protocol):
    """The check of each message that arrives."""

    async def refresh(self) -> None:
        """Loads changes made elsewhere; called before each batch, cheap when there are none."""

    def fault(self, message: Message) -> ContentFault | None:
        """Why this content cannot pass; never raises."""


class Misfit(msgspec.Struct, frozen=True):
    """The first violation of a schema."""

    place: str
    """A JSON pointer into the content; empty = the whole of it."""
    reason: str


class ContentSchema:
    """A schema that has passed `check_schema`, compiled. A pattern that the engine does not know is
    ignored, as `format` is.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        try:
            self._validator = _compiled(schema)
        except ValueError:
            self._validator = _compiled(_without_unknown_patterns(schema))
        self._bound = _WorkBound(schema)

    def misfit(self, value: Any) -> Misfit | None:
        """The first violation; None when the value fits."""
        try:
            nodes, depth = _measure(value)
            if nodes * self._bound.at(depth) > MOST_WORK:
                return Misfit("", _TOO_MUCH)
            if self._validator.is_valid(value):
                return None
            error = _nearest(next(iter(self._validator.iter_errors(value))))
        except (ValueError, RecursionError):  # text that is no Unicode, values nested without end
            return Misfit("", _TOO_MUCH)
        unexpected: list[str] = getattr(error.kind, "unexpected", [])
        return Misfit(_pointer([*error.instance_path, *unexpected[:1]]), error.message)


class ContentRules:
    """Schemas by type and subtype; a subtype without one of its own has its type's."""

    def __init__(self, schemas: Mapping[tuple[str, str], dict[str, Any] | None]) -> None:
        """`schemas`: None for a subtype whose content is free although its type has a schema."""
        self._schemas = {
            kind: ContentSchema(schema) if schema else None for kind, schema in schemas.items()
        }
        self.is_empty = not self._schemas

    async def refresh(self) -> None:
        """Nothing to load."""

    def fault(self, message: Message) -> ContentFault | None:
        """Why this content does not fit; costs one look-up for types without a schema."""
        kind = (message.type, message.subtype)
        schema = self._schemas.get(kind if kind in self._schemas else (message.type, ""))
        if schema is None:
            return None
        found = _misfit(schema, message)
        return None if found is None else _content_fault(message, found)


ANY_CONTENT = ContentRules({})
"""For a node whose messages have no schemas."""


def _compiled(schema: dict[str, Any]) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(
        schema,
        mask="the value",
        pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_BACKTRACK_LIMIT),
    )


def _misfit(schema: ContentSchema, message: Message) -> Misfit | None:
    content = message.content
    is_json = message.language.lower() in JSON_LANGUAGES or content.lstrip()[:1] in ("{", "[", '"')
    try:
        value = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        found: Misfit | None = Misfit("", f"it is not JSON ({str(error)[:_SHOWN]})")
    else:
        found = schema.misfit(value)
    if found is None or is_json:
        return found
    return found if schema.misfit(content) is not None else None


def _content_fault(message: Message, found: Misfit) -> ContentFault:
    type, subtype = message.type, message.subtype
    place = printable(found.place, _SHOWN)
    where = f" at {place}" if place else ""
    kind = f"{type} {subtype}".strip()
    return ContentFault(
        place=place,
        message=f"the content does not fit the schema of {kind}{where}: "
        + printable(found.reason, _SHOWN),
        hint=f"`rapport info show {kind}` or GET /messages/info/{type}{'/' * bool(subtype)}"
        f"{subtype} gives the JSON Schema",
    )


def _nearest(error: jsonschema_rs.ValidationError) -> jsonschema_rs.ValidationError:
    """The error of the alternative that came furthest into the value, else the error itself."""
    alternatives = getattr(error.kind, "context", ())
    inner = [each for errors in alternatives for each in errors]
    furthest = max(inner, key=lambda each: len(each.instance_path), default=error)
    return furthest if len(furthest.instance_path) > len(error.instance_path) else error


def _pointer(path: list[str | int]) -> str:
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


# --- limits ---


def _measure(value: Any) -> tuple[int, int]:
    """How many values a value consists of, and how deep it is nested; stops when it is too deep."""
    nodes, depth, level = 0, 0, [value]
    while level:
        nodes += len(level)
        level = [
            each
            for outer in level
            if isinstance(outer, list | dict)
            for each in (outer.values() if isinstance(outer, dict) else outer)
        ]
        depth += bool(level)
        if depth > DEEPEST:
            break
    return nodes, depth


_LISTS = ("allOf", "anyOf", "oneOf")
_SINGLES = ("not", "if", "then", "else")


class _WorkBound:
    """For each depth of a value: how many schemas can be applied to one path through it."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        schemas = list(_objects(root))
        below: dict[int, int] = {}
        self._by_depth: list[int] = []
        while len(self._by_depth) <= DEEPEST:
            found: dict[int, int] = {}
            try:
                costs = {id(one): self._cost(one, below, found, set()) for one in schemas}
                self._by_depth.append(costs.get(id(root), 1))
            except RecursionError:
                break
            if costs == below or self._by_depth[-1] > MOST_WORK:
                break
            below = costs
        self._is_final = bool(self._by_depth) and self._by_depth[-1] <= MOST_WORK

    def at(self, depth: int) -> int:
        """The bound for values of that depth; more than `MOST_WORK` for those never to check."""
        if depth < len(self._by_depth):
            return self._by_depth[depth]
        return self._by_depth[-1] if self._is_final and depth <= DEEPEST else MOST_WORK + 1

    def _cost(
        self, schema: Any, below: dict[int, int], found: dict[int, int], open: set[int]
    ) -> int:
        key = id(schema)
        if not isinstance(schema, dict) or key in open:
            return 1  # the validator ends circles by itself
        if key not in found:
            here = [one for name in _LISTS for one in schema.get(name, ())]
            here += [schema[name] for name in _SINGLES if name in schema]
            here += schema.get("dependentSchemas", {}).values()
            if "$ref" in schema:
                here.append(_resolved(self._root, schema["$ref"]))
            cost = 1 + sum(self._cost(one, below, found, open | {key}) for one in here)
            found[key] = min(cost + _cost_below(schema, below), MOST_WORK + 1)
        return found[key]


def _cost_below(schema: dict[str, Any], below: dict[int, int]) -> int:
    """Of the schemas for one property or one item: those that hold for the same one add up."""

    def cost(*schemas: Any) -> list[int]:
        return [below.get(id(one), 1) for one in schemas]

    named = [*schema.get("properties", {}).values(), schema.get("additionalProperties", True)]
    properties = max(cost(*named)) + sum(
        cost(
            *schema.get("patternProperties", {}).values(),
            schema.get("propertyNames", True),
            schema.get("unevaluatedProperties", True),
        )
    )
    items = max(cost(*schema.get("prefixItems", ()), schema.get("items", True))) + sum(
        cost(schema.get("contains", True), schema.get("unevaluatedItems", True))
    )
    return max(properties, items)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a schema; some are no schemas, which costs little."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def _resolved(root: Any, reference: str) -> Any:
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(root, list) and not name.isdecimal():
            raise LookupError(name)
        root = root[int(name)] if isinstance(root, list) else root[name]
    return root


def _without_unknown_patterns(value: Any) -> Any:
    """The schema without patterns that the validator's engine does not know."""
    if isinstance(value, list):
        return [_without_unknown_patterns(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {
        name: one if name in ("enum", "const") else _without_unknown_patterns(one)
        for name, one in value.items()
    }
    if not _is_known_pattern(kept.get("pattern", "")):
        del kept["pattern"]
    by_pattern = kept.get("patternProperties")
    if isinstance(by_pattern, dict):
        kept["patternProperties"] = {
            name: one for name, one in by_pattern.items() if _is_known_pattern(name)
        }
    return kept


def _is_known_pattern(pattern: Any) -> bool:
    if not isinstance(pattern, str):
        return True  # a property of that name, not the keyword
    try:
        jsonschema_rs.Draft202012Validator({"pattern": pattern})
    except ValueError:
        return False
    return True
