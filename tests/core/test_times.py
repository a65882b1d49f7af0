import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.core.times import format_duration, format_time, parse_duration, parse_time


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_a_time_survives_being_written_for_people(time_ms: int) -> None:
    assert parse_time(format_time(time_ms)) == time_ms


@given(st.integers(0, 10**12))
def test_a_duration_survives_being_written_for_people(duration_ms: int) -> None:
    assert parse_duration(format_duration(duration_ms)) == duration_ms


@pytest.mark.parametrize("text", ["", "5", "s", "five s", "5 parsecs", "-5s", "5s 3"])
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_duration(text)
    assert caught.value.code == "time.bad_duration"
    assert "5s" in caught.value.hint


@pytest.mark.parametrize("value", ["", "yesterday", "2026-13-01", "1e3", 2**63])
def test_what_is_no_time_is_refused(value: str | int) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_time(value)
    assert caught.value.code == "time.bad_time"


def test_times_with_a_zone_become_utc() -> None:
    assert parse_time("2026-03-02T10:14:05.210+01:00") == parse_time("2026-03-02T09:14:05.210Z")


@given(st.text(max_size=40))
def test_no_text_crashes_the_time_reader(text: str) -> None:
    try:
        parse_time(text)
    except InvalidInput:
        return
