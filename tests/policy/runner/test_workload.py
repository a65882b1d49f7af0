"""The benchmark's workload: reproducible, and executed with the right meaning."""

from __future__ import annotations

import pytest

from benchmarks.policy.building import (
    ALONE,
    ONTOLOGY,
    TOGETHER,
    WINDOW_MS,
    Building,
    as_events,
    policy,
    walk,
)
from rapport.core.detection import detection_lines
from rapport.policy.language.parser import parse_policy
from rapport.policy.runner.local import LocalRunner
from support.event_readings import readings_from_events
from support.judge.evaluator import evaluate
from support.judge.occurrences import Reading

pytestmark = pytest.mark.slow

CONCEPTS = """concepts
  person A (status='guest')
  person B (status='employee')
  room R (security='restricted')
conditions
"""


def test_the_same_seed_gives_the_same_workload() -> None:
    assert walk(20, 9, 500, 1).digest == walk(20, 9, 500, 1).digest
    assert walk(20, 9, 500, 1).digest != walk(20, 9, 500, 2).digest


def test_events_of_the_workload_are_its_readings() -> None:
    work = walk(20, 9, 300, 1)
    assert readings_from_events(as_events(work.readings), ONTOLOGY) == work.readings


@pytest.mark.parametrize("conditions", [ALONE, TOGETHER])
def test_the_workload_is_executed_as_the_evaluator_says(conditions: str) -> None:
    building, work = Building(20, 16, 7), walk(20, 16, 600, 7)
    tree = parse_policy(f"{CONCEPTS}{conditions}actions\n  raise alarm\n", name="bench")
    readings = [
        Reading(
            row["time"],
            row["id"],
            row["stream"],
            row["key"],
            (row["person.position.x"], row["person.position.y"]),
        )
        for row in work.readings.to_pylist()
    ]
    judged = evaluate(tree, ONTOLOGY, building, readings, window_ms=WINDOW_MS)
    assert judged
    for size in (1, 300, 10_000):
        runner = LocalRunner([policy(conditions)], building, lateness_ms=0)
        found = []
        for first in range(0, len(work.readings), size):
            found += runner.feed(work.readings.slice(first, size))
        assert detection_lines(found + runner.finish()) == detection_lines(judged)
