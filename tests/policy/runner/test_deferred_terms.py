"""Absence asked about late: what is saved and taken over, who sees what came before it, and the
edges of time and distance.
"""

from __future__ import annotations

import numpy as np
import pytest

from rapport.policy.compiler.compile import compile_policy
from rapport.policy.plan import Plan
from rapport.policy.runner.local import LocalRunner
from rapport.tables.instances import Instances
from support.judge.occurrences import Reading
from support.varied.worlds import ONTOLOGY, Pull, readings_batch

WINDOW_MS = 1_000
LAB, HALL = (1.0, 1.0), (500.0, 500.0)
NEAR = "A is inside R\n  A is not within 5m of B or B is not inside R"
BOUND = "A is inside R\n  A is not inside H"
UNBOUND = "A is inside R\n  B is not inside R"
BEFORE = "A is not inside H FOLLOWED-BY A is inside R"
PULL = Pull(
    {
        "person": Instances(
            "person",
            ["g", *(f"e{number}" for number in range(100))],
            {"status": np.array(["guest"] + ["employee"] * 100, object)},
        ),
        "room": Instances(
            "room",
            ["lab", "hall"],
            {
                "security": np.array(["restricted", "public"], object),
                "area": np.array([[0.0, 0.0, 10.0, 10.0], [400.0, 400.0, 600.0, 600.0]]),
                "door": np.zeros((2, 2)),
            },
        ),
    }
)


def plan(conditions: str, name: str = "p") -> Plan:
    text = f"""concepts
  person A (status='guest')
  person B (status='employee')
  room R (security='restricted')
  room H (security='public')
conditions
  {conditions}
actions
  look
"""
    return compile_policy(text, name=name, ontology=ONTOLOGY, window_ms=WINDOW_MS).plan


def at(time: int, who: str, where: tuple[float, float], number: int = 0) -> Reading:
    return Reading(time, f"{time}-{number}", "person.position", who, where)


def fed(runner: LocalRunner, *readings: Reading, one_by_one: bool = True) -> list[tuple[str, int]]:
    """Policies and times of what is found."""
    parts = [[one] for one in readings] if one_by_one else [list(readings)]
    found = [item for part in parts for item in runner.feed(readings_batch(part))]
    return [(item.policy, item.time) for item in found]


def runner_of(*plans: Plan) -> LocalRunner:
    return LocalRunner(list(plans), PULL, lateness_ms=0)


REFUTED = [
    pytest.param(NEAR, at(1_400, "e0", LAB), id="near"),
    pytest.param(BOUND, at(1_400, "g", HALL), id="bound"),
    pytest.param(UNBOUND, at(1_400, "e0", LAB), id="unbound"),
]


@pytest.mark.parametrize("saved", [0, 1, 2, 3])
@pytest.mark.parametrize(("conditions", "against"), REFUTED)
def test_deferred_rows_are_saved_and_queried_after_a_restore(
    conditions: str, against: Reading, saved: int
) -> None:
    """Saved before the match, while it is open, and when there is what refutes it."""
    for readings, expected in (([against], []), ([], [("p", 2_000)])):
        runner = runner_of(plan(conditions))
        steps = [at(500, "e7", LAB), at(1_000, "g", LAB), *readings, at(1_500, "e8", HALL)]
        found = []
        for number, step in enumerate(steps):
            found += fed(runner, step)
            if number == saved:
                state, runner = runner.snapshot(), runner_of(plan(conditions))
                runner.restore(state)
        assert found + fed(runner, at(3_000, "e9", HALL)) == expected


@pytest.mark.parametrize("others", [0, 200], ids=["few", "many"])
@pytest.mark.parametrize(
    ("time", "refutes"), [(999, False), (1_000, True), (1_999, True), (2_000, False)]
)
def test_events_from_the_match_on_count_and_none_of_before(
    time: int, refutes: bool, others: int
) -> None:
    """An employee in the lab at the edges of the window, among others who are elsewhere."""
    runner = runner_of(plan(NEAR), plan(UNBOUND, "q"))
    crowd = [at(1_100, f"e{number % 50 + 1}", HALL, number) for number in range(others)]
    seen = [at(900, "e3", HALL), at(1_000, "g", LAB, 1), *crowd, at(time, "e0", LAB)]
    seen.sort(key=lambda each: (each.time, each.id))
    found = fed(runner, *seen, at(3_000, "e9", HALL))
    assert found == ([] if refutes else [("p", 2_000), ("q", 2_000)])


@pytest.mark.parametrize(("x", "refutes"), [(6.0, True), (6.001, False)])
def test_who_is_just_near_enough_is_found_among_many(x: float, refutes: bool) -> None:
    runner = runner_of(plan(NEAR))
    crowd = [at(1_100 + number, f"e{number % 50 + 1}", HALL) for number in range(200)]
    seen = [at(1_000, "g", LAB), at(1_050, "e0", (x, 1.0)), *crowd]
    found = fed(runner, *seen, at(3_000, "e9", HALL))
    assert found == ([] if refutes else [("p", 2_000)])


def test_who_begins_later_does_not_see_what_others_kept() -> None:
    """NOT in the first place reaches back: the first policy knows that the guest was in the hall,
    the second began after that.
    """
    runner = runner_of(plan(BEFORE))
    assert fed(runner, at(1_000, "g", HALL), at(1_100, "e0", HALL)) == []
    runner.deploy(plan(BEFORE, "q"))
    found = fed(runner, at(1_200, "e0", HALL), at(1_300, "g", LAB), at(5_000, "e0", HALL))
    assert found == [("q", 1_300)]


def test_rows_that_not_in_first_place_reaches_back_to_are_kept_without_an_open_match() -> None:
    runner = runner_of(plan(BEFORE))
    crowd = [at(1_000 + number, f"e{number % 50}", HALL) for number in range(900)]
    assert fed(runner, at(999, "g", HALL), *crowd, at(1_950, "g", LAB)) == []
    assert fed(runner, at(2_100, "g", LAB), at(5_000, "e0", HALL)) == [("p", 2_100)]
