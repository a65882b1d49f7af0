"""What privacy rules say: quiet hours on local clocks, types and senders, numbers, urgency."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.privacy import (
    AllowedDelivery,
    DateSpan,
    DaySpan,
    Hold,
    LocalTimes,
    PrivacyFacts,
    PrivacyRule,
    Refuse,
    end_of,
    fits_pattern,
    most_counted,
    parse_clock,
    parse_hours,
    quiet_rule,
    verdict,
)
from rapport.communication.texts import local_time
from rapport.core.errors import InvalidInput
from rapport.core.message import Identifier
from rapport.core.times import format_time, parse_time

VIENNA = "Europe/Vienna"
NIGHT = LocalTimes(hours=(DaySpan(22 * 60, 7 * 60),))
HOUR_MS = 3_600_000


def until(times: LocalTimes, time: str, zone: str = VIENNA) -> str | None:
    end = end_of(times, zone, parse_time(time))
    return None if end is None else format_time(end)


def facts(now: str = "2026-01-10T12:00:00Z", **given) -> PrivacyFacts:
    told = {
        "type": "NOTIFICATION",
        "subtype": "raise alarm",
        "sender": Identifier("component", "policy"),
        "urgent": False,
        "now_ms": parse_time(now),
        "peer": "ana",
    }
    return PrivacyFacts(**(told | given))


# --- hours on a local clock ---


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


EARLY = LocalTimes(hours=(DaySpan(22 * 60, 2 * 60 + 30),))


def test_an_end_that_the_clock_skips_comes_with_the_change():
    assert until(EARLY, "2026-03-28T23:00:00Z") == "2026-03-29T01:00:00.000Z"  # 02:30 is skipped
    assert until(EARLY, "2026-03-29T01:00:00Z") is None


def test_an_end_that_comes_twice_counts_each_time_it_is_still_ahead():
    assert until(EARLY, "2026-10-24T23:00:00Z") == "2026-10-25T00:30:00.000Z"
    assert until(EARLY, "2026-10-25T01:10:00Z") == "2026-10-25T01:30:00.000Z"


def test_quiet_hours_within_a_day_do_not_reach_into_the_night():
    siesta = LocalTimes(hours=(DaySpan(13 * 60, 15 * 60),))
    assert until(siesta, "2026-01-10T14:00:00Z", "UTC") == "2026-01-10T15:00:00.000Z"
    assert until(siesta, "2026-01-10T23:00:00Z", "UTC") is None


def test_spans_that_follow_each_other_end_with_the_last():
    spans = LocalTimes(hours=(DaySpan(720, 780), DaySpan(780, 840), DaySpan(830, 900)))
    assert until(spans, "2026-01-10T12:10:00Z", "UTC") == "2026-01-10T15:00:00.000Z"


def test_hours_across_midnight_belong_to_the_day_they_begin_on():
    fridays = LocalTimes(hours=(DaySpan(1320, 420),), days=(4,))  # 2026-01-09 is a Friday
    assert until(fridays, "2026-01-09T23:00:00Z", "UTC") == "2026-01-10T07:00:00.000Z"
    assert until(fridays, "2026-01-10T06:00:00Z", "UTC") == "2026-01-10T07:00:00.000Z"
    assert until(fridays, "2026-01-09T06:00:00Z", "UTC") is None
    assert until(fridays, "2026-01-10T23:00:00Z", "UTC") is None


def test_days_without_hours_are_whole_days_and_a_weekend_is_one_stretch():
    weekend = LocalTimes(days=(5, 6))
    assert until(weekend, "2026-01-10T12:00:00Z") == "2026-01-11T23:00:00.000Z"
    assert until(weekend, "2026-01-12T12:00:00Z") is None


def test_dates_of_every_year_may_reach_across_the_new_year():
    holidays = LocalTimes(dates=(DateSpan("12-24", "01-06"),))
    assert until(holidays, "2026-12-30T12:00:00Z", "UTC") == "2027-01-07T00:00:00.000Z"
    assert until(holidays, "2027-01-02T12:00:00Z", "UTC") == "2027-01-07T00:00:00.000Z"
    assert until(holidays, "2027-01-07T00:00:00Z", "UTC") is None


def test_dates_of_one_year_count_in_that_year_only():
    leave = LocalTimes(dates=(DateSpan("2026-08-01", "2026-08-14"),))
    assert until(leave, "2026-08-14T12:00:00Z", "UTC") == "2026-08-15T00:00:00.000Z"
    assert until(leave, "2027-08-14T12:00:00Z", "UTC") is None


def test_hours_that_never_end_are_known_as_such():
    assert LocalTimes(hours=(DaySpan(0, 720), DaySpan(720, 0))).never_end()
    assert LocalTimes(days=tuple(range(7))).never_end()
    assert not LocalTimes(hours=(DaySpan(0, 1439),)).never_end()
    assert not LocalTimes(days=(0,)).never_end()


def test_hours_that_never_end_do_not_hang():
    always = LocalTimes(hours=(DaySpan(0, 1440),))
    end = end_of(always, "UTC", 0)
    assert end is not None
    assert end > 365 * 24 * HOUR_MS


@pytest.mark.parametrize("text", ["", "22-7", "24:00-07:00", "22:60-07:00", "7:00-7:00", "x"])
def test_a_span_that_is_none_is_refused_with_a_hint(text):
    with pytest.raises(InvalidInput) as error:
        parse_hours(text)
    assert error.value.code == "peer.bad_quiet"
    assert error.value.hint


ZONES = [
    "UTC",
    VIENNA,
    "America/New_York",
    "America/Sao_Paulo",
    "America/Havana",
    "Asia/Beirut",
    "Australia/Lord_Howe",
    "Pacific/Chatham",
]
spans = st.builds(DaySpan, st.integers(0, 1439), st.integers(0, 1440)).filter(
    lambda span: span.start != span.end and (span.start, span.end) != (0, 1440)
)
moments = st.one_of(
    st.integers(1_600_000_000_000, 1_900_000_000_000),
    # Around the changes of European clocks, where faults hide.
    st.integers(-6 * HOUR_MS, 6 * HOUR_MS).map(
        lambda offset: parse_time("2026-03-29T01:00:00Z") + offset
    ),
    st.integers(-6 * HOUR_MS, 6 * HOUR_MS).map(
        lambda offset: parse_time("2026-10-25T01:00:00Z") + offset
    ),
)


def is_inside(times: LocalTimes, zone: str, moment_ms: int) -> bool:
    """What the wall clock says, plainly."""
    wall = local_time(moment_ms, zone)
    minute = wall.hour * 60 + wall.minute
    for span in times.hours:
        inside = span.start <= minute < span.end
        across = span.start > span.end and (minute >= span.start or minute < span.end)
        if inside or across:
            return True
    return False


def is_twice(zone: str, moment_ms: int) -> bool:
    """Near a clock that was turned back: hours then begin or end twice."""
    near = [local_time(moment_ms + hours * HOUR_MS, zone).utcoffset() for hours in (-3, 0, 3)]
    return near[0] > near[1] or near[1] > near[2]


@given(spans=st.lists(spans, min_size=1, max_size=3), now=moments, zone=st.sampled_from(ZONES))
def test_hours_hold_from_now_to_their_end_and_not_a_moment_longer(spans, now, zone):
    times = LocalTimes(hours=tuple(spans))
    end = end_of(times, zone, now)
    assert (end is not None) == is_inside(times, zone, now)
    if end is None or times.never_end():
        return
    assert now < end
    assert not is_inside(times, zone, end)
    for moment in range(now, end, 17 * 60_000):
        assert is_inside(times, zone, moment) or is_twice(zone, moment)


@given(
    start=st.integers(0, 1439), end=st.integers(0, 1439), now=moments, zone=st.sampled_from(ZONES)
)
def test_the_end_of_one_span_lies_within_a_day(start, end, now, zone):
    if start == end:
        return
    ahead = end_of(LocalTimes(hours=(DaySpan(start, end),)), zone, now)
    assert ahead is None or now < ahead <= now + 25 * HOUR_MS


# --- rules ---


def test_urgent_breaks_through_quiet_hours_and_others_are_held_or_refused():
    night = "2026-01-10T23:00:00Z"
    held = quiet_rule([DaySpan(1320, 420)], VIENNA)
    assert verdict([held], facts(night, urgent=True)) == AllowedDelivery()
    said = verdict([held], facts(night))
    assert said == Hold(parse_time("2026-01-11T06:00:00Z"), "quiet hours")
    refused = quiet_rule([DaySpan(1320, 420)], VIENNA, "refuse")
    assert verdict([refused], facts(night)) == Refuse("quiet hours")
    assert verdict([refused], facts()) == AllowedDelivery()
    assert verdict([], facts(night)) == AllowedDelivery()


def test_the_first_rule_that_says_something_decides():
    boss = PrivacyRule(senders=("peer:boss",), then="allow")
    rules = [
        boss,
        PrivacyRule(senders=("peer:*",), reason="ask my office"),
        quiet_rule([DaySpan(0, 1439)]),
    ]
    assert verdict(rules, facts(sender="peer:boss")) == AllowedDelivery()
    assert verdict(rules, facts(sender="peer:ben")) == Refuse("ask my office")
    assert isinstance(verdict(rules, facts(sender="component:policy")), Hold)


@pytest.mark.parametrize(
    ("rule", "given", "is_about"),
    [
        (PrivacyRule(types=("NOTI*",)), {}, True),
        (PrivacyRule(types=("TASK", "NOTIFICATION")), {}, True),
        (PrivacyRule(types=("notification",)), {}, False),
        (PrivacyRule(subtypes=("raise *",)), {}, True),
        (PrivacyRule(subtypes=("raise *",), types=("TASK",)), {}, False),
        (PrivacyRule(senders=("component:policy",)), {}, True),
        (PrivacyRule(senders=("peer:*",)), {}, False),
        (PrivacyRule(urgent=True), {}, False),
        (PrivacyRule(urgent=True), {"urgent": True}, True),
        (PrivacyRule(urgent=False), {"urgent": True}, False),
        (PrivacyRule(), {"urgent": True}, True),
    ],
)
def test_a_rule_is_about_what_fits_all_of_its_conditions(rule, given, is_about):
    expected = Refuse("the receiver does not want it") if is_about else AllowedDelivery()
    assert verdict([rule], facts(**given)) == expected


def test_a_hold_until_a_time_of_day_ends_with_the_first_one_after_the_sending():
    rule = PrivacyRule(types=("DIGEST",), then="hold", until=parse_clock("08:00"), zone=VIENNA)
    sent = parse_time("2026-01-10T12:00:00Z")
    said = verdict([rule], facts(type="DIGEST", sent_ms=sent))
    assert said == Hold(parse_time("2026-01-11T07:00:00Z"), "the receiver does not want it")
    later = facts("2026-01-11T07:00:00Z", type="DIGEST", sent_ms=sent)
    assert verdict([rule], later) == AllowedDelivery()
    much_later = facts("2026-01-13T03:00:00Z", type="DIGEST", sent_ms=sent)
    assert verdict([rule], much_later) == AllowedDelivery()  # the node was down meanwhile


def test_a_hold_for_a_while_counts_from_the_sending():
    rule = PrivacyRule(then="hold", hold_ms=60_000)
    now = facts().now_ms
    assert verdict([rule], facts(sent_ms=now - 20_000)) == Hold(
        now + 40_000, "the receiver does not want it"
    )
    assert verdict([rule], facts(sent_ms=now - 60_000)) == AllowedDelivery()


def test_a_limit_holds_until_the_oldest_of_the_last_ones_is_old_enough():
    rule = PrivacyRule(at_most=2, per_ms=HOUR_MS, then="hold")
    now = facts().now_ms
    sent = [now - 10_000, now - 50_000, now - 90_000]
    said = verdict([rule], facts(recent=lambda count: sent[:count]))
    assert said == Hold(now - 50_000 + HOUR_MS, "at most 2 messages in 1h")
    assert verdict([rule], facts(recent=lambda count: sent[: min(count, 1)])) == AllowedDelivery()
    old = [now - 10_000, now - HOUR_MS]
    assert verdict([rule], facts(recent=lambda count: old[:count])) == AllowedDelivery()


def test_a_limit_that_nobody_counts_for_refuses():
    rule = PrivacyRule(at_most=2, per_ms=HOUR_MS, then="hold")
    assert isinstance(verdict([rule], facts()), Refuse)
    assert most_counted([rule, PrivacyRule(at_most=5, per_ms=1)]) == 5
    assert most_counted([]) == 0


def test_rules_are_kept_and_read_again_without_loss():
    rule = PrivacyRule(
        then="hold",
        types=("A*",),
        urgent=False,
        when=LocalTimes(hours=(DaySpan(1, 2),), days=(0,), dates=(DateSpan("01-01", "01-02"),)),
        at_most=3,
        per_ms=5,
        until=60,
        zone=VIENNA,
    )
    for codec in (msgspec.json, msgspec.msgpack):
        assert codec.decode(codec.encode(rule), type=PrivacyRule) == rule


patterns = st.text(alphabet="ab*", max_size=6)


@given(pattern=patterns, text=st.text(alphabet="ab", max_size=8))
def test_a_star_stands_for_anything(pattern, text):
    def fits(rest: str, left: str) -> bool:
        if not rest:
            return not left
        if rest[0] == "*":
            return any(fits(rest[1:], left[at:]) for at in range(len(left) + 1))
        return bool(left) and left[0] == rest[0] and fits(rest[1:], left[1:])

    assert fits_pattern(pattern, text) == fits(pattern, text)


rules = st.builds(
    PrivacyRule,
    then=st.sampled_from(["allow", "hold", "refuse"]),
    types=st.lists(st.sampled_from(["A", "B", "*"]), max_size=2).map(tuple),
    urgent=st.sampled_from([None, True, False]),
    when=st.one_of(
        st.none(),
        st.lists(spans, min_size=1, max_size=2).map(lambda hours: LocalTimes(hours=tuple(hours))),
    ),
    at_most=st.integers(0, 2),
    per_ms=st.just(HOUR_MS),
    until=st.one_of(st.none(), st.integers(0, 1439)),
    zone=st.sampled_from(ZONES),
)


@given(rules=st.lists(rules, max_size=4), now=moments, urgent=st.booleans(), age=st.integers(0, 2))
def test_who_is_held_is_asked_again_at_the_end_and_every_hold_ends(rules, now, urgent, age):
    """Asked again at each end, as after a restart, a message is sent or refused at last."""
    sent = [now - 1, now - 2]

    def told(moment: int) -> PrivacyFacts:
        return facts(
            type="A",
            urgent=urgent,
            now_ms=moment,
            sent_ms=now - age * HOUR_MS,
            recent=lambda n: sent[:n],
        )

    assert verdict(rules, told(now)) == verdict(tuple(rules), told(now))
    moment = now
    for _ in range(200):
        said = verdict(rules, told(moment))
        if not isinstance(said, Hold):
            return
        assert said.until > moment
        moment = said.until
    assert (
        any(rule.when is not None and rule.when.never_end() for rule in rules)
        or moment > now + 30 * 24 * HOUR_MS
    )
