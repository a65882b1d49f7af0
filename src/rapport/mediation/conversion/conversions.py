"""Conversions as data: named, with declared arguments and results, and their inverses. [ME-4,
ME-10]

Formulas, look-ups and renames are data, so that they become generated Python or column expressions
alike (ME-14). Places, times, currencies and tables have modules of their own. `Call` and `Stateful`
name site functions. An inverse lets one declaration serve both directions.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rapport.mediation.conversion.currencies import ChangeCurrency
from rapport.mediation.conversion.lookups import LookupKind, Scalar
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
    """Leaves the value unchanged; for exceptions from a wider rule."""


class Formula(msgspec.Struct, frozen=True, tag="formula"):
    """`(value * multiply + add) / divide`, on numbers."""

    multiply: float = 1.0
    add: float = 0.0
    divide: float = 1.0

    def affine(self) -> Affine:
        return Affine(self.multiply, self.add, self.divide)


class UnitChange(msgspec.Struct, frozen=True, tag="units"):
    """Converts between units of the same dimension."""

    from_unit: str
    to_unit: str

    def affine(self) -> Affine:
        """The arithmetic; raises InvalidInput `unit.unknown` or `unit.mismatch`."""
        return converter(self.from_unit, self.to_unit)


class Lookup(msgspec.Struct, frozen=True, tag="lookup"):
    """Maps listed keys to values; an unlisted key gives `otherwise` or is rejected. Numbers and
    booleans are different keys.
    """

    entries: tuple[tuple[Scalar, Scalar], ...]
    otherwise: Scalar | msgspec.UnsetType = msgspec.UNSET


class Enumeration(msgspec.Struct, frozen=True, tag="enumeration"):
    """Maps one list of words to another, in both directions: from the first of each pair to the
    second, or with `backwards` the reverse. If several words map to one, the reverse gives the
    first of them; a check reports this loss. An unlisted word gives `otherwise` or is rejected.
    """

    pairs: tuple[tuple[Scalar, Scalar], ...]
    otherwise: Scalar | msgspec.UnsetType = msgspec.UNSET
    backwards: bool = False

    def lookup(self) -> Lookup:
        """The look-up for one direction; the first of equal keys wins."""
        ways = [(two, one) for one, two in self.pairs] if self.backwards else list(self.pairs)
        first: dict[tuple[bool, Scalar], tuple[Scalar, Scalar]] = {}
        for key, value in ways:
            first.setdefault((isinstance(key, bool), key), (key, value))
        return Lookup(tuple(first.values()), self.otherwise)


class Rename(msgspec.Struct, frozen=True, tag="rename"):
    """Renames attributes of an object, old to new. The result has only the attributes of its
    declared type, without `@type`.
    """

    names: tuple[tuple[str, str], ...]


class Join(msgspec.Struct, frozen=True, tag="join"):
    """Joins several texts into one."""

    separator: str = " "


class Cut(msgspec.Struct, frozen=True, tag="cut"):
    """Splits a text; the last part takes the rest."""

    separator: str = " "


class Gather(msgspec.Struct, frozen=True, tag="gather"):
    """Combines several values into an object with these attributes."""

    names: tuple[str, ...]


class Scatter(msgspec.Struct, frozen=True, tag="scatter"):
    """Splits an object into the values of these attributes."""

    names: tuple[str, ...]


class Call(msgspec.Struct, frozen=True, tag="call"):
    """A site function; several results are a tuple or list."""

    function: str


class Stateful(msgspec.Struct, frozen=True, tag="stateful"):
    """A site function `(state, value) -> (state, result)`. The state is JSON in the caller's
    memory, one per interpretation and conversion. `update(state, event) -> state` processes
    events of the type `feed`, for instance a moving reference point.
    """

    function: str
    initial: bytes = b"null"
    """JSON."""
    feed: str = ""
    update: str = ""


class Chain(msgspec.Struct, frozen=True, tag="chain"):
    """Applies conversions in sequence, each with one argument and one result."""

    steps: tuple[Conversion, ...]


ValueKind = Place | Notation | LookupKind | ChangeCurrency
"""Kinds that work on named values, see `Port`."""
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
    | ValueKind
)


class Conversion(msgspec.Struct, frozen=True):
    """A named conversion and its signature."""

    name: str
    arguments: tuple[TypeRef, ...]
    results: tuple[TypeRef, ...]
    how: How

    @property
    def argument(self) -> TypeRef:
        """The single argument of a conversion that rules may name."""
        return self.arguments[0]

    @property
    def result(self) -> TypeRef:
        return self.results[0]

    @property
    def is_single(self) -> bool:
        return len(self.arguments) == 1 and len(self.results) == 1

    def signature(self) -> str:
        """`(Position) -> LatLonPosition`."""
        return f"({', '.join(self.arguments)}) -> {', '.join(self.results)}"


def converts(name: str, argument: TypeRef, result: TypeRef, how: How) -> Conversion:
    """A conversion of one value to another."""
    return Conversion(name, (argument,), (result,), how)


def plain_steps(conversion: Conversion) -> Iterator[Conversion]:
    """The conversion itself, or the steps of its chain."""
    if isinstance(conversion.how, Chain):
        for step in conversion.how.steps:
            yield from plain_steps(step)
    else:
        yield conversion


def functions_of(conversion: Conversion) -> tuple[str, ...]:
    """The site functions it calls."""
    found: list[str] = []
    for how in (step.how for step in plain_steps(conversion)):
        if isinstance(how, (Call, Stateful)):
            found.append(how.function)
        if isinstance(how, Stateful) and how.update:
            found.append(how.update)
    return tuple(found)


_replace = msgspec.structs.replace


def inverse_of(conversion: Conversion, name: str) -> Conversion | None:
    """The inverse conversion under its own name; None if there is none. An enumeration with
    several words for one goes back to the first of them. The steps of a chain are named `NAME
    1`, `NAME 2`.
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
    """The inverse kind; None if there is none."""
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
    """Whether it consumes a key or time that the inverse would need."""
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
