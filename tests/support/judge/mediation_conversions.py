"""The judge's own conversions: each kind written a second time, slowly, by other means. [ME-4]

Nothing here calls what the product calculates with: units are fractions of the catalogue, frames
are complex numbers, the plan is Redfearn's series over a numerically integrated meridian, local
times are found by trying both readings, rates and origins by going through all that was told.
"""

from __future__ import annotations

import cmath
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from rapport.mediation.conversion.conversions import Conversion, ValueKind
from rapport.mediation.conversion.currencies import ChangeCurrency, RateTable
from rapport.mediation.conversion.lookups import ContextLookup, TableLookup
from rapport.mediation.conversion.notations import (
    ParseAngle,
    ParseNumber,
    ParseTime,
    WriteAngle,
    WriteNumber,
    WriteTime,
)
from rapport.mediation.conversion.places import (
    FixedOrigin,
    TableOrigin,
    ToAbsolute,
    ToCartesian,
    ToLatLon,
    ToPlan,
    ToPolar,
    ToRelative,
)
from rapport.mediation.rejections import RejectedValue
from rapport.units.catalogue import BY_NAME
from support.judge.meridian import lat_lon_of, plan_of

Row = Mapping[str, str]
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999  # years 1 to 9999


class World:
    """What the judge may look at: rows of tables by name, present values, and all that was told."""

    def __init__(
        self,
        tables: Mapping[str, tuple[str, Sequence[Row]]] | None = None,
        present: Mapping[tuple[str, str, str], Sequence[Any]] | None = None,
        told: Sequence[tuple[str, Any]] = (),
        event_time_ms: int | None = None,
    ) -> None:
        self.tables, self.present, self.told = tables or {}, present or {}, told
        self.event_time_ms = event_time_ms

    def row(self, table: str, key: str) -> Row:
        """The row whose key column holds the key; empty without one."""
        column, rows = self.tables.get(table, ("", ()))
        return next((row for row in rows if row[column] == key), {})


def convert_directly(
    conversion: Conversion,
    how: ValueKind,
    values: Sequence[Any],
    world: World,
    objects: Mapping[str, Mapping[str, str]],
    kind_of: Callable[[str], str],
) -> Any:
    """The result of a conversion of named values; `objects` are the complex types, with the types
    of their attributes.
    """
    argument, result = conversion.arguments[0], conversion.results[0]
    takes = [port.name for port in how.takes(len(conversion.arguments))]
    gives = [port.name for port in how.gives(len(conversion.results))]
    taken = list(values)
    if argument in objects:
        if not isinstance(values[0], dict):
            raise RejectedValue("value.not_an_object", "")
        if any(name not in values[0] for name in takes):
            raise RejectedValue("field.missing", "")
        taken = [values[0][name] for name in takes]
    if any(each is None for each in taken):
        raise RejectedValue("value.null", "")
    wanted = [kind_of(each) for each in conversion.results]
    if result in objects:
        wanted = [kind_of(objects[result][name]) for name in gives]
    found = _Calculator(world, wanted).calculate(how, taken)
    if result not in objects:
        return found[0] if len(found) == 1 else tuple(found)
    base = dict(values[0]) if argument in objects else {}
    if argument != result:
        base = {name: each for name, each in base.items() if name in objects[result]}
    return {**base, **dict(zip(gives, found, strict=True))}


def in_unit(value: float, one: str, other: str) -> float:
    """A number of one unit in another, as a fraction until the end."""
    here, there = BY_NAME[one], BY_NAME[other]
    exact = (Fraction(value) * here.scale + here.offset - there.offset) / there.scale
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


