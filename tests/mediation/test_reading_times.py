"""Times are not guessed: zones, far from arrival, the hour that comes twice. [ME-11, ME-13]"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.backends.local import open_memory
from rapport.core.event import Event
from rapport.core.release import HISTORY
from rapport.core.times import parse_time
from rapport.kernel.clock import ManualClock
from rapport.mediation.interpretations.model import (
    FieldsInterpretation,
    IdentityRule,
    TimeRule,
    ValueRule,
)
from rapport.mediation.interpretations.repository import ActiveInterpretations, Repository
from rapport.mediation.reader import MediationReader
from rapport.mediation.reading_times import RepeatedHours, is_plausible
from rapport.mediation.source_bindings import SourceBinding

NOW = parse_time("2026-11-18T12:00:00Z")
BERLIN = "Europe/Berlin"


def binding(**more: Any) -> SourceBinding:
    return SourceBinding(source="s", concept="tank", attribute="level", value=("level",), **more)


def mediated(
    bound: SourceBinding,
    payloads: Sequence[dict[str, Any]],
    *,
    time: TimeRule | None = None,
    headers: dict[str, str] | None = None,
    now_ms: int = NOW,
) -> tuple[list[int], list[tuple[str, str]]]:
    """Times of readings, and code and hint of what is quarantined."""

    async def scenario() -> tuple[list[int], list[tuple[str, str]]]:
        clock = ManualClock(now_ms)
        channels = open_memory(clock)
        known = {}
        if time is not None:
            values = (ValueRule("value", ("level",), unit="1", to="1"),)
            known["i"] = FieldsInterpretation(
                name="i", identity=IdentityRule(("key",)), values=values, time=time
            )
        one = msgspec.structs.replace(bound, interpretation="i" if known else "")
        reader = MediationReader(channels, [one], Repository(ActiveInterpretations(known)), clock)
        events = [
            Event("s", str(number), "s.raw", "", now_ms, msgspec.json.encode(each), headers or {})
            for number, each in enumerate(payloads)
        ]
        await channels.channel("raw.s").append(events)
        await reader.lane("s").step(timeout_ms=0)
        readings = await channels.channel("events").read_after(0)
        quarantined = await channels.channel("quarantine").read_after(0)
        await reader.stop()
        results = [one.event.payload() for one in quarantined]
        return [one.event.time for one in readings], [
            (one["reason"], one["hint"]) for one in results
        ]

    return asyncio.run(scenario())


def reading(time: Any, key: str = "t1") -> dict[str, Any]:
    return {"key": key, "level": 1.0, "time": time}


def test_a_local_time_is_quarantined_unless_a_zone_is_declared() -> None:
    local = [reading("2026-11-18T12:30:00")]
    times, quarantined = mediated(binding(), local)
    assert (times, [code for code, _ in quarantined]) == ([], ["time.no_zone"])
    assert "[sources.NAME]" in quarantined[0][1]
    assert "[site]" in quarantined[0][1]
    assert mediated(binding(zone=BERLIN), local) == ([parse_time("2026-11-18T11:30:00Z")], [])
    iso = TimeRule(("time",), "iso8601")
    assert mediated(binding(), local, time=iso)[1][0][0] == "time.no_zone"
    assert mediated(binding(zone=BERLIN), local, time=iso)[0] == [parse_time("2026-11-18T11:30Z")]
    own = TimeRule(("time",), "iso8601", "UTC")
    assert mediated(binding(zone=BERLIN), local, time=own)[0] == [parse_time("2026-11-18T12:30Z")]


@pytest.mark.parametrize(
    ("time", "rule", "code", "hint"),
    [
        (NOW // 1_000, None, "time.implausible", "epoch_s"),
        (NOW, TimeRule(("time",), "epoch_s"), "time.out_of_range", "epoch_ms"),
        (NOW // 1_000, TimeRule(("time",), "epoch_ms"), "time.implausible", "epoch_s"),
        (NOW + 2 * 86_400_000, None, "time.implausible", "clock"),
        ("2099-01-01T00:00:00Z", None, "time.implausible", "rapport import"),
        ("2001-01-01T00:00:00Z", None, "time.implausible", "rapport import"),
    ],
)
def test_live_times_far_from_arrival_are_quarantined_with_a_hint(
    time: Any, rule: TimeRule | None, code: str, hint: str
) -> None:
    times, quarantined = mediated(binding(), [reading(time), reading(NOW)], time=rule)
    expected = [] if rule is not None and rule.format == "epoch_s" else [NOW]
    assert times == expected
    assert quarantined[0][0] == code
    assert hint in quarantined[0][1]


def test_near_times_recorded_ones_and_those_of_a_node_without_a_clock_pass() -> None:
    near = [NOW - 200 * 86_400_000, NOW + 3_600_000]
    assert mediated(binding(), [reading(each) for each in near]) == (near, [])
    recorded = [reading("1998-01-01T00:00:00Z")]
    assert mediated(binding(), recorded, headers={HISTORY: "true"})[1] == []
    assert mediated(binding(), [reading(NOW)], now_ms=5_000) == ([NOW], [])
    assert is_plausible(NOW, NOW)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("2026-11-17T24:00:00Z", None),
        ("2026-11-17 24:00", TimeRule(("time",), "iso8601", "UTC")),
        ("17.11.2026 24:00", TimeRule(("time",), "%d.%m.%Y %H:%M", "UTC")),
        ("24:00 17.11.26", TimeRule(("time",), "%H:%M %d.%m.%y", "UTC")),
    ],
)
def test_24_00_is_the_beginning_of_the_next_day(text: str, rule: TimeRule | None) -> None:
    assert mediated(binding(), [reading(text)], time=rule)[0] == [parse_time("2026-11-18T00:00Z")]


@pytest.mark.parametrize("text", ["2026-11-17T24:01Z", "2026-11-17T25:00Z", "2026-02-30T24:00Z"])
def test_other_hours_beyond_the_day_are_none(text: str) -> None:
    assert mediated(binding(), [reading(text)])[1][0][0] == "time.bad_time"


def test_an_imported_file_passes_twice_through_the_repeated_hour() -> None:
    rule = TimeRule(("time",), "%d.%m.%Y %H:%M", BERLIN)
    hours = ("01:00", "02:00", "02:00", "03:00")
    rows = [reading(f"25.10.2026 {hour}", key) for hour in hours for key in ("t1", "t2")]
    times, quarantined = mediated(binding(), rows, time=rule, headers={HISTORY: "true"})
    start = parse_time("2026-10-24T23:00Z")
    assert times == [start + hour * 3_600_000 for hour in range(4) for _ in range(2)]
    assert quarantined == []


@given(
    st.sampled_from([1, 5, 10, 15, 20, 30, 60]),
    st.sampled_from([BERLIN, "America/New_York", "Australia/Lord_Howe"]),
    st.sampled_from(["by time", "by thing"]),
    st.integers(0, 59),
)
def test_regular_local_rows_are_read_as_the_moments_they_were_written_at(
    minutes: int, zone: str, order: str, offset: int
) -> None:
    ends = {BERLIN: "2026-10-25", "America/New_York": "2026-11-01"}
    day = datetime.fromisoformat(ends.get(zone, "2026-04-05")).replace(tzinfo=UTC)
    start = day - timedelta(hours=14) + timedelta(minutes=offset % minutes)
    if zone == "Australia/Lord_Howe" and 30 % minutes:
        return  # its clocks go back by half an hour
    moments = [start + timedelta(minutes=step) for step in range(0, 28 * 60, minutes)]
    things = ("tank/1", "tank/2")
    rows = [(moment, thing) for moment in moments for thing in things]
    if order == "by thing":
        rows = [(moment, thing) for thing in things for moment in moments]
    info = ZoneInfo(zone)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)

    def first_of(moment: datetime) -> int:
        local = moment.astimezone(info).replace(fold=0)
        return round((local.astimezone(UTC) - epoch).total_seconds() * 1_000)

    readings = [
        Event("s", str(n), "tank.level", thing, first_of(moment), b"{}", {HISTORY: "true"})
        for n, (moment, thing) in enumerate(rows)
    ]
    settled = RepeatedHours(zone).settle(readings)
    expected = [round((moment - epoch).total_seconds() * 1_000) for moment, _ in rows]
    assert [one.time for one in settled] == expected
    live = [msgspec.structs.replace(one, headers={}) for one in readings]
    assert RepeatedHours(zone).settle(live) == live
