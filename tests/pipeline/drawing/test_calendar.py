"""Days, hours and shades. [PI-9]"""

from __future__ import annotations

from datetime import UTC
from zoneinfo import ZoneInfo

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.times import format_time, parse_time
from rapport.pipeline.drawing.calendar import LEVELS, Calendar, level, months, shades

BERLIN = ZoneInfo("Europe/Berlin")


def times(*texts: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([parse_time(text) for text in texts], np.int64)


@given(st.lists(st.integers(-(10**13), 10**14), max_size=30))
def test_days_and_hours_are_those_of_iso_8601(given: list[int]) -> None:
    calendar = Calendar(UTC)
    found = calendar.per_day(np.array(given, np.int64))
    days = [format_time(time)[:10] for time in given]
    assert found == {day: days.count(day) for day in sorted(days)}
    assert sum(map(sum, calendar.by_hour(np.array(given, np.int64)))) == len(given)


def test_a_day_begins_at_midnight_of_the_zone_also_when_clocks_change() -> None:
    late = times("2025-03-29T22:59:59Z", "2025-03-29T23:00:00Z", "2025-03-30T21:59:59Z")
    assert Calendar(BERLIN).per_day(late) == {"2025-03-29": 1, "2025-03-30": 2}
    saturday, sunday = Calendar(BERLIN).by_hour(late)[5:]
    assert saturday[23] == 1
    assert (sunday[0], sunday[23]) == (1, 1)
    assert Calendar(BERLIN).clock(parse_time("2025-06-01T12:00:00.250Z")) == (
        "2025-06-01 14:00:00.250"
    )


def test_months_are_whole_rows_with_days_outside_left_empty() -> None:
    found = months({"2024-02-29": 3}, "2024-01-30", "2024-03-02")
    assert [month.name for month in found] == ["2024-01", "2024-02", "2024-03"]
    assert found[0].days == [None] * 29 + [0, 0]
    assert (len(found[1].days), found[1].days[-1], found[1].total) == (29, 3, 3)
    assert found[2].days[:3] == [0, 0, None]


@given(st.integers(1, 10**6), st.data())
def test_every_count_has_the_shade_that_the_legend_gives_it(most: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, most))
    ranges = shades(most)
    assert ranges[0][0] == 1
    assert ranges[-1][1] == most
    (own,) = [one for one in ranges if one[0] <= count <= one[1]]
    assert level(count, most) == level(own[1], most)
    assert 1 <= level(count, most) <= LEVELS
    assert level(0, most) == 0


def test_months_reach_to_the_end_of_the_calendar_and_leave_out_what_it_does_not_name() -> None:
    [month] = months({"9999-12-31": 2}, "9999-12-30", "9999-12-31")
    assert (month.name, month.days[28:]) == ("9999-12", [None, 0, 2])
    in_microseconds = Calendar(UTC).day_of(1_772_409_600_000_000)
    assert months({in_microseconds: 3}, in_microseconds, in_microseconds) == []
    for first, last in [("2026-03-02", in_microseconds), (in_microseconds, "2026-03-02")]:
        [month] = months({"2026-03-02": 1, in_microseconds: 3}, first, last)
        assert (month.name, month.total) == ("2026-03", 1)
