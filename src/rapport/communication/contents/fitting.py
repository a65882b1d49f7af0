"""Whether a value fits a JSON Schema (draft 2020-12), and where it does not. Pure. [CO-14]

The schema has passed `check_schema`. `format` and the keywords about encoded contents are remarks,
as the standard has it; a pattern that Python cannot express is not judged.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rapport.communication.contents.patterns import LONGEST_MATCHED, python_pattern
from rapport.communication.contents.plain_keywords import PLAIN

MOST_LOOKS = 100_000
"""Pairs of schema and value looked at before giving up; some tenths of a second."""
_DEEPEST = 100

Schema = dict[str, Any] | bool


class Misfit(msgspec.Struct, frozen=True):
    """The first thing that does not fit."""

    place: str
    """A JSON pointer into the content; empty = the whole of it."""
    wanted: str
    """What the schema says of that place."""


class _Seen(msgspec.Struct):
    """Which parts of a value some schema has judged: for `unevaluated...`."""

    names: set[str] = msgspec.field(default_factory=set)
    items: set[int] = msgspec.field(default_factory=set)

    def take(self, other: _Seen) -> None:
        self.names |= other.names
        self.items |= other.items


def misfit(schema: Schema, value: Any) -> Misfit | None:
    """The first fault of a value; None when it fits."""
    try:
        return _Fitting(schema).look(schema, value, "", _Seen(), 0)
    except _TooMuch as error:
        return Misfit(error.place, "it is too large or too deep to be checked")


class _TooMuch(Exception):
    """Stops all looking: under `not` a mere misfit would turn into a fit."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place


class _Fitting:
    """One value and its schema."""

    def __init__(self, root: Schema) -> None:
        self._root, self._looks = root, 0

    def look(
        self, schema: Schema, value: Any, place: str, seen: _Seen, depth: int
    ) -> Misfit | None:
        """The first fault of a value; `seen` learns what was judged when there is none."""
        if isinstance(schema, bool):
            return None if schema else Misfit(place, "nothing may stand here")
        self._looks += 1
        if self._looks > MOST_LOOKS or depth > _DEEPEST:
            raise _TooMuch(place)
        for keyword, given in schema.items():
            plain = PLAIN.get(keyword)
            if plain is not None and (wanted := plain(given, value)):
                return Misfit(place, wanted)
        own = _Seen()
        for judge in (self._combined, self._object, self._array):
            fault = judge(schema, value, place, own, depth + 1)
            if fault is not None:
                return fault
        fault = self._unjudged(schema, value, place, own, depth + 1)
        if fault is None:
            seen.take(own)
        return fault

    # --- schemas about the same value ---

    def _combined(
        self, schema: dict[str, Any], value: Any, place: str, own: _Seen, depth: int
    ) -> Misfit | None:
        for each in _together(schema, self._root, value):
            fault = self.look(each, value, place, own, depth)
            if fault is not None:
                return fault
        if "not" in schema and self.look(schema["not"], value, place, _Seen(), depth) is None:
            return Misfit(place, "it is what it must not be")
        return (
            self._choice(schema, value, place, own, depth)
            or self._one_of(schema, value, place, own, depth)
            or self._condition(schema, value, place, own, depth)
        )

    def _choice(
        self, schema: dict[str, Any], value: Any, place: str, own: _Seen, depth: int
    ) -> Misfit | None:
        choices = schema.get("anyOf")
        if choices is None:
            return None
        faults = [self.look(each, value, place, own, depth) for each in choices]
        return None if None in faults else _nearest(faults, place)

    def _one_of(
        self, schema: dict[str, Any], value: Any, place: str, own: _Seen, depth: int
    ) -> Misfit | None:
        choices = schema.get("oneOf")
        if choices is None:
            return None
        faults = [self.look(each, value, place, own, depth) for each in choices]
        fitting = faults.count(None)
        if fitting > 1:
            return Misfit(place, f"it fits {fitting} of the choices where one is wanted")
        return None if fitting else _nearest(faults, place)

    def _condition(
        self, schema: dict[str, Any], value: Any, place: str, own: _Seen, depth: int
    ) -> Misfit | None:
        if "if" not in schema:
            return None
        is_so = self.look(schema["if"], value, place, own, depth) is None
        then: Schema = schema.get("then" if is_so else "else", True)
        return self.look(then, value, place, own, depth)

    # --- parts of the value ---

    def _object(
        self, schema: dict[str, Any], value: Any, place: str, own: _Seen, depth: int
    ) -> Misfit | None:
        if not isinstance(value, dict):
            return None
        for name, each in value.items():
            below = f"{place}/{_escaped(name)}"
            for inner in _about_name(schema, name):
                fault = self.look(inner, each, below, _Seen(), depth)
                if fault is not None:
                    return fault
                own.names.add(name)
            fault = self.look(schema.get("propertyNames", True), name, below, _Seen(), depth)
            if fault is not None:
                return Misfit(below, f"its name: {fault.wanted}")
        return None

    def _array(
        self, schema: dict[str, Any], value: Any, place: str, own: _Seen, depth: int
    ) -> Misfit | None:
        if not isinstance(value, list):
            return None
        first = schema.get("prefixItems", ())
        rest = schema.get("items")
        for at, each in enumerate(value):
            inner = first[at] if at < len(first) else rest
            if inner is None:
                break
            fault = self.look(inner, each, f"{place}/{at}", _Seen(), depth)
            if fault is not None:
                return fault
            own.items.add(at)
        return self._contains(schema, value, place, own, depth)

    def _contains(
        self, schema: dict[str, Any], value: list[Any], place: str, own: _Seen, depth: int
    ) -> Misfit | None:
        wanted = schema.get("contains")
        if wanted is None:
            return None
        found = [
            at
            for at, each in enumerate(value)
            if self.look(wanted, each, f"{place}/{at}", _Seen(), depth) is None
        ]
        own.items.update(found)
        least, most = schema.get("minContains", 1), schema.get("maxContains", len(value))
        if least <= len(found) <= most:
            return None
        return Misfit(place, f"{len(found)} of its items are of the kind it must contain")

    def _unjudged(
        self, schema: dict[str, Any], value: Any, place: str, own: _Seen, depth: int
    ) -> Misfit | None:
        """Parts that no other schema said anything about."""
        rest, look = schema.get("unevaluatedProperties"), self.look
        if rest is not None and isinstance(value, dict):
            for name in [name for name in value if name not in own.names]:
                below = f"{place}/{_escaped(name)}"
                if fault := look(rest, value[name], below, _Seen(), depth):
                    return fault
                own.names.add(name)
        rest = schema.get("unevaluatedItems")
        if rest is not None and isinstance(value, list):
            for at in [at for at in range(len(value)) if at not in own.items]:
                if fault := look(rest, value[at], f"{place}/{at}", _Seen(), depth):
                    return fault
                own.items.add(at)
        return None


