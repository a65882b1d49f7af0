"""Times by whole columns: what is fixed in a pattern, and the offsets of zones by day. [ME-14]"""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random

import pytest

from rapport.core.errors import InvalidInput
from rapport.core.times import from_iso
from rapport.pipeline.mediation.instants import FIRST_YEAR, fixed_pattern, zone_days

ZONES = ("Europe/Berlin", "America/Sao_Paulo", "Asia/Kolkata", "Australia/Lord_Howe", "UTC")
_DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("pattern", "shapes"),
    [
        ("%d/%m/%Y %H:%M", ("00/00/0000 00:00",)),
        ("%Y-%m-%dT%H:%M:%S", None),  # a letter stands for both cases of it
        ("%Y-%m-%d %H:%M:%S.%f", tuple("0000-00-00 00:00:00." + "0" * n for n in range(1, 7))),
        ("%Y%m%d", None),  # could be a number
        ("%Y.%m%d", None),
        ("%d %b %Y", None),
        ("%d/%m/%Y %I:%M %p", None),
        ("%d/%m/%Y %H:%M%z", None),
        ("%H:%M", None),
        ("%d/%d/%m/%Y", None),
    ],
)
def test_a_pattern_is_fixed_when_every_digit_has_its_place(
    pattern: str, shapes: tuple[str, ...] | None
) -> None:
    found = fixed_pattern(pattern)
    assert (None if found is None else found.shapes) == shapes


@pytest.mark.slow
@pytest.mark.parametrize("zone", ZONES)
def test_the_offset_of_a_day_is_the_one_that_python_uses_all_day_long(zone: str) -> None:
    days, chance = zone_days(zone), Random(7)
    for _ in range(3_000):
        local = datetime(FIRST_YEAR, 1, 1) + timedelta(  # noqa: DTZ001 - local
            seconds=chance.randrange(80 * 365 * 86_400)
        )
        code = days.codes[(local - datetime(FIRST_YEAR, 1, 1)).days]  # noqa: DTZ001 - local
        if code == 0:
            continue
        as_if = round((local - datetime(1970, 1, 1)).total_seconds()) * 1_000  # noqa: DTZ001
        assert as_if - days.offsets_ms[code - 1] == from_iso(local.isoformat(), zone, "")


@pytest.mark.parametrize("zone", ZONES[:4])
def test_a_day_on_which_the_clocks_change_is_left_to_python(zone: str) -> None:
    days = zone_days(zone)
    begin = datetime(FIRST_YEAR, 1, 1)  # noqa: DTZ001 - local
    for number, code in enumerate(days.codes[: 40 * 365]):
        if code:
            continue
        hours = [begin + timedelta(days=number, hours=hour / 4) for hour in range(97)]
        assert len({_offset(each, zone) for each in hours}) > 1


def _offset(local: datetime, zone: str) -> int | None:
    try:
        time = from_iso(local.isoformat(), zone)
    except InvalidInput:
        return None
    return round((local - datetime(1970, 1, 1)).total_seconds()) * 1_000 - time  # noqa: DTZ001


def test_an_unknown_zone_is_named() -> None:
    with pytest.raises(InvalidInput, match="no time zone named"):
        zone_days("Europe/Berlim")
