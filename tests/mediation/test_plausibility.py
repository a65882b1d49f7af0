"""Hints about units that nobody declared."""

import doctest

import pytest

import rapport.mediation.plausibility
from rapport.mediation.plausibility import plausible_unit


@pytest.mark.parametrize(
    ("field", "value", "unit"),
    [
        ("dist_ft", None, "'ft'"),
        ("windSpeed_km/h", 12, "'km/h'"),
        ("relativeHumidity", 0.15, '"1"'),
        ("relativeHumidity", 80, '"%"'),
        ("Temperature", 93.2, '"degF"'),
        ("Temperature", 21.5, '"degC"'),
        ("brightness_temp", 301.0, '"K"'),
        ("relativeHumidity", 5000, ""),
        ("relativeHumidity", 10**400, ""),
        ("temperature", "warm", ""),
        ("temperature", True, ""),
        ("dx", 1.2, ""),
        ("m", 1.2, ""),
        ("", 1.2, ""),
    ],
)
def test_names_and_values_give_a_hint_where_it_is_cheap(field, value, unit):
    hint = plausible_unit(field, value)
    assert hint.endswith(unit) if unit else hint == ""


def test_the_examples_in_the_docstring_hold():
    assert doctest.testmod(rapport.mediation.plausibility).failed == 0
