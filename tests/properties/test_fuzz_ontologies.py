"""Ontologies with any values: always an ontology and problems, never an exception or a hang.
[PO-1]
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.kernel.toml import TomlFile
from rapport.policy.config.loader import ontology_from_site
from rapport.policy.ontology import relationships_named, resolve_kind
from rapport.policy.ontology_view import concept_rows, draw_ontology, kind_rows, relationship_rows
from rapport.policy.rdf import read_turtle, to_graph, write_graph

pytestmark = pytest.mark.slow

TABLES = ["concepts", "groups", "containers", "relationships", "functions", "sources", "tables"]
NAMES = ["a", "b", "c", "id", "not", "", "x y", "part of"]
KEYS = [
    *["is", "where", "attributes", "units", "of", "between", "function", "measure", "table"],
    *["keys", "value", "unit", "symmetric", "concept", "attribute", "key", "stale_after"],
    *["clock_uncertainty", "period", "interpretation", "columns", "into"],
]
WORDS = st.sampled_from(
    [
        *["a", "b", "c", "a.a", "a.b", "b.a", "c.id", "a in b", "b in a", "a.b in c", "a in a"],
        *["text", "number", "point", "rectangle", "boolean", "same", "inside", "within", "m"],
        *["degC", "distance", "x:y", ".", "a.", ".a", "in", "", "2h", "\x00", "contained"],
    ]
)
SCALARS = WORDS | st.integers(-(2**70), 2**70) | st.floats() | st.booleans() | st.dates()
LISTS = st.lists(WORDS | st.lists(WORDS, max_size=3) | SCALARS, max_size=3)
INNER = st.dictionaries(st.sampled_from(NAMES), SCALARS | LISTS, max_size=3)
ENTRY = st.dictionaries(st.sampled_from(KEYS), WORDS | LISTS | SCALARS | INNER, max_size=5)
TABLE = st.dictionaries(st.sampled_from(NAMES), ENTRY | SCALARS, max_size=4)
SITES = st.dictionaries(st.sampled_from(TABLES), TABLE | SCALARS)

KIND = st.fixed_dictionaries(
    {"is": st.sampled_from("abcdef"), "where": st.just({"t": "x"}), "attributes": st.just({})}
)
ROOT = st.just({"attributes": {"t": "text", "a": "text", "b": "text", "p": "point"}})
LIKELY = st.fixed_dictionaries(
    {
        "concepts": st.dictionaries(st.sampled_from("abcdef"), ROOT | KIND, min_size=1),
        "groups": st.dictionaries(
            st.sampled_from(["g", "h", "i", "a"]),
            st.fixed_dictionaries({"of": st.lists(st.sampled_from("abcdefghi"), max_size=4)}),
        ),
        "containers": st.dictionaries(
            st.sampled_from(["in", "part of", "r"]),
            st.fixed_dictionaries(
                {"of": st.lists(st.sampled_from(["a in b", "b in a", "a.t in c", "c.t in a"]))}
            ),
        ),
        "relationships": st.dictionaries(
            st.sampled_from(["r", "s"]),
            st.fixed_dictionaries(
                {
                    "between": st.lists(
                        st.sampled_from(["a.t", "g.t", "h.id", "b.t"]), min_size=2, max_size=2
                    ),
                    "function": st.sampled_from(["same", "inside"]),
                }
            ),
        ),
    }
)


def look_at_everything(values: dict[str, Any]) -> None:
    ontology, problems = ontology_from_site(TomlFile("site.toml", "", values), trusted=False)
    for problem in problems:
        assert problem.code
        assert problem.message
    for name, kind in ontology.kinds.items():
        assert resolve_kind(ontology, name) == kind
        assert kind.concept in ontology.concepts
    for each in ontology.relationships.values():
        assert each in relationships_named(ontology, each.name)
    concept_rows(ontology, ())
    kind_rows(ontology)
    relationship_rows(ontology)
    draw_ontology(ontology, (), title="any")
    read_turtle(write_graph(to_graph(ontology)[0], "turtle", base="urn:x:"))


@given(SITES)
def test_any_values_give_an_ontology_and_problems(values: dict[str, Any]) -> None:
    look_at_everything(values)


@given(LIKELY)
def test_any_structure_gives_an_ontology_and_problems(values: dict[str, Any]) -> None:
    look_at_everything(values)