def _together(schema: dict[str, Any], root: Schema, value: Any) -> list[Schema]:
    """Schemas that all hold for the same value."""
    found: list[Schema] = list(schema.get("allOf", ()))
    if "$ref" in schema:
        found.append(_resolved(root, schema["$ref"]))
    if isinstance(value, dict):
        wanted: dict[str, Schema] = schema.get("dependentSchemas", {})
        found += [each for name, each in wanted.items() if name in value]
    return found


def _about_name(schema: dict[str, Any], name: str) -> list[Schema]:
    """Schemas for the property of that name."""
    found: list[Schema] = []
    properties: dict[str, Schema] = schema.get("properties", {})
    if name in properties:
        found.append(properties[name])
    by_pattern: dict[str, Schema] = schema.get("patternProperties", {})
    for pattern, each in by_pattern.items():
        compiled = python_pattern(pattern)
        if compiled is not None and len(name) <= LONGEST_MATCHED and compiled.search(name):
            found.append(each)
    if not found and "additionalProperties" in schema:
        found.append(schema["additionalProperties"])
    return found


def _resolved(root: Schema, reference: str) -> Schema:
    """Where a reference leads; `check_schema` has seen that it leads somewhere."""
    found: Any = root
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found[int(name)] if isinstance(found, list) else found[name]
    return found if isinstance(found, dict | bool) else True


def _nearest(faults: list[Misfit | None], place: str) -> Misfit:
    """The fault of the choice that came furthest; of several that failed at once, all together."""
    known = [fault for fault in faults if fault is not None]
    furthest = max(known, key=lambda fault: fault.place.count("/"))
    if furthest.place != place:
        return furthest
    return Misfit(place, " or ".join(dict.fromkeys(fault.wanted for fault in known)))


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
