"""Policies that never fire, and what is left alone. [PO-12]"""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    "lines",
    [
        ("(temperature of S above 30 AND temperature of S below 20) for 10 min",),
        ("(temperature of S above 30 AND NOT temperature of S above 20) for 10 min",),
        (
            "(temperature of S is 3 AND (humidity of S > 1 OR humidity of S < 1)"
            " AND temperature of S is not 3) for 1 min",
        ),
        ("temperature of S above 3", "floor of S above 3", "floor of S below 2"),
        ("S is inside R", "S is not inside R"),
        ("temperature of S above 3", "temperature of S is not above 3"),
    ],
)
def test_conditions_that_contradict_each_other_never_fire(
    stations: Any, codes: Any, lines: tuple[str, ...]
) -> None:
    found = stations.says(*lines)
    assert "never_fires" in codes(found)
    (problem,) = [one for one in found if one.code == "policy.never_fires"]
    assert (problem.severity, problem.line) == ("warning", 2)
    assert problem.hint


@pytest.mark.parametrize(
    "lines",
    [
        ("(temperature of S above 30 OR temperature of S below 20) for 10 min",),
        ("(temperature of S above 30 AND humidity of S below 20) for 10 min",),
        ("temperature of S above 3", "floor of S above 3", "floor of S below 5"),
        ("temperature of S above 3", "floor of S above 3", "floor of S is not above 3"),
        ("S is inside R", "temperature of S above 3", "S is not inside R"),
        ("(S is inside R OR temperature of S above 30)", "S is not inside R"),
        ("S is inside R FOLLOWED-BY S is not inside R",),
    ],
)
def test_what_can_happen_is_left_alone(stations: Any, codes: Any, lines: tuple[str, ...]) -> None:
    assert codes(stations.says(*lines)) == []


def test_a_distance_is_never_negative(stations: Any, codes: Any) -> None:
    header = """concepts
  station S
  station T
conditions
{conditions}
  distinct S, T
actions
  raise alarm
"""
    assert codes(stations.says("distance(S, T) < 0 m", header=header)) == ["never_fires"]
    assert codes(stations.says("distance(S, T) <= 0 m", header=header)) == []
    assert codes(stations.says("distance(S, T) = -1 m", header=header)) == ["never_fires"]


def test_lines_that_only_two_readings_satisfy_are_pointed_out(stations: Any, codes: Any) -> None:
    found = stations.says("temperature of S above 30", "temperature of S below 20")
    assert codes(found) == ["excluding_readings"]
    assert "only two different ones in the window can" in found[0].message


def test_properties_that_exclude_each_other_are_reported_once(stations: Any, codes: Any) -> None:
    header = """concepts
  station S (floor > 3, floor < 2)
conditions
{conditions}
actions
  raise alarm
"""
    assert codes(stations.says("temperature of S above 1", header=header)) == ["never_satisfied"]
