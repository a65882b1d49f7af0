"""RDF and OWL: what an ontology says comes back from Turtle and RDF/XML; foreign files are read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rdflib import OWL, RDF, RDFS, Graph, Literal, URIRef

from rapport.core.errors import InvalidInput
from rapport.core.schema import TYPE_NAMES
from rapport.kernel.toml import TomlFile
from rapport.policy.config.loader import ontology_from_site
from rapport.policy.ontology import Ontology
from rapport.policy.rdf import (
    GraphSyntaxError,
    from_graph,
    read_rdfxml,
    read_turtle,
    site_text,
    to_graph,
    write_graph,
)
from support.examples import examples

SITE = """
[concepts.person.attributes]
status = "text"
position = "point"
level = "number"
vip = "boolean"
room = "text"
[concepts.person.units]
level = "m"
[concepts.employee]
is = "person"
where = { status = "employee", vip = true }
[concepts.guest]
is = "person"
where = { status = "it's a \\"guest\\"", level = 2.5 }
[concepts.room.attributes]
area = "rectangle"
floor = "text"
[concepts.cart.attributes]
place = "point"
[concepts.floor.attributes]
[groups.staff]
of = ["employee", "guest"]
[groups.movable]
of = ["staff", "cart"]
[relationships.inside]
between = [["person.position", "cart.place"], "room.area"]
function = "inside"
[relationships."works in"]
between = ["person.room", "room.id"]
function = "same"
[containers."part of"]
of = ["room in floor"]
"""


def loaded(text: str) -> Ontology:
    ontology, problems = ontology_from_site(TomlFile.parse(text.encode(), name="site.toml"))
    assert [problem for problem in problems if problem.severity == "error"] == []
    return ontology


def fitting(ontology: Ontology) -> tuple[object, ...]:
    """The part that RDF can carry."""
    units = {name: units for name, units in ontology.units.items() if units}
    relationships = sorted(ontology.relationships.items())
    return (
        ontology.concepts,
        units,
        relationships,
        ontology.kinds,
        ontology.groups,
        ontology.parents,
        ontology.containers,
        ontology.derived,
    )


def through_turtle(graph: Graph) -> Graph:
    return read_turtle(write_graph(graph, "turtle"))


def through_xml(graph: Graph) -> Graph:
    return read_rdfxml(write_graph(graph, "rdfxml").encode())


@pytest.mark.parametrize("way", [through_turtle, through_xml])
def test_an_ontology_comes_back_the_same(way) -> None:
    ontology = loaded(SITE)
    graph, left_out = to_graph(ontology)
    assert left_out == []
    found = from_graph(way(graph))
    assert found.notes == []
    assert fitting(loaded(site_text(found))) == fitting(ontology)


NAMES = st.sampled_from(["a", "Größe", "room", "x_1", "key-card", "Ω", "floor", "é"])
KINDS = st.sampled_from(TYPE_NAMES)


@st.composite
def sites(draw: st.DrawFn) -> str:
    concepts = draw(
        st.dictionaries(NAMES, st.dictionaries(NAMES, KINDS, max_size=4), min_size=1, max_size=4)
    )
    lines = []
    for name, attributes in concepts.items():
        lines.append(f'[concepts."{name}".attributes]')
        lines += [f'"{key}" = "{kind}"' for key, kind in attributes.items()]
        texts = [key for key, kind in attributes.items() if kind == "text"]
        if texts:
            value = draw(st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"])))
            quoted = value.replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'[concepts."{name}-kind"]\nis = "{name}"')
            lines.append(f'where = {{ "{texts[0]}" = "{quoted}" }}')
            lines.append(f'[groups."{name}-all"]\nof = ["{name}-kind", "{name}"]')
            end = f"{name}.{texts[0]}"
            lines.append(f'[relationships."same {name}"]\nbetween = ["{end}", "{name}.id"]')
            lines.append('function = "same"')
            lines.append(f'[containers."in {name}"]\nof = ["{end} in {name}"]')
        numbers = [key for key, kind in attributes.items() if kind == "number"]
        if numbers:
            lines.append(f'[concepts."{name}".units]\n"{numbers[0]}" = "degC"')
    return "\n".join(lines)


@settings(max_examples=examples(40))
@given(sites(), st.sampled_from([through_turtle, through_xml]))
def test_any_ontology_comes_back_the_same(text: str, way) -> None:
    ontology = loaded(text)
    assert fitting(loaded(site_text(from_graph(way(to_graph(ontology)[0]))))) == fitting(ontology)


FOREIGN = """
@prefix : <http://example.org/plant#> .
@prefix owl: <http://www.w3.org/2002/07/owl#> .
PREFIX rdfs: <http://www.w3.org/2000/01/rdf-schema#>
@prefix xsd: <http://www.w3.org/2001/XMLSchema#> .

