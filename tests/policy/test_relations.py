"""Relationship functions: one by one and in bulk they say the same."""

import doctest
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.schema import AttributeType
from rapport.policy import relations
from rapport.policy.ontology import Ontology, PushSource, Relationship
from rapport.policy.relations import parse_parameter, relation
from rapport.tables.instances import Instances
from support.judge.holding import Reading
from support.judge.trials import Trial, judged, outcome_lines, run_locally
from support.varied.worlds import Pull

NAN = float("nan")
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
        "@relation(first='text', second='text')\n"
        "def begins(first, second, parameter):\n"
        "    return first[0].startswith(second[0])\n"
        "@relation(first='number', second='number', many=lambda a, b, _: ~(a >= b)[:, 0])\n"
        "def colder(first, second, parameter):\n"
        "    return not first[0] >= second[0]\n"
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


def test_functions_of_a_site_are_not_called_with_missing_values(own_module: str) -> None:
    begins = relations.get(f"{own_module}:begins")
    texts = np.array([["open"], [None], ["open"], [None]], object)
    others = np.array([["op"], ["op"], [None], [None]], object)
    assert begins.holds_many(texts, others, None).tolist() == [True, False, False, False]
    assert begins.holds_many(texts[1:], others[1:], None).tolist() == [False] * 3
    colder = relations.get(f"{own_module}:colder")
    numbers, limits = np.array([[1.0], [1.0], [NAN]]), np.array([[2.0], [NAN], [2.0]])
    assert colder.holds_many(numbers, limits, None).tolist() == [True, False, False]


@pytest.mark.parametrize(("function", "value"), [("begins", "open"), ("colder", 1.0)])
def test_what_a_table_misses_stands_in_no_relationship_of_ones_own(
    own_module: str, function: str, value: float | str
) -> None:
    kind: AttributeType = "text" if isinstance(value, str) else "number"
    ontology = Ontology(
        concepts={"door": {"state": kind, "wanted": kind}},
        relationships={
            "like": Relationship(
                "like", ("door", "state"), ("door", "wanted"), f"{own_module}:{function}"
            )
        },
        sources={
            "doors": PushSource(
                name="doors", concept="door", attribute="state", key="key", value=("v",)
            )
        },
    )
    texts, numbers = np.array(["op", None], object), np.array([2.0, NAN])
    columns = {"wanted": texts if isinstance(value, str) else numbers}
    trial = Trial(
        text="concepts\n  door A\n  door B\nconditions\n  A is like B\nactions\n  look\n",
        ontology=ontology,
        pull=Pull({"door": Instances("door", ["d1", "d2"], columns)}),
        readings=(Reading(0, "e1", "door.state", "d2", (value,)),),
        window_ms=100,
    )
    assert outcome_lines(judged(trial)) == ["0 A=d2 B=d1: e1"]
    assert outcome_lines(run_locally(trial)) == ["0 A=d2 B=d1: e1"]


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
