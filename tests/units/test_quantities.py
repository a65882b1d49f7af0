"""Units by name and exact conversion between them, with pint as the judge."""

import doctest
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rapport.core.times
import rapport.units.coordinates
import rapport.units.quantities
from rapport.core.errors import InvalidInput
from rapport.units.catalogue import BY_NAME, UNITS
from rapport.units.quantities import converter, unit_named

PINT_NAMES = {
    "1": "dimensionless",
    "%": "percent",
    "permille": "permille",
    "ppb": "our_ppb",
    "mi": "mile",
    "nmi": "nautical_mile",
    "kn": "knot",
    "lb": "pound",
    "lb/h": "pound/hour",
    "ftm": "our_fathom",
    "m2": "m**2",
    "m3": "m**3",
    "ha": "hectare",
    "gon": "grad",
    "d": "day",
    "wk": "week",
    "gn": "standard_gravity",
    "1/s": "1/s",
    "count": "count",
    "acre": "our_acre",
    "gal_us": "gallon",
    "gal_uk": "imperial_gallon",
    "bbl": "our_barrel",
    "gal_us/min": "gallon/min",
    "st": "stone",
    "lbf": "pound_force",
    "mmHg": "mmHg",
    "Btu": "Btu_it",
    "varh": "watt*hour",
    "kvarh": "kilowatt*hour",
    "var": "watt",
    "kvar": "kilowatt",
    "VA": "volt*ampere",
    "kVA": "kilovolt*ampere",
    "KiB": "kibibyte",
    "MiB": "mebibyte",
    "GiB": "gibibyte",
    "kB": "kilobyte",
    "MB": "megabyte",
    "GB": "gigabyte",
    "TB": "terabyte",
    "kB/s": "kilobyte/s",
    "MB/s": "megabyte/s",
    "N.m": "newton*meter",
    "Ohm": "ohm",
    "kOhm": "kiloohm",
    "MOhm": "megaohm",
}
LEVELS = {"dBA", "dBC", "dBSPL", "Bspl", "dB", "dBm", "dBW", "pH"}
"""Logarithms, of which pint knows other things or nothing."""


def pint_name(symbol: str) -> str:
    """Our symbol as pint writes it: `m3/s` is `m**3/s`."""
    return PINT_NAMES.get(symbol) or re.sub(r"(?<=[a-z])([23])(?=/|$)", r"**\1", symbol)


@pytest.fixture(scope="module")
def pint_units():
    pint = pytest.importorskip("pint")
    registry = pint.UnitRegistry()
    registry.define("our_ppb = ppm / 1000")
    registry.define("our_fathom = 6 * foot")
    registry.define("our_acre = 4840 * yard**2")
    registry.define("our_barrel = 42 * gallon")
    return registry


ON_A_LINE = [unit for unit in UNITS if unit.symbol not in LEVELS]  # the others are logarithms


@pytest.mark.parametrize("unit", ON_A_LINE, ids=lambda unit: unit.symbol)
def test_every_unit_agrees_with_pint(unit, pint_units):
    for other in UNITS:
        if other.dimension != unit.dimension:
            continue
        source, target = pint_name(unit.symbol), pint_name(other.symbol)
        for value in (-40.0, 0.0, 0.15, 31.0, 1772.25):
            expected = pint_units.Quantity(value, source).to(target).magnitude
            found = converter(unit.symbol, other.symbol).apply(value)
            near_zero = 1e-9 if unit.dimension == "temperature" else 0.0
            assert math.isclose(found, expected, rel_tol=1e-9, abs_tol=near_zero), (other, value)


def test_no_name_stands_for_two_units():
    assert len(BY_NAME) == sum(1 + len(unit.names) for unit in UNITS)


@pytest.mark.parametrize(
    ("source", "target", "value", "expected"),
    [
        ("degF", "degC", 77.0, 25.0),
        ("degF", "degC", -40.0, -40.0),
        ("degC", "degF", 25.0, 77.0),
        ("K", "degC", 273.15, 0.0),
        ("%", "1", 80.0, 0.8),
        ("fraction", "%", 0.15, 15.0),
        ("ft", "m", 12.4, 3.77952),
        ("km/h", "m/s", 36.0, 10.0),
        ("deg", "rad", 180.0, math.pi),
    ],
)
def test_small_numbers_convert_exactly(source, target, value, expected):
    assert converter(source, target).apply(value) == expected


@pytest.mark.parametrize(
    ("code", "symbol"),
    [
        ("Cel", "degC"),
        ("[degF]", "degF"),
        ("KMH", "km/h"),
        ("%RH", "%"),
        ("/", "1"),
        ("°C", "degC"),
        ("MQH", "m3/h"),
        ("L2", "L/min"),
        ("l/s", "L/s"),
        ("GQ", "ug/m3"),
        ("ug/m3", "ug/m3"),
        ("2N", "dB"),
        ("A97", "hPa"),
        ("[gal_us]", "gal_us"),
        ("By", "byte"),
        ("AD", "byte"),
        ("Mbit/s", "Mbit/s"),
        ("kW.h", "kWh"),
        ("lat", "deg"),
        ("lon", "deg"),
        ("mm[Hg]", "mmHg"),
        ("OHM", "Ohm"),
        ("W/m2", "W/m2"),
        ("/min", "1/min"),
        ("beat/min", "1/min"),
        ("/100", "%"),
    ],
)
def test_a_unit_is_known_by_its_ucum_uncefact_and_senml_codes(code, symbol):
    assert unit_named(code).symbol == symbol


