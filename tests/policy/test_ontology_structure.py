"""Functions, kinds, groups, relationships of several concepts, containers: what they become, and
what is refused.
"""

from __future__ import annotations

import numpy as np
import pytest

from rapport.core.errors import PolicyError, Problem
from rapport.kernel.toml import TomlFile
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.config.loader import ontology_from_site
from rapport.policy.derived_columns import DerivedColumns
from rapport.policy.ontology import (
    Kind,
    Ontology,
    known_kinds,
    relationship_between,
    relationships_named,
    resolve_kind,
    why_no_kind,
)
from rapport.policy.ontology_view import draw_ontology
from rapport.policy.plan import Constraint
from rapport.tables.instances import Instances

BASE = """
[concepts.person.attributes]
status = "text"
position = "point"
grade = "number"
office = "text"
[concepts.cart.attributes]
place = "point"
[concepts.room.attributes]
area = "rectangle"
floor = "text"
[concepts.floor.attributes]
building = "text"
[concepts.building.attributes]
name = "text"
[tables.minimums]
csv = "m.csv"
key = "a"
"""
KINDS = """
[concepts.employee]
is = "person"
where = { status = "employee" }
[concepts.manager]
is = "employee"
where = { grade = 5 }
[concepts.guest]
is = "person"
where = { status = "guest" }
"""


def read(text: str) -> tuple[Ontology, list[Problem]]:
    return ontology_from_site(TomlFile.parse((BASE + text).encode(), name="site.toml"))


def sound(text: str) -> Ontology:
    ontology, problems = read(text)
    assert problems == []
    return ontology


def instances(concept: str, ids: list[str], **columns: list[object]) -> Instances:
    made = {}
    for name, values in columns.items():
        made[name] = np.empty(len(values), object)
        made[name][:] = values
    return Instances(concept, ids, made)


# --- functions and sources ---


def test_a_function_is_measured_or_looked_up() -> None:
    ontology = sound(
        '[functions.distance]\nof = ["person.position", "cart.place"]\nmeasure = "distance"\n'
        '[functions.minimum]\nof = ["person.id", "person.id"]\ntable = "minimums"\n'
        'keys = ["a", "b"]\nvalue = "metres"\nunit = "m"\nsymmetric = true\n'
    )
    distance, minimum = ontology.functions["distance"], ontology.functions["minimum"]
    assert (distance.measure, distance.unit) == ("distance", "m")
    assert minimum.of == (("person", "id"), ("person", "id"))
    assert minimum.lookup is not None
    assert (minimum.lookup.keys, minimum.lookup.symmetric) == (("a", "b"), True)


LOOKUP = '[functions.f]\nof = ["person.id", "person.id"]\n'


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('[functions.f]\nof = ["person.position"]\nmeasure = "distance"\n', "ontology.bad_of"),
        (
            '[functions.f]\nof = ["person.position", "person.status"]\nmeasure = "distance"\n',
            "ontology.wrong_type",
        ),
        (
            '[functions.f]\nof = ["person.id", "x.id"]\nmeasure = "distance"\n',
            "ontology.unknown_concept",
        ),
        ('[functions.f]\nof = ["person"]\nmeasure = "distance"\n', "ontology.bad_of"),
        ('[functions.f]\nof = "cart.place"\nmeasure = "nothing"\n', "measures.unknown"),
        ('[functions.f]\nof = "cart.place"\n', "ontology.bad_function"),
        (LOOKUP + 'table = "x"\nkeys = ["a", "b"]\nvalue = "v"\n', "ontology.unknown_table"),
        (LOOKUP + 'table = "minimums"\nkeys = ["a"]\nvalue = "v"\n', "ontology.bad_keys"),
        (LOOKUP + 'table = "minimums"\nkeys = ["a", "a"]\nvalue = "v"\n', "ontology.bad_keys"),
        (LOOKUP + 'table = "minimums"\nkeys = ["a", "b"]\n', "site.missing_key"),
        (
            LOOKUP + 'table = "minimums"\nkeys = ["a", "b"]\nvalue = "v"\nunit = "parrot"\n',
            "ontology.bad_unit",
        ),
        (
            '[functions.f]\nof = "person.position"\ntable = "minimums"\nkeys = "a"\nvalue = "v"\n',
            "ontology.wrong_type",
        ),
    ],
)
def test_a_faulty_function_is_left_out_with_the_reason(text: str, code: str) -> None:
    ontology, problems = read(text)
    assert [problem.code for problem in problems] == [code]
    assert problems[0].line > 0
    assert problems[0].hint
    assert ontology.functions == {}


