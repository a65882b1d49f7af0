"""Unknown is not false, worked by hand: the evaluator and the operators alike. [PO-7]"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rapport.core.detection import Undecided
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.runner.local import LocalRunner
from rapport.tables.instances import Instances
from support.judge.evaluator import judge
from support.judge.occurrences import Reading
from support.varied.worlds import ONTOLOGY, Pull, readings_batch

WINDOW, PERIOD = 100, 40
IN, OUT = (5.0, 5.0), (15.0, 5.0)
STATUS = np.array(["guest", "guest", "employee"], object)
PULL = Pull(
    {
        "person": Instances("person", ["g", "h", "e"], {"status": STATUS}),
        "cart": Instances("cart", ["k"], {"kind": np.array(["heavy"], object)}),
        "room": Instances("room", ["r"], {"area": np.array([[0.0, 0, 10, 10]])}),
    }
)
CONCEPTS = """concepts
  person A (status='guest')
  person B (status='employee')
  cart K
  room R
conditions
"""
GATE = msgspec.structs.replace(ONTOLOGY.sources["badges"], name="gate", period_ms=PERIOD)
WATCHED = msgspec.structs.replace(ONTOLOGY, sources={**ONTOLOGY.sources, "gate": GATE})
ALONE = "A is inside R\nB is not inside R"

Event = tuple[int, str, tuple[float, float], str]


def gate(*times: int) -> list[Event]:
    """The gate sees somebody nobody asks about."""
    return [(time, "h", OUT, "gate") for time in times]


def verdict(conditions: str, events: list[Event]) -> tuple[list[int], list[Undecided]]:
    """Times of the detections, and what is undecided; runner and evaluator must agree."""
    indented = "\n".join(f"  {line}" for line in conditions.splitlines())
    text = f"{CONCEPTS}{indented}\nactions\n  look\n"
    compiled = compile_policy(text, name="p", ontology=WATCHED, window_ms=WINDOW)
    readings = [
        Reading(time, f"e{number}", "person.position", key, at, source)
        for number, (time, key, at, source) in enumerate(sorted(events))
    ]
    judged = judge(compiled.tree, WATCHED, PULL, readings, window_ms=WINDOW)
    runner = LocalRunner([compiled.plan], PULL, lateness_ms=0, sources=WATCHED.sources)
    found = runner.feed(readings_batch(readings, WATCHED)) + runner.finish()
    undecided = [msgspec.structs.replace(one, version="") for one in runner.take_undecided()]
    assert [one.time for one in found] == [one.time for one in judged.detections]
    assert undecided == judged.undecided
    return [one.time for one in found], undecided


def test_absence_holds_while_the_source_sends_readings() -> None:
    guest = (0, "g", IN, "badges")
    assert verdict(ALONE, [guest, *gate(0, 40, 80)]) == ([100], [])


def test_absence_is_undecided_when_the_source_fell_silent() -> None:
    found, undecided = verdict(ALONE, [(0, "g", IN, "badges"), *gate(0, 40)])
    assert found == []
    assert undecided == [
        Undecided(
            policy="p",
            time=100,
            bindings={"A": "g", "R": "r"},
            causes=((0, "e0"),),
            silent=("gate",),
        )
    ]


def test_that_the_source_comes_back_later_changes_nothing() -> None:
    found, undecided = verdict(ALONE, [(0, "g", IN, "badges"), *gate(0, 40, 101, 140)])
    assert (found, len(undecided)) == ([], 1)


def test_a_counterexample_decides_although_a_source_is_silent() -> None:
    events = [(0, "g", IN, "badges"), (60, "e", IN, "badges")]
    assert verdict(ALONE, events) == ([], [])


def test_a_policy_may_fire_when_unsure() -> None:
    assert verdict(f"{ALONE}\nwhen unsure fire", [(0, "g", IN, "badges")]) == ([100], [])


def test_what_rests_on_no_absence_is_certain() -> None:
    assert verdict("A is inside R", [(0, "g", IN, "badges")]) == ([0], [])


def test_silence_of_a_stream_the_absence_does_not_read_does_not_matter() -> None:
    events = [(0, "g", IN, "badges")]
    assert verdict("A is inside R\nK is not parked R", events) == ([100], [])


@pytest.mark.parametrize(
    ("conditions", "time"),
    [
        ("A is inside R FOLLOWED-BY B is not inside R", 300),
        ("B is not inside R FOLLOWED-BY A is inside R", 200),
    ],
)
def test_what_must_not_follow_or_precede_is_absence_too(conditions: str, time: int) -> None:
    guest = (200, "g", IN, "badges")
    heard = gate(*range(0, 320, 40))
    assert verdict(conditions, [guest, *heard]) == ([time], [])
    dead = [event for event in heard if not time - 80 <= event[0] < time]
    found, undecided = verdict(conditions, [guest, *dead])
    assert (found, [one.time for one in undecided]) == ([], [time])


def test_a_mixed_clause_is_in_doubt_only_when_absence_satisfied_it() -> None:
    mixed = "A is inside R\nB is inside R OR A is not within 1m of B"
    guest, employee = (0, "g", IN, "badges"), (20, "e", (9.0, 9.0), "badges")
    assert verdict(mixed, [guest, employee]) == ([20], [])
    found, undecided = verdict(mixed, [guest, (20, "e", OUT, "badges")])
    assert (found, [one.time for one in undecided]) == ([], [100])


def test_the_clock_alone_makes_silence_known() -> None:
    text = f"{CONCEPTS}  A is inside R\n  B is not inside R\nactions\n  look\n"
    plan = compile_policy(text, name="p", ontology=WATCHED, window_ms=WINDOW).plan
    runner = LocalRunner([plan], PULL, lateness_ms=10, sources=WATCHED.sources)
    guest = Reading(0, "e1", "person.position", "g", IN, "gate")
    assert runner.feed(readings_batch([guest], WATCHED)) == []
    assert runner.advance(1 + 10) == []
    assert runner.pending_until() == 100 + 10
    assert runner.advance(100 + 10) == []
    assert [one.silent for one in runner.take_undecided()] == [("gate",)]
    assert runner.take_undecided() == []
