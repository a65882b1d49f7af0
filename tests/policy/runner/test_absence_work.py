"""What absence costs, counted in rows and calls and not in time: nothing while no match asks, then
what the identities of the match have to do with, however many others there are, however many wait,
and however small the batches were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.policy.compiler.compile import compile_policy
from rapport.policy.operators import absence, columns, make_operator
from rapport.policy.operators.columns import concatenate, unpack_state
from rapport.policy.operators.occurrences import Lookup, Predicate
from rapport.policy.operators.operator import OpenMatches, PlanOperator
from rapport.policy.operators.spatial import partner_rows
from rapport.policy.plan import Plan
from rapport.policy.readings import readings_schema
from rapport.tables.instances import Instances
from support.varied.worlds import ONTOLOGY, Pull
from support.work import calls

WINDOW_MS = 1_000_000
STREAM = "person.position"
LAB, HALL = (1.0, 1.0), (500.0, 500.0)
TEXT = """concepts
  person A (status='guest')
  room R (security='restricted')
  person B (status='employee')
  room H (security='public')
conditions
  A is inside R
  A is not within 5m of B or B is not inside R
actions
  look
"""


def compiled(absence: str) -> Plan:
    before, _, after = TEXT.partition("  A is not within 5m of B or B is not inside R\n")
    text = f"{before}  {absence}\n{after}"
    return compile_policy(text, name="p", ontology=ONTOLOGY, window_ms=WINDOW_MS).plan


ALONE = compiled("A is not within 5m of B or B is not inside R")
LEFT = compiled("A is not inside H")
EMPTY = compiled("B is not inside R")


def building(guests: int, employees: int) -> Pull:
    ids = [f"g{one}" for one in range(guests)] + [f"e{one}" for one in range(employees)]
    status = np.array(["guest"] * guests + ["employee"] * employees, object)
    rooms = {
        "security": np.array(["restricted", "public"], object),
        "area": np.array([[0.0, 0.0, 10.0, 10.0], [400.0, 400.0, 600.0, 600.0]]),
        "door": np.zeros((2, 2)),
    }
    return Pull(
        {
            "person": Instances("person", ids, {"status": status}),
            "room": Instances("room", ["lab", "hall"], rooms),
        }
    )


def seen(keys: Sequence[str], where: tuple[float, float], first_time: int) -> pa.RecordBatch:
    """One reading per key, a millisecond apart."""
    rows = len(keys)
    known = {
        "time": pa.array(range(first_time, first_time + rows), pa.int64()),
        "id": pa.array([f"{first_time}-{number}" for number in range(rows)], pa.string()),
        "stream": pa.repeat(pa.scalar(STREAM), rows),
        "source": pa.repeat(pa.scalar("badges"), rows),
        "key": pa.array(keys, pa.string()),
        f"{STREAM}.x": pa.repeat(pa.scalar(where[0]), rows),
        f"{STREAM}.y": pa.repeat(pa.scalar(where[1]), rows),
    }
    schema = readings_schema(ONTOLOGY)
    arrays = [known.get(one.name, pa.nulls(rows, one.type)) for one in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Rows looked up in tables, decided by relationships, and touched by searches."""
    counts: Counter[str] = Counter()

    def counted(what: str, rows: Callable[[Any, Any], int], real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            found = real(*arguments)
            counts[what] += rows(arguments, found)
            return found

        return call

    monkeypatch.setattr(
        Lookup, "find", counted("looked up", lambda given, _: len(given[1]), Lookup.find)
    )
    for name in ("holds", "holds_of"):
        own = counted("decided", lambda _, mask: len(mask), getattr(Predicate, name))
        monkeypatch.setattr(Predicate, name, own)
    for module in (absence, columns):
        touched = counted("touched", lambda _, found: len(found[0]), module.spread)
        monkeypatch.setattr(module, "spread", touched)

    def near_pairs(*arguments: Any) -> Iterator[Any]:
        for owners, rows in partner_rows(*arguments):
            counts["touched"] += len(owners)
            yield owners, rows

    monkeypatch.setattr(absence, "partner_rows", near_pairs)
    return counts


STAFF_ROWS = [
    (200, 1),
    (203, 7),
    (2_000, 100),
    pytest.param(200_000, 20_000, marks=pytest.mark.slow),
]
"""How many rows of employees come while nothing is open, and in batches of which size."""


@pytest.mark.parametrize(("rows", "size"), STAFF_ROWS)
def test_while_nothing_is_open_absence_costs_nothing(
    work: Counter[str], rows: int, size: int
) -> None:
    """Guests walk the hall, where they may, and employees are everywhere: of their rows none is
    looked up, neither on the way nor when the state is saved, and none is saved.
    """
    operator = make_operator(ALONE, building(20, 200))
    guests = [f"g{one}" for one in range(20)]
    operator.process(seen(guests, HALL, 0), 20)
    for first in range(0, rows, size):
        some = [f"e{one % 200}" for one in range(first, first + size)]
        operator.process(seen(some, LAB, 100 + first), 100 + first + size)
    saved = unpack_state(operator.snapshot())["window"]
    assert +work == {"looked up": 20}  # what the guests' own step asks
    assert saved["correlations"]["sides"] == {}
    assert not any(len(own["end"]) for own in saved["occurrences"].values())


MANY_OTHERS = [
    (100, 10),
    (100, 1),
    (1_000, 100),
    pytest.param(100_000, 10_000, marks=pytest.mark.slow),
]


def _others_then_due(operator: PlanOperator, others: int, size: int) -> tuple[pa.RecordBatch, int]:
    """Employees in the hall, in batches of a size; then a reading with which the match is due."""
    for first in range(0, others, size):
        some = [f"e{one % 40 + 10}" for one in range(first, first + size)]
        operator.process(seen(some, HALL, 1_000 + first), 1_000 + first + size)
    return seen(["e9"], HALL, 2 * WINDOW_MS), 2 * WINDOW_MS


@pytest.mark.parametrize(("others", "size"), MANY_OTHERS)
def test_of_a_side_that_any_identity_may_take_only_what_is_near_is_decided(
    work: Counter[str], others: int, size: int
) -> None:
    """Three employees come near the guest, one of them out of the lab again, which refutes nothing;
    of all the others nothing is looked up.
    """
    operator = make_operator(ALONE, building(5, 60))
    operator.process(seen(["g0"], (1.0, 9.0), 10), 11)
    operator.process(seen(["e0", "e1", "e2"], (1.0, 11.0), 20), 23)
    due = _others_then_due(operator, others, size)
    work.clear()
    assert [item.bindings for item in operator.process(*due)] == [{"A": "g0", "R": "lab"}]
    assert work["looked up"] == 3
    assert work["decided"] <= 6


@pytest.mark.parametrize(("others", "size"), MANY_OTHERS)
def test_of_a_side_whose_identity_is_known_only_its_rows_are_looked_up(
    work: Counter[str], others: int, size: int
) -> None:
    operator = make_operator(LEFT, building(5, 60))
    operator.process(seen(["g0"], LAB, 10), 11)
    operator.process(seen(["g1", "g0", "g1"], (20.0, 20.0), 20), 23)
    due = _others_then_due(operator, others, size)
    work.clear()
    assert [item.bindings for item in operator.process(*due)] == [{"A": "g0", "R": "lab"}]
    assert work["looked up"] == 2  # the two of g0, before and after it left


def test_what_came_before_every_open_match_is_passed_over(work: Counter[str]) -> None:
    operator = make_operator(EMPTY, building(5, 60))
    for first in range(0, 1_000, 10):
        operator.process(seen(["e1"] * 10, LAB, first), first + 10)
    operator.process(seen(["g0"], LAB, 5_000), 5_001)
    operator.process(seen(["e2"] * 4, HALL, 5_010), 5_014)
    work.clear()
    found = operator.process(seen(["e9"], HALL, 2 * WINDOW_MS), 2 * WINDOW_MS)
    assert [item.bindings for item in found] == [{"A": "g0", "R": "lab"}]
    assert work["looked up"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("text", [ALONE, LEFT, EMPTY], ids=["near", "bound", "unbound"])
def test_who_asks_does_not_wait_for_every_small_batch(text: Plan) -> None:
    """Ten times as many batches: the same steps."""

    def work_of(others: int) -> int:
        operator = make_operator(text, building(5, 60))
        operator.process(seen(["g0"], LAB, 10), 11)
        due = _others_then_due(operator, others, 1)
        return calls(lambda: operator.process(*due))

    assert work_of(1_000) <= work_of(100) + 5


@pytest.mark.slow
def test_who_asks_often_has_each_row_looked_up_once(work: Counter[str]) -> None:
    """A guest stays in the lab, an employee is seen as often: a match falls due with each."""
    operator, times = make_operator(EMPTY, building(1, 1)), 400
    for place in range(times):
        time = place * WINDOW_MS // 10
        operator.process(seen(["g0"], LAB, time), time + 1)
        operator.process(seen(["e0"], HALL, time + 1), time + 2)
    assert work["looked up"] <= 2 * times + times  # the guest's own step, and both once more


def _for_one_match(work: Counter[str], guests: int, employees: int) -> Counter[str]:
    """One guest alone in the lab with an employee far off in it, all others in the hall."""
    operator = make_operator(ALONE, building(guests, employees))
    operator.process(seen(["g0"], LAB, 10), 11)
    operator.process(seen(["e0"], (9.0, 9.0), 20), 21)
    others = [f"e{one}" for one in range(1, 40)]
    operator.process(seen(others, HALL, 30), 30 + len(others))
    work.clear()
    found = operator.process(seen(["e1"], HALL, 2 * WINDOW_MS), 2 * WINDOW_MS)
    assert [item.bindings for item in found] == [{"A": "g0", "R": "lab"}]
    return Counter(work)


@pytest.mark.parametrize(
    ("guests", "employees"), [(10, 1_000), pytest.param(10, 300_000, marks=pytest.mark.slow)]
)
def test_who_is_not_involved_does_not_matter(
    work: Counter[str], guests: int, employees: int
) -> None:
    assert _for_one_match(work, guests, employees) == _for_one_match(work, 1, 50)


def _for_the_first_due(work: Counter[str], waiting: int) -> tuple[Counter[str], int]:
    """So many guests are in the lab, each with an activation; that of the first falls due, and no
    one else's.
    """
    operator = make_operator(ALONE, building(waiting, 5))
    guests = [f"g{one}" for one in range(waiting)]
    operator.process(seen(guests, LAB, 10), 10 + waiting)
    operator.process(seen(["e0"], (9.0, 9.0), 500_000), 500_001)
    work.clear()
    found = operator.process(seen(["e1"], HALL, 10 + WINDOW_MS), 10 + WINDOW_MS)
    return Counter({name: rows for name, rows in work.items() if name == "touched"}), len(found)


@pytest.mark.parametrize("waiting", [1_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_who_else_waits_does_not_matter(work: Counter[str], waiting: int) -> None:
    assert _for_the_first_due(work, waiting) == _for_the_first_due(work, 100)


# --- what waits ---


def rows_due(*due: int) -> dict[str, np.ndarray]:
    return {"due": np.array(due), "t0": np.array(due) - 1, "when": np.array(due) - 2}


times = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=5), max_size=8)


@given(times, st.lists(st.integers(0, 35), max_size=6))
def test_what_is_due_comes_out_and_the_rest_waits(
    opened: list[list[int]], watermarks: list[int]
) -> None:
    waiting, left = OpenMatches(), sorted(time for some in opened for time in some)
    for some in opened:
        waiting.add(rows_due(*some))
    for watermark in sorted(watermarks):
        popped = waiting.pop_due(watermark)
        due = [time for time in left if time <= watermark]
        left = [time for time in left if time > watermark]
        assert sorted([] if popped is None else popped["due"].tolist()) == due
        assert waiting.first_due() == min(left, default=None)
        assert bool(waiting) == bool(left)
        assert waiting.least("when", "t0", 5) == (min(left) + 4 if left else None)
        kept = waiting.state()
        assert sorted([] if kept is None else kept["due"].tolist()) == left
        if kept is not None:  # saved and restored
            waiting = OpenMatches()
            waiting.add(concatenate([kept]))


def test_what_waits_is_not_copied_when_something_else_is_due() -> None:
    waiting, rows = OpenMatches(), rows_due(*range(1_000))
    waiting.add(rows)
    waiting.pop_due(10)
    kept = waiting.state()
    assert kept is not None
    assert np.shares_memory(kept["t0"], rows["t0"])
