"""One predicate per term: relationships, comparisons, measures, looked-up numbers; nothing missing
ever holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rapport.policy.operators.columns import compare
from rapport.policy.operators.identities import Identities
from rapport.policy.operators.occurrences import Predicate
from rapport.policy.operators.spatial import Reach
from rapport.policy.plan import (
    Compared,
    Constant,
    ConstraintTerm,
    CorrelationTerm,
    LookedUp,
    Measure,
    Operand,
    QueryTerm,
    ReadingTerm,
    Side,
    SideValue,
    StateTerm,
)
from rapport.tables.instances import Instances
from support.varied.worlds import Pull

NAN = float("nan")
KINDS = np.array(["mast", None, "buoy"], object)
STATIONS = Instances(
    "station",
    ["a", "b", "c"],
    {
        "limit": np.array([1.0, NAN, 3.0]),
        "kind": KINDS,
        "armed": np.array([True, None, False], object),
        "home": np.array([[0.0, 0.0], [NAN, NAN], [3.0, 4.0]]),
    },
)
PAIRS = {("a", "b"): 5.0, ("b", "a"): 5.0, ("c", "c"): NAN}
PULL = Pull({"station": STATIONS}, {"least": PAIRS, "none": {}})

EVENT = Side("S", "station", "value", (), "station.value")
PLACE = Side("S", "station", "place", (), "station.place")
OTHER = Side("T", "station", "place", (), "station.place")
TABLE = Side("R", "station", "limit", (), None)
OWN, LIMIT = SideValue(0, "value"), SideValue(0, "limit")
DISTANCE = Measure("distance", (SideValue(0, "place"), SideValue(1, "place")))
LEAST = LookedUp("least", (SideValue(0, "id"), SideValue(1, "id")))


def identities(*more: str) -> dict[str, Identities]:
    known = Identities(STATIONS)
    known.encode_list(list(more))
    return {"station": known}


def predicate(term: StateTerm, *more: str) -> Predicate:
    return Predicate(term, identities(*more), PULL)


def reading(left: Operand, operator: Any, right: Operand) -> ReadingTerm:
    return ReadingTerm(EVENT, Compared(left, operator, right))


def column(*values: Any) -> np.ndarray:
    dtype = object if any(isinstance(value, str | None) for value in values) else None
    return np.array(values, dtype).reshape(-1, 1)


def test_a_value_is_compared_with_a_constant_and_with_what_tables_know() -> None:
    values, codes = column(2.0, 2.0, 2.0, NAN), np.array([0, 1, 2, 0])
    above = predicate(reading(OWN, ">", Constant(1.5)))
    assert above.holds(values, values, codes, codes).tolist() == [True, True, True, False]
    limit = predicate(reading(OWN, ">", LIMIT))
    assert limit.holds(values, values, codes, codes).tolist() == [True, False, False, False]
    assert limit.known(values, values, codes, codes).tolist() == [True, False, True, False]


@pytest.mark.parametrize("operator", ["=", "!=", "<", "<=", ">", ">="])
def test_nothing_missing_ever_holds(operator: Any) -> None:
    values, codes = column(NAN), np.array([1])
    for right in (Constant(1.0), LIMIT, OWN):
        assert not predicate(reading(OWN, operator, right)).holds(values, values, codes, codes)[0]
    assert not compare(column(None)[:, 0], operator, "x")[0]


def test_identities_that_no_table_knows_have_no_values() -> None:
    values, codes = column(9.0), np.array([3])
    for right in (LIMIT, SideValue(0, "nobody")):
        asked = predicate(reading(OWN, "!=", right), "stranger")
        assert not asked.holds(values, values, codes, codes)[0]
    kind = predicate(reading(SideValue(0, "kind"), "!=", Constant("x")), "stranger")
    assert kind.holds(values, values, codes, codes).tolist() == [False]


def test_texts_booleans_and_identities_compare_as_such() -> None:
    values, codes = column("open", None, "shut"), np.array([0, 1, 2])
    for operator, expected in (("=", [True, False, False]), ("!=", [False, False, True])):
        asked = predicate(reading(OWN, operator, Constant("open")))
        assert asked.holds(values, values, codes, codes).tolist() == expected
        armed = predicate(reading(SideValue(0, "armed"), operator, Constant("true")))
        assert armed.holds(values, values, codes, codes).tolist() == expected
    named = predicate(reading(SideValue(0, "id"), "=", Constant("c")))
    assert named.holds(values, values, codes, codes).tolist() == [False, False, True]
    flags = np.array([[True], [False]])
    flag = predicate(reading(OWN, "=", Constant("True")))
    assert flag.holds(flags, flags, codes[:2], codes[:2]).tolist() == [True, False]


def test_a_measure_of_something_missing_is_no_number() -> None:
    home = Measure("distance", (SideValue(0, "place"), SideValue(0, "home")))
    asked = predicate(ReadingTerm(PLACE, Compared(home, "<=", Constant(5.0))))
    places, codes = np.zeros((3, 2)), np.array([0, 1, 2])
    assert asked.holds(places, places, codes, codes).tolist() == [True, False, True]
    nowhere = np.full((3, 2), NAN)
    assert not asked.holds(nowhere, nowhere, codes, codes).any()


def test_looked_up_numbers_go_by_the_texts_of_both_sides() -> None:
    term = CorrelationTerm(PLACE, OTHER, "", compared=Compared(DISTANCE, "<", LEAST))
    asked = predicate(term)
    places = np.array([[0.0, 0.0], [4.0, 0.0], [5.0, 0.0]])
    first, second = np.array([0, 0, 0, 0, 2]), np.array([1, 1, 0, 2, 2])
    held = asked.holds(places[[0, 0, 0, 0, 0]], places[[1, 2, 0, 0, 0]], first, second)
    assert held.tolist() == [True, False, False, False, False]


def test_only_what_bounds_a_distance_of_events_has_a_reach() -> None:
    def reach(left: Operand, operator: Any, right: Operand) -> float | None:
        compared = Compared(left, operator, right)
        found = predicate(CorrelationTerm(PLACE, OTHER, "", compared=compared)).reach
        return None if found is None else found.metres

    assert reach(DISTANCE, "<", Constant(3.0)) == 3.0
    assert reach(Constant(3.0), ">=", DISTANCE) == 3.0
    assert reach(DISTANCE, "<=", LEAST) == 5.0
    assert reach(DISTANCE, "<", Constant(-1.0)) == 0.0
    assert reach(DISTANCE, "<", LookedUp("none", LEAST.of)) == 0.0
    assert reach(DISTANCE, ">", Constant(3.0)) is None
    assert reach(DISTANCE, "=", Constant(3.0)) is None
    assert reach(DISTANCE, "<", SideValue(0, "limit")) is None
    homes = Measure("distance", (SideValue(0, "place"), SideValue(0, "home")))
    assert reach(homes, "<", Constant(3.0)) is None
    assert predicate(CorrelationTerm(PLACE, OTHER, "within", 7.0)).reach == Reach(7.0)


def test_a_side_without_events_is_found_in_the_tables() -> None:
    compared = Compared(OWN, ">", SideValue(1, "limit"))
    asked = predicate(QueryTerm(EVENT, TABLE, "", compared=compared))
    codes = np.array([0, 1, 2])
    held = asked.holds(column(2.0, 2.0, 2.0), None, np.zeros(3, np.int64), codes)
    assert held.tolist() == [True, False, False]
    fact = ConstraintTerm(TABLE, TABLE, "", compared=Compared(LIMIT, ">=", Constant(3.0)))
    assert predicate(fact).holds(None, None, codes, codes).tolist() == [False, False, True]


def test_no_function_is_called_for_no_rows() -> None:
    none, nobody = column(), np.zeros(0, np.int64)
    for term in (reading(OWN, ">", LIMIT), reading(SideValue(0, "kind"), "=", Constant("x"))):
        assert len(predicate(term).holds(none.astype(float), none, nobody, nobody)) == 0
