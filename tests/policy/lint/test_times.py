"""Windows, durations and silences against what sources promise. [PO-12]"""

from __future__ import annotations

from typing import Any

import pytest

PAIR = """concepts
  station S
  station T
conditions
{conditions}
  distinct S, T
actions
  raise alarm
"""


@pytest.mark.parametrize(
    ("line", "promises", "expected"),
    [
        ("temperature of S above 30 for 5 min", {}, []),
        ("temperature of S above 30 for 5 min", {"period_ms": 60_000}, []),
        (
            "temperature of S above 30 for 5 min",
            {"period_ms": 600_000},
            ["for_shorter_than_period"],
        ),
        (
            "temperature of S above 30 for 5 min",
            {"stale_after_ms": 60_000},
            ["for_longer_than_known"],
        ),
        (
            "temperature of S above 30 for 5 min",
            {"stale_after_ms": 60_000, "period_ms": 60_000},
            [],
        ),
        (
            "temperature of S above 30 for 5 min",
            {"stale_after_ms": 60_000, "period_ms": 90_000},
            ["for_longer_than_known"],
        ),
        ("temperature of S above 30 for 5 min", {"stale_after_ms": 600_000}, []),
        ("no temperature of S for 5 min", {"period_ms": 600_000}, ["window_shorter_than_period"]),
        ("no temperature of S for 5 min", {"period_ms": 60_000}, []),
        ("temperature of S above 30", {"period_ms": 600_000}, []),
        (
            "temperature of S above 30 FOLLOWED-BY temperature of S below 3",
            {"period_ms": 600_000},
            ["window_shorter_than_period"],
        ),
        (
            "temperature of S above 30 FOLLOWED-BY temperature of S below 3 within 20 min",
            {"period_ms": 600_000},
            [],
        ),
    ],
)
def test_times_that_do_not_fit_the_source_are_warned_of(
    stations: Any, codes: Any, line: str, promises: dict[str, int], expected: list[str]
) -> None:
    stations.give("temperature", **promises)
    found = stations.says(line)
    assert codes(found) == expected
    assert all(one.line == 5 and one.hint and one.severity == "warning" for one in found)


def test_two_readings_that_seldom_meet_are_warned_of(stations: Any, codes: Any) -> None:
    stations.give("position", period_ms=60_000)
    found = stations.says("distance(S, T) < 5 m", header=PAIR)
    assert codes(found) == ["window_shorter_than_period"]
    assert "two readings must come within 5s" in found[0].message
    stations.give("position", period_ms=5_000)
    assert stations.says("distance(S, T) < 5 m", header=PAIR) == []


@pytest.mark.parametrize(
    ("lines", "promises"),
    [
        ("no humidity of S for 5 min\n  no temperature of S for 5 min", {"period_ms": 600_000}),
        ("no temperature of S for 1 h\n  no temperature of S for 5 min", {"period_ms": 600_000}),
        (
            "temperature of S above 30 for 1 h\n  temperature of S below 3 for 5 min",
            {"period_ms": 600_000},
        ),
        (
            "humidity of S above 30 for 1 s\n  temperature of S above 30 for 5 min",
            {"stale_after_ms": 60_000},
        ),
    ],
    ids=["other-stream", "longer-silence", "longer-duration", "other-duration"],
)
def test_a_warning_stands_at_what_it_is_about(
    stations: Any, lines: str, promises: dict[str, int]
) -> None:
    stations.give("temperature", **promises)
    found = stations.says(f"  {lines}")
    assert [one.line for one in found if one.severity == "warning"] == [6]
