"""Quiet hours: local time, across midnight and across changes of the clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.privacy import (
    Allowed,
    Hold,
    PrivacyPolicy,
    Refuse,
    may_receive,
    parse_quiet,
    quiet_until,
)
from rapport.core.errors import InvalidInput
from rapport.core.times import format_time, parse_time

NIGHT = PrivacyPolicy(22 * 60, 7 * 60, "Europe/Vienna")


def until(policy: PrivacyPolicy, time: str) -> str | None:
    end = quiet_until(policy, parse_time(time))
    return None if end is None else format_time(end)


@pytest.mark.parametrize(
    ("now", "end"),
    [
        ("2026-01-10T20:59:59Z", None),  # 21:59:59 in Vienna
        ("2026-01-10T21:00:00Z", "2026-01-11T06:00:00.000Z"),
        ("2026-01-10T23:30:00Z", "2026-01-11T06:00:00.000Z"),
        ("2026-01-11T05:59:59Z", "2026-01-11T06:00:00.000Z"),
        ("2026-01-11T06:00:00Z", None),
        ("2026-07-10T20:00:00Z", "2026-07-11T05:00:00.000Z"),  # summer time
    ],
)
def test_quiet_hours_reach_across_midnight_in_the_zone_of_the_peer(now, end):
    assert until(NIGHT, now) == end


def test_the_night_in_which_the_clock_goes_forward_ends_an_hour_sooner():
    assert until(NIGHT, "2026-03-28T21:30:00Z") == "2026-03-29T05:00:00.000Z"


def test_the_night_in_which_the_clock_goes_back_ends_an_hour_later():
    assert until(NIGHT, "2026-10-24T20:30:00Z") == "2026-10-25T06:00:00.000Z"


def test_an_end_that_the_clock_skips_comes_with_the_change():
    policy = PrivacyPolicy(22 * 60, 2 * 60 + 30, "Europe/Vienna")  # 02:30 is skipped that night
    assert until(policy, "2026-03-28T23:00:00Z") == "2026-03-29T01:00:00.000Z"
    assert until(policy, "2026-03-29T01:00:00Z") is None


def test_an_end_that_comes_twice_counts_each_time_it_is_still_ahead():
    policy = PrivacyPolicy(22 * 60, 2 * 60 + 30, "Europe/Vienna")  # 02:30 comes twice that night
    assert until(policy, "2026-10-24T23:00:00Z") == "2026-10-25T00:30:00.000Z"
    assert until(policy, "2026-10-25T01:10:00Z") == "2026-10-25T01:30:00.000Z"


def test_quiet_hours_within_a_day_do_not_reach_into_the_night():
    siesta = PrivacyPolicy(13 * 60, 15 * 60, "UTC")
    assert until(siesta, "2026-01-10T14:00:00Z") == "2026-01-10T15:00:00.000Z"
    assert until(siesta, "2026-01-10T23:00:00Z") is None


def test_urgent_breaks_through_and_others_are_held_or_refused():
    night = parse_time("2026-01-10T23:00:00Z")
    assert may_receive(NIGHT, urgent=True, now_ms=night) == Allowed()
    assert isinstance(may_receive(NIGHT, urgent=False, now_ms=night), Hold)
    strict = PrivacyPolicy(22 * 60, 7 * 60, "Europe/Vienna", "refuse")
    assert may_receive(strict, urgent=False, now_ms=night) == Refuse("quiet hours")
    assert may_receive(None, urgent=False, now_ms=night) == Allowed()


@pytest.mark.parametrize("text", ["", "22-7", "24:00-07:00", "22:60-07:00", "7:00-7:00", "x"])
def test_a_span_that_is_none_is_refused_with_a_hint(text):
    with pytest.raises(InvalidInput) as error:
        parse_quiet(text)
    assert error.value.code == "peer.bad_quiet"
    assert error.value.hint


@given(
    start=st.integers(0, 1439),
    end=st.integers(0, 1439),
    now=st.integers(1_700_000_000_000, 1_900_000_000_000),
    zone=st.sampled_from(["UTC", "Europe/Vienna", "America/Sao_Paulo", "Australia/Lord_Howe"]),
)
def test_the_end_lies_ahead_within_a_day_and_is_no_longer_quiet(start, end, now, zone):
    if start == end:
        return
    policy = PrivacyPolicy(start, end, zone)
    ahead = quiet_until(policy, now)
    if ahead is not None:
        assert now < ahead <= now + 25 * 3_600_000
        assert quiet_until(policy, ahead) is None
