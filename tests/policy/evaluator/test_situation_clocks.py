"""Times of day and days of situations, worked by hand. [SI-7]"""

from __future__ import annotations

import pytest

from rapport.core.times import parse_time
from support.judge.situation_trials import SituationCase
from support.situation_worlds import SituationTables

HOUR, MINUTE = 3_600_000, 60_000


def stretches(
    told: SituationCase, time: str, start: str, end: str, *wanted: tuple[str, str]
) -> None:
    """The time is true from the first to the second of each pair; an empty end: it still is."""
    lines = []
    opened = ""
    for first, last in wanted:
        begin = parse_time(first)
        lines.append(f"{begin} :")
        if last:
            lines.append(f"{parse_time(last)} since {begin}:")
        else:
            opened = f"open since {begin}"
    policy = f"concepts\nsituation\n  {time}\nreadings\n  {start} e1 humidity of s1 = 50\n"
    body = "\n".join(f"  {line}" for line in [*lines, opened])
    told(f"{policy}told\n{body}", zone="Europe/Berlin", until=parse_time(end))


def test_the_first_time_is_included_the_second_is_not(told: SituationCase) -> None:
    stretches(
        told,
        "time is between 09:00 and 17:30",
        "2024-01-05T00:00:00+01:00",
        "2024-01-06T09:00:00+01:00",
        ("2024-01-05T09:00:00+01:00", "2024-01-05T17:30:00+01:00"),
        ("2024-01-06T09:00:00+01:00", ""),
    )


def test_the_night_of_friday_ends_on_saturday(told: SituationCase) -> None:
    stretches(
        told,
        "time is between 22:00 and 06:00 on Fri",
        "2024-01-05T01:00:00+01:00",  # a Friday: the night before began on Thursday
        "2024-01-08T00:00:00+01:00",
        ("2024-01-05T22:00:00+01:00", "2024-01-06T06:00:00+01:00"),
    )


def test_a_night_that_has_begun_before_the_start(told: SituationCase) -> None:
    stretches(
        told,
        "time is between 22:00 and 06:00 on Thu",
        "2024-01-05T01:00:00+01:00",
        "2024-01-08T00:00:00+01:00",
        ("2024-01-05T01:00:00+01:00", "2024-01-05T06:00:00+01:00"),
    )


def test_not_negates_the_whole(told: SituationCase) -> None:
    stretches(
        told,
        "time is not between 22:00 and 06:00 on Fri",
        "2024-01-05T21:00:00+01:00",
        "2024-01-08T00:00:00+01:00",
        ("2024-01-05T21:00:00+01:00", "2024-01-05T22:00:00+01:00"),
        ("2024-01-06T06:00:00+01:00", ""),
    )


def test_weekdays_may_pass_the_end_of_the_week(told: SituationCase) -> None:
    stretches(
        told,
        "time is on Sun-Mon, Wed",
        "2024-01-06T12:00:00+01:00",
        "2024-01-12T12:00:00+01:00",
        ("2024-01-07T00:00:00+01:00", "2024-01-09T00:00:00+01:00"),
        ("2024-01-10T00:00:00+01:00", "2024-01-11T00:00:00+01:00"),
    )


def test_midnight_ends_a_day_and_begins_one(told: SituationCase) -> None:
    stretches(
        told,
        "time is between 23:00 and 24:00 OR time is between 00:00 and 01:00 on 31 Dec, 1 Jan",
        "2023-12-31T12:00:00+01:00",
        "2024-01-01T12:00:00+01:00",
        ("2023-12-31T23:00:00+01:00", "2024-01-01T01:00:00+01:00"),
    )


def test_a_day_of_the_year_may_come_every_fourth_year(told: SituationCase) -> None:
    stretches(
        told,
        "time is on 29 Feb",
        "2023-02-27T12:00:00+01:00",
        "2024-03-02T12:00:00+01:00",
        ("2024-02-29T00:00:00+01:00", "2024-03-01T00:00:00+01:00"),
    )


