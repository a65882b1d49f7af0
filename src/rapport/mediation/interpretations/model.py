"""Interpretations as data, in the typed form and in the fields form. [ME-4, ME-5, ME-17]

Directions are the node's: `in` is received (from the interpretation to the canonical model), `out`
is sent (from the canonical model to the interpretation).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rapport.core.event import content_id
from rapport.mediation.conversion.conversions import Conversion
from rapport.mediation.conversion.lookups import Scalar
from rapport.mediation.types import Type, TypeRef
from rapport.units.quantities import DecimalMark

FieldPath = tuple[str, ...]
"""Names of nested objects down to a field: `("temperature", "value")`."""

ArgumentValue = str | float | bool

CANONICAL = "root"
"""The reserved name of the canonical model, into which everything is converted; it has no parent.
"""


class TimeRule(msgspec.Struct, frozen=True):
    """The field and format of the event time. `format`: `iso8601`, `epoch_s`, `epoch_ms`, a
    `strptime` pattern, or `root` (integer ms or ISO 8601). `optional`: without the field, the
    envelope's time applies.
    """

    field: FieldPath
    format: str
    zone: str = ""
    optional: bool = False


class IdentityLookup(msgspec.Struct, frozen=True):
    """The text in `column` of the row with the given key."""

    table: str
    column: str


class IdentityRule(msgspec.Struct, frozen=True):
    """The identity that the event is about. `nobody`: values that mean an unknown identity.
    `otherwise`: the identity in that case or if the look-up fails: texts alternating with
    fields, `("unknown:", ("track",))`; empty: such events are rejected.
    """

    field: FieldPath
    lookup: IdentityLookup | None = None
    nobody: tuple[str, ...] = ()
    otherwise: tuple[str | FieldPath, ...] = ()


class ValueRule(msgspec.Struct, frozen=True):
    """One named number, text or boolean read from the event. `unit` empty: undeclared; `to`
    empty: the canonical unit; `decimal`: the number may be text.
    """

    name: str
    field: FieldPath
    unit: str = ""
    to: str = ""
    decimal: DecimalMark | None = None


class OriginRule(msgspec.Struct, frozen=True):
    """Makes values relative to a position from a table; `key` is the field with the row's key.
    Tables are in canonical units unless `unit` says otherwise. `heading` empty: axes of the
    building; else the column with the device's heading in `heading_unit`.
    """

    table: str
    key: FieldPath
    x: str
    y: str
    heading: str = ""
    unit: str = "m"
    heading_unit: str = "deg"


class ConversionRule(msgspec.Struct, frozen=True):
    """A plug-in function from the values in `take` to the values in `give`."""

    call: str
    take: tuple[str, ...]
    give: tuple[str, ...]
    arguments: tuple[tuple[str, ArgumentValue], ...] = ()
    deadline_ms: int = 1_000


class FormatChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload format by name, with its options."""

    name: str = "json"
    options: dict[str, Any] = {}


class SourceLocation(msgspec.Struct, frozen=True):
    """The location of a declaration in a file."""

    file: str = ""
    line: int = 0
    column: int = 0


class FieldsInterpretation(msgspec.Struct, frozen=True, kw_only=True):
    """The fields form: time, identity, values with units, and their conversion to canonical
    readings.
    """

    name: str
    identity: IdentityRule
    values: tuple[ValueRule, ...]
    time: TimeRule | None = None
    """None: the envelope's time."""
    origin: OriginRule | None = None
    conversions: tuple[ConversionRule, ...] = ()
    type: str = ""
    """Events of another type are rejected; empty: all types."""
    format: FormatChoice = FormatChoice()
    about: str = ""
    place: SourceLocation = SourceLocation()

    def meaning(self) -> FieldsInterpretation:
        """The same without location and comment."""
        # Encoding omits a default by identity; an equal value must give the same version.
        usual = FormatChoice()
        chosen = usual if self.format == usual else self.format
        return msgspec.structs.replace(self, place=SourceLocation(), about="", format=chosen)

    def version(self) -> str:
        """Twelve digits that depend on the meaning only."""
        return content_id(msgspec.json.encode(self.meaning()).decode())[:12]

    def stamp(self) -> str:
        """`name@version`, as in the header of every event it mediated."""
        return f"{self.name}@{self.version()}"


def dotted_path(path: FieldPath) -> str:
    """The path for messages: `temperature.value`."""
    return ".".join(path)


"""The interpretation everything is turned into; has no parent."""

Direction = Literal["in", "out"]
DIRECTIONS: tuple[Direction, ...] = ("in", "out")

EXPLORE = "*explore*"
"""In place of a conversion in an injected rule: nothing applies here, rules below do."""


class Rule(msgspec.Struct, frozen=True):
    """`pattern -> conversion`, in both directions by default. `injected` by an augmentation."""

    pattern: str
    conversion: str
    direction: Literal["both", "in", "out"] = "both"
    injected: bool = False

    def holds_for(self, direction: Direction) -> bool:
        return self.direction in ("both", direction)

    def __str__(self) -> str:
        return f"{self.pattern} -> {self.conversion}"


class RenameAttribute(msgspec.Struct, frozen=True, tag_field="change", tag="rename"):
    old: str
    new: str


class DropAttribute(msgspec.Struct, frozen=True, tag_field="change", tag="drop"):
    name: str


class CreateAttribute(msgspec.Struct, frozen=True, tag_field="change", tag="create"):
    """Adds an attribute with a constant value."""

    name: str
    type: TypeRef
    value: Scalar


class MergeAttributes(msgspec.Struct, frozen=True, tag_field="change", tag="merge"):
    """Merges several attributes by a conversion with as many arguments."""

    sources: tuple[str, ...]
    target: str
    conversion: str


class SplitAttribute(msgspec.Struct, frozen=True, tag_field="change", tag="split"):
    """Splits an attribute by a conversion with as many results."""

    source: str
    targets: tuple[str, ...]
    conversion: str


ShapeStep = RenameAttribute | DropAttribute | CreateAttribute | MergeAttributes | SplitAttribute


class TypeMapping(msgspec.Struct, frozen=True):
    """Maps events of type `source` to events of type `target`. Rules apply first; then, with
    `each`, one event per element of that list (the attribute then holds the element); then the
    `shape` steps in order. A mapping to a super-type drops the other attributes.
    """

    source: str
    target: str
    direction: Direction
    shape: tuple[ShapeStep, ...] = ()
    each: str = ""

    def __str__(self) -> str:
        return f"{self.source} => {self.target} ({self.direction})"


class Interpretation(msgspec.Struct, frozen=True, kw_only=True):
    """The typed form: types, mappings, rules and conversions that differ from those of its
    parent.
    """

    name: str
    parent: str = CANONICAL
    """Empty for the canonical model."""
    types: tuple[Type, ...] = ()
    mappings: tuple[TypeMapping, ...] = ()
    rules: tuple[Rule, ...] = ()
    conversions: tuple[Conversion, ...] = ()


def empty_canonical_model() -> Interpretation:
    return Interpretation(name=CANONICAL, parent="")
