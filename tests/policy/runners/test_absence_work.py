"""What absence costs, counted in rows and not in time: nothing while no match asks, then what the
identities of the match have to do with, however many others there are and however many wait.
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
from rapport.policy.plan import Plan
from rapport.policy.readings import readings_schema
from rapport.policy.runners.operators import absence, join, make_operator, near, side_events
from rapport.policy.runners.operators.lookup import Lookup
from rapport.policy.runners.operators.open_matches import OpenMatches
from rapport.policy.runners.operators.table import concatenate, count
from rapport.tables.instances import Instances
from rapport.testing.varied.worlds import ONTOLOGY, Pull

WINDOW_MS = 1_000_000
STREAM = "person.position"
LAB, HALL = (1.0, 1.0), (500.0, 500.0)
TEXT = """concepts
  person A (status='guest')
  room R (security='restricted')
  person B (status='employee')
conditions
  A is inside R
  A is not within 5m of B or B is not inside R
actions
  look
"""
ALONE: Plan = compile_policy(TEXT, name="p", ontology=ONTOLOGY, window_ms=WINDOW_MS).plan


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
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Rows looked up in tables, made into sides of pairs, and touched by searches."""
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
    sides = counted(
        "sides", lambda _, made: 0 if made is None else count(made), side_events.side_rows
    )
    monkeypatch.setattr(side_events, "side_rows", sides)
    for room in (absence, join, near):
        touched = counted("touched", lambda _, found: len(found[0]), room.spread)
        monkeypatch.setattr(room, "spread", touched)
    return counts


@pytest.mark.parametrize(("size", "looked_up"), [(100, 20), (200, 20), (1, 221)])
def test_while_nothing_is_open_absence_costs_nothing(
    work: Counter[str], size: int, looked_up: int
) -> None:
    """Guests walk the hall, where they may, and employees are everywhere. Of many small batches
    only the last few wait, so that who asks at last does not wait for hundreds of look-ups.
    """
    operator = make_operator(ALONE, building(20, 200))
    staff, guests = [f"e{one}" for one in range(200)], [f"g{one}" for one in range(20)]
    batches = [(seen(guests, HALL, 0), 20)]
    for first in range(0, 200, size):
        some = staff[first : first + size]
        batches.append((seen(some, LAB, 100 + first), 100 + first + len(some)))
    for batch, watermark in batches:
        operator.process(batch, watermark)
    operator.process(seen(["e0"], LAB, 5 * WINDOW_MS), 5 * WINDOW_MS + 1)
    if size == 1:
        assert 220 - 5 < work["looked up"] <= looked_up
    else:
        assert work == {"looked up": looked_up}  # what the guests' own steps ask


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
    assert _for_the_first_due(work, waiting) == _for_the_first_due(work, 2)


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