class _Calculator:
    """One calculation; `wanted` are the kinds of its results."""

    def __init__(self, world: World, wanted: Sequence[str]) -> None:
        self._world, self._wanted = world, wanted

    def calculate(self, how: ValueKind, taken: Sequence[Any]) -> Sequence[Any]:
        if isinstance(how, (TableLookup, ContextLookup)):
            return self._found(how, _text(taken[0]))
        if isinstance(how, ChangeCurrency):
            return self._exchanged(how, taken)
        if isinstance(how, (ToAbsolute, ToRelative)):
            return self._framed(how, taken)
        if isinstance(how, (ParseTime, WriteTime)):
            return _time(how, taken, self._wanted)
        if isinstance(how, (ParseNumber, WriteNumber, ParseAngle, WriteAngle)):
            return [_written(how, taken[0])]
        return _placed(how, *(_number(each) for each in taken))

    # --- look-ups

    def _found(self, how: TableLookup | ContextLookup, key: str) -> Sequence[Any]:
        if isinstance(how, TableLookup):
            row = self._world.row(how.table, key)
            fields = [row.get(column, "") for column in how.columns]
            if all(fields):
                return [_as_kind(*each) for each in zip(fields, self._wanted, strict=True)]
        else:
            present = self._world.present.get((how.concept, key, how.attribute))
            if present is not None:
                return present
        if how.otherwise is msgspec.UNSET:
            raise RejectedValue("lookup.unknown", "")
        return how.otherwise

    # --- money

    def _exchanged(self, how: ChangeCurrency, taken: Sequence[Any]) -> Sequence[Any]:
        currency = how.from_currency or _text(taken[1])
        time = _whole(taken[-1]) if how.time else self._world.event_time_ms
        amount = _number(taken[0])
        if currency != how.to:
            to, of = self._rate(how, how.to, time), self._rate(how, currency, time)
            amount = _finite(amount / of * to)
        if how.digits is not None:
            amount = round(amount, how.digits)
        return [amount] if how.from_currency else [amount, how.to]

    def _rate(self, how: ChangeCurrency, currency: str, time: int | None) -> float:
        if currency == how.rates.base:
            return 1.0
        known = [
            (began, number, rate)
            for number, (name, rate, began) in enumerate(self._rates(how))
            if name == currency and (time is None or began <= time)
        ]
        if not known:
            raise RejectedValue("currency.no_rate", "")
        return max(known)[2]

    def _rates(self, how: ChangeCurrency) -> list[tuple[str, float, int]]:
        rates = how.rates
        if isinstance(rates, RateTable):
            return [
                (row[rates.currency], float(row[rates.rate]), _instant(row[rates.valid_from]))
                for row in self._world.tables[rates.table][1]
            ]
        return [
            (event[rates.currency], event[rates.rate], event[rates.time])
            for name, event in self._world.told
            if name == rates.feed
        ]

    # --- frames

    def _framed(self, how: ToAbsolute | ToRelative, taken: Sequence[Any]) -> Sequence[float]:
        key = _text(taken[2]) if len(taken) > 2 else ""
        at, heading = self._origin(how, key)
        x, y = (in_unit(_number(each), how.unit, "m") for each in taken[:2])
        turn = cmath.exp(-1j * math.radians(heading))
        point = complex(x, y)
        point = at + point * turn if isinstance(how, ToAbsolute) else (point - at) / turn
        return [
            _finite(in_unit(_finite(each), "m", how.to_unit)) for each in (point.real, point.imag)
        ]

    def _origin(self, how: ToAbsolute | ToRelative, key: str) -> tuple[complex, float]:
        origin = how.origin
        if isinstance(origin, FixedOrigin):
            x, y, heading = origin.x, origin.y, origin.heading
        elif isinstance(origin, TableOrigin):
            row = self._world.row(origin.table, key)
            columns = [origin.x, origin.y, *([origin.heading] if origin.heading else [])]
            if not all(row.get(column) for column in columns):
                raise RejectedValue("lookup.unknown", "")
            x, y, heading = (*(float(row[column]) for column in columns), 0.0)[:3]
        else:
            heard = [
                event
                for name, event in self._world.told
                if name == origin.feed and event.get(origin.feed_key, "") == key
            ]
            if not heard:
                raise RejectedValue("place.no_origin", "")
            last = heard[-1]
            x, y = last[origin.x], last[origin.y]
            heading = last[origin.heading] if origin.heading else 0.0
        at = complex(in_unit(x, origin.unit, "m"), in_unit(y, origin.unit, "m"))
        return at, in_unit(heading, origin.heading_unit, "deg")


def _placed(how: Any, first: float, second: float) -> Sequence[float]:
    if isinstance(how, ToCartesian):
        angle = math.radians(math.fmod(_finite(in_unit(first, how.angle_unit, "deg")), 360.0))
        distance = _finite(in_unit(second, how.unit, how.to_unit))
        point = cmath.rect(distance, math.pi / 2 - angle)
        return [_finite(point.real), _finite(point.imag)]
    if isinstance(how, ToPolar):
        distance, phase = cmath.polar(complex(first, second))
        bearing = (90.0 - math.degrees(phase)) % 360.0 if distance else 0.0
        turned = in_unit(bearing, "deg", how.angle_unit)
        return [turned, _finite(in_unit(_finite(distance), how.unit, how.to_unit))]
    origin = (how.latitude, how.longitude)
    if isinstance(how, ToPlan):
        if abs(first) > 90 or abs(second) > 180:
            raise RejectedValue("place.out_of_range", "")
        x, y = plan_of(first, second, origin)
        if not math.hypot(x, y) <= how.range_metres:
            raise RejectedValue("place.out_of_range", "")
        return [in_unit(x, "m", how.to_unit), in_unit(y, "m", how.to_unit)]
    assert isinstance(how, ToLatLon)
    x, y = in_unit(first, how.unit, "m"), in_unit(second, how.unit, "m")
    if not math.hypot(x, y) <= how.range_metres:
        raise RejectedValue("place.out_of_range", "")
    return lat_lon_of(x, y, origin)


