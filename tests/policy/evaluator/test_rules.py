"""The rules of docs/semantics.md one by one, on the direct evaluator and on the operators alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rapport.core.detection import Detection
from rapport.core.errors import InvalidInput, PolicyError
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.language.parser import parse_policy
from rapport.policy.runner.local import LocalRunner
from rapport.tables.instances import Instances
from support.judge.evaluator import evaluate
from support.judge.occurrences import Reading
from support.varied.worlds import ONTOLOGY, Pull, readings_batch

WINDOW = 100


def objects(*values: str) -> np.ndarray:
    return np.array(values, object)


PULL = Pull(
    {
        "person": Instances(
            "person", ["g", "h", "e", "f"], {"status": objects("guest", "guest", *2 * ["employee"])}
        ),
        "room": Instances(
            "room",
            ["r1", "r2"],
            {
                "security": objects("restricted", "public"),
                "area": np.array([[0.0, 0, 10, 10], [20, 0, 30, 10]]),
                "door": np.array([[25.0, 5], [5, 5]]),
            },
        ),
    }
)
CONCEPTS = """concepts
  person A (status='guest')
  person B (status='employee')
  person C
  room R (security='restricted')
  room S (security='restricted')
  room Q (security='public')
conditions
"""
IN, OUT, PUBLIC = (5.0, 5.0), (15.0, 5.0), (25.0, 5.0)

Event = tuple[int, str, str, tuple[float, float]]


def both(conditions: str, events: Sequence[Event], concepts: str = CONCEPTS) -> list[Detection]:
    """What evaluator and operators find; they must agree."""
    indented = "\n".join(f"  {line.strip()}" for line in conditions.strip().splitlines())
    text = f"{concepts}{indented}\nactions\n  look\n"
    compiled = compile_policy(text, name="p", ontology=ONTOLOGY, window_ms=WINDOW)
    readings = [Reading(time, id, "person.position", key, at) for time, id, key, at in events]
    judged = evaluate(compiled.tree, ONTOLOGY, PULL, readings, window_ms=WINDOW)
    runner = LocalRunner([compiled.plan], PULL, lateness_ms=0)
    found = runner.feed(readings_batch(readings)) + runner.finish()
    strip = [(d.time, d.bindings, d.causes) for d in found]
    assert strip == [(d.time, d.bindings, d.causes) for d in judged]
    return judged


def times_and_causes(found: list[Detection]) -> list[tuple[int, list[str]]]:
    return [(item.time, [id for _, id in item.causes]) for item in found]


def test_a_query_gives_one_occurrence_per_event_and_instance() -> None:
    found = both("A is inside R", [(1, "1", "g", IN), (2, "2", "g", OUT), (3, "3", "e", IN)])
    assert times_and_causes(found) == [(1, ["1"])]


def test_borders_belong_to_the_rectangle() -> None:
    edge = [(1, "1", "g", (10.0, 10.0)), (2, "2", "g", (10.000001, 10.0))]
    assert times_and_causes(both("A is inside R", edge)) == [(1, ["1"])]


def test_windows_are_half_open() -> None:
    apart = [(0, "1", "g", IN), (99, "2", "e", IN), (200, "3", "g", IN), (300, "4", "e", IN)]
    found = both("A is inside R\nB is inside R", apart)
    assert times_and_causes(found) == [(99, ["1", "2"])]


def test_each_event_is_used_once_per_pair_oldest_first() -> None:
    events = [(0, "1", "g", IN), (1, "2", "g", IN), (2, "3", "e", IN), (3, "4", "e", IN)]
    found = both("A is within 5m of B", events)
    assert times_and_causes(found) == [(2, ["1", "3"]), (3, ["2", "4"])]


def test_recent_takes_the_newest_and_discards_older_ones() -> None:
    events = [(0, "1", "g", IN), (1, "2", "g", IN), (2, "3", "e", IN), (3, "4", "e", IN)]
    found = both("A is within 5m of B\nconsume recent", events)
    assert times_and_causes(found) == [(2, ["2", "3"])]


def test_an_event_is_used_once_for_each_pair_of_identities() -> None:
    events = [(0, "1", "g", IN), (1, "2", "e", IN), (2, "3", "f", IN)]
    found = both("A is within 5m of B", events)
    assert times_and_causes(found) == [(1, ["1", "2"]), (2, ["1", "3"])]


def test_the_same_person_on_both_sides_is_one_pair_of_two_events() -> None:
    events = [(0, "1", "g", IN), (1, "2", "g", IN), (2, "3", "g", IN)]
    found = both("A is within 5m of C", events)
    assert times_and_causes(found) == [(1, ["1", "2"])]
    assert both("A is within 5m of C\ndistinct A, C", events) == []


def test_absence_is_decided_a_window_after_the_match() -> None:
    found = both("A is inside R\nB is not inside R", [(0, "1", "g", IN), (100, "2", "e", IN)])
    assert times_and_causes(found) == [(100, ["1"])]


def test_events_at_the_very_time_of_the_match_refute_it_and_earlier_ones_do_not() -> None:
    conditions = "A is inside R\nB is not inside R"
    assert both(conditions, [(5, "2", "e", IN), (5, "3", "g", IN)]) == []
    assert len(both(conditions, [(4, "2", "e", IN), (5, "3", "g", IN)])) == 1


def test_one_employee_accompanies_two_guests() -> None:
    events = [(0, "1", "g", IN), (1, "2", "h", IN), (2, "3", "e", IN)]
    assert both("A is inside R\nB is not inside R", events) == []


def test_a_counterexample_is_one_person_for_all_children() -> None:
    """Figure 5.11: one employee is near the guest, another one is in the room."""
    conditions = "A is inside R\nA is not within 5m of B or B is not inside R"
    guest, near_door, far_inside = (9.0, 5.0), (12.0, 5.0), (1.0, 5.0)
    events = [(0, "1", "g", guest), (1, "2", "e", near_door), (2, "3", "f", far_inside)]
    assert times_and_causes(both(conditions, events)) == [(100, ["1"])]
    assert both(conditions, [(0, "1", "g", guest), (1, "2", "e", (8.0, 5.0))]) == []


def test_a_match_is_minimal() -> None:
    conditions = "A is inside Q OR (A is inside R AND B is inside R)"
    events = [(0, "1", "e", IN), (1, "2", "g", IN), (2, "3", "g", PUBLIC)]
    assert times_and_causes(both(conditions, events)) == [(1, ["1", "2"]), (2, ["3"])]


def test_followed_by_needs_strictly_later_ends_within_the_window() -> None:
    events = [(0, "1", "g", IN), (0, "2", "g", PUBLIC), (99, "3", "g", PUBLIC)]
    events += [(100, "4", "g", PUBLIC)]
    found = both("A is inside R FOLLOWED-BY A is inside Q", events)
    assert times_and_causes(found) == [(99, ["1", "3"])]


def test_what_must_not_follow_counts_after_the_first_end_only() -> None:
    conditions = "A is inside R FOLLOWED-BY A is not inside Q"
    same_time = [(0, "1", "g", IN), (0, "2", "g", PUBLIC)]
    assert times_and_causes(both(conditions, same_time)) == [(100, ["1"])]
    assert both(conditions, [(0, "1", "g", IN), (1, "2", "g", PUBLIC)]) == []


def test_what_must_not_precede_is_known_at_once() -> None:
    conditions = "A is not inside R FOLLOWED-BY A is inside Q"
    assert both(conditions, [(0, "1", "g", IN), (99, "2", "g", PUBLIC)]) == []
    found = both(conditions, [(0, "1", "g", IN), (100, "2", "g", PUBLIC)])
    assert times_and_causes(found) == [(100, ["2"])]


def test_absence_of_both_is_refuted_by_either() -> None:
    conditions = "A is inside R\nB is not inside R FOLLOWED-BY B is not inside Q"
    assert len(both(conditions, [(0, "1", "g", IN)])) == 1
    assert both(conditions, [(0, "1", "g", IN), (1, "2", "e", IN)]) == []
    assert both(conditions, [(0, "1", "g", IN), (1, "2", "e", PUBLIC)]) == []


def test_a_mixed_clause_takes_the_earliest_positive_occurrence_near_the_match() -> None:
    conditions = "A is inside R\nB is inside Q or A is not inside Q"
    events = [(0, "1", "e", PUBLIC), (50, "2", "g", IN), (60, "3", "e", PUBLIC)]
    assert times_and_causes(both(conditions, events)) == [(50, ["1", "2"])]
    late = [(50, "2", "g", IN), (60, "3", "g", PUBLIC), (70, "4", "e", PUBLIC)]
    assert times_and_causes(both(conditions, late)) == [(70, ["2", "4"])]


def test_ties_in_a_mixed_clause_go_to_what_the_condition_says_first() -> None:
    concepts = CONCEPTS.replace("  person C\n", "  person C\n  person D\n")
    conditions = """A is inside R
        C is inside Q OR A is not inside Q
        D is inside Q OR C is inside Q OR B is not inside R"""
    events = [(0, "1", "g", IN), (1, "2", "e", PUBLIC)]
    [found] = both(conditions, events, concepts)
    assert found.bindings == {"A": "g", "C": "e", "Q": "r2", "R": "r1"}


def test_a_mixed_clause_falls_back_on_absence() -> None:
    conditions = "A is inside R\nB is inside Q or A is not inside Q"
    assert times_and_causes(both(conditions, [(0, "1", "g", IN)])) == [(100, ["1"])]
    assert both(conditions, [(0, "1", "g", IN), (1, "2", "g", PUBLIC)]) == []


def test_a_constraint_extends_the_bindings() -> None:
    found = both("A is inside R\nR is leads Q", [(0, "1", "g", IN)])
    assert [item.bindings for item in found] == [{"A": "g", "R": "r1", "Q": "r2"}]
    assert both("A is inside R\nR is not leads Q", [(0, "1", "g", IN)]) == []


def test_a_negated_constraint_needs_no_waiting() -> None:
    found = both("A is inside R\nR is not leads S", [(0, "1", "g", IN)])
    assert times_and_causes(found) == [(0, ["1"])]


def test_equal_times_go_by_id_as_text() -> None:
    events = [(0, "9", "g", IN), (0, "10", "g", IN), (1, "x", "e", IN)]
    assert times_and_causes(both("A is within 5m of B", events)) == [(1, ["10", "x"])]


def test_absence_that_nothing_can_open_is_refused() -> None:
    text = CONCEPTS + "  A is not inside R\nactions\n  look\n"
    with pytest.raises(PolicyError):
        compile_policy(text, name="p", ontology=ONTOLOGY, window_ms=WINDOW)
    with pytest.raises(InvalidInput):
        evaluate(parse_policy(text, name="p"), ONTOLOGY, PULL, [], window_ms=WINDOW)
