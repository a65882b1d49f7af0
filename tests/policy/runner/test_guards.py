"""`while`, worked by hand. [SI-9]"""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.core.times import format_time
from rapport.policy.replay.replay import recordings_of, replay
from rapport.site.site import load_site

SITE = """
[site]
name = "store"
lateness = "0s"

[concepts.door.attributes]
state = "text"
[concepts.freezer.attributes]
temperature = "number"
[concepts.freezer.units]
temperature = "degC"

[sources.doors]
concept = "door"
attribute = "state"
events = "doors.csv"
id = "id"
time = "ts"
key = "door"
value = "state"
[sources.probes]
concept = "freezer"
attribute = "temperature"
events = "probes.csv"
id = "id"
time = "ts"
key = "freezer"
value = "temperature"

[policies]
files = ["*.dpl"]
"""
WARM = """concepts
  freezer F
conditions
  temperature of F above 0 degC
  within 1 s{more}
while
  {guard}
actions
  call
"""
DAY = "2024-05-06T"
PROBES = (
    ("21:40:00", "f1", "8"),
    ("21:50:00", "f2", "9"),
    ("21:59:59", "f1", "3"),
    ("22:00:00", "f1", "7"),
    ("22:10:00", "f1", "8"),
    ("22:11:00", "f2", "1"),
)
DOORS = (("21:00:00", "d1", "shut"), ("22:00:00", "d1", "open"), ("22:10:30", "d1", "shut"))


def found(folder: Path, guard: str, more: str = "", batch: int = 100) -> list[str]:
    """The times and freezers of the detections that `replay` finds."""
    (folder / "site.toml").write_text(SITE)
    for name, header, rows in (
        ("doors", "id,ts,door,state", DOORS),
        ("probes", "id,ts,freezer,temperature", PROBES),
    ):
        lines = [
            f"{name}{number},{DAY}{clock}Z,{key},{value}"
            for number, (clock, key, value) in enumerate(rows)
        ]
        (folder / f"{name}.csv").write_text("\n".join([header, *lines, ""]))
    (folder / "warm.dpl").write_text(WARM.format(guard=guard, more=more))
    site = load_site(folder)
    plans = [one.plan for one in site.policies.values()]
    recordings = recordings_of(site.ontology, folder)
    result = replay(site.ontology, site.tables, plans, recordings, lateness_ms=0, batch=batch)
    assert not result.problems
    return [f"{format_time(one.time)[11:19]} {one.bindings['F']}" for one in result.detections]


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_a_time_of_day_includes_its_first_instant(tmp_path: Path, batch: int) -> None:
    assert found(tmp_path, "time is between 22:00 and 06:00", batch=batch) == [
        "22:00:00 f1",
        "22:10:00 f1",
        "22:11:00 f2",
    ]


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_a_state_counts_for_the_identity_of_the_match(tmp_path: Path, batch: int) -> None:
    """f1 was colder at 21:59:59, so its ten minutes begin at 22:00; f2 is at 1 degC at 22:11."""
    found_here = found(tmp_path, "temperature of F above 5 degC for 10 min", batch=batch)
    assert found_here == ["22:10:00 f1"]


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_readings_of_the_same_instant_are_applied_first(tmp_path: Path, batch: int) -> None:
    """The door opens at the time of the reading of f1."""
    guard = "some door D with (state of D = 'open')"
    assert found(tmp_path, guard, batch=batch) == ["22:00:00 f1", "22:10:00 f1"]


def test_what_is_unknown_is_not_true(tmp_path: Path) -> None:
    """Means have two readings from the second one of each freezer on."""
    guard = "mean of temperature of F in the last 1 h (at least 2 readings) above 0 degC"
    assert found(tmp_path, guard) == ["21:59:59 f1", "22:00:00 f1", "22:10:00 f1", "22:11:00 f2"]


def test_not_of_what_is_unknown_is_unknown(tmp_path: Path) -> None:
    guard = "NOT (max of temperature of F in the last 1 min (at least 2 readings) above 5 degC)"
    assert found(tmp_path, guard) == []


def test_a_match_that_is_no_detection_suppresses_nothing(tmp_path: Path) -> None:
    """The match of f1 at 21:59:59 comes within 20 min before that of 22:00."""
    found_here = found(tmp_path, "time is between 22:00 and 06:00", "\n  at most once per 20 min")
    assert found_here == ["22:00:00 f1", "22:11:00 f2"]