def test_a_source_says_how_far_its_values_and_its_clock_hold() -> None:
    source = (
        '[sources.s]\nconcept = "cart"\nattribute = "place"\nkey = "k"\nvalue = ["x", "y"]\n'
        'stale_after = "2h"\nclock_uncertainty = "50ms"\n'
    )
    found = sound(source).sources["s"]
    assert (found.stale_after_ms, found.uncertainty_ms) == (7_200_000, 50)
    assert read(source.replace("2h", "0s"))[1][0].code == "site.bad_duration"


def test_the_identity_is_not_declared() -> None:
    _, problems = read('[concepts.x.attributes]\nid = "text"\n')
    assert [problem.code for problem in problems] == ["ontology.identity_declared"]


# --- specialised concepts ---


def test_a_specialised_concept_is_its_general_one_with_constraints() -> None:
    ontology = sound(KINDS)
    is_employee = Constraint("status", "=", "employee")
    assert resolve_kind(ontology, "employee") == Kind("employee", "person", (is_employee,))
    assert resolve_kind(ontology, "manager") == Kind(
        "manager", "person", (is_employee, Constraint("grade", "=", 5.0))
    )
    assert resolve_kind(ontology, "person") == Kind("person", "person")
    assert resolve_kind(ontology, "robot") is None
    assert "manager" in known_kinds(ontology)
    assert "employee" not in ontology.concepts


def test_attributes_and_sources_of_a_specialised_concept_are_its_general_ones() -> None:
    ontology = sound(
        KINDS + '[concepts.guest.attributes]\nhost = "text"\n'
        '[sources.s]\nconcept = "guest"\nattribute = "position"\nkey = "k"\nvalue = ["x", "y"]\n'
    )
    assert ontology.concepts["person"]["host"] == "text"
    assert ontology.sources["s"].concept == "person"


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ('[concepts.a]\nis = "b"\n[concepts.b]\nis = "a"\n', ["ontology.cycle"] * 2),
        ('[concepts.a]\nis = "a"\n', ["ontology.cycle"]),
        ('[concepts.a]\nis = "persn"\n', ["ontology.unknown_concept"]),
        ('[concepts.a]\nis = "person"\n', ["site.missing_key"]),
        ('[concepts.a]\nis = "person"\nwhere = {}\n', ["site.wrong_type"]),
        ('[concepts.a]\nis = "person"\nwhere = { status = 3 }\n', ["ontology.bad_where"]),
        ('[concepts.a]\nis = "person"\nwhere = { position = "x" }\n', ["ontology.bad_where"]),
        ('[concepts.a]\nis = "person"\nwhere = { stats = "x" }\n', ["ontology.unknown_attribute"]),
        ('[concepts.a]\nwhere = { status = "x" }\n', ["ontology.where_alone"]),
        (
            KINDS + '[concepts.a]\nis = "guest"\nwhere = { status = "x" }\n',
            ["ontology.contradiction"],
        ),
        (KINDS + '[concepts.guest.attributes]\ngrade = "text"\n', ["ontology.type_clash"]),
        (
            KINDS
            + '[sources.s]\nconcept = "person"\nattribute = "status"\nkey = "k"\nvalue = "v"\n',
            ["ontology.kind_by_events"] * 2,
        ),
    ],
)
def test_a_faulty_specialisation_is_refused_at_its_place(text: str, codes: list[str]) -> None:
    _, problems = read(text)
    assert [problem.code for problem in problems] == codes
    assert all(problem.line and problem.hint for problem in problems)


