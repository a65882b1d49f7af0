"""Who is on duty when: nights, substitutes, gaps and changes of the clock. [CN-9]"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.communication.duty import (
    Roster,
    Shift,
    duty_spans,
    next_change,
    on_duty,
    roster_settings,
    week_time,
    weekly_gaps,
)
from rapport.communication.privacy import DateSpan, DaySpan, LocalTimes, parse_hours
from rapport.core.times import parse_time
from support.examples import examples

VIENNA = "Europe/Vienna"
DAY = 86_400_000


def shift(person, hours="", days=(), dates=(), instead_of=""):
    when = LocalTimes(
        hours=(parse_hours(hours),) if hours else (),
        days=tuple(days),
        dates=tuple(DateSpan(*each.split("..")) for each in dates),
    )
    return Shift(person=person, when=when, instead_of=instead_of)


DAY_AND_NIGHT = (shift("ana", "08:00-20:00"), shift("ben", "20:00-08:00"))


def at(text, zone=VIENNA):
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def test_a_night_shift_reaches_into_the_next_morning():
    roster = Roster(shifts=DAY_AND_NIGHT, zone=VIENNA)
    assert on_duty(roster, at("2026-05-04T19:59")) == ("ana",)
    assert on_duty(roster, at("2026-05-04T20:00")) == ("ben",)
    assert on_duty(roster, at("2026-05-05T07:59")) == ("ben",)
    assert next_change(roster, at("2026-05-05T07:59")) == at("2026-05-05T08:00")


def test_a_night_of_friday_ends_on_saturday_and_none_begins_on_saturday():
    roster = Roster(shifts=(shift("ben", "20:00-08:00", days=range(5)),), zone=VIENNA)
    assert on_duty(roster, at("2026-05-09T07:00")) == ("ben",)  # a Saturday
    assert on_duty(roster, at("2026-05-09T21:00")) == ()
    assert on_duty(roster, at("2026-05-11T07:00")) == ()  # Sunday's night is nobody's
    assert next_change(roster, at("2026-05-09T08:00")) == at("2026-05-11T20:00")


def test_a_substitute_takes_over_the_nights_that_begin_on_these_dates():
    lea = shift("lea", dates=["2026-12-24..2026-12-24"], instead_of="ben")
    roster = Roster(shifts=(*DAY_AND_NIGHT, lea), zone=VIENNA)
    assert on_duty(roster, at("2026-12-24T07:00")) == ("ben",)  # of the night before
    assert on_duty(roster, at("2026-12-24T12:00")) == ("ana",)
    assert on_duty(roster, at("2026-12-24T23:00")) == ("lea",)
    assert on_duty(roster, at("2026-12-25T07:59")) == ("lea",)
    assert on_duty(roster, at("2026-12-25T20:00")) == ("ben",)


def test_a_substitute_with_hours_takes_over_while_they_hold():
    lea = shift("lea", "22:00-23:00", instead_of="ben")
    roster = Roster(shifts=(*DAY_AND_NIGHT, lea), zone=VIENNA)
    found = duty_spans(roster, at("2026-05-04T21:00"), at("2026-05-05T00:00"))
    assert [span.people for span in found] == [("ben",), ("lea",), ("ben",)]
    assert (found[1].start, found[1].end) == (at("2026-05-04T22:00"), at("2026-05-04T23:00"))


def test_two_people_can_swap():
    day = ["2026-05-04..2026-05-04"]
    swap = (
        shift("ben", dates=day, instead_of="ana"),
        shift("ana", dates=day, instead_of="ben"),
    )
    roster = Roster(shifts=(*DAY_AND_NIGHT, *swap), zone=VIENNA)
    assert on_duty(roster, at("2026-05-04T12:00")) == ("ben",)
    assert on_duty(roster, at("2026-05-04T22:00")) == ("ana",)


def test_the_night_in_which_the_clock_is_set_forward_is_an_hour_shorter():
    roster = Roster(shifts=DAY_AND_NIGHT, zone=VIENNA)
    (night,) = duty_spans(roster, at("2026-03-28T20:00"), at("2026-03-29T08:00"))
    assert (night.people, night.end - night.start) == (("ben",), 11 * 3_600_000)


def test_an_hour_that_comes_twice_has_both_its_shifts_twice():
    roster = Roster(shifts=(shift("ana", "02:30-03:30"),), zone=VIENNA)
    found = duty_spans(
        roster, parse_time("2026-10-25T00:00:00Z"), parse_time("2026-10-25T03:00:00Z")
    )
    assert [(span.people, (span.end - span.start) // 60_000) for span in found] == [
        ((), 30),
        (("ana",), 30),  # 02:30 to 03:00 of summer time; then it is 02:00 again
        ((), 30),
        (("ana",), 60),
        ((), 30),
    ]


def test_a_shift_that_never_ends_never_changes():
    assert next_change(Roster(shifts=(shift("ana"),)), at("2026-05-04T12:00")) is None


def test_the_gaps_of_a_week_are_named_and_joined_across_its_end():
    workdays = Roster(shifts=(shift("ana", "08:00-20:00", days=range(5)),))
    gaps = [(week_time(start), week_time(end)) for start, end in weekly_gaps(workdays)]
    assert gaps == [
        ("Mon 20:00", "Tue 08:00"),
        ("Tue 20:00", "Wed 08:00"),
        ("Wed 20:00", "Thu 08:00"),
        ("Thu 20:00", "Fri 08:00"),
        ("Fri 20:00", "Mon 08:00"),
    ]
    assert weekly_gaps(Roster(shifts=DAY_AND_NIGHT)) == []
    assert weekly_gaps(Roster(shifts=DAY_AND_NIGHT), least=2) == [(0, 10_080)]
    dated = shift("ana", dates=["2026-01-01..2026-01-02"])
    assert weekly_gaps(Roster(shifts=(dated,))) == []


def test_a_roster_is_shown_as_a_site_file_writes_it():
    roster = Roster(
        shifts=(
            shift("ana", "08:00-20:00", days=(0, 2)),
            shift("lea", dates=["12-24..01-06"], instead_of="ana"),
        )
    )
    assert roster_settings(roster) == [
        {"person": "ana", "days": ["mon", "wed"], "hours": ["08:00-20:00"]},
        {"person": "lea", "instead_of": "ana", "dates": ["12-24..01-06"]},
    ]


# --- properties, against a judge that counts wall-clock minutes ---

PEOPLE = ("ana", "ben", "lea")
ZONES = ("UTC", VIENNA, "America/St_Johns", "Australia/Lord_Howe", "Pacific/Apia")
minutes = st.integers(0, 95).map(lambda quarter: quarter * 15)
spans = (
    st.tuples(minutes, minutes).filter(lambda pair: pair[0] != pair[1]).map(lambda p: DaySpan(*p))
)
dates = st.dates(date(2026, 3, 20), date(2026, 4, 10))
times = st.builds(
    LocalTimes,
    hours=st.lists(spans, max_size=2).map(tuple),
    days=st.sets(st.integers(0, 6), max_size=3).map(tuple),
    dates=st.lists(
        st.tuples(dates, dates).map(
            lambda pair: DateSpan(min(pair).isoformat(), max(pair).isoformat())
        ),
        max_size=1,
    ).map(tuple),
)
shifts = st.builds(
    Shift, person=st.sampled_from(PEOPLE), when=times, instead_of=st.sampled_from(("", "", *PEOPLE))
)
rosters = st.builds(
    Roster, shifts=st.lists(shifts, min_size=1, max_size=5).map(tuple), zone=st.sampled_from(ZONES)
)
moments = st.integers(parse_time("2026-03-22T00:00:00Z"), parse_time("2026-04-08T00:00:00Z"))


def begun(when, wall):
    """The days on which hours that hold at this wall time began."""
    for day in (wall.date(), wall.date() - timedelta(days=1)):
        midnight = datetime.combine(day, datetime.min.time())
        for span in when.hours or (DaySpan(0, 1440),):
            end = span.end if span.start < span.end else span.end + 1440
            inside = (
                midnight + timedelta(minutes=span.start) <= wall < midnight + timedelta(minutes=end)
            )
            fits = not when.days or day.weekday() in when.days
            fits = fits and (
                not when.dates or any(d.first <= str(day) <= d.last for d in when.dates)
            )
            if inside and fits:
                yield day


def judged(roster, now_ms):
    wall = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(ZoneInfo(roster.zone))
    wall, found = wall.replace(tzinfo=None), set()
    for own in (each for each in roster.shifts if not each.instead_of):
        for day in begun(own.when, wall):
            noon = datetime.combine(day, datetime.min.time())
            stands = {
                other.person
                for other in roster.shifts
                if other.instead_of == own.person
                and any(begun(other.when, wall if other.when.hours else noon))
            }
            found |= stands or {own.person}
    return tuple(sorted(found))


@given(rosters, moments)
@settings(max_examples=examples(300), deadline=None)
def test_on_duty_is_what_a_wall_clock_says(roster, now_ms):
    assert on_duty(roster, now_ms) == judged(roster, now_ms)


@given(rosters, moments, st.lists(st.floats(0, 1), min_size=1, max_size=20))
@settings(max_examples=examples(150), deadline=None)
def test_spans_have_no_holes_and_hold_at_every_moment_in_them(roster, start, picks):
    found = duty_spans(roster, start, start + 6 * DAY)
    assert (found[0].start, found[-1].end) == (start, start + 6 * DAY)
    for before, after in pairwise(found):
        assert before.end == after.start
        assert before.people != after.people
    for pick in picks:
        moment = min(start + int(pick * 6 * DAY), start + 6 * DAY - 1)
        (span,) = [each for each in found if each.start <= moment < each.end]
        assert span.people == judged(roster, moment)


@given(rosters, moments)
@settings(max_examples=examples(50), deadline=None)
def test_the_next_change_is_the_end_of_the_span_of_now(roster, now_ms):
    change = next_change(roster, now_ms)
    if change is None:
        assert len(duty_spans(roster, now_ms, now_ms + 30 * DAY)) == 1
    else:
        (span,) = duty_spans(roster, now_ms, change)
        assert on_duty(roster, change) != span.people == on_duty(roster, now_ms)


@pytest.mark.parametrize("zone", ZONES)
def test_a_year_of_days_and_nights_has_two_changes_a_day(zone):
    roster = Roster(shifts=DAY_AND_NIGHT, zone=zone)
    found = duty_spans(roster, at("2026-01-01T08:00", zone), at("2027-01-01T08:00", zone))
    assert len(found) == 2 * 365
