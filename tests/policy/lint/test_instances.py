"""Policies against the tables. [PO-12]"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rapport.tables.instances import Instances

HEADER = """concepts
  station S ({properties})
  room R
conditions
{{conditions}}
actions
  raise alarm
"""


@pytest.mark.parametrize(
    ("properties", "message", "hint"),
    [
        ("kind='mst'", "no station in the tables has kind = 'mst'", "did you mean 'mast'?"),
        (
            "kind='aeroplane'",
            "no station in the tables has kind = 'aeroplane'",
            "there are: buoy, mast",
        ),
        ("floor > 7", "no station in the tables has floor > 7", "from 1 to 4"),
        (
            "kind='mast', floor=4",
            "no station in the tables has kind = 'mast' and floor = 4",
            "each is there, but not together",
        ),
    ],
)
def test_properties_without_an_instance_are_reported_with_the_existing_values(
    stations: Any, properties: str, message: str, hint: str
) -> None:
    header = HEADER.format(properties=properties)
    (problem,) = stations.says_with_tables("temperature of S above 30", header=header)
    assert (problem.code, problem.message) == ("policy.no_such_instance", message)
    assert (problem.hint, problem.line, problem.severity) == (hint, 2, "warning")
    assert problem.column > 3


def test_properties_that_somebody_has_are_left_alone(stations: Any) -> None:
    header = HEADER.format(properties="kind='mast', floor<2")
    assert stations.says_with_tables("temperature of S above 30", header=header) == []


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            ("S is inside R", "floor of S above 10"),
            "'floor of S > 10' holds for no instance of the tables",
        ),
        (
            ("S is inside R", "S is same R"),
            "'same(kind of S, use of R)' holds for no instance of the tables",
        ),
        (
            ("S is inside R", "floor of S > level of R"),
            "'floor of S > level of R' holds for no instance of the tables",
        ),
    ],
)
def test_facts_that_hold_of_nobody_keep_a_policy_from_firing(
    stations: Any, lines: tuple[str, ...], reason: str
) -> None:
    (problem,) = stations.says_with_tables(*lines)
    assert problem.code == "policy.never_fires"
    assert reason in problem.message
    assert problem.message.startswith("as the tables stand")


def test_without_instances_nothing_can_be_inside_them(stations: Any) -> None:
    stations.instances["room"] = Instances("room", [], {"area": np.zeros((0, 4))})
    (problem,) = stations.says_with_tables("S is inside R")
    assert "no table has a room" in problem.message
    assert stations.says_with_tables("temperature of S above 3") == []
    assert stations.says_with_tables("temperature of S above 3", "S is not inside R") == []


def test_facts_of_nobody_beside_others_or_under_not_are_left_alone(stations: Any) -> None:
    assert stations.says_with_tables("S is inside R", "floor of S is not above 10") == []
    assert stations.says_with_tables("(S is inside R OR floor of S above 10)") == []
    assert stations.says_with_tables("S is inside R", "id of S is 'elsewhere'") == []


def test_more_pairs_than_can_be_tried_are_not_judged(stations: Any) -> None:
    many = [str(number) for number in range(600)]
    column = np.arange(600.0)
    stations.instances["station"] = Instances("station", many, {"floor": column})
    stations.instances["room"] = Instances("room", many, {"level": column + 1_000})
    assert stations.says_with_tables("temperature of S above 3", "floor of S > level of R") == []
