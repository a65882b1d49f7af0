from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.core.times import (
    format_duration,
    format_time,
    parse_duration,
    parse_time,
    parse_times,
)


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


@pytest.mark.parametrize("text", ["9" * 400 + "s", "99999999999999999999 days"])
def test_durations_longer_than_time_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_duration(text)
    assert caught.value.code == "time.endless_duration"


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


LAST_MS = 253_402_300_799_999
OF_THE_FORM = st.from_regex(
    r"[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9]\.[0-9]{3}Z"
)
ODD_TIMES = st.sampled_from(
    [
        *(None, True, 5, -(2**63), 2**63, "1005061", "", "\n", "soon", "0000-01-01T00:00:00.000Z"),
        *("2026-02-30T09:14:05.210Z", "2026-03-02T24:00:00.000Z", "2026-03-02T09:14:60.000Z"),
        *("2026-03-02T09:14:05.210+01:00", "2026-03-02T09:14:05.210", "2026-03-02 09:14:05.210Z"),
        *("2026-03-02T09:14:05.2109Z", "2026-03-02T09:14:05Z", " 2026-03-02T09:14:05.210Z"),
        *("2026-03-02T09:14:05.210Z\n2026-03-02T09:14:05.210Z", "2026-03-02T09:14:05.21\u0660Z"),
        *("\ud800" * 24, "1969-12-31T23:59:59.999Z", "0001-01-01T00:00:00.000+23:59"),
    ]
)
USUAL_TIMES = st.integers(-62_135_596_800_000, LAST_MS).map(format_time)


def one_by_one(values: list[str | int | None]) -> list[int]:
    return [7 if value is None else parse_time(value, needs_offset=True) for value in values]


def outcome(read: Callable[[], list[int]]) -> object:
    try:
        return read()
    except InvalidInput as error:
        return error.code, error.message


@given(st.lists(USUAL_TIMES, min_size=12, max_size=40))
def test_many_times_in_one_pass_are_those_read_one_by_one(texts: list[str]) -> None:
    assert parse_times(texts, 7) == one_by_one(texts)


@given(
    st.lists(USUAL_TIMES, min_size=14, max_size=20),
    st.lists(OF_THE_FORM | ODD_TIMES | st.text(max_size=30), max_size=3),
    st.randoms(use_true_random=False),
)
def test_odd_times_among_many_have_the_outcome_they_have_alone(
    usual: list[str], odd: list[str | int | None], order: Random
) -> None:
    values = [*usual, *odd]
    order.shuffle(values)
    alone = outcome(lambda: one_by_one(values))
    assert outcome(lambda: parse_times(values, 7)) == alone


@pytest.mark.parametrize(
    "text",
    [
        *("0000-01-01T00:00:00.000Z", "0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z"),
        *("2024-02-29T00:00:00.000Z", "1900-02-29T00:00:00.000Z", "2026-02-01T24:00:00.000Z"),
        *("2026-02-01T23:59:60.000Z", "2026-02-01T00:00:00.000Z\n2026-02-01T00:00:00.000Z"),
    ],
)
def test_the_edges_of_the_form_are_read_in_one_pass_as_alone(text: str) -> None:
    values = ["2026-03-02T09:14:05.210Z"] * 15 + [text]
    assert outcome(lambda: parse_times(values, 7)) == outcome(lambda: one_by_one(values))
