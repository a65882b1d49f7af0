"""Patterns `T.q1...qn`: syntax, resolution against types, and precedence. [ME-2]

    Position                              every Position, at any depth, in any event
    ProductStatusEvent.Position           every Position at any depth of a ProductStatusEvent
    ProductStatusEvent.dynamicCost        one attribute
    ProductStatusEvent.pos(PositionWithHeight)    the attribute, when its value is of the subtype
    Order.[Line]                          the list as a whole; Order.Line are its elements

The last type of a pattern matches at any depth; the items before it match from the start of the
event's path, the attributes after it directly below it. A name that is both an attribute of the
type before it and a type means the attribute; `*Name` is the type. Unusual names are in double
quotes, for attributes and types alike: `Wind."gust speed"("m/s")`, `*"m/s"`, `["m/s"]`.

Precedence of several matching patterns, P1 to P6 as one selection [ME-3]: each pattern is aligned
with the path. From the start of the path on, at each position, those patterns remain that

- name the most derived type (P3, and P6: before anything else at this position),
- then name an attribute rather than a type (P2; P5: an earlier position counts more than depth),
- then have an item at this position at all (P1),
- then name the super-type nearest by level, then by order of declaration (P4).

The remaining patterns are equivalent at every position: the last rule declared wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from rapport.core.errors import Problem, nearest_names
from rapport.mediation.types import TypeRef, Types, element_of, innermost, is_type_name

_NAME = r'(?:[\w-]+|"(?:[^"\\]|\\.)*")'
_TOKEN = re.compile(
    rf"\s*(?:(?P<type>\*?\[+{_NAME}\]+|\*{_NAME})|(?P<name>{_NAME}))"
    rf"(?:\(\s*(?P<of>\[*{_NAME}\]*)\s*\))?\s*(?P<dot>\.|$)"
)
_REFERENCE = re.compile(rf"(\[*)({_NAME})(\]*)")
_PLAIN = re.compile(r"[\w-]+")


class PatternItem(msgspec.Struct, frozen=True):
    """One part of a pattern as written. `name` may be an attribute or a type; it is empty where
    the type is explicit (`*T`, `[T]` and the first item). `type` next to a name comes from
    `name(T)`.
    """

    name: str
    type: TypeRef = ""


class Pattern(msgspec.Struct, frozen=True):
    """A pattern as written."""

    items: tuple[PatternItem, ...]

    def __str__(self) -> str:
        head, *rest = self.items
        return ".".join([quoted_type(head.type), *(_print(item) for item in rest)])


class BoundItem(msgspec.Struct, frozen=True):
    """One resolved part: an attribute of a type or, without an attribute, any value of a type."""

    attribute: str
    type: TypeRef


class BoundPattern(msgspec.Struct, frozen=True):
    """A pattern resolved against given types; equal ones match the same paths."""

    items: tuple[BoundItem, ...]

    @property
    def floating(self) -> int:
        """Index of the last type; from there on the pattern may match deeper in the value."""
        index = len(self.items) - 1
        while self.items[index].attribute:
            index -= 1
        return index

    @property
    def last(self) -> BoundItem:
        """The item that matches the value itself."""
        return self.items[-1]

    def __str__(self) -> str:
        head, *rest = self.items
        return ".".join([quoted_type(head.type), *(_print_bound(item) for item in rest)])


def parse_pattern(text: str) -> Pattern | Problem:
    """Parses the written form; the problem points at the first character that does not fit."""
    items: list[PatternItem] = []
    at = 0
    while at < len(text) or not items:
        found = _TOKEN.match(text, at)
        item = _item(found) if found else None
        if found is None or item is None:
            return _syntax(text, at)
        items.append(item)
        if found["dot"] == "." and found.end() == len(text):
            return _syntax(text, len(text))
        at = found.end()
    head = items[0]
    if head.name and (head.type or not is_type_name(head.name)):
        return _syntax(text, 0)
    return Pattern((PatternItem("", head.type or head.name), *items[1:]))


def quoted_type(reference: TypeRef) -> str:
    """The reference as written in a pattern.

    >>> quoted_type("Line"), quoted_type("[m/s]")
    ('Line', '["m/s"]')
    """
    inner = innermost(reference)
    return reference.replace(inner, _quote(inner), 1) if inner else reference


def bind(pattern: Pattern, types: Types) -> BoundPattern | Problem:
    """Resolves a pattern against types, or returns why it is not valid (Definition 3)."""
    head = pattern.items[0].type
    if head not in types:
        return _invalid(pattern, head, f"there is no type {head!r}", types.names)
    bound = [BoundItem("", head)]
    kinds = list(_kinds(pattern, types))
    for index, item in enumerate(pattern.items[1:], 1):
        deep = not any(kind == "type" for kind in kinds[index + 1 :])
        before = bound[-1].type
        found = _bind_item(item, before, types, deep)
        if isinstance(found, str):
            known = (*types.attributes(innermost(before)), *types.names)
            return _invalid(pattern, item.name or item.type, found, known)
        bound.append(found)
    return BoundPattern(tuple(bound))


def _kinds(pattern: Pattern, types: Types) -> Iterator[str]:
    """Classifies each part as attribute or type."""
    before = pattern.items[0].type
    yield "type"
    for item in pattern.items[1:]:
        attribute = types.attributes(innermost(before)).get(item.name) if before in types else None
        is_type = not item.name or (attribute is None and not item.type)
        yield "type" if is_type else "attribute"
        before = item.type or (attribute.type if attribute else item.name)


def _bind_item(item: PatternItem, before: TypeRef, types: Types, deep: bool) -> BoundItem | str:
    attribute = types.attributes(innermost(before)).get(item.name) if item.name else None
    if attribute is not None:
        wanted = item.type or attribute.type
        if wanted not in types:
            return f"there is no type {wanted!r}"
        if not any(types.is_subtype(wanted, face) for face in _faces(attribute.type)):
            return f"{item.name!r} of {before} is {attribute.type}, never {wanted}"
        return BoundItem(attribute.name, wanted)
    if item.name and item.type:
        return f"{before} has no attribute {item.name!r}"
    wanted = item.type or item.name
    if wanted not in types or (item.name and not is_type_name(item.name)):
        return f"{before} has no attribute {wanted!r}, and there is no such type"
    below = [each.type for each in types.attributes(innermost(before)).values()]
    if not any(_may_hold(each, wanted, types, deep) for each in below):
        return f"{before} contains no {wanted}" + (" at any depth" if deep else "")
    return BoundItem("", wanted)


def _may_hold(reference: TypeRef, wanted: TypeRef, types: Types, deep: bool) -> bool:
    """Whether a value declared as `reference` may be a `wanted` or (deep) contain one."""
    if deep:
        return wanted in types.reach(reference)
    for face in _faces(reference):
        dynamic = types.dynamic(face) if element_of(face) is None else (face,)
        if any(types.is_subtype(each, wanted) for each in dynamic):
            return True
    return False


def _faces(reference: TypeRef) -> Iterator[TypeRef]:
    """The list type, the list types inside it, and the element type."""
    face: TypeRef | None = reference
    while face is not None:
        yield face
        face = element_of(face)


def _item(found: re.Match[str]) -> PatternItem | None:
    """Parses one token; None if quotes or brackets do not match."""
    if found["type"]:
        named = _reference(found["type"].removeprefix("*"))
        return PatternItem("", named) if named and not found["of"] else None
    name = _unquote(found["name"])
    of = _reference(found["of"]) if found["of"] else ""
    return PatternItem(name, of) if name is not None and of is not None else None


def _reference(written: str) -> TypeRef | None:
    """Unquotes a type reference: `["m/s"]` is `[m/s]`."""
    found = _REFERENCE.fullmatch(written)
    name = _unquote(found[2]) if found else None
    if found is None or name is None or len(found[1]) != len(found[3]) or not is_type_name(name):
        return None
    return f"{found[1]}{name}{found[3]}"


def _print(item: PatternItem) -> str:
    if not item.name:
        return ("" if element_of(item.type) else "*") + quoted_type(item.type)
    return _quote(item.name) + (f"({quoted_type(item.type)})" if item.type else "")


def _print_bound(item: BoundItem) -> str:
    shown = quoted_type(item.type)
    return f"{_quote(item.attribute)}({shown})" if item.attribute else f"*{shown}"


def _quote(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else msgspec.json.encode(name).decode()


def _unquote(text: str) -> str | None:
    """Returns None unless the quoted part is a JSON string."""
    if not text.startswith('"'):
        return text
    try:
        return msgspec.json.decode(text, type=str) or None
    except msgspec.DecodeError:
        return None


def _syntax(text: str, at: int) -> Problem:
    shown = text[:200]
    return Problem(
        column=at + 1,
        code="pattern.syntax",
        message=f"{shown!r} is not a pattern",
        hint="write Type, Type.Type, Type.attribute or Type.attribute(Type)",
        excerpt=f"  {shown}\n  {' ' * min(at, 200)}^",
    )


def _invalid(pattern: Pattern, name: str, reason: str, known: tuple[str, ...]) -> Problem:
    nearest = [each for each in nearest_names(name, known, 2) if each != name]
    return Problem(
        code="pattern.invalid",
        message=f"pattern {pattern}: {reason}",
        hint=f"did you mean {nearest[0]!r}?" if nearest else "",
    )


class PathPosition(msgspec.Struct, frozen=True):
    """One position of a path: the attribute (empty at the start) and the types of its value.
    `faces` has one entry for a single value; for a list element the list's type precedes the
    element's. The last entry is the type of the value itself.
    """

    attribute: str
    faces: tuple[TypeRef, ...]

    @property
    def type(self) -> TypeRef:
        """The type of the value at this position."""
        return self.faces[-1]


TypePath = tuple[PathPosition, ...]
MatchedPattern = tuple[BoundItem | None, ...]
"""A pattern aligned with a path: its item at each position, or None."""
_Any = TypeVar("_Any")


def shown_path(path: TypePath) -> str:
    """The path for messages: `Order.lines[].price`."""
    text = innermost(path[0].faces[0])
    for position in path[1:]:
        lists = len(position.faces) - 1
        text += f".{position.attribute}" + "[]" * lists
    return text


def match_path(pattern: BoundPattern, path: TypePath, types: Types) -> MatchedPattern | None:
    """Aligns the pattern with the path; None if it does not match."""
    items, floating = pattern.items, pattern.floating
    tail = len(items) - floating
    start = len(path) - tail
    if start < floating:
        return None
    gap: tuple[None, ...] = (None,) * (start - floating)
    matched: MatchedPattern = (*items[:floating], *gap, *items[floating:])
    for index, (item, position) in enumerate(zip(matched, path, strict=True)):
        if item is not None and not _fits(item, position, types, index == len(path) - 1):
            return None
    return matched


def select_most_specific(
    candidates: Sequence[tuple[MatchedPattern, _Any]], path: TypePath, types: Types
) -> list[tuple[MatchedPattern, _Any]]:
    """Keeps the candidates that P1 to P6 prefer, in the given order; several only if they are
    equivalent.
    """
    left = list(candidates)
    for index, position in enumerate(path):
        if len(left) == 1:
            break
        left = _select_at(index, position, left, types)
    return left


def _select_at(
    index: int, position: PathPosition, candidates: list[tuple[MatchedPattern, _Any]], types: Types
) -> list[tuple[MatchedPattern, _Any]]:
    items = {item for matched, _ in candidates if (item := matched[index]) is not None}
    kept = {item for item in items if not _is_undercut(item, items, types)}
    if any(item.attribute for item in kept):
        kept = {item for item in kept if item.attribute}
    if not kept:
        return candidates
    nearest = min(_nearness(item, position, types) for item in kept)
    kept = {item for item in kept if _nearness(item, position, types) == nearest}
    return [each for each in candidates if each[0][index] in kept]


def _is_undercut(item: BoundItem, items: set[BoundItem], types: Types) -> bool:
    return any(types.is_strict_subtype(other.type, item.type) for other in items)


def _nearness(item: BoundItem, position: PathPosition, types: Types) -> tuple[int, int]:
    return types.nearness(innermost(position.type), innermost(item.type))


def _fits(item: BoundItem, position: PathPosition, types: Types, is_last: bool) -> bool:
    if item.attribute and item.attribute != position.attribute:
        return False
    faces = position.faces[-1:] if is_last else position.faces
    return any(types.is_subtype(face, item.type) for face in faces)
