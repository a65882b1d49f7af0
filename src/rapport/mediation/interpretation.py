"""An interpretation as data: what the events of one kind of source mean. [ME-4, ME-5]

Values only; `declare.py` makes them from a file, `resolve.py` fits them to a source, `compiler.py`
makes code of them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rapport.core.ids import content_id
from rapport.units.quantities import DecimalMark

Path = tuple[str, ...]
"""Names of nested objects down to a field: `("temperature", "value")`."""

Scalar = str | float | bool

ROOT = "root"
"""The name of the interpretation everything is turned into; who names none speaks it."""


class TimeRule(msgspec.Struct, frozen=True):
    """Where event time stands and how it is written.

    `format`: `iso8601`, `epoch_s`, `epoch_ms`, a `strptime` pattern, or `root` (integer ms or ISO
    8601). `optional`: without the field, the time of the envelope holds.
    """

    field: Path
    format: str
    zone: str = ""
    optional: bool = False


class TableLookup(msgspec.Struct, frozen=True):
    """The text found in `column` of the row whose key was read."""

    table: str
    column: str


class IdentityRule(msgspec.Struct, frozen=True):
    """Whom the event is about.

    `nobody`: values that mean that the device does not know. `otherwise`: the identity then, or
    when the look-up finds nothing: text alternating with fields, `("unknown:", ("track",))`; empty:
    such events are rejected.
    """

    field: Path
    lookup: TableLookup | None = None
    nobody: tuple[str, ...] = ()
    otherwise: tuple[str | Path, ...] = ()


class ValueRule(msgspec.Struct, frozen=True):
    """One named number (or text, or truth) read from the event.

    `unit` empty = not declared; `to` empty = the unit of root; `decimal` says that the number may
    be text.
    """

    name: str
    field: Path
    unit: str = ""
    to: str = ""
    decimal: DecimalMark | None = None


class OriginRule(msgspec.Struct, frozen=True):
    """Values are relative to a place that a table gives; `key` is the field that names the row.

    Tables are the site's own and so in root units unless `unit` says otherwise. `heading` empty =
    axes of the building; else the column with the direction the device looks, in `heading_unit`.
    """

    table: str
    key: Path
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
    arguments: tuple[tuple[str, Scalar], ...] = ()
    deadline_ms: int = 1_000


class FormatChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """How events are written: a format by name, with what it must be told."""

    name: str = "json"
    options: dict[str, Any] = {}


class Place(msgspec.Struct, frozen=True):
    """Where a declaration stands."""

    file: str = ""
    line: int = 0
    column: int = 0


class Interpretation(msgspec.Struct, frozen=True, kw_only=True):
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
    place: Place = Place()

    def meaning(self) -> Interpretation:
        """The same without its place and comment."""
        # A default is left out by identity: one that was written out, or came from another process,
        # means the same.
        usual = FormatChoice()
        chosen = usual if self.format == usual else self.format
        return msgspec.structs.replace(self, place=Place(), about="", format=chosen)

    def version(self) -> str:
        """Twelve digits that depend on the meaning only, not on its place or comment."""
        return content_id(msgspec.json.encode(self.meaning()).decode())[:12]

    def stamp(self) -> str:
        """`name@version`, as it stands in the header of every event it gave a meaning to."""
        return f"{self.name}@{self.version()}"


def shown(path: Path) -> str:
    """A path as people read it: `temperature.value`."""
    return ".".join(path)
