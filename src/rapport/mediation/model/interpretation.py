"""An interpretation as data: types, mappings, rules and conversions, and a parent. [ME-5, ME-17]

Directions are the node's: `in` is received (from the interpretation to root), `out` is sent (from
root to the interpretation).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rapport.mediation.model.conversions import Conversion
from rapport.mediation.model.finding import Scalar
from rapport.mediation.model.types import Type, TypeRef

ROOT = "root"
"""The interpretation everything is turned into; has no parent."""

Direction = Literal["in", "out"]
DIRECTIONS: tuple[Direction, ...] = ("in", "out")

EXPLORE = "*explore*"
"""Stands for a conversion in an injected rule: nothing is done here, rules below count."""


class Rule(msgspec.Struct, frozen=True):
    """`pattern -> conversion`; both directions unless said. `injected` by an augmentation."""

    pattern: str
    conversion: str
    direction: Literal["both", "in", "out"] = "both"
    injected: bool = False

    def holds_for(self, direction: Direction) -> bool:
        """It counts in this direction."""
        return self.direction in ("both", direction)

    def __str__(self) -> str:
        return f"{self.pattern} -> {self.conversion}"


class RenameAttribute(msgspec.Struct, frozen=True, tag_field="change", tag="rename"):
    """The attribute under another name."""

    old: str
    new: str


class DropAttribute(msgspec.Struct, frozen=True, tag_field="change", tag="drop"):
    """The attribute is left out."""

    name: str


class CreateAttribute(msgspec.Struct, frozen=True, tag_field="change", tag="create"):
    """A new attribute with a constant value."""

    name: str
    type: TypeRef
    value: Scalar


class MergeAttributes(msgspec.Struct, frozen=True, tag_field="change", tag="merge"):
    """Several attributes become one, by a conversion with as many arguments."""

    sources: tuple[str, ...]
    target: str
    conversion: str


class SplitAttribute(msgspec.Struct, frozen=True, tag_field="change", tag="split"):
    """One attribute becomes several, by a conversion with as many results."""

    source: str
    targets: tuple[str, ...]
    conversion: str


Shape = RenameAttribute | DropAttribute | CreateAttribute | MergeAttributes | SplitAttribute


class Mapping(msgspec.Struct, frozen=True):
    """Events of type `source` become events of type `target`.

    Conversions by rules come first; then, with `each`, one event per element of that list (the
    attribute then holds the element); then the steps of `shape`, in order. Mapping to a super-type
    leaves out what that does not have.
    """

    source: str
    target: str
    direction: Direction
    shape: tuple[Shape, ...] = ()
    each: str = ""

    def __str__(self) -> str:
        return f"{self.source} => {self.target} ({self.direction})"


class Interpretation(msgspec.Struct, frozen=True, kw_only=True):
    """What one side says and how it relates to root; says only what differs from its parent."""

    name: str
    parent: str = ROOT
    """Empty for root itself."""
    types: tuple[Type, ...] = ()
    mappings: tuple[Mapping, ...] = ()
    rules: tuple[Rule, ...] = ()
    conversions: tuple[Conversion, ...] = ()


def empty_root() -> Interpretation:
    """A root that knows nothing yet; it grows by augmentation."""
    return Interpretation(name=ROOT, parent="")
