"""Concepts of a site as types of root, and readings as values of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.schema import PARTS, TYPE_NAMES
from rapport.mediation.concepts import (
    ConceptAttribute,
    canonical_model,
    canonical_value,
    reading_parts,
    unit_type,
)
from rapport.mediation.interpretations.type_changes import load_all
from rapport.mediation.rejections import RejectedValue

STATION = {
    "temperature": ConceptAttribute("number", "degC"),
    "count": ConceptAttribute("number"),
    "name": ConceptAttribute("text"),
    "works": ConceptAttribute("boolean"),
    "place": ConceptAttribute("point"),
    "area": ConceptAttribute("rectangle"),
}


def test_a_concept_is_a_type_whose_numbers_are_of_their_unit():
    root, problems = canonical_model({"station": STATION})
    assert not problems
    interpretations, _ = load_all([root])
    types = interpretations.checked("root").scope.types
    attributes = types.attributes("station")
    assert {name: one.type for name, one in attributes.items()} == {
        "key": "text",
        "time": "Time",
        "temperature": "degC",
        "count": "number",
        "name": "text",
        "works": "boolean",
        "place": "Point",
        "area": "Rectangle",
    }
    assert [name for name, one in attributes.items() if not one.optional] == ["key"]
    assert not types.is_subtype("degC", "number")


def test_a_position_on_the_globe_is_of_degrees_and_an_area_is_a_text():
    truck = {"place": ConceptAttribute("geo_point"), "district": ConceptAttribute("geo_area")}
    root, problems = canonical_model({"truck": truck})
    assert not problems
    interpretations, _ = load_all([root])
    types = interpretations.checked("root").scope.types
    found = {name: one.type for name, one in types.attributes("truck").items()}
    assert (found["place"], found["district"]) == ("GeoPoint", "text")
    parts = {name: one.type for name, one in types.attributes("GeoPoint").items()}
    assert parts == {"lon": "deg", "lat": "deg"}
    plain, _ = canonical_model({"station": STATION})
    assert "GeoPoint" not in {one.name for one in plain.types}


def test_a_unit_is_one_type_by_whatever_name_it_is_called():
    assert unit_type("Cel") == unit_type("degC")


@pytest.mark.parametrize(
    ("concept", "attribute"), [("Point", "x"), ("text", "x"), ("car", "key"), ("car", "time")]
)
def test_a_reserved_name_is_reported_and_affects_no_other_concept(concept, attribute):
    root, (problem,) = canonical_model(
        {concept: {attribute: ConceptAttribute("text")}, "station": STATION}
    )
    assert (problem.code, problem.severity) == ("concept.reserved", "warning")
    assert concept in problem.message
    interpretations, _ = load_all([root])
    assert "station" in interpretations.checked("root").scope.types.complex_names


def _parts(kind):
    texts = dict.fromkeys(("text", "area", "geo_area"), st.text())
    one = {**texts, "boolean": st.booleans()}.get(
        kind, st.floats(allow_nan=False, allow_infinity=False) | st.integers()
    )
    return st.tuples(
        st.just(kind), st.lists(one, min_size=len(PARTS[kind]), max_size=len(PARTS[kind]))
    )


@given(st.sampled_from(TYPE_NAMES).flatmap(_parts))
def test_a_reading_is_found_again_in_the_value_it_became(drawn):
    kind, parts = drawn
    value = canonical_value("a", kind, {"key": "k", "value": parts}, 7)
    assert (value["key"], value["time"]) == ("k", 7)
    assert reading_parts(value["a"], kind, "c.a") == parts


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("number", "1"),
        ("number", True),
        ("number", None),
        ("text", 1),
        ("boolean", 1),
        ("point", {"x": 1.0}),
        ("point", [1.0, 2.0]),
        ("rectangle", {"x1": 1, "y1": 2, "x2": "3", "y2": 4}),
    ],
)
def test_a_value_of_another_kind_is_rejected(kind, value):
    with pytest.raises(RejectedValue) as caught:
        reading_parts(value, kind, "c.a")
    assert caught.value.code == "value.wrong_kind"