# --- groups ---


def test_a_group_of_one_general_concept_is_a_kind_known_by_a_column() -> None:
    ontology = sound(KINDS + '[groups.staff]\nof = ["employee", "guest"]\n')
    kind = resolve_kind(ontology, "staff")
    assert kind == Kind("staff", "person", (Constraint("is staff", "=", "yes"),))
    people = instances("person", ["1", "2", "3"], status=["guest", "other", None])
    completed = DerivedColumns(ontology).complete(people, lambda _: people)
    assert completed.columns["is staff"].tolist() == ["yes", "no", "no"]
    assert completed.columns["status"] is people.columns["status"]


def test_a_group_of_several_concepts_stands_in_relationships_only() -> None:
    ontology = sound(
        KINDS + '[groups.movable]\nof = ["employee", "cart"]\n[relationships.inside]\n'
        'between = [["person.position", "cart.place"], "room.area"]\nfunction = "inside"\n'
    )
    assert resolve_kind(ontology, "movable") is None
    assert "employee or cart" in why_no_kind(ontology, "movable")


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ('[groups.a]\nof = ["b"]\n[groups.b]\nof = ["a"]\n', ["ontology.cycle"] * 2),
        ('[groups.a]\nof = ["a"]\n', ["ontology.cycle"]),
        ('[groups.person]\nof = ["cart"]\n', ["ontology.duplicate_name"]),
        ('[groups.a]\nof = ["crt"]\n', ["ontology.unknown_concept"]),
        ("[groups.a]\nof = []\n", ["site.wrong_type"]),
        ("[groups.a]\n", ["site.missing_key"]),
        ('[groups.not]\nof = ["cart"]\n', ["ontology.bad_name"]),
    ],
)
def test_a_faulty_group_is_refused_at_its_place(text: str, codes: list[str]) -> None:
    ontology, problems = read(text)
    assert [problem.code for problem in problems] == codes
    assert all(problem.line and problem.hint for problem in problems)
    assert ontology.groups == {}


def test_groups_of_groups_cost_no_more_than_their_number() -> None:
    lines = ['[groups.a0]\nof = ["employee"]\n[groups.b0]\nof = ["guest"]\n']
    for n in range(1, 60):
        both = f'of = ["a{n - 1}", "b{n - 1}"]'
        lines.append(f"[groups.a{n}]\n{both}\n[groups.b{n}]\n{both}\n")
    ontology = sound(KINDS + "".join(lines))
    assert resolve_kind(ontology, "a59") is not None
    assert draw_ontology(ontology, (), title="deep").startswith("<svg")


# --- relationships of several concepts ---


def test_one_name_joins_several_pairs_of_concepts() -> None:
    ontology = sound(
        '[relationships."Is_Near"]\nfunction = "within"\n'
        'between = ["person.position", ["person.position", "cart.place"]]\n'
    )
    assert len(relationships_named(ontology, "is near")) == 2
    found = relationship_between(ontology, "Is_Near", "person", "cart")
    assert found is not None
    assert found.second == ("cart", "place")
    assert relationship_between(ontology, "Is_Near", "cart", "person") is None


@pytest.mark.parametrize(
    ("between", "code"),
    [
        ('[["person.status", "person.office"], "room.floor"]', "ontology.ambiguous"),
        ('[["person.status", "cart.place"], "room.floor"]', "ontology.wrong_type"),
        ('[[], "room.floor"]', "site.wrong_type"),
        ("[]", "ontology.bad_between"),
        ('"person.status"', "ontology.bad_between"),
        ('["person.status", ["room.floor", "room.flor"]]', "ontology.unknown_attribute"),
    ],
)
def test_faulty_ends_are_refused_at_their_place(between: str, code: str) -> None:
    ontology, problems = read(f'[relationships.r]\nbetween = {between}\nfunction = "same"\n')
    assert [problem.code for problem in problems] == [code]
    assert problems[0].line > 0
    assert ontology.relationships == {}


