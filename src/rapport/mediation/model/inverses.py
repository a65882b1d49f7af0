"""The way back of a conversion, where there is one: so that one declaration serves both directions.
[ME-4, ME-10]
"""

from __future__ import annotations

import msgspec

from rapport.mediation.model.conversions import (
    Chain,
    Conversion,
    Cut,
    Enumeration,
    Formula,
    Gather,
    How,
    Identity,
    Join,
    Rename,
    Scatter,
    UnitChange,
)
from rapport.mediation.model.money import ChangeCurrency
from rapport.mediation.model.notations import (
    ISO,
    ParseAngle,
    ParseNumber,
    ParseTime,
    WriteAngle,
    WriteNumber,
    WriteTime,
)
from rapport.mediation.model.places import (
    ToAbsolute,
    ToCartesian,
    ToLatLon,
    ToPlan,
    ToPolar,
    ToRelative,
)

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
