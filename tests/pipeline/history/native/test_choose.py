"""Which way a plan goes on Spark, and how that is told."""

from __future__ import annotations

import pyarrow as pa
import pytest

from benchmarks.policy import building
from rapport.core.errors import InvalidInput
from rapport.pipeline.history.native.choose import choose, interest_filter
from rapport.pipeline.history.native.whole import why_not_native
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.operators.plan_shape import plan_shape
from rapport.policy.plan import Plan
from support.varied.worlds import Pull

BUILDING = building.Building(200, 100, 1)


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        ("  A is inside R\n", ""),
        ("  A is inside R OR B is inside R\n", ""),
        (building.ALONE, "absence"),
        (building.TOGETHER, "A and B meet by two events"),
        (building.LASTING, "a state of A must last"),
        (building.SILENT, "a silence of A must last"),
        ("  A is inside R\n  B is inside R\n", "several events"),
        ("  A is inside R FOLLOWED-BY B is inside R\n", "in order"),
        ("  A is inside R FOLLOWED-BY B is not inside R\n", "in order"),
        ("  A is inside R\n  at most once per 5 s\n", "at most once per"),
    ],
)
def test_a_plan_is_native_when_one_event_at_a_time_decides_it(conditions: str, reason: str) -> None:
    told = why_not_native(building.policy(conditions))
    assert reason in told
    assert bool(reason) == bool(told)


def test_a_plan_that_nothing_opens_is_not_native() -> None:
    plan = building.policy("  A is inside R\n")
    empty = Plan(policy="p", terms=plan.terms, clauses=(), actions=(), window_ms=5)
    with pytest.raises(InvalidInput):
        plan_shape(empty)
    assert "nothing can open" in why_not_native(empty)


def test_the_choice_says_what_is_done_and_why() -> None:
    native = choose(building.policy("  A is inside R\n"), BUILDING)
    assert (native.way, native.reason) == ("native", "")
    assert native.text() == (
        "bench: wholly by Spark, because one event at a time decides it; reads person.position of "
        "40 of 200 person inside 30 rectangles"
    )
    lasting = choose(building.policy(building.LASTING), BUILDING)
    assert lasting.way == "filter"
    assert "leaves out before them all but person.position of 40 of 200 person" in lasting.text()
    alone = choose(building.policy(building.ALONE), BUILDING)
    assert alone.way == "operators"
    assert "nearly every reading matters" in alone.text()


def test_a_sample_tells_how_much_is_left_out() -> None:
    sample = building.walk(200, 100, 2_000, 1).readings
    plan = building.policy(building.LASTING)
    found = choose(plan, BUILDING, sample=sample)
    assert found.way == "filter"
    assert found.kept == pytest.approx(0.2, abs=0.05)
    guests = sample.filter(pa.array([int(key) % 5 == 1 for key in sample["key"].to_pylist()]))
    assert choose(plan, BUILDING, sample=guests).way == "operators"
    assert choose(plan, BUILDING, sample=sample.slice(0, 0)).way == "operators"


def test_there_is_no_filter_where_every_reading_matters() -> None:
    anybody = building.policy(building.LASTING, who="status!=''")
    assert interest_filter([anybody], BUILDING) is not None
    nobody_known = Pull({})
    assert choose(building.policy("  A is inside R\n"), nobody_known).wanted == "nothing at all"
    text = "concepts\n  person A\n  person B\nconditions\n  A is within 5m of B\nactions\n  look\n"
    plan = compile_policy(text, name="p", ontology=building.ONTOLOGY, window_ms=5).plan
    assert interest_filter([plan], BUILDING) is None
    assert choose(plan, BUILDING).way == "operators"
