"""An interpretation as data: what the events of one kind of source mean. [ME-4, ME-5]

Values only; `declare.py` makes them from a file, `resolve.py` fits them to a source, `compiler.py`
makes code of them.

An interpretation as data: types, mappings, rules and conversions, and a parent. [ME-5, ME-17]

Directions are the node's: `in` is received (from the interpretation to root), `out` is sent (from
root to the interpretation).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rapport.core.ids import content_id
from rapport.mediation.conversion.conversions import Conversion
from rapport.mediation.conversion.lookups import Scalar
from rapport.mediation.types import Type, TypeRef
from rapport.units.numbers import DecimalMark

FieldPath = tuple[str, ...]
"""Names of nested objects down to a field: `("temperature", "value")`."""

ArgumentValue = str | float | bool

CANONICAL = "root"
"""The name of the interpretation everything is turned into; who names none speaks it."""


class TimeRule(msgspec.Struct, frozen=True):
    """Where event time stands and how it is written.

    `format`: `iso8601`, `epoch_s`, `epoch_ms`, a `strptime` pattern, or `root` (integer ms or ISO
    8601). `optional`: without the field, the time of the envelope holds.
    """

    field: FieldPath
    format: str
    zone: str = ""
    optional: bool = False


class IdentityLookup(msgspec.Struct, frozen=True):
    """The text found in `column` of the row whose key was read."""

    table: str
    column: str


class IdentityRule(msgspec.Struct, frozen=True):
    """Whom the event is about.

    `nobody`: values that mean that the device does not know. `otherwise`: the identity then, or
    when the look-up finds nothing: text alternating with fields, `("unknown:", ("track",))`; empty:
    such events are rejected.
    """

    field: FieldPath
    lookup: IdentityLookup | None = None
    nobody: tuple[str, ...] = ()
    otherwise: tuple[str | FieldPath, ...] = ()


class ValueRule(msgspec.Struct, frozen=True):
    """One named number (or text, or truth) read from the event.

    `unit` empty = not declared; `to` empty = the unit of root; `decimal` says that the number may
    be text.
    """

    name: str
    field: FieldPath
    unit: str = ""
    to: str = ""
    decimal: DecimalMark | None = None


class OriginRule(msgspec.Struct, frozen=True):
    """Values are relative to a place that a table gives; `key` is the field that names the row.

    Tables are the site's own and so in root units unless `unit` says otherwise. `heading` empty =
    axes of the building; else the column with the direction the device looks, in `heading_unit`.
    """

    table: str
    key: FieldPath
    x: str
    y: str
    heading: str = ""
    unit: str = "m"
    heading_unit: str = "deg"


class ConversionRule(msgspec.Struct, frozen=True):
    """A plug-in function from the values named in `take` to the values named in `give`."""

    call: str
    take: tuple[str, ...]
    give: tuple[str, ...]
    arguments: tuple[tuple[str, ArgumentValue], ...] = ()
    deadline_ms: int = 1_000


class FormatChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """How events are written: a format by name, with what it must be told."""

    name: str = "json"
    options: dict[str, Any] = {}


class SourceLocation(msgspec.Struct, frozen=True):
    """Where a declaration stands."""

    file: str = ""
    line: int = 0
    column: int = 0


class FieldsInterpretation(msgspec.Struct, frozen=True, kw_only=True):
    """What events mean: time, identity, values with units, and the steps from them to root."""

    name: str
    identity: IdentityRule
    values: tuple[ValueRule, ...]
    time: TimeRule | None = None
    """None: the time of the envelope."""
    origin: OriginRule | None = None
    conversions: tuple[ConversionRule, ...] = ()
    type: str = ""
    """Events of another type are rejected; empty: all types."""
    format: FormatChoice = FormatChoice()
    about: str = ""
    place: SourceLocation = SourceLocation()

    def meaning(self) -> FieldsInterpretation:
        """The same without its place and comment."""
        # A default is left out by identity: one that was written out, or came from another process,
        # means the same.
        usual = FormatChoice()
        chosen = usual if self.format == usual else self.format
        return msgspec.structs.replace(self, place=SourceLocation(), about="", format=chosen)

    def version(self) -> str:
        """Twelve digits that depend on the meaning only, not on its place or comment."""
        return content_id(msgspec.json.encode(self.meaning()).decode())[:12]

    def stamp(self) -> str:
        """`name@version`, as it stands in the header of every event it gave a meaning to."""
        return f"{self.name}@{self.version()}"


def dotted_path(path: FieldPath) -> str:
    """A path as people read it: `temperature.value`."""
    return ".".join(path)


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


ShapeStep = RenameAttribute | DropAttribute | CreateAttribute | MergeAttributes | SplitAttribute


class TypeMapping(msgspec.Struct, frozen=True):
    """Events of type `source` become events of type `target`.

    Conversions by rules come first; then, with `each`, one event per element of that list (the
    attribute then holds the element); then the steps of `shape`, in order. Mapping to a super-type
    leaves out what that does not have.
    """

    source: str
    target: str
    direction: Direction
    shape: tuple[ShapeStep, ...] = ()
    each: str = ""

    def __str__(self) -> str:
        return f"{self.source} => {self.target} ({self.direction})"


class Interpretation(msgspec.Struct, frozen=True, kw_only=True):
    """What one side says and how it relates to root; says only what differs from its parent."""

    name: str
    parent: str = CANONICAL
    """Empty for root itself."""
    types: tuple[Type, ...] = ()
    mappings: tuple[TypeMapping, ...] = ()
    rules: tuple[Rule, ...] = ()
    conversions: tuple[Conversion, ...] = ()


def empty_canonical_model() -> Interpretation:
    """A root that knows nothing yet; it grows by augmentation."""
    return Interpretation(name=CANONICAL, parent="")