<http://example.org/plant> a owl:Ontology ; rdfs:comment '''two
lines''' .
:Machine a owl:Class ; rdfs:label "Maschine"@de , "Machine"@en ; owl:disjointWith :Hall .
:Hall a owl:Class ; rdfs:subClassOf owl:Thing .
:Press a owl:Class ; rdfs:subClassOf :Machine,
    [ a owl:Restriction ; owl:onProperty :weight ; owl:someValuesFrom xsd:int ] .
:weight a owl:DatatypeProperty ; rdfs:domain :Machine ; rdfs:range xsd:decimal .
:made a owl:DatatypeProperty ; rdfs:domain :Machine ; rdfs:range xsd:dateTime .
:stands a owl:ObjectProperty ; rdfs:domain :Machine ; rdfs:range :Hall .
:p1 a :Press ; :weight 12.5 ; :weight -3 , 1e3 ; :ok true .
[] a :Hall .
"""


def test_a_foreign_ontology_gives_a_site_to_edit_and_says_what_did_not_fit() -> None:
    found = from_graph(read_turtle(FOREIGN))
    assert list(found.concepts) == ["Machine", "Hall", "Press"]
    assert found.concepts["Machine"].attributes == {"weight": "number"}
    assert found.concepts["Press"].above == "Machine"
    text = site_text(found)
    assert "# say which Machine is one" in text
    assert "# [relationships.stands]" in text
    TomlFile.parse(text.encode(), name="site.toml")
    notes = "\n".join(found.notes)
    for part in ("'made'", "restriction of 'Press'", "'stands'", "disjointWith", "of type"):
        assert part in notes


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (":a a :b .", (1, 1), "not bound"),
        ("<a> <b>", (1, 8), "ends within a statement"),
        ("<a> <b> <c>", (1, 12), "ends within a statement"),
        ("<a>\n <b> 'c\n' .", (2, 8), "newline found"),
        ("<a> <b> " + "(" * 20_000, (1, 1), "nested too deep"),
        ("@prefix x <y> .", (1, 8), "expected qname"),
        (r"<a> <b> '\UFFFFFFFF' .", (1, 12), "bad string literal"),
    ],
)
def test_what_is_no_turtle_is_refused_at_its_place(
    text: str, place: tuple[int, int], message: str
) -> None:
    with pytest.raises(GraphSyntaxError) as caught:
        read_turtle(text, name="x.ttl")
    assert (caught.value.problem.line, caught.value.problem.column) == place
    assert message in caught.value.problem.message


@given(st.text(alphabet="<>ab:.;,[]()'\"\\ua1 \n@^_#e-", max_size=40))
def test_any_text_is_a_graph_or_refused_with_its_place(text: str) -> None:
    try:
        read_turtle(text)
    except GraphSyntaxError as error:
        assert error.problem.line >= 1
        assert error.problem.message


def test_rdf_xml_of_other_tools_is_read() -> None:
    raw = b"""<?xml version="1.0"?>
    <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xml:base="http://e.org/p"
      xmlns:rdfs="http://www.w3.org/2000/01/rdf-schema#"
      xmlns:owl="http://www.w3.org/2002/07/owl#">
      <owl:Class rdf:ID="Hall" rdfs:label="hall"/>
      <owl:Class rdf:about="#Any"><owl:unionOf rdf:parseType="Collection">
        <rdf:Description rdf:about="#Hall"/></owl:unionOf></owl:Class>
      <owl:DatatypeProperty rdf:about="#size"><rdfs:domain rdf:resource="#Hall"/>
        <rdfs:range rdf:resource="http://www.w3.org/2001/XMLSchema#int"/></owl:DatatypeProperty>
    </rdf:RDF>"""
    graph = read_rdfxml(raw)
    assert (URIRef("http://e.org/p#Hall"), RDF.type, OWL.Class) in graph
    found = from_graph(graph)
    assert found.concepts["hall"].attributes == {"size": "number"}
    assert found.groups == {"Any": ["hall"]}


@pytest.mark.parametrize(
    "raw",
    [
        b'<!DOCTYPE x [<!ENTITY a "b">]><x/>',
        b"<plain/>",
        b'<r:x xmlns:r="urn:r"><r:y><r:a/><r:b/></r:y></r:x>',
        b"<x",
    ],
)
def test_xml_that_is_no_safe_rdf_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidInput):
        read_rdfxml(raw)


def test_a_list_that_returns_to_itself_ends() -> None:
    graph = Graph()
    group, head = URIRef("http://e/g"), URIRef("http://e/l")
    graph.add((group, RDF.type, OWL.Class))
    graph.add((group, OWL.unionOf, head))
    graph.add((head, RDF.rest, head))
    assert from_graph(graph).groups == {"g": []}


def test_equal_ontologies_give_equal_files() -> None:
    for format in ("turtle", "rdfxml"):
        first, second = (write_graph(to_graph(loaded(SITE))[0], format) for _ in range(2))
        assert first == second


def test_names_that_no_policy_can_write_are_made_fit() -> None:
    graph, thing = Graph(), URIRef("http://e/3%20D")
    graph.add((thing, RDF.type, OWL.Class))
    graph.add((thing, RDFS.label, Literal("not")))
    found = from_graph(graph)
    assert list(found.concepts) == ["the_3_D"]
    assert len(found.notes) == 1


def test_areas_and_positions_on_the_globe_come_back_from_owl() -> None:
    text = (
        '[concepts.truck.attributes]\nplace = "geo_point"\n'
        '[concepts.zone.attributes]\narea = "geo_area"\nfloor = "area"\n'
        '[relationships.inside]\nbetween = ["truck.place", "zone.area"]\nfunction = "inside"\n'
    )
    ontology = loaded(text)
    assert ontology.relationships["inside"].function == "inside_geo_area"
    again = loaded(site_text(from_graph(through_turtle(to_graph(ontology)[0]))))
    assert fitting(again) == fitting(ontology)
