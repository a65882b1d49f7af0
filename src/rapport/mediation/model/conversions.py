"""Conversions as data: named, with declared arguments and results, reusable in many rules. [ME-4]

What is a formula, a look-up or a change of names is said as data, so that it can become a line of
generated Python or a column expression alike (ME-14). Places, times, currencies and tables have
files of their own. `Call` and `Stateful` name functions of the site.
"""

from __future__ import annotations

import msgspec

from rapport.mediation.model.finding import ContextLookup, Finding, Scalar, TableLookup
from rapport.mediation.model.money import ChangeCurrency
from rapport.mediation.model.notations import (
    Notation,
    ParseAngle,
    ParseNumber,
    ParseTime,
    WriteAngle,
    WriteNumber,
    WriteTime,
)
from rapport.mediation.model.places import (
    Place,
    ToAbsolute,
    ToCartesian,
    ToLatLon,
    ToPlan,
    ToPolar,
    ToRelative,
)
from rapport.mediation.model.types import TypeRef
from rapport.units.quantities import Affine, converter


class Identity(msgspec.Struct, frozen=True, tag="identity"):
    """The value as it is; for exceptions from a wider rule."""


class Formula(msgspec.Struct, frozen=True, tag="formula"):
    """`(value * multiply + add) / divide`, on numbers."""

    multiply: float = 1.0
    add: float = 0.0
    divide: float = 1.0

    def affine(self) -> Affine:
        """The arithmetic."""
        return Affine(self.multiply, self.add, self.divide)


class UnitChange(msgspec.Struct, frozen=True, tag="units"):
    """From one unit to another of the same dimension."""

    from_unit: str
    to_unit: str

    def affine(self) -> Affine:
        """The arithmetic; raises InvalidInput `unit.unknown` or `unit.mismatch`."""
        return converter(self.from_unit, self.to_unit)


class Lookup(msgspec.Struct, frozen=True, tag="lookup"):
    """The value found beside the key; a key not listed gives `otherwise`, or is rejected when
    there is none. Numbers and truth values are different keys.
    """

    entries: tuple[tuple[Scalar, Scalar], ...]
    otherwise: Scalar | msgspec.UnsetType = msgspec.UNSET


class Enumeration(msgspec.Struct, frozen=True, tag="enumeration"):
    """One list of words for another, usable both ways: from the first of each pair to the second,
    or with `backwards` from the second to the first.

    Where several words stand for one, the way back gives the first of them: lossy, and a check says
    so. A word not listed gives `otherwise`, or is rejected when there is none.
    """

    pairs: tuple[tuple[Scalar, Scalar], ...]
    otherwise: Scalar | msgspec.UnsetType = msgspec.UNSET
    backwards: bool = False

    def lookup(self) -> Lookup:
        """The same as a look-up in one direction; the first of equal keys counts."""
        ways = [(two, one) for one, two in self.pairs] if self.backwards else list(self.pairs)
        first: dict[tuple[bool, Scalar], tuple[Scalar, Scalar]] = {}
        for key, value in ways:
            first.setdefault((isinstance(key, bool), key), (key, value))
        return Lookup(tuple(first.values()), self.otherwise)


class Rename(msgspec.Struct, frozen=True, tag="rename"):
    """Attributes of an object under other names, old to new; the others as they are. The result has
    the attributes of its declared type and no others, and no `@type` of what it was before.
    """

    names: tuple[tuple[str, str], ...]


class Join(msgspec.Struct, frozen=True, tag="join"):
    """Several texts become one."""

    separator: str = " "


class Cut(msgspec.Struct, frozen=True, tag="cut"):
    """One text becomes several; the last part takes what is left."""

    separator: str = " "


class Gather(msgspec.Struct, frozen=True, tag="gather"):
    """Several values become one object with these attributes."""

    names: tuple[str, ...]


class Scatter(msgspec.Struct, frozen=True, tag="scatter"):
    """One object becomes the values of these attributes."""

    names: tuple[str, ...]


class Call(msgspec.Struct, frozen=True, tag="call"):
    """A function of the site; several results come as a tuple or list."""

    function: str


class Stateful(msgspec.Struct, frozen=True, tag="stateful"):
    """A function `(state, value) -> (state, result)` of the site.

    The state is JSON and kept by the caller (`Memory`), one per interpretation and conversion.
    `update(state, event) -> state` takes in events of the type `feed`: a moving reference point.
    """

    function: str
    initial: bytes = b"null"
    """JSON."""
    feed: str = ""
    update: str = ""


class Chain(msgspec.Struct, frozen=True, tag="chain"):
    """One conversion after the other; each takes one value and gives one."""

    steps: tuple[Conversion, ...]


How = (
    Identity
    | Formula
    | UnitChange
    | Lookup
    | Enumeration
    | Rename
    | Join
    | Cut
    | Gather
    | Scatter
    | Call
    | Stateful
    | Chain
    | ToCartesian
    | ToPolar
    | ToAbsolute
    | ToRelative
    | ToPlan
    | ToLatLon
    | ParseTime
    | WriteTime
    | ParseNumber
    | WriteNumber
    | ParseAngle
    | WriteAngle
    | TableLookup
    | ContextLookup
    | ChangeCurrency
)
ValueKind = Place | Notation | Finding | ChangeCurrency
"""Kinds that work on named values, see `ports.py`."""
VALUE_KINDS = (
    ToCartesian,
    ToPolar,
    ToAbsolute,
    ToRelative,
    ToPlan,
    ToLatLon,
    ParseTime,
    WriteTime,
    ParseNumber,
    WriteNumber,
    ParseAngle,
    WriteAngle,
    TableLookup,
    ContextLookup,
    ChangeCurrency,
)


class Conversion(msgspec.Struct, frozen=True):
    """A named conversion and its signature."""

    name: str
    arguments: tuple[TypeRef, ...]
    results: tuple[TypeRef, ...]
    how: How

    @property
    def argument(self) -> TypeRef:
        """The one argument of a conversion that rules may name."""
        return self.arguments[0]

    @property
    def result(self) -> TypeRef:
        """The one result."""
        return self.results[0]

    @property
    def is_single(self) -> bool:
        """One value in, one out."""
        return len(self.arguments) == 1 and len(self.results) == 1

    def signature(self) -> str:
        """`(Position) -> LatLonPosition`."""
        return f"({', '.join(self.arguments)}) -> {', '.join(self.results)}"


def converts(name: str, argument: TypeRef, result: TypeRef, how: How) -> Conversion:
    """A conversion of one value to another."""
    return Conversion(name, (argument,), (result,), how)


def functions_of(conversion: Conversion) -> tuple[str, ...]:
    """Names of the site's functions it needs."""
    how = conversion.how
    if isinstance(how, Call):
        return (how.function,)
    if isinstance(how, Stateful):
        return (how.function, *([how.update] if how.update else []))
    if isinstance(how, Chain):
        return tuple(name for step in how.steps for name in functions_of(step))
    return ()
