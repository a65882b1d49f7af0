"""Latitudes and longitudes as people and receivers write them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.units.coordinates import parse_angle, write_angle


@pytest.mark.parametrize(
    ("text", "axis", "form", "degrees"),
    [
        ("52°31'12\"N", "latitude", "dms", 52.52),
        ("52° 31′ 12″ S", "latitude", "dms", -52.52),
        ("N 52:31:12", "latitude", "dms", 52.52),
        ("52 31.2 N", "latitude", "dms", 52.52),
        ("52°N", "latitude", "dms", 52.0),
        ("52d31m12s", "latitude", "dms", 52.52),
        ("-46 38 24", "longitude", "dms", -46.64),
        ("46.64 W", "longitude", "decimal", -46.64),
        ("-46.64", "longitude", "decimal", -46.64),
        ("46.64° e", "longitude", "decimal", 46.64),
        ("4807.038,N", "latitude", "nmea", 48.1173),
        ("01131.000,E", "longitude", "nmea", 11.516666666666667),
    ],
)
def test_angles_are_read(text, axis, form, degrees):
    assert parse_angle(text, axis, form) == degrees


def test_a_decimal_comma_is_read_where_it_is_declared():
    assert parse_angle("52°31'12,5\"N", "latitude", "dms", "comma") == pytest.approx(52.520138889)
    assert parse_angle("-46,64", "longitude", "decimal", "comma") == -46.64


@pytest.mark.parametrize(
    ("text", "axis", "form"),
    [
        ("", "latitude", "dms"),
        ("north", "latitude", "dms"),
        ("52 61 0 N", "latitude", "dms"),
        ("52.5 31 N", "latitude", "dms"),
        ("-52 31 12 S", "latitude", "dms"),
        ("N52 31 12N", "latitude", "dms"),
        ("52°31'12\"E", "latitude", "dms"),
        ("12 30 O", "longitude", "dms"),
        ("12", "longitude", "dms"),
        ("12 1 2 3", "longitude", "dms"),
        ("12 31 N", "latitude", "decimal"),
        ("٥٢", "latitude", "decimal"),
        ("12", "latitude", "nmea"),
        ("1" * 80, "latitude", "decimal"),
    ],
)
def test_an_invalid_angle_is_refused(text, axis, form):
    with pytest.raises(InvalidInput) as caught:
        parse_angle(text, axis, form)
    assert caught.value.code == "place.bad_angle"
    assert caught.value.hint


def test_an_angle_beyond_the_poles_is_refused():
    for call in (
        lambda: parse_angle("91 N", "latitude", "decimal"),
        lambda: parse_angle("180 0 1 W", "longitude", "dms"),
        lambda: write_angle(90.5, "latitude"),
        lambda: write_angle(math.nan, "longitude"),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.code == "place.out_of_range"


@given(
    st.sampled_from((("latitude", 90.0), ("longitude", 180.0))),
    st.sampled_from(("decimal", "dms", "nmea")),
    st.floats(-1, 1),
)
def test_a_written_angle_reads_back_within_its_digits(axis, form, share):
    name, largest = axis
    degrees = largest * share
    written = write_angle(degrees, name, form, 6)
    assert parse_angle(written, name, form) == pytest.approx(degrees, abs=6e-7)


def test_no_part_ever_shows_sixty():
    assert write_angle(9.999999999, "latitude") == "10°00'00.00\"N"
    assert write_angle(-9.999999999, "longitude", "nmea", 3) == "01000.000,W"


@given(st.text(max_size=30), st.sampled_from(("decimal", "dms", "nmea")))
def test_any_text_is_an_angle_or_refused(text, form):
    try:
        assert -180 <= parse_angle(text, "longitude", form) <= 180
    except InvalidInput as error:
        assert error.code.startswith("place.")
