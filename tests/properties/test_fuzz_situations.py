"""Every policy with a situation either has a plan that can be stored, or faults with place and
hint. [SI-1 to SI-8]"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, event, given, settings

from rapport.core.errors import PolicyError
from rapport.policy.compiler.compile import compile_situation
from rapport.policy.compiler.plan_text import plan_text
from rapport.policy.language.situation_printer import print_situation
from rapport.policy.language.situation_tree import SituationTree
from rapport.policy.ontology import Ontology, PushSource, Relationship, SiteFunction
from rapport.policy.plan import decode_plan, encode_plan
from support.examples import examples
from tests.support.situation_trees import situation_trees

pytestmark = pytest.mark.slow

PLACES, TEXTS = ("person", "position"), ("person", "status")
HEARD = ("temperature", "humidity", "pm10", "count", "position")
ONTOLOGY = Ontology(
    concepts={
        "person": {
            **dict.fromkeys(("temperature", "humidity", "pm10", "count"), "number"),
            "time": "text",
            "no": "boolean",
            "mean": "number",
            "status": "text",
            "position": "point",
        }
    },
    relationships={
        "near": Relationship("near", TEXTS, TEXTS, "same"),
        "inside": Relationship("inside", TEXTS, TEXTS, "same"),
        "within": Relationship("within", PLACES, PLACES, "within"),
    },
    sources={
        name: PushSource(name=name, concept="person", attribute=name, key="key", value=("value",))
        for name in HEARD
    },
    units={"person": {"temperature": "degC", "humidity": "%", "pm10": "ug/m3"}},
    functions={"distance": SiteFunction(name="distance", of=(PLACES, PLACES), measure="distance")},
    zone="Europe/Berlin",
    day_tables=("holidays",),
)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(situation_trees())
def test_a_random_situation_compiles_or_has_faults_with_place_and_hint(
    tree: SituationTree,
) -> None:
    text = print_situation(tree)
    try:
        compiled = compile_situation(text, name="random", ontology=ONTOLOGY)
    except PolicyError as error:
        event("refused")
        assert all(one.line and one.column and one.hint for one in error.problems), text
        return
    event("compiled")
    plan = compiled.plan
    assert decode_plan(encode_plan(plan)) == plan
    assert decode_plan(encode_plan(plan)).version() == plan.version()
    assert plan_text(plan).startswith("policy random")
    assert set(plan.streams()) <= {f"person.{name}" for name in HEARD}
    assert plan.table_attributes() <= {
        ("person", name) for name in ("time", "no", "mean", "status")
    }