# --- containers ---

PART = '[containers."part of"]\nof = ["room in floor", "floor in building"]\n'


def test_a_container_relates_any_two_levels_by_the_tables() -> None:
    ontology = sound(PART)
    pairs = {(r.first[0], r.second[0]) for r in relationships_named(ontology, "part of")}
    assert pairs == {("room", "floor"), ("room", "building"), ("floor", "building")}
    known = {
        "room": instances("room", ["r", "s"], floor=["f", None]),
        "floor": instances("floor", ["f"], building=["b"]),
        "building": instances("building", ["b"]),
    }
    derived = DerivedColumns(ontology)
    rooms = derived.complete(known["room"], known.__getitem__)
    within = relationships_named(ontology, "part of")[0].first[1]
    assert rooms.columns[within].tolist() == ["floor/f\nbuilding/b", None]
    assert derived.complete(known["room"], known.__getitem__) is rooms
    known["floor"] = instances("floor", ["f"], building=["c"])
    again = derived.complete(known["room"], known.__getitem__)
    assert again.columns[within].tolist() == ["floor/f\nbuilding/c", None]


def test_a_concept_nests_in_itself_to_any_depth_and_circles_of_rows_end() -> None:
    ontology = sound(
        '[concepts.area.attributes]\narea = "text"\n[containers.in]\nof = ["area in area"]\n'
    )
    (relationship,) = relationships_named(ontology, "in")
    areas = instances("area", ["a", "b", "c", "x"], area=["b", "c", None, "x"])
    column = DerivedColumns(ontology).complete(areas, lambda _: areas).columns
    assert column[relationship.first[1]].tolist() == [
        "area/b\narea/c",
        "area/c",
        None,
        "area/x",
    ]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('of = ["room in floor", "floor.building in room"]', "ontology.cycle"),
        ('of = ["room floor"]', "ontology.bad_container"),
        ('of = ["room.area in floor"]', "ontology.wrong_type"),
        ('of = ["room in building"]', "ontology.unknown_attribute"),
        ('of = ["rom in floor"]', "ontology.unknown_concept"),
        ("of = []", "site.wrong_type"),
    ],
)
def test_a_faulty_container_is_refused_at_its_place(text: str, code: str) -> None:
    ontology, problems = read(f"[containers.c]\n{text}\n")
    assert [problem.code for problem in problems] == [code]
    assert problems[0].hint
    assert ontology.containers == {}


def test_a_container_and_a_relationship_do_not_share_a_name() -> None:
    same = '[relationships."part of"]\nbetween = ["room.floor", "floor.id"]\nfunction = "same"\n'
    _, problems = read(same + PART)
    assert [problem.code for problem in problems] == ["ontology.duplicate_name"]


# --- a changed ontology ---

EVENTS = '[sources.s]\nconcept = "person"\nattribute = "position"\nkey = "k"\nvalue = ["x", "y"]\n'
INSIDE = '[relationships.inside]\nbetween = ["person.position", "room.area"]\nfunction = "inside"\n'


def policy(name: str, kind: str) -> str:
    return f"concepts\n  {kind} A\n  room R\nconditions\n  A is inside R\nactions\n  tell {name}\n"


def faults(text: str, ontology: Ontology) -> list[str]:
    try:
        compile_policy(text, name="p", ontology=ontology, window_ms=5_000)
    except PolicyError as error:
        return [problem.code for problem in error.problems]
    return []


def test_a_changed_ontology_breaks_the_policies_on_kinds_it_no_longer_has() -> None:
    old, new = sound(KINDS + EVENTS + INSIDE), sound(EVENTS + INSIDE)
    assert (faults(policy("kept", "person"), old), faults(policy("kept", "person"), new)) == (
        [],
        [],
    )
    assert faults(policy("broken", "employee"), old) == []
    assert faults(policy("broken", "employee"), new) == ["policy.unknown_concept"]
