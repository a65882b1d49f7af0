"""Numbers as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.units.quantities import looks_like_number, parse_number


@pytest.mark.parametrize(
    ("text", "decimal", "expected"),
    [
        ("30,05", "comma", 30.05),
        ("-30.05", "point", -30.05),
        (" +7 ", "point", 7.0),
        (",5", "comma", 0.5),
        ("5.", "point", 5.0),
        ("1e-3", "point", 0.001),
        ("12", "comma", 12.0),
    ],
)
def test_numbers_as_people_write_them(text, decimal, expected):
    assert parse_number(text, decimal) == expected


@pytest.mark.parametrize(
    ("text", "decimal"),
    [
        ("1.234,5", "comma"),
        ("1,234.5", "point"),
        ("30.05", "comma"),
        ("", "point"),
        ("NaN", "point"),
        ("inf", "point"),
        ("0x10", "point"),
        ("1_000", "point"),
        ("٣", "point"),
        ("9" * 500, "point"),
    ],
)
def test_an_ambiguous_number_is_refused(text, decimal):
    with pytest.raises(InvalidInput) as caught:
        parse_number(text, decimal)
    assert caught.value.code == "value.not_a_number"


def test_the_other_decimal_mark_is_hinted_at():
    with pytest.raises(InvalidInput) as caught:
        parse_number("30,05")
    assert caught.value.hint == 'it looks like decimal = "comma"'


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_comes_back_from_its_text(value):
    text = repr(value)
    assert parse_number(text) == value
    assert parse_number(text.replace(".", ","), "comma") == value


@given(st.text(max_size=30))
def test_any_text_is_a_number_or_refused(text):
    mark = looks_like_number(text)
    if mark is not None:
        assert isinstance(parse_number(text, mark), float)