def test_days_of_a_table_may_stand_beside_others(told: SituationCase) -> None:
    stretches(
        told,
        "time is between 20:00 and 02:00 on holidays, 26 Dec",
        "2024-12-24T12:00:00+01:00",
        "2024-12-28T12:00:00+01:00",
        ("2024-12-25T20:00:00+01:00", "2024-12-26T02:00:00+01:00"),
        ("2024-12-26T20:00:00+01:00", "2024-12-27T02:00:00+01:00"),
    )


def test_an_hour_that_is_shown_twice_counts_twice(told: SituationCase) -> None:
    stretches(
        told,
        "time is between 02:15 and 02:45",
        "2024-10-27T00:00:00+02:00",
        "2024-10-27T12:00:00+01:00",
        ("2024-10-27T02:15:00+02:00", "2024-10-27T02:45:00+02:00"),
        ("2024-10-27T02:15:00+01:00", "2024-10-27T02:45:00+01:00"),
    )


def test_clocks_put_back_over_the_end_show_the_stretch_again(told: SituationCase) -> None:
    stretches(
        told,
        "time is between 01:30 and 02:30",
        "2024-10-27T00:00:00+02:00",
        "2024-10-27T12:00:00+01:00",
        ("2024-10-27T01:30:00+02:00", "2024-10-27T02:30:00+02:00"),
        ("2024-10-27T02:00:00+01:00", "2024-10-27T02:30:00+01:00"),
    )


def test_an_hour_that_is_skipped_does_not_count(told: SituationCase) -> None:
    stretches(
        told,
        "time is between 02:15 and 02:45",
        "2024-03-31T00:00:00+01:00",
        "2024-03-31T12:00:00+02:00",
    )


def test_a_stretch_may_begin_and_end_when_clocks_are_put_forward(told: SituationCase) -> None:
    stretches(
        told,
        "time is between 02:30 and 04:00 OR time is between 01:00 and 02:30",
        "2024-03-31T00:00:00+01:00",
        "2024-03-31T12:00:00+02:00",
        ("2024-03-31T01:00:00+01:00", "2024-03-31T04:00:00+02:00"),
    )
    stretches(
        told,
        "time is between 02:30 and 04:00",
        "2024-03-31T00:00:00+01:00",
        "2024-03-31T12:00:00+02:00",
        ("2024-03-31T03:00:00+02:00", "2024-03-31T04:00:00+02:00"),
    )


def test_days_begin_at_the_midnight_of_the_zone(told: SituationCase) -> None:
    stretches(
        told,
        "time is on Sat in 'Asia/Kathmandu'",
        "2024-01-05T12:00:00Z",
        "2024-01-08T00:00:00Z",
        ("2024-01-05T18:15:00Z", "2024-01-06T18:15:00Z"),
    )


def test_a_time_lasts(told: SituationCase) -> None:
    stretches(
        told,
        "time is between 09:00 and 10:00 for 30 min",
        "2024-01-05T00:00:00+01:00",
        "2024-01-05T12:00:00+01:00",
        ("2024-01-05T09:30:00+01:00", "2024-01-05T10:00:00+01:00"),
    )


def test_a_millisecond_before_the_hour_is_before_it(told: SituationCase) -> None:
    stretches(
        told,
        "time is between 09:00 and 10:00",
        "2024-01-05T08:59:59.999+01:00",
        "2024-01-05T09:00:00+01:00",
        ("2024-01-05T09:00:00+01:00", ""),
    )


@pytest.mark.parametrize(("day", "begins"), [("2024-01-05", True), ("2024-01-07", False)])
def test_days_are_those_of_the_table_of_the_time(
    told: SituationCase, day: str, begins: bool
) -> None:
    start = parse_time("2024-01-05T12:00:00Z")
    since = start + HOUR
    lines = f"  {since} :\n  open since {since}" if begins else ""
    told(
        f"concepts\nsituation\n  time is on holidays\nreadings\n  {start} e1 humidity of s1 = 5\n"
        f"told\n{lines}",
        tables=[
            SituationTables(days={"holidays": frozenset()}).version(),
            SituationTables(days={"holidays": frozenset({day})}).version(since),
        ],
        until=since + MINUTE,
    )