# --- times


def _time(how: ParseTime | WriteTime, taken: Sequence[Any], wanted: Sequence[str]) -> Sequence[Any]:
    unit = {"epoch_s": 1_000, "epoch_ms": 1}.get(how.format)
    if isinstance(how, WriteTime):
        return _write_time(how, _whole(taken[0]), unit, wanted)
    if unit is not None:
        time = Fraction(_number(taken[0])) * unit
        if not _FIRST_MS <= time <= _LAST_MS:
            raise RejectedValue("time.out_of_range", "")
        return [round(float(time))]
    written = how.separator.join(_text(each) for each in taken).strip()
    try:
        if how.format == "iso8601":
            moment = datetime.fromisoformat(written)
        else:
            moment = datetime.strptime(written, how.format)  # noqa: DTZ007 - the zone follows
    except ValueError:
        raise RejectedValue("time.bad_time", "") from None
    if moment.tzinfo is not None:
        return [_epoch(moment.replace(tzinfo=None) - (moment.utcoffset() or timedelta()))]
    if not how.zone:
        raise RejectedValue("time.no_zone", "")
    return [_local(moment, how.zone, how.fold)]


def _local(moment: datetime, zone: str, fold: str) -> int:
    """Tries every offset the zone had around then: those at which its clocks show this time."""
    place = ZoneInfo(zone)
    shown: list[datetime] = []
    for hours in (-48, 48):
        try:
            near = moment + timedelta(hours=hours)
        except OverflowError:
            continue  # the first and last days that there are
        try:
            offset = near.replace(tzinfo=place).utcoffset()
            instant = moment - (offset or timedelta())
            clock = instant.replace(tzinfo=UTC).astimezone(place).replace(tzinfo=None)
        except OverflowError:
            raise RejectedValue("time.bad_time", "") from None
        if clock == moment and instant not in shown:
            shown.append(instant)
    if not shown:
        raise RejectedValue("time.bad_time", "")
    if len(shown) == 2 and not fold:
        raise RejectedValue("time.ambiguous", "")
    return _epoch(max(shown) if fold == "second" else min(shown))


def _write_time(
    how: WriteTime, time: int, unit: int | None, wanted: Sequence[str]
) -> Sequence[Any]:
    if unit == 1:
        return [time]
    if unit is not None:
        return [round(time / 1000) if wanted == ["integer"] else time / 1000]
    if not _FIRST_MS <= time <= _LAST_MS:
        raise RejectedValue("time.out_of_range", "")
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time)
    try:
        moment = moment.astimezone(ZoneInfo(how.zone or "UTC"))
    except OverflowError:
        raise RejectedValue("time.out_of_range", "") from None
    if how.format == "iso8601":
        text = f"{moment:%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}"
        offset = moment.strftime("%z")
        text = f"{moment.year:04d}-{text}{_offset(offset) if how.zone else 'Z'}"
    else:
        text = moment.strftime(how.format.replace("%Y", f"{moment.year:04d}"))
    parts = len(how.attributes) or len(wanted)
    return text.split(how.separator, parts - 1) if parts > 1 else [text]


def _offset(text: str) -> str:
    """`+HHMM[SS]` with colons, as ISO 8601 has it."""
    return ":".join([text[:3], *re.findall("..", text[3:])])


def _epoch(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1)) // timedelta(milliseconds=1)  # noqa: DTZ001 - in UTC


def _instant(text: str) -> int:
    return _epoch(datetime.fromisoformat(text))


# --- numbers and angles as text


def _written(how: ParseNumber | WriteNumber | ParseAngle | WriteAngle, value: Any) -> Any:
    if isinstance(how, ParseNumber):
        return _parsed(_text(value), how.decimal)
    if isinstance(how, WriteNumber):
        number = _number(value)
        exact = Decimal(repr(number))
        text = f"{number:.{how.digits}f}" if how.digits is not None else repr(number)
        if how.digits is None and exact == exact.to_integral_value() and abs(exact) < 10**15:
            text = str(int(exact))
        return text if how.decimal == "point" else text.replace(".", ",")
    if isinstance(how, ParseAngle):
        return _angle(how, _text(value))
    return _angle_text(how, _number(value))


