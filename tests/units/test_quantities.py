"""Units by name and exact conversion between them, with pint as the judge."""

import doctest
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rapport.units.coordinates
import rapport.units.numbers
import rapport.units.quantities
import rapport.units.timeformats
from rapport.core.errors import InvalidInput
from rapport.units.catalogue import BY_NAME, UNITS
from rapport.units.quantities import converter, unit_named

PINT_NAMES = {
    "1": "dimensionless",
    "%": "percent",
    "ppm": "ppm",
    "mi": "mile",
    "nmi": "nautical_mile",
    "kn": "knot",
    "lb": "pound",
    "m2": "m**2",
    "m3": "m**3",
    "ha": "hectare",
    "ft/s": "ft/s",
    "gon": "grad",
    "d": "day",
}


@pytest.fixture(scope="module")
def pint_units():
    pint = pytest.importorskip("pint")
    return pint.UnitRegistry()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.symbol)
def test_every_unit_agrees_with_pint(unit, pint_units):
    for other in UNITS:
        if other.dimension != unit.dimension:
            continue
        source, target = (PINT_NAMES.get(one.symbol, one.symbol) for one in (unit, other))
        for value in (-40.0, 0.0, 0.15, 31.0, 1772.25):
            expected = pint_units.Quantity(value, source).to(target).magnitude
            found = converter(unit.symbol, other.symbol).apply(value)
            assert math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9), (unit, other, value)


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
    ],
)
def test_a_unit_is_known_by_its_ucum_uncefact_and_senml_codes(code, symbol):
    assert unit_named(code).symbol == symbol


def test_an_unknown_unit_names_the_nearest():
    with pytest.raises(InvalidInput) as caught:
        unit_named("metrs")
    assert caught.value.code == "unit.unknown"
    assert "metr" in caught.value.hint


def test_an_ambiguous_symbol_is_refused():
    with pytest.raises(InvalidInput, match="no unit"):
        unit_named("C")


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
        rapport.units.timeformats,
        rapport.units.numbers,
    ],
    ids=lambda module: module.__name__,
)
def test_the_examples_in_the_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed
