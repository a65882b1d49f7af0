"""Relationship functions: one by one and in bulk they say the same."""

import doctest
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput, UnknownName
from rapport.policy import relations
from rapport.policy.relations import parse_parameter, relation

numbers = st.floats(allow_nan=True, allow_infinity=True, width=64) | st.integers(-8, 8).map(float)
points = st.tuples(numbers, numbers)
rectangles = st.tuples(numbers, numbers, numbers, numbers)
reaches = st.floats(0, 1e300) | st.integers(0, 8).map(float)


@given(st.lists(st.tuples(points, rectangles), min_size=1, max_size=20))
def test_inside_in_bulk_equals_inside_one_by_one(
    pairs: list[tuple[tuple[float, ...], tuple[float, ...]]],
) -> None:
    inside = relations.get("inside")
    first, second = np.array([p for p, _ in pairs]), np.array([r for _, r in pairs])
    many = inside.holds_many(first, second, None)
    assert many.tolist() == [inside.holds(p, r, None) for p, r in pairs]


@given(st.lists(st.tuples(points, points), min_size=1, max_size=20), reaches)
def test_within_in_bulk_equals_within_one_by_one(
    pairs: list[tuple[tuple[float, ...], tuple[float, ...]]], reach: float
) -> None:
    within = relations.get("within")
    first, second = np.array([p for p, _ in pairs]), np.array([q for _, q in pairs])
    many = within.holds_many(first, second, reach)
    assert many.tolist() == [within.holds(p, q, reach) for p, q in pairs]
    assert many.tolist() == within.holds_many(second, first, reach).tolist()


def test_rooms_are_closed_and_distances_inclusive() -> None:
    inside, within = relations.get("inside"), relations.get("within")
    assert inside.holds((0.0, 10.0), (0.0, 0.0, 10.0, 10.0), None)
    assert not inside.holds((-0.015625, 10.0), (0.0, 0.0, 10.0, 10.0), None)
    assert within.holds((0.0, 0.0), (3.0, 4.0), 5.0)
    assert not within.holds((0.0, 0.0), (3.0, 4.015625), 5.0)


def test_missing_values_never_hold() -> None:
    nan = float("nan")
    assert not relations.get("inside").holds((nan, 1.0), (0.0, 0.0, 2.0, 2.0), None)
    assert not relations.get("within").holds((nan, 1.0), (0.0, 0.0), 5.0)
    same = relations.get("same")
    column = np.array([["a"], [None], ["b"]], object)
    assert same.holds_many(column, np.array([["a"], [None], ["c"]], object), None).tolist() == [
        True,
        False,
        False,
    ]
    assert not same.holds((None,), (None,), None)


def test_lengths_are_exact_in_every_unit() -> None:
    assert parse_parameter("3 ft", "length") == parse_parameter("0.9144m", "length")
    assert parse_parameter("500cm", "length") == 5.0
    assert parse_parameter("1 mi", "length") == 1609.344
    assert parse_parameter("1e-3km", "length") == 1.0


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        ("5", "length", "relations.bad_parameter"),
        ("m", "length", "relations.bad_parameter"),
        ("-1m", "length", "relations.bad_parameter"),
        ("5kg", "length", "relations.unknown_unit"),
        ("1e400m", "length", "relations.bad_parameter"),
        ("5m", "number", "relations.bad_parameter"),
        ("1.2.3", "number", "relations.bad_parameter"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(
    text: str, kind: relations.ParameterKind, code: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_parameter(text, kind)
    assert caught.value.code == code
    assert caught.value.hint


def test_an_unknown_function_names_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        relations.get("insde")
    assert caught.value.hint == "did you mean 'inside'?"


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    code = (
        "from rapport.policy.relations import relation\n"
        "@relation(first='number', second='number', parameter='number', symmetric=True)\n"
        "def near(first, second, parameter):\n"
        "    return abs(first[0] - second[0]) <= parameter\n"
        "def plain(first, second, parameter):\n"
        "    return True\n"
    )
    (tmp_path / "own_relations_of_a_test.py").write_text(code, encoding="utf-8")
    (tmp_path / "broken_relations_of_a_test.py").write_text("1 / 0\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_relations_of_a_test"
    sys.modules.pop("own_relations_of_a_test", None)
    relations._loaded.clear()


def test_a_function_of_ones_own_is_imported_by_name(own_module: str) -> None:
    near = relations.get(f"{own_module}:near")
    assert (near.name, near.first_type, near.parameter_kind, near.shape) == (
        "near",
        "number",
        "number",
        "opaque",
    )
    assert near.holds_many(np.array([[1.0], [5.0]]), np.array([[2.0], [9.0]]), 1.0).tolist() == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("own_relations_of_a_test:plain", "relations.not_a_relation"),
        ("own_relations_of_a_test:nera", "relations.unknown"),
        ("broken_relations_of_a_test:x", "relations.cannot_import"),
        ("there_is_no_such_module:x", "relations.cannot_import"),
    ],
)
def test_functions_that_cannot_be_used_are_refused_clearly(
    own_module: str, name: str, code: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        relations.get(name)
    assert caught.value.code == code
    assert caught.value.hint


def test_installed_packages_bring_functions_by_entry_point(own_module: str, tmp_path: Path) -> None:
    information = tmp_path / "own_relations-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Name: own-relations\nVersion: 1.0\n", encoding="utf-8")
    (information / "entry_points.txt").write_text(
        f"[rapport.relations]\nnearby = {own_module}:near\nbroken = broken_relations_of_a_test:x\n",
        encoding="utf-8",
    )
    assert {"nearby", "inside"} <= set(relations.names())
    assert relations.get("nearby").name == "near"
    with pytest.raises(InvalidInput) as caught:
        relations.get("broken")
    assert caught.value.code == "relations.cannot_import"


def test_a_relation_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(UnknownName):
        relation(first="pont", second="point")  # type: ignore[arg-type]


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(relations).failed == 0


lines_of_names = st.none() | st.lists(st.sampled_from(["a/1", "a/11", "b/1", ""])).map("\n".join)


@given(st.lists(st.tuples(lines_of_names, lines_of_names), min_size=1, max_size=10))
def test_contained_in_bulk_equals_contained_one_by_one(
    pairs: list[tuple[str | None, str | None]],
) -> None:
    contained = relations.get("contained")
    columns = np.empty((2, len(pairs), 1), object)
    columns[0, :, 0], columns[1, :, 0] = [a for a, _ in pairs], [b for _, b in pairs]
    many = contained.holds_many(columns[0], columns[1], None)
    assert many.tolist() == [contained.holds((a,), (b,), None) for a, b in pairs]


def test_a_name_is_contained_whole_and_not_as_a_part_of_another() -> None:
    contained = relations.get("contained")
    assert contained.holds(("a/11\nb/1",), ("b/1",), None)
    assert not contained.holds(("a/11\nb/1",), ("a/1",), None)