def _parsed(text: str, decimal: str) -> float:
    mark, other = (".", ",") if decimal == "point" else (",", ".")
    stripped = text.strip()
    body = stripped.replace(mark, ".")
    if other in stripped or not re.fullmatch(r"[0-9eE.+-]{1,400}", body):
        raise RejectedValue("value.not_a_number", "")
    try:
        found = float(Decimal(body))
    except ArithmeticError:
        raise RejectedValue("value.not_a_number", "") from None
    return _finite(found)


def _angle(how: ParseAngle, text: str) -> float:
    largest, letters = (90, "NS") if how.axis == "latitude" else (180, "EW")
    body = text.strip()
    letter = ""
    if body[:1] in tuple(letters):
        letter, body = body[0], body[1:]
    elif body[-1:] in tuple(letters):
        letter, body = body[-1], body[:-1]
    body = body.strip().rstrip(", " if how.form == "nmea" else "")
    parts = _angle_parts(how.form, body.removeprefix("-" if not letter else ""))
    degrees = sum((part / 60**number for number, part in enumerate(parts)), Fraction())
    if any(part >= 60 for part in parts[1:]):
        raise RejectedValue("place.bad_angle", "")
    if degrees > largest:
        raise RejectedValue("place.out_of_range", "")
    return float(degrees) * (-1 if letter in ("S", "W") or body.startswith("-") else 1)


def _angle_parts(form: str, body: str) -> list[Fraction]:
    """Degrees, minutes and seconds as far as they are written."""
    tokens = re.findall(r"[0-9]+(?:\.[0-9]*)?|\s+|.", body)
    shape = "".join(
        "#" if token[0].isdigit() else " " if token.isspace() else token for token in tokens
    )
    allowed = {"decimal": ("#", "#°"), "nmea": ("#",)}.get(
        form, ("#°", "# #", "# # #", "#:#", "#:#:#", "#°#'", "#°#'#\"", "# #.#")
    )
    numbers = [token for token in tokens if token[0].isdigit()]
    if shape not in allowed or not all(token.isascii() for token in numbers):
        raise RejectedValue("place.bad_angle", "")
    if form == "nmea":
        if not 3 <= len(numbers[0].partition(".")[0]) <= 5:
            raise RejectedValue("place.bad_angle", "")
        return [Fraction(int(Fraction(numbers[0])) // 100), Fraction(numbers[0]) % 100]
    return [Fraction(token) for token in numbers]


def _angle_text(how: WriteAngle, degrees: float) -> str:
    letters = ("N", "S", 90) if how.axis == "latitude" else ("E", "W", 180)
    if not abs(degrees) <= letters[2]:
        raise RejectedValue("place.out_of_range", "")
    letter = letters[0] if degrees >= 0 else letters[1]
    if how.form == "decimal":
        return f"{abs(degrees):.{how.digits}f} {letter}"
    unit = 3600 if how.form == "dms" else 60
    text = f"{round(abs(degrees) * unit, how.digits):.{how.digits}f}"
    whole, mark, fraction = text.partition(".")
    above, last = divmod(int(whole), 60)
    if how.form == "nmea":
        width = 2 if how.axis == "latitude" else 3
        return f"{above:0{width}d}{last:02d}{mark}{fraction},{letter}"
    return f"{above // 60}°{above % 60:02d}'{last:02d}{mark}{fraction}\"{letter}"


# --- looking at values


def _as_kind(field: str, kind: str) -> Any:
    if kind == "boolean":
        if field.lower() in ("true", "yes", "1"):
            return True
        if field.lower() in ("false", "no", "0"):
            return False
        raise RejectedValue("lookup.bad_value", "")
    if kind in ("number", "integer"):
        try:
            found = _parsed(field, "point")
        except RejectedValue:
            raise RejectedValue("lookup.bad_number", "") from None
        if kind == "integer" and found % 1:
            raise RejectedValue("lookup.bad_number", "")
        return found
    return field


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise RejectedValue("value.not_text", "")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RejectedValue("value.not_a_number", "")
    if value != value or abs(value) > 1.7976931348623157e308:
        raise RejectedValue("value.not_finite", "")
    return float(value)


def _whole(value: Any) -> int:
    if _number(value) % 1:
        raise RejectedValue("value.not_an_integer", "")
    return int(value)


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise RejectedValue("value.not_finite", "")
    return value
