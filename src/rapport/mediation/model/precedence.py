"""Which of several matching patterns counts: P1 to P6 as one selection. [ME-3]

Each pattern is laid on the path it matches. From the event's root on, at each position, those
patterns stay that

- name the most derived type (P3, and P6: before anything else at this position),
- then name an attribute rather than a type (P2; P5: an earlier position counts more than depth),
- then say something at all rather than nothing (P1),
- then name the super-type nearest by level, then by order of declaration (P4).

What is left in the end says the same at every position: the last rule declared counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from rapport.mediation.model.patterns import BoundItem, BoundPattern
from rapport.mediation.model.types import TypeRef, Types, innermost


class Position(msgspec.Struct, frozen=True):
    """One place on a path: the attribute (empty at the root) and what its value is.

    `faces` has one entry for a plain value; for an element of a list the list's type stands before
    that of the element. The last one is the value in question.
    """

    attribute: str
    faces: tuple[TypeRef, ...]

    @property
    def type(self) -> TypeRef:
        """What the value in question is."""
        return self.faces[-1]


Path = tuple[Position, ...]
Laid = tuple[BoundItem | None, ...]
"""A pattern on a path: what it says at each position."""
_Any = TypeVar("_Any")


def shown_path(path: Path) -> str:
    """`Order.lines[].price`, as people read it."""
    text = innermost(path[0].faces[0])
    for position in path[1:]:
        lists = len(position.faces) - 1
        text += f".{position.attribute}" + "[]" * lists
    return text


def lay(pattern: BoundPattern, path: Path, types: Types) -> Laid | None:
    """The pattern on the path, or None if it does not match there."""
    items, floating = pattern.items, pattern.floating
    tail = len(items) - floating
    start = len(path) - tail
    if start < floating:
        return None
    gap: tuple[None, ...] = (None,) * (start - floating)
    laid: Laid = (*items[:floating], *gap, *items[floating:])
    for index, (item, position) in enumerate(zip(laid, path, strict=True)):
        if item is not None and not _fits(item, position, types, index == len(path) - 1):
            return None
    return laid


def select(
    candidates: Sequence[tuple[Laid, _Any]], path: Path, types: Types
) -> list[tuple[Laid, _Any]]:
    """Those that P1 to P6 leave, in the order given; several only if they say the same."""
    left = list(candidates)
    for index, position in enumerate(path):
        if len(left) == 1:
            break
        left = _select_at(index, position, left, types)
    return left


def _select_at(
    index: int, position: Position, candidates: list[tuple[Laid, _Any]], types: Types
) -> list[tuple[Laid, _Any]]:
    said = {item for laid, _ in candidates if (item := laid[index]) is not None}
    kept = {item for item in said if not _is_undercut(item, said, types)}
    if any(item.attribute for item in kept):
        kept = {item for item in kept if item.attribute}
    if not kept:
        return candidates
    nearest = min(_nearness(item, position, types) for item in kept)
    kept = {item for item in kept if _nearness(item, position, types) == nearest}
    return [each for each in candidates if each[0][index] in kept]


def _is_undercut(item: BoundItem, said: set[BoundItem], types: Types) -> bool:
    return any(types.is_strict_subtype(other.type, item.type) for other in said)


def _nearness(item: BoundItem, position: Position, types: Types) -> tuple[int, int]:
    return types.nearness(innermost(position.type), innermost(item.type))


def _fits(item: BoundItem, position: Position, types: Types, is_last: bool) -> bool:
    if item.attribute and item.attribute != position.attribute:
        return False
    faces = position.faces[-1:] if is_last else position.faces
    return any(types.is_subtype(face, item.type) for face in faces)
