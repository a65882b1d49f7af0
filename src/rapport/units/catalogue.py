"""The units we know, as data: symbol, dimension, exact size, other names. [ME-11]

Names of a unit are its common symbol, its UCUM code, its UN/CEFACT code and its SenML symbol. What
is ambiguous between them ("C" may be Celsius or coulomb, "B" byte or bel) is left out on purpose: a
unit is never guessed. What cannot be converted without knowing more has a dimension of its own:
ppm and ug/m3 need a molar mass, dB and dBA a filter, VA and W a phase.
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
_INCH = _FOOT / 12
_MILE = Fraction("1609.344")
_POUND = Fraction("0.45359237")
_GRAVITY = Fraction("9.80665")
_MERCURY = Fraction("13595.1") * _GRAVITY / 1000  # conventional millimetre; UCUM says 133.322
_US_GALLON = 231 * _INCH**3
_HOUR, _MINUTE = Fraction(3600), Fraction(60)
_DEGREES_PER_RADIAN = Fraction(180) / Fraction(math.pi)

UNITS: tuple[Unit, ...] = (
    # temperature, base kelvin
    _unit("K", "temperature", "1", "KEL", "kelvin"),
    _unit("degC", "temperature", "1", "Cel", "CEL", "°C", "celsius", offset="273.15"),
    _unit("degF", "temperature", "5/9", "[degF]", "FAH", "°F", "fahrenheit", offset="45967/180"),
    _unit("degR", "temperature", "5/9", "[degR]", "A48", "rankine"),
    # length, base metre; a litre of rain on a square metre is a millimetre
    _unit("m", "length", "1", "MTR", "metre", "metres", "meter", "meters"),
    _unit("nm", "length", "1/1000000000", "C45"),
    _unit("um", "length", "1/1000000", "4H", "µm", "μm"),
    _unit("mm", "length", "1/1000", "MMT", "L/m2", "l/m2"),
    _unit("cm", "length", "1/100", "CMT"),
    _unit("dm", "length", "1/10", "DMT"),
    _unit("km", "length", "1000", "KMT"),
    _unit("in", "length", _INCH, "[in_i]", "INH", "inch"),  # codespell:ignore
    _unit("ft", "length", _FOOT, "[ft_i]", "FOT", "foot", "feet"),  # codespell:ignore
    _unit("yd", "length", _FOOT * 3, "[yd_i]", "YRD", "yard"),
    _unit("ftm", "length", _FOOT * 6, "[fth_i]", "AK", "fathom"),
    _unit("mi", "length", _MILE, "[mi_i]", "SMI", "mile"),
    _unit("nmi", "length", "1852", "[nmi_i]", "NMI"),
    # speed, base metre per second; rain per hour is one
    _unit("m/s", "speed", "1", "MTS"),
    _unit("mm/s", "speed", "1/1000", "C16"),
    _unit("cm/s", "speed", "1/100", "2M"),
    _unit("km/h", "speed", "5/18", "KMH", "kph"),
    _unit("mph", "speed", _MILE / _HOUR, "[mi_i]/h", "HM", "mi/h"),
    _unit("kn", "speed", 1852 / _HOUR, "[kn_i]", "KNT", "kt"),
    _unit("ft/s", "speed", _FOOT, "[ft_i]/s", "FS"),
    _unit("in/s", "speed", _INCH, "[in_i]/s", "IU"),
    _unit("m/min", "speed", 1 / _MINUTE, "2X"),
    _unit("mm/min", "speed", 1 / _MINUTE / 1000, "H81"),
    _unit("m/h", "speed", 1 / _HOUR),
    _unit("mm/h", "speed", 1 / _HOUR / 1000),
    _unit("in/h", "speed", _INCH / _HOUR, "[in_i]/h"),
    # acceleration
    _unit("m/s2", "acceleration", "1", "MSK", "m/s²"),
    _unit("ft/s2", "acceleration", _FOOT, "A73"),
    _unit("gn", "acceleration", _GRAVITY, "[g]", "K40"),
    # angle, base degree: compass and camera feeds are in degrees, so those stay exact
    _unit("deg", "angle", "1", "DD", "°", "degree", "degrees", "lat", "lon"),
    _unit("arcmin", "angle", "1/60", "D61"),
    _unit("arcsec", "angle", "1/3600", "D62"),
    _unit("rad", "angle", _DEGREES_PER_RADIAN, "C81", "radian"),
    _unit("mrad", "angle", _DEGREES_PER_RADIAN / 1000, "C25"),
    _unit("gon", "angle", "9/10", "A91", "grad"),
    # ratio, base one
    _unit("1", "ratio", "1", "/", "fraction", "C62", "ratio"),
    _unit("%", "ratio", "1/100", "P1", "%RH", "%EL", "/100", "percent", "pct"),
    _unit("permille", "ratio", "1/1000", "[ppth]", "NX", "/1000", "‰"),
    _unit("ppm", "ratio", "1/1000000", "[ppm]", "59"),
    _unit("ppb", "ratio", "1/1000000000", "[ppb]", "61"),
    # mass in a volume: no ratio, so air quality in ppm is never taken for ug/m3
    _unit("kg/m3", "mass concentration", "1", "KMQ", "kg/m³"),
    _unit("g/m3", "mass concentration", "1/1000", "A93", "g/m³"),
    _unit("mg/m3", "mass concentration", "1/1000000", "GP", "mg/m³"),
    _unit("ug/m3", "mass concentration", "1/1000000000", "GQ", "µg/m³", "μg/m³"),
    _unit("ng/m3", "mass concentration", "1/1000000000000", "ng/m³"),
    _unit("g/cm3", "mass concentration", "1000", "23", "g/cm³"),
    _unit("g/L", "mass concentration", "1", "g/l", "GL"),
    _unit("mg/L", "mass concentration", "1/1000", "mg/l", "M1"),
    _unit("ug/L", "mass concentration", "1/1000000", "ug/l", "µg/l"),
    # amount of substance, and acidity
    _unit("mol", "amount", "1", "C34"),
    _unit("mmol", "amount", "1/1000", "C18"),
    _unit("mol/L", "amount concentration", "1000", "mol/l", "C38"),
    _unit("mmol/L", "amount concentration", "1", "mmol/l", "M33"),
    _unit("pH", "acidity", "1", "[pH]", "Q30"),
    # duration, base second
    _unit("s", "duration", "1", "SEC", "second", "seconds"),
    _unit("ns", "duration", "1/1000000000", "C47"),
    _unit("us", "duration", "1/1000000", "B98", "µs", "μs"),
    _unit("ms", "duration", "1/1000", "C26"),
    _unit("min", "duration", "60", "MIN", "minute", "minutes"),
    _unit("h", "duration", "3600", "HUR", "hour", "hours"),
    _unit("d", "duration", "86400", "DAY", "day", "days"),
    _unit("wk", "duration", "604800", "WEE", "week", "weeks"),  # codespell:ignore
    # frequency, base hertz; counts per time, base per second
    _unit("Hz", "frequency", "1", "HTZ"),
    _unit("kHz", "frequency", "1000", "KHZ"),
    _unit("MHz", "frequency", "1000000", "MHZ"),
    _unit("GHz", "frequency", "1000000000", "A86"),
    _unit("1/s", "rate", "1", "/s", "C97"),
    _unit("1/min", "rate", "1/60", "/min", "C94", "rpm", "RPM", "bpm", "beat/min"),
    _unit("1/h", "rate", "1/3600", "/h"),
    _unit("count", "count", "1", "{count}", "beats", "H87"),
    # area, base square metre
    _unit("m2", "area", "1", "MTK", "m²"),
    _unit("mm2", "area", "1/1000000", "MMK", "mm²"),
    _unit("cm2", "area", "1/10000", "CMK", "cm²"),
    _unit("km2", "area", "1000000", "KMK", "km²"),
    _unit("ha", "area", "10000", "har", "HAR"),
    _unit("in2", "area", _INCH**2, "[sin_i]", "INK"),
    _unit("ft2", "area", _FOOT**2, "[sft_i]", "FTK"),
    _unit("yd2", "area", (3 * _FOOT) ** 2, "[syd_i]", "YDK"),
    _unit("mi2", "area", _MILE**2, "MIK"),
    _unit("acre", "area", 4840 * (3 * _FOOT) ** 2),
    # volume, base cubic metre
    _unit("m3", "volume", "1", "MTQ", "m³"),
    _unit("cm3", "volume", "1/1000000", "CMQ", "cm³"),
    _unit("L", "volume", "1/1000", "l", "LTR", "litre", "liter", "dm3", "DMQ"),
    _unit("mL", "volume", "1/1000000", "ml", "MLT"),
    _unit("hL", "volume", "1/10", "hl", "HLT"),
    _unit("in3", "volume", _INCH**3, "[cin_i]", "INQ"),
    _unit("ft3", "volume", _FOOT**3, "[cft_i]", "FTQ"),
    _unit("gal_us", "volume", _US_GALLON, "[gal_us]", "GLL"),
    _unit("gal_uk", "volume", Fraction("4.54609") / 1000, "[gal_br]", "GLI"),
    _unit("bbl", "volume", 42 * _US_GALLON, "[bbl_us]", "BLL"),
    # flow, base cubic metre per second; mass flow, base kilogram per second
    _unit("m3/s", "flow", "1", "MQS", "m³/s"),
    _unit("m3/min", "flow", 1 / _MINUTE, "G53"),
    _unit("m3/h", "flow", 1 / _HOUR, "MQH", "m³/h"),
    _unit("L/s", "flow", "1/1000", "l/s", "G51"),
    _unit("L/min", "flow", 1 / _MINUTE / 1000, "l/min", "L2"),
    _unit("L/h", "flow", 1 / _HOUR / 1000, "l/h", "E32"),
    _unit("mL/min", "flow", 1 / _MINUTE / 1000000, "ml/min", "41"),
    _unit("ft3/min", "flow", _FOOT**3 / _MINUTE, "[cft_i]/min", "2L", "cfm"),
    _unit("gal_us/min", "flow", _US_GALLON / _MINUTE, "[gal_us]/min", "G2", "gpm"),
    _unit("kg/s", "mass flow", "1", "KGS"),
    _unit("kg/h", "mass flow", 1 / _HOUR, "E93"),
    _unit("t/h", "mass flow", 1000 / _HOUR, "E18"),
    _unit("lb/h", "mass flow", _POUND / _HOUR, "[lb_av]/h", "4U"),
    # mass, base kilogram
    _unit("kg", "mass", "1", "KGM"),
    _unit("ug", "mass", "1/1000000000", "MC", "µg", "μg"),
    _unit("mg", "mass", "1/1000000", "MGM"),
    _unit("g", "mass", "1/1000", "GRM"),
    _unit("t", "mass", "1000", "TNE", "tonne"),  # codespell:ignore
    _unit("lb", "mass", _POUND, "[lb_av]", "LBR"),
    _unit("oz", "mass", _POUND / 16, "[oz_av]", "ONZ", "ounce"),
    _unit("st", "mass", _POUND * 14, "[stone_av]", "STI", "stone"),
    # force, torque
    _unit("N", "force", "1", "NEW"),
    _unit("kN", "force", "1000", "B47"),
    _unit("lbf", "force", _POUND * _GRAVITY, "[lbf_av]", "C78"),
    _unit("N.m", "torque", "1", "NU", "Nm", "N·m"),
    # pressure, base pascal
    _unit("Pa", "pressure", "1", "PAL"),
    _unit("hPa", "pressure", "100", "A97", "mbar", "MBR"),
    _unit("kPa", "pressure", "1000", "KPA"),
    _unit("MPa", "pressure", "1000000", "MPA"),
    _unit("bar", "pressure", "100000", "BAR"),
    _unit("atm", "pressure", "101325", "ATM"),
    _unit("mmHg", "pressure", _MERCURY, "mm[Hg]", "HN"),
    _unit("inHg", "pressure", _MERCURY * Fraction("25.4"), "[in_i'Hg]", "F79"),
    _unit("psi", "pressure", _POUND * _GRAVITY / _INCH**2, "[psi]", "PS"),
    # energy, base joule
    _unit("J", "energy", "1", "JOU"),
    _unit("kJ", "energy", "1000", "KJO"),
    _unit("MJ", "energy", "1000000", "3B"),
    _unit("GJ", "energy", "1000000000", "GV"),
    _unit("Wh", "energy", "3600", "W.h", "WHR"),
    _unit("kWh", "energy", "3600000", "kW.h", "KWH"),
    _unit("MWh", "energy", "3600000000", "MW.h", "MWH"),
    _unit("GWh", "energy", "3600000000000", "GW.h", "GWH"),
    _unit("cal", "energy", "4.184", "cal_th", "D35"),
    _unit("kcal", "energy", "4184", "kcal_th", "K53"),
    _unit("Btu", "energy", "1055.05585262", "[Btu_IT]", "BTU"),
    # power, base watt; apparent and reactive power are no watts
    _unit("W", "power", "1", "WTT"),
    _unit("mW", "power", "1/1000", "C31"),
    _unit("kW", "power", "1000", "KWT"),
    _unit("MW", "power", "1000000", "MAW"),
    _unit("GW", "power", "1000000000", "A90"),
    _unit("hp", "power", 550 * _FOOT * _POUND * _GRAVITY, "[HP]", "BHP"),
    _unit("VA", "apparent power", "1", "V.A", "D46"),
    _unit("kVA", "apparent power", "1000", "kV.A", "KVA"),
    _unit("var", "reactive power", "1", "D44"),
    _unit("kvar", "reactive power", "1000", "KVR"),
    _unit("varh", "reactive energy", "1"),
    _unit("kvarh", "reactive energy", "1000", "K3"),
    _unit("W/m2", "irradiance", "1", "D54", "W/m²"),
    _unit("kW/m2", "irradiance", "1000", "kW/m²"),
    # electric, each to its SI unit; C, F, H, S and T mean other things to some: in full
    _unit("V", "voltage", "1", "VLT"),
    _unit("uV", "voltage", "1/1000000", "D82", "µV"),
    _unit("mV", "voltage", "1/1000", "2Z"),
    _unit("kV", "voltage", "1000", "KVT"),
    _unit("A", "current", "1", "AMP"),
    _unit("uA", "current", "1/1000000", "B84", "µA"),
    _unit("mA", "current", "1/1000", "4K"),
    _unit("kA", "current", "1000", "B22"),
    _unit("Ah", "charge", "3600", "A.h", "AMH"),
    _unit("mAh", "charge", "3.6", "mA.h", "E09"),
    _unit("coulomb", "charge", "1", "COU"),
    _unit("Ohm", "resistance", "1", "OHM", "Ω"),
    _unit("kOhm", "resistance", "1000", "B49", "kΩ"),
    _unit("MOhm", "resistance", "1000000", "B75", "MΩ"),
    _unit("siemens", "conductance", "1", "SIE"),  # codespell:ignore
    _unit("mS", "conductance", "1/1000", "C27"),
    _unit("uS", "conductance", "1/1000000", "B99", "µS"),
    _unit("S/m", "conductivity", "1", "D10"),
    _unit("mS/cm", "conductivity", "1/10", "H61"),
    _unit("uS/cm", "conductivity", "1/10000", "G42", "µS/cm"),
    _unit("farad", "capacitance", "1", "FAR"),
    _unit("uF", "capacitance", "1/1000000", "4O", "µF"),
    _unit("nF", "capacitance", "1/1000000000", "C41"),
    _unit("pF", "capacitance", "1/1000000000000", "4T"),
    _unit("henry", "inductance", "1", "81"),
    _unit("tesla", "magnetic field", "1", "D33"),
    # light
    _unit("lx", "illuminance", "1", "LUX"),
    _unit("klx", "illuminance", "1000", "KLX"),
    _unit("lm", "luminous flux", "1", "LUM"),
    _unit("cd", "luminous intensity", "1", "CDL"),
    _unit("cd/m2", "luminance", "1", "A24", "cd/m²"),
    # levels: decibels of different things never mix; dBm and dBW differ by their reference only
    _unit("dB", "level", "1", "2N"),
    _unit("dBA", "A-weighted level", "1", "dB(A)"),
    _unit("dBC", "C-weighted level", "1", "dB(C)"),
    _unit("dBSPL", "sound pressure level", "1", "dB[SPL]"),
    _unit("Bspl", "sound pressure level", "10", "B[SPL]"),
    _unit("dBm", "power level", "1"),
    _unit("dBW", "power level", "1", offset="30"),
    # data, base bit; "B" is a byte to SenML and a bel to UCUM
    _unit("bit", "data", "1", "A99"),
    _unit("byte", "data", "8", "By", "AD"),
    _unit("kB", "data", "8000", "kBy", "2P"),
    _unit("MB", "data", "8000000", "MBy", "4L"),
    _unit("GB", "data", "8000000000", "GBy", "E34"),
    _unit("TB", "data", "8000000000000", "TBy", "E35"),
    _unit("KiB", "data", "8192", "KiBy", "E64"),
    _unit("MiB", "data", str(8 * 2**20), "MiBy", "E63"),
    _unit("GiB", "data", str(8 * 2**30), "GiBy", "E62"),
    _unit("bit/s", "data rate", "1", "B10", "bps"),
    _unit("kbit/s", "data rate", "1000", "C74", "kbps"),
    _unit("Mbit/s", "data rate", "1000000", "E20", "Mbps"),
    _unit("Gbit/s", "data rate", "1000000000", "B80", "Gbps"),
    _unit("byte/s", "data rate", "8", "By/s", "P93", "B/s"),
    _unit("kB/s", "data rate", "8000", "P94"),
    _unit("MB/s", "data rate", "8000000", "P95"),
    # radiation
    _unit("Bq", "activity", "1", "BQL"),
    _unit("Bq/m3", "activity concentration", "1", "A19", "Bq/m³"),
    _unit("Sv", "dose", "1", "D13"),
    _unit("mSv", "dose", "1/1000", "C28"),
    _unit("uSv", "dose", "1/1000000", "µSv"),
    _unit("mSv/h", "dose rate", "1000", "P71"),
    _unit("uSv/h", "dose rate", "1", "P72", "µSv/h"),
    _unit("nSv/h", "dose rate", "1/1000", "P73"),
)

BY_NAME: dict[str, Unit] = {name: unit for unit in UNITS for name in (unit.symbol, *unit.names)}
"""Every name of every unit; no name stands for two units."""
