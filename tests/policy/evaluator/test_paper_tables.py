"""Tables 5.3 and 5.4 of the paper (row four of 5.4 corrected), evaluator and operators. [PO-6]"""

from __future__ import annotations

import numpy as np

from rapport.core.detection import Detection
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.runner.local import LocalRunner
from rapport.tables.instances import Instances
from support.judge.evaluator import evaluate
from support.judge.occurrences import Reading
from support.varied.worlds import ONTOLOGY, Pull, readings_batch

At = tuple[float, float]


def found_by_both(
    text: str, pull: Pull, events: list[tuple[int, str, At]], window_ms: int
) -> list[Detection]:
    compiled = compile_policy(text, name="p", ontology=ONTOLOGY, window_ms=window_ms)
    readings = [
        Reading(time, f"e{number}", "person.position", key, at)
        for number, (time, key, at) in enumerate(events)
    ]
    judged = evaluate(compiled.tree, ONTOLOGY, pull, readings, window_ms=window_ms)
    runner = LocalRunner([compiled.plan], pull, lateness_ms=0)
    found = runner.feed(readings_batch(readings)) + runner.finish()
    assert [(d.time, d.bindings) for d in found] == [(d.time, d.bindings) for d in judged]
    return judged


def people(**status: str) -> Instances:
    column = np.array([status[name] for name in status], object)
    return Instances("person", [name.lstrip("_") for name in status], {"status": column})


def test_activations_and_absence_interplay_as_in_table_5_3() -> None:
    rooms = Instances(
        "room",
        ["R12", "R123"],
        {
            "security": np.array(["restricted"] * 2, object),
            "area": np.array([[0.0, 0, 10, 10], [100, 0, 110, 10]]),
            "door": np.zeros((2, 2)),
        },
    )
    persons = people(
        _1="guest", _5="guest", _101="employee", _105="employee", _142="employee", _143="employee"
    )
    text = """concepts
  person A (status='guest')
  person B (status='employee')
  room R (security='restricted')
conditions
  A is inside R
  A is not within 5m of B or B is not inside R
actions
  raise alarm
"""
    events = [
        (0, "1", (9.0, 5.0)),  # opens {A=1, R=R12}
        (1, "101", (1.0, 1.0)),  # inside R12, far from 1
        (2, "5", (109.0, 5.0)),  # opens {A=5, R=R123}
        (3, "105", (12.0, 5.0)),  # near 1, outside
        (4, "101", (11.0, 5.0)),  # near 1: with its reading at 1 a counterexample
        (5, "142", (112.0, 5.0)),  # near 5, outside
        (6, "143", (101.0, 5.0)),  # inside R123, far from 5: no joint counterexample
    ]
    [found] = found_by_both(text, Pull({"person": persons, "room": rooms}), events, window_ms=5)
    assert (found.time, found.bindings) == (7, {"A": "5", "R": "R123"})


def matches(places: dict[str, At]) -> list[dict[str, str]]:
    """Matches of three children that share aliases pairwise; a person's letter is the alias."""
    text = """concepts
  person A (status='a')
  person B (status='b')
  person C (status='c')
  person D (status='d')
conditions
  A is within 1m of B
  B is within 1m of C
  C is within 1m of D
actions
  look
"""
    persons = people(**{name: name[0] for name in places})
    events = [(time, name, at) for time, (name, at) in enumerate(places.items())]
    found = found_by_both(text, Pull({"person": persons}), events, window_ms=100)
    return [item.bindings for item in found]


HERE, THERE, ELSEWHERE = (0.0, 0.0), (50.0, 0.0), (100.0, 0.0)


def test_matches_are_natural_joins_as_in_table_5_4() -> None:
    first = {"a3": HERE, "b5": HERE, "c13": HERE, "d7": HERE, "a2": THERE, "b7": THERE}
    first |= {"c15": ELSEWHERE, "d8": ELSEWHERE}
    assert matches(first) == [{"A": "a3", "B": "b5", "C": "c13", "D": "d7"}]
    assert matches({"a2": HERE, "b7": HERE, "b5": THERE, "c15": THERE, "d8": THERE}) == []
    assert matches({"a2": HERE, "b7": HERE, "c15": HERE, "c10": THERE, "d8": THERE}) == []
    fourth = {"a2": (0.0, 0.0), "b7": (1.0, 0.0), "c15": (2.0, 0.0), "b5": (3.0, 0.0)}
    fourth |= {"a3": (4.0, 0.0), "d8": (2.0, 1.0)}
    assert matches(fourth) == [
        {"A": "a2", "B": "b7", "C": "c15", "D": "d8"},
        {"A": "a3", "B": "b5", "C": "c15", "D": "d8"},
    ]
