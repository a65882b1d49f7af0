"""Conversions as data: named, with declared arguments and results, reusable in many rules. [ME-4]

What is a formula, a look-up or a change of names is said as data, so that it can become a line of
generated Python or a column expression alike (ME-14). Places, times, currencies and tables have
files of their own. `Call` and `Stateful` name functions of the site.

The way back of a conversion, where there is one: so that one declaration serves both directions.
[ME-4, ME-10]
"""

from __future__ import annotations

import msgspec

from rapport.mediation.conversion.currencies import ChangeCurrency
from rapport.mediation.conversion.lookups import ContextLookup, LookupKind, Scalar, TableLookup
from rapport.mediation.conversion.notations import (
    ISO,
    Notation,
    ParseAngle,
    ParseNumber,
    ParseTime,
    WriteAngle,
    WriteNumber,
    WriteTime,
)
from rapport.mediation.conversion.places import (
    Place,
    ToAbsolute,
    ToCartesian,
    ToLatLon,
    ToPlan,
    ToPolar,
    ToRelative,
)
from rapport.mediation.types import TypeRef
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
ValueKind = Place | Notation | LookupKind | ChangeCurrency
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


_replace = msgspec.structs.replace


def inverse_of(conversion: Conversion, name: str) -> Conversion | None:
    """The conversion back, under a name of its own; None: there is no way back as data.

    An enumeration where several words stand for one goes back to the first of them. Steps of a
    chain are called `NAME 1`, `NAME 2`.
    """
    if isinstance(conversion.how, Chain):
        how: How | None = _chain_back(conversion.how, name)
    elif _takes_more_than_it_gives(conversion):
        return None
    else:
        how = inverse_how(conversion.how)
    if how is None:
        return None
    return Conversion(name, conversion.results, conversion.arguments, how)


def inverse_how(how: How) -> How | None:
    """What undoes it; None: nothing does."""
    match how:
        case Identity():
            return how
        case Formula(multiply, add, divide):
            return Formula(divide, -add, multiply) if multiply else None
        case UnitChange(one, other):
            return UnitChange(other, one)
        case Enumeration():
            return _replace(how, backwards=not how.backwards, otherwise=msgspec.UNSET)
        case Rename(names):
            return Rename(tuple((new, old) for old, new in names))
        case Join(separator):
            return Cut(separator)
        case Cut(separator):
            return Join(separator)
        case Gather(names):
            return Scatter(names)
        case Scatter(names):
            return Gather(names)
        case ChangeCurrency(from_currency=source) if source:
            return _replace(how, to=source, from_currency=how.to)
        case ToCartesian() | ToPolar() | ToAbsolute() | ToRelative() | ToPlan() | ToLatLon():
            return _place_back(how)
        case _:
            return _notation_back(how)


def _chain_back(how: Chain, name: str) -> Chain | None:
    steps = [
        inverse_of(step, f"{name} {number}")
        for number, step in enumerate(reversed(how.steps), start=1)
    ]
    found = tuple(step for step in steps if step is not None)
    return Chain(found) if len(found) == len(steps) else None


def _takes_more_than_it_gives(conversion: Conversion) -> bool:
    """A key or a time that is taken beside the value does not come out again."""
    how = conversion.how
    if isinstance(how, (ToAbsolute, ToRelative)):
        return len(conversion.arguments) > 1 and len(how.takes(0)) > len(how.gives(0))
    return isinstance(how, ChangeCurrency) and bool(how.time) and len(conversion.arguments) > 1


def _place_back(
    how: ToCartesian | ToPolar | ToAbsolute | ToRelative | ToPlan | ToLatLon,
) -> How:
    match how:
        case ToCartesian(bearing, distance, x, y, angle, unit, to_unit):
            return ToPolar(x, y, bearing, distance, angle, to_unit, unit)
        case ToPolar(x, y, bearing, distance, angle, unit, to_unit):
            return ToCartesian(bearing, distance, x, y, angle, to_unit, unit)
        case ToAbsolute(origin, x, y, to_x, to_y, unit, to_unit):
            return ToRelative(origin, to_x, to_y, x, y, to_unit, unit)
        case ToRelative(origin, x, y, to_x, to_y, unit, to_unit):
            return ToAbsolute(origin, to_x, to_y, x, y, to_unit, unit)
        case ToPlan(latitude, longitude, reach, lat, lon, x, y, to_unit):
            return ToLatLon(latitude, longitude, reach, x, y, lat, lon, to_unit)
    return ToPlan(
        how.latitude, how.longitude, how.range_metres, how.lat, how.lon, how.x, how.y, how.unit
    )


def _notation_back(how: How) -> How | None:
    match how:
        case ParseTime():
            return WriteTime(how.format, how.zone, how.separator, how.attributes)
        case WriteTime():
            zone = how.zone or ("" if how.format == ISO else "UTC")
            return ParseTime(how.format, zone, "", how.separator, how.attributes)
        case ParseNumber(decimal):
            return WriteNumber(decimal)
        case WriteNumber(decimal):
            return ParseNumber(decimal)
        case ParseAngle(axis, form, "point"):
            return WriteAngle(axis, form, 6)
        case WriteAngle(axis, form):
            return ParseAngle(axis, form)
        case _:
            return None
