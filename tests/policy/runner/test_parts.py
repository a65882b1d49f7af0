"""The parts operators are made of: grid, tables, cells, shapes, snapshots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import Corrupt, InvalidInput, Unsupported
from rapport.policy.operators.columns import Table, pack_state, spread, unpack_state
from rapport.policy.operators.identities import Identities
from rapport.policy.operators.occurrences import Lookup, Predicate
from rapport.policy.operators.plan_shape import (
    NotFollowed,
    Occurs,
    OrderedTerms,
    check_supported,
    plan_shape,
)
from rapport.policy.operators.spatial import Grid, Reach, near_rows
from rapport.policy.plan import (
    Absent,
    Clause,
    ConstraintTerm,
    CorrelationTerm,
    Plan,
    Positive,
    QueryTerm,
    Sequence,
    Side,
)
from rapport.tables.instances import Instances
from support.varied.worlds import Pull

numbers = st.one_of(
    st.integers(-50, 50).map(float), st.floats(-1e6, 1e6), st.sampled_from([0.1, 1e-9, 1e12])
)
everywhere = st.sampled_from([-1.7e308, 1.7e308])
"""Corners of what has no walls, said with the largest numbers."""


@given(
    st.lists(st.tuples(*[numbers | everywhere] * 4), min_size=1, max_size=30),
    st.lists(st.tuples(numbers, numbers), max_size=30),
)
def test_the_grid_never_loses_a_rectangle(
    rectangles: list[tuple[float, ...]], points: list[tuple[float, float]]
) -> None:
    areas = np.array(rectangles)
    corners = areas[:, :2]
    asked = np.concatenate((np.array(points).reshape(-1, 2), corners))
    found = set(zip(*(part.tolist() for part in Grid(areas).candidates(asked)), strict=True))
    low, high = np.minimum(areas[:, :2], areas[:, 2:]), np.maximum(areas[:, :2], areas[:, 2:])
    for place, point in enumerate(asked):
        for number in np.flatnonzero(((low <= point) & (point <= high)).all(axis=1)):
            assert (place, int(number)) in found


def test_a_grid_of_many_rooms_gives_few_candidates_per_point() -> None:
    side = 100
    x, y = np.meshgrid(np.arange(side) * 10.0, np.arange(side) * 10.0)
    rooms = np.column_stack((x.ravel(), y.ravel(), x.ravel() + 8, y.ravel() + 8))
    points = np.random.default_rng(1).uniform(0, side * 10.0, (1_000, 2))
    rows, _ = Grid(rooms).candidates(points)
    assert len(rows) < 3 * len(points)


def test_a_room_without_an_area_does_not_make_every_room_be_tried() -> None:
    corners = np.arange(400) * 10.0
    areas = np.column_stack((corners, corners, corners + 8, corners + 8))
    areas[7] = np.nan
    rooms = Identities(Instances("room", [f"r{n}" for n in range(400)], {"area": areas}))
    people = Identities(Instances("person", ["ann"], {}))
    term = QueryTerm(
        Side("A", "person", "position", (), "person.position"),
        Side("R", "room", "area", (), None),
        "inside",
        None,
    )
    predicate = Predicate(term, {"person": people, "room": rooms}, Pull({}))
    tried: list[int] = []
    holds = predicate.holds

    def counted(*asked: Any) -> Any:
        tried.append(len(asked[0]))
        return holds(*asked)

    predicate.holds = counted  # type: ignore[assignment, method-assign]
    points = np.column_stack((corners, corners)) + 4.0
    rows, codes = Lookup(term, rooms, predicate).find(points, np.zeros(400, np.int64))
    assert rows.tolist() == [n for n in range(400) if n != 7]
    assert [rooms.ids[code] for code in codes] == [f"r{n}" for n in range(400) if n != 7]
    assert sum(tried) < 20 * len(points)


@given(
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20),
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20),
    st.sampled_from([0.0, 0.1, 1.0, 5.0, 7.3]),
)
def test_cells_never_lose_a_neighbour(
    here: list[tuple[float, float]], there: list[tuple[float, float]], reach: float
) -> None:
    first, second = np.array(here), np.array(there + [(x + reach, y) for x, y in here])
    table = Table({"end": np.arange(len(second)), "cell": Reach(reach).cells(second)})
    low = np.zeros(len(first), np.int64)
    owners, rows = near_rows(table, Reach(reach).cells(first), Reach(reach), low, low + len(second))
    found = set(zip(owners.tolist(), rows.tolist(), strict=True))
    apart = ((first[:, None, :] - second[None, :, :]) ** 2).sum(axis=2)
    for pair in np.argwhere(apart <= reach * reach).tolist():
        assert tuple(pair) in found


def test_cells_take_what_no_number_can_say() -> None:
    points = np.array([[np.nan, 1.0], [np.inf, -np.inf], [1e300, 2.0]])
    assert len(Reach(1.0).cells(points)) == 3


def test_spans_are_spread_in_order() -> None:
    owners, places = spread(np.array([3, 7, 7]), np.array([5, 7, 8]))
    assert owners.tolist() == [0, 0, 2]
    assert places.tolist() == [3, 4, 7]


def test_a_table_finds_rows_by_code_and_time() -> None:
    table = Table({"end": np.array([1, 2, 2, 5]), "first": np.array([7, 8, 7, 7])})
    codes = np.array([7, 8, 9])
    start, stop = table.find(
        "first", codes, table.rows_from(2), table.rows_from(np.array([6, 6, 6]))
    )
    owners, places = spread(start, stop)
    assert list(zip(owners.tolist(), table.rows_at("first", places).tolist(), strict=True)) == [
        (0, 2),
        (0, 3),
        (1, 1),
    ]


def test_trimming_forgets_old_rows_only() -> None:
    table = Table({"end": np.arange(10_000)})
    table.settle()
    table.trim(9_000)
    assert len(table) == 1_000
    assert table.first_new == 1_000
    table.trim(9_100)
    assert len(table) == 1_000  # not yet worth the copying


PERSON = Side("A", "person", "position", (), "person.position")
OTHER = Side("B", "person", "position", (), "person.position")
ROOM = Side("R", "room", "area", (), None)
DOOR = Side("R", "room", "door", (), None)
INSIDE, NEAR = QueryTerm(PERSON, ROOM, "inside"), CorrelationTerm(PERSON, OTHER, "within", 5.0)
LEADS = ConstraintTerm(DOOR, Side("Q", "room", "area", (), None), "inside")


def plan(*clauses: tuple[object, ...], terms: tuple[object, ...] = (INSIDE, NEAR, LEADS)) -> Plan:
    return Plan(
        policy="p",
        terms=terms,  # type: ignore[arg-type]
        clauses=tuple(Clause(children) for children in clauses),  # type: ignore[arg-type]
        actions=(),
        window_ms=100,
    )


def test_a_combination_is_a_minimal_set_of_parts() -> None:
    shape = plan_shape(plan((Positive(0), Positive(1)), (Positive(0), Positive(2))))
    assert [item.terms for item in shape.combinations] == [(0,), (1, 2)]
    assert shape.combinations[0].choices == ((Occurs(0),),)


def test_what_must_not_follow_the_same_thing_is_decided_together() -> None:
    clause = (Sequence(0, 1, False, True), Sequence(0, 0, False, True), Sequence(0, 1))
    shape = plan_shape(plan(clause))
    assert {part for item in shape.combinations for part in item.parts()} == {
        NotFollowed(0, (1, 0), 100),
        OrderedTerms(0, 1, 100),
    }


def test_absence_of_both_is_refuted_by_one_of_them() -> None:
    shape = plan_shape(plan((Positive(0),), (Absent(1), Sequence(0, 1, True, True))))
    assert shape.absent[0].counterexamples == ((1, 0), (1, 1))


def test_nothing_opens_absence_that_stands_alone() -> None:
    with pytest.raises(InvalidInput):
        plan_shape(plan((Absent(0),)))
    assert not plan_shape(plan((Positive(0), Absent(1)))).mixed


def test_a_condition_with_too_many_ways_is_refused() -> None:
    terms = tuple(
        QueryTerm(PERSON, Side(f"R{number}", "room", "area", (), None), "inside")
        for number in range(30)
    )
    pairs = [(Positive(number), Positive(number + 1)) for number in range(0, 30, 2)]
    with pytest.raises(Unsupported):
        plan_shape(plan(*pairs, terms=terms))
    assert "ways to be true" in check_supported(plan(*pairs, terms=terms))[0]


def test_sequences_of_facts_and_unknown_functions_are_not_supported() -> None:
    odd = QueryTerm(PERSON, ROOM, "insde")
    reasons = check_supported(plan((Sequence(0, 1),), terms=(odd, LEADS)))
    assert any("insde" in reason for reason in reasons)
    assert any("no event" in reason for reason in reasons)


def test_snapshots_keep_arrays_of_every_kind() -> None:
    odd = np.empty((2, 1), object)
    odd[:] = [["é"], [None]]
    state = {"a": np.arange(6).reshape(2, 3), "b": [1, "x", None, {"c": np.array([0.5])}], "d": odd}
    back = unpack_state(pack_state(state))
    assert back["a"].tolist() == state["a"].tolist()
    assert back["a"].dtype == state["a"].dtype
    assert back["b"][3]["c"].tolist() == [0.5]
    assert back["d"].tolist() == [["é"], [None]]
    with pytest.raises(Corrupt):
        unpack_state(b"\xc1")