def test_an_unknown_unit_names_the_nearest():
    with pytest.raises(InvalidInput) as caught:
        unit_named("metrs")
    assert caught.value.code == "unit.unknown"
    assert "metr" in caught.value.hint


@pytest.mark.parametrize("symbol", ["C", "F", "B", "T", "H", "S"])
def test_an_ambiguous_symbol_is_refused(symbol):
    with pytest.raises(InvalidInput, match="no unit"):
        unit_named(symbol)


DIMENSIONS = {
    "temperature": ("K", "degC", "degF"),
    "length": ("mm", "m", "km", "ft", "mi", "nmi"),
    "speed": ("m/s", "km/h", "mph", "kn", "mm/h"),
    "acceleration": ("m/s2", "gn"),
    "mass": ("kg", "g", "t", "lb", "oz"),
    "force": ("N", "lbf"),
    "pressure": ("Pa", "hPa", "bar", "psi", "mmHg", "inHg", "atm"),
    "energy": ("J", "kWh", "MWh", "kcal", "Btu"),
    "power": ("W", "kW", "hp"),
    "irradiance": ("W/m2",),
    "flow": ("m3/s", "m3/h", "L/min", "gal_us/min"),
    "mass flow": ("kg/s", "t/h"),
    "volume": ("m3", "L", "gal_us", "bbl"),
    "area": ("m2", "ha", "km2", "acre", "ft2"),
    "duration": ("ms", "s", "min", "h", "d", "wk"),
    "frequency": ("Hz", "MHz"),
    "rate": ("1/s", "1/min"),
    "angle": ("deg", "rad", "gon", "arcmin"),
    "ratio": ("1", "%", "permille", "ppm", "ppb"),
    "mass concentration": ("ug/m3", "mg/m3", "mg/L"),
    "illuminance": ("lx", "klx"),
    "voltage": ("V", "mV", "kV"),
    "current": ("A", "mA"),
    "charge": ("Ah", "mAh", "coulomb"),
    "resistance": ("Ohm", "kOhm"),
    "conductivity": ("S/m", "uS/cm"),
    "data": ("bit", "byte", "kB", "MiB"),
    "data rate": ("bit/s", "Mbit/s", "MB/s"),
    "level": ("dB",),
    "A-weighted level": ("dB(A)",),
    "acidity": ("pH",),
    "dose rate": ("uSv/h",),
}
"""What a city's sensors usually speak of."""


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_the_usual_units_of_a_dimension_are_known_and_are_all_of_it(dimension):
    assert {unit_named(symbol).dimension for symbol in DIMENSIONS[dimension]} == {dimension}


@pytest.mark.parametrize(
    ("one", "other", "needs"),
    [
        ("ppm", "ug/m3", "molar mass"),
        ("ug/m3", "ppb", "molar mass"),
        ("VA", "W", "power factor"),
        ("var", "W", "power factor"),
        ("dB", "dB(A)", "spectrum"),
        ("lx", "W/m2", "spectrum"),
        ("kg", "L", "density"),
    ],
)
def test_a_conversion_that_needs_more_than_a_factor_is_refused_with_the_reason(one, other, needs):
    with pytest.raises(InvalidInput) as caught:
        converter(one, other)
    assert caught.value.code == "unit.mismatch"
    assert needs in caught.value.hint


def test_levels_of_power_differ_by_their_reference_only():
    assert converter("dBW", "dBm").apply(0.0) == 30.0
    assert converter("Bspl", "dB[SPL]").apply(6.5) == 65.0


def test_units_of_different_dimensions_do_not_convert():
    with pytest.raises(InvalidInput) as caught:
        converter("degC", "m")
    assert caught.value.code == "unit.mismatch"
    assert "km" in caught.value.hint


@given(
    st.sampled_from(UNITS),
    st.sampled_from(UNITS),
    st.floats(-1e9, 1e9, allow_nan=False),
)
def test_there_and_back_is_where_we_were(source, target, value):
    if source.dimension != target.dimension:
        return
    there = converter(source.symbol, target.symbol).apply(value)
    back = converter(target.symbol, source.symbol).apply(there)
    assert math.isclose(back, value, rel_tol=1e-9, abs_tol=1e-3 if source.offset else 1e-9)


@given(st.sampled_from(UNITS), st.sampled_from(UNITS), st.floats(-1e9, 1e9))
def test_the_expression_and_the_array_form_do_the_same_arithmetic(source, target, value):
    if source.dimension != target.dimension:
        return
    affine = converter(source.symbol, target.symbol)
    expected = affine.apply(value)
    assert eval(affine.expression("x"), {"x": value}) == expected
    assert affine.apply(np.array([value]))[0] == expected


@pytest.mark.parametrize(
    "module",
    [
        rapport.units.quantities,
        rapport.units.coordinates,
        rapport.core.times,
    ],
    ids=lambda module: module.__name__,
)
def test_the_examples_in_the_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed
