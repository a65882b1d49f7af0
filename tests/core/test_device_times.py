"""Times as devices write them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.core.times import (
    EARLIEST_MS,
    LATEST_MS,
    format_time,
    from_epoch,
    from_iso,
    from_pattern,
    to_iso,
    to_pattern,
    zone_named,
)


def code_of(call, *arguments):
    with pytest.raises(InvalidInput) as caught:
        call(*arguments)
    return caught.value.code


def test_epoch_seconds_with_a_fraction_round_to_the_nearest_millisecond():
    assert from_epoch(1772442845.3, 1000) == 1772442845300
    assert from_epoch(1772442845210, 1) == 1772442845210


def test_milliseconds_declared_as_seconds_are_refused_with_a_hint():
    with pytest.raises(InvalidInput) as caught:
        from_epoch(1772442845210.0, 1000)
    assert caught.value.code == "time.out_of_range"
    assert caught.value.hint == 'it looks like format = "epoch_ms"'


@pytest.mark.parametrize("value", [1e300, -1e300, math.inf, -math.inf, math.nan, 10**30])
def test_absurd_epochs_are_refused(value):
    assert code_of(from_epoch, value, 1000) == "time.out_of_range"


def test_iso_text_with_an_offset_needs_no_zone():
    assert from_iso("2026-03-02T10:14:05.210+01:00") == from_iso("2026-03-02T09:14:05.210Z")


def test_local_text_without_a_zone_is_refused():
    assert code_of(from_iso, "2026-03-02T09:14:05") == "time.no_zone"


def test_local_text_follows_summer_time():
    assert from_iso("2026-01-01T12:00", "Europe/Berlin") == from_iso("2026-01-01T11:00Z")
    assert from_iso("2026-07-01T12:00", "Europe/Berlin") == from_iso("2026-07-01T10:00Z")


def test_an_hour_the_clocks_jump_over_is_refused():
    assert code_of(from_iso, "2026-03-29T02:30", "Europe/Berlin") == "time.bad_time"


def test_of_an_hour_that_comes_twice_it_is_the_first():
    assert from_iso("2026-10-25T02:30", "Europe/Berlin") == from_iso("2026-10-25T00:30Z")


def test_fold_selects_one_of_two_equal_hours():
    text, zone = "2026-10-25T02:30", "Europe/Berlin"
    assert from_iso(text, zone, "first") == from_iso("2026-10-25T00:30Z")
    assert from_iso(text, zone, "second") == from_iso("2026-10-25T01:30Z")
    assert code_of(from_iso, text, zone, "") == "time.ambiguous"
    assert code_of(from_pattern, "25/10/2026 02:30", "%d/%m/%Y %H:%M", zone, "") == "time.ambiguous"


def test_a_half_hour_that_comes_twice_is_known_where_clocks_go_back_by_half_an_hour():
    text, zone = "2026-04-05T01:45", "Australia/Lord_Howe"
    assert from_iso(text, zone, "second") - from_iso(text, zone, "first") == 30 * 60_000
    assert code_of(from_iso, text, zone, "") == "time.ambiguous"


@pytest.mark.parametrize("fold", ["", "first", "second"])
def test_no_fold_makes_an_hour_that_the_clocks_jump_over(fold):
    assert code_of(from_iso, "2026-03-29T02:30", "Europe/Berlin", fold) == "time.bad_time"


def test_times_are_written_in_a_zone_and_by_a_pattern():
    assert to_iso(1_772_442_845_210) == "2026-03-02T09:14:05.210Z"
    assert to_iso(1_782_864_000_000, "Europe/Berlin") == "2026-07-01T02:00:00.000+02:00"
    written = to_pattern(1_772_442_840_000, "%d/%m/%Y %H:%M 100%%", "America/Sao_Paulo")
    assert written == "02/03/2026 06:14 100%"
    assert to_pattern(EARLIEST_MS, "%Y") == "0001"


def test_a_time_outside_of_the_years_that_have_names_is_not_written():
    for time_ms in (EARLIEST_MS - 1, LATEST_MS + 1, 10**30):
        assert code_of(to_iso, time_ms) == "time.out_of_range"
    assert code_of(to_iso, LATEST_MS, "Asia/Tokyo") == "time.out_of_range"


@given(
    st.integers(-2_000_000_000_000, 4_000_000_000_000),
    st.sampled_from(["Europe/Berlin", "America/Sao_Paulo", "Asia/Kolkata"]),
)
def test_a_time_written_with_its_offset_reads_back(time_ms, zone):
    assert from_iso(to_iso(time_ms, zone)) == time_ms


def test_a_pattern_with_a_zone():
    expected = from_iso("2026-03-02T09:14:05Z")
    assert from_pattern("02/03/2026 06:14:05", "%d/%m/%Y %H:%M:%S", "America/Sao_Paulo") == expected
    assert from_pattern("20260302 1014+0100", "%Y%m%d %H%M%z") == expected - 5000


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01T00:00Z", "2026-02-30", "٢٠٢٦-01-01"])
def test_nonsense_is_refused(text):
    assert code_of(from_iso, text, "UTC") == "time.bad_time"


@pytest.mark.parametrize("zone", ["Europe/Berln", "", "/etc/passwd", "../x", "\0"])
def test_an_unknown_zone_is_refused(zone):
    assert code_of(zone_named, zone) == "time.unknown_zone"


def test_the_first_and_last_local_times_do_not_overflow():
    for text in ("0001-01-01T00:00", "9999-12-31T23:59:59"):
        for zone in ("Asia/Tokyo", "America/Los_Angeles"):
            try:
                assert isinstance(from_iso(text, zone), int)
            except InvalidInput as error:
                assert error.code == "time.bad_time"


@pytest.mark.parametrize("text", ["0001-01-01T00:00+14:00", "9999-12-31T23:59:59-12:00"])
def test_an_offset_does_not_lead_out_of_the_years_that_have_names(text):
    assert code_of(from_iso, text) == "time.bad_time"
    assert code_of(from_pattern, text.replace(":59-", "-"), "%Y-%m-%dT%H:%M%z") == "time.bad_time"


@given(st.integers(EARLIEST_MS, LATEST_MS))
def test_iso_text_there_and_back(time_ms):
    assert from_iso(format_time(time_ms)) == time_ms


@given(st.text(max_size=40), st.sampled_from(["", "UTC", "Europe/Berlin"]))
def test_any_text_is_a_time_or_refused(text, zone):
    try:
        assert isinstance(from_iso(text, zone), int)
    except InvalidInput as error:
        assert error.code.startswith("time.")
