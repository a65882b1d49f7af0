"""The units we know, as data: symbol, dimension, exact size, other names. [ME-11]

Names of a unit are its common symbol, its UCUM code, its UN/CEFACT code and its SenML symbol. What
is ambiguous between them ("C" may be Celsius or coulomb) is left out on purpose: a unit is never
guessed.
"""

from __future__ import annotations

import math
from fractions import Fraction

import msgspec


class Unit(msgspec.Struct, frozen=True):
    """One unit: `base = value * scale + offset`, in the base unit of its dimension."""

    symbol: str
    dimension: str
    scale: Fraction
    offset: Fraction = Fraction(0)
    names: tuple[str, ...] = ()


def _unit(
    symbol: str, dimension: str, scale: str | Fraction, *names: str, offset: str = "0"
) -> Unit:
    return Unit(symbol, dimension, Fraction(scale), Fraction(offset), names)


_FOOT = Fraction("0.3048")
_MILE = Fraction("1609.344")
_POUND = Fraction("0.45359237")
_DEGREES_PER_RADIAN = Fraction(180) / Fraction(math.pi)

UNITS: tuple[Unit, ...] = (
    # temperature, base kelvin
    _unit("K", "temperature", "1", "KEL", "kelvin"),
    _unit("degC", "temperature", "1", "Cel", "CEL", "°C", "celsius", offset="273.15"),
    _unit("degF", "temperature", "5/9", "[degF]", "FAH", "°F", "fahrenheit", offset="45967/180"),
    # length, base metre
    _unit("m", "length", "1", "MTR", "metre", "metres", "meter", "meters"),
    _unit("mm", "length", "1/1000", "MMT"),
    _unit("cm", "length", "1/100", "CMT"),
    _unit("km", "length", "1000", "KMT"),
    _unit("in", "length", _FOOT / 12, "[in_i]", "INH", "inch"),  # codespell:ignore
    _unit("ft", "length", _FOOT, "[ft_i]", "FOT", "foot", "feet"),  # codespell:ignore
    _unit("yd", "length", _FOOT * 3, "[yd_i]", "YRD", "yard"),
    _unit("mi", "length", _MILE, "[mi_i]", "SMI", "mile"),
    _unit("nmi", "length", "1852", "[nmi_i]", "NMI"),
    # speed, base metre per second
    _unit("m/s", "speed", "1", "MTS"),
    _unit("km/h", "speed", "5/18", "KMH", "kph"),
    _unit("mph", "speed", _MILE / 3600, "[mi_i]/h", "HM", "mi/h"),
    _unit("kn", "speed", Fraction(1852, 3600), "[kn_i]", "KNT", "kt"),
    _unit("ft/s", "speed", _FOOT, "[ft_i]/s", "FS"),
    # angle, base degree: compass and camera feeds are in degrees, so those stay exact
    _unit("deg", "angle", "1", "DD", "°", "degree", "degrees"),
    _unit("rad", "angle", _DEGREES_PER_RADIAN, "C81", "radian"),
    _unit("gon", "angle", "9/10", "A91", "grad"),
    # ratio, base one
    _unit("1", "ratio", "1", "/", "fraction", "C62", "ratio"),
    _unit("%", "ratio", "1/100", "P1", "%RH", "percent", "pct"),
    _unit("ppm", "ratio", "1/1000000", "[ppm]", "59"),
    # duration, base second
    _unit("s", "duration", "1", "SEC", "second", "seconds"),
    _unit("ms", "duration", "1/1000", "C26"),
    _unit("min", "duration", "60", "MIN", "minute", "minutes"),
    _unit("h", "duration", "3600", "HUR", "hour", "hours"),
    _unit("d", "duration", "86400", "DAY", "day", "days"),
    # pressure, base pascal
    _unit("Pa", "pressure", "1", "PAL"),
    _unit("hPa", "pressure", "100", "A97", "mbar", "MBR"),
    _unit("kPa", "pressure", "1000", "KPA"),
    _unit("bar", "pressure", "100000", "BAR"),
    _unit("psi", "pressure", _POUND * Fraction("9.80665") / (_FOOT / 12) ** 2, "[psi]", "PS"),
    # the rest, each to its own base
    _unit("m2", "area", "1", "MTK", "m²"),
    _unit("ha", "area", "10000", "har", "HAR"),
    _unit("m3", "volume", "1", "MTQ", "m³"),
    _unit("L", "volume", "1/1000", "l", "LTR", "litre", "liter"),
    _unit("mL", "volume", "1/1000000", "ml", "MLT"),
    _unit("kg", "mass", "1", "KGM"),
    _unit("g", "mass", "1/1000", "GRM"),
    _unit("lb", "mass", _POUND, "[lb_av]", "LBR"),
    _unit("W", "power", "1", "WTT"),
    _unit("kW", "power", "1000", "KWT"),
    _unit("MW", "power", "1000000", "MAW"),
    _unit("J", "energy", "1", "JOU"),
    _unit("Wh", "energy", "3600", "W.h", "WHR"),
    _unit("kWh", "energy", "3600000", "kW.h", "KWH"),
    _unit("V", "voltage", "1", "VLT"),
    _unit("mV", "voltage", "1/1000", "2Z"),
    _unit("A", "current", "1", "AMP"),
    _unit("mA", "current", "1/1000", "4K"),
    _unit("Hz", "frequency", "1", "HTZ"),
    _unit("kHz", "frequency", "1000", "KHZ"),
    _unit("lx", "illuminance", "1", "LUX"),
)

BY_NAME: dict[str, Unit] = {name: unit for unit in UNITS for name in (unit.symbol, *unit.names)}
"""Every name of every unit; no name stands for two units."""
