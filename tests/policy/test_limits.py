"""Limits of policies, as curves show them."""

from __future__ import annotations

import pytest

from rapport.core.schema import AttributeType
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.limits import limits_of
from rapport.policy.ontology import Ontology, PushSource

ATTRIBUTES: dict[str, AttributeType] = {"temperature": "number", "humidity": "number"}
ONTOLOGY = Ontology(
    concepts={"freezer": ATTRIBUTES, "door": {"contact": "text"}},
    relationships={},
    sources={
        name: PushSource(name=name, concept="freezer", attribute=name, key="freezer", value=(name,))
        for name in ATTRIBUTES
    },
    units={"freezer": {"temperature": "degC", "humidity": "%"}},
)


@pytest.mark.parametrize(
    ("condition", "limits"),
    [
        ("temperature of F above -12 degC", [(">", -12.0)]),
        ("temperature of F above -12 degC for 10 min", [(">", -12.0)]),
        ("temperature of F below 14 degF", [("<", -10.0)]),
        ("humidity of F above 90 %", []),
        (
            "temperature of F above -12 degC OR temperature of F below -30 degC",
            [(">", -12), ("<", -30)],
        ),
    ],
)
@pytest.mark.parametrize("heading", ["conditions", "situation"])
def test_the_limits_of_a_policy_are_the_constants_in_canonical_units(
    condition: str, limits: list[tuple[str, float]], heading: str
) -> None:
    text = f"concepts\n  freezer F\n{heading}\n  {condition}\nactions\n  note\n"
    plan = compile_policy(text, name="warm", ontology=ONTOLOGY, window_ms=60_000).plan
    found = limits_of(plan, "freezer", "temperature")
    assert [(one.operator, pytest.approx(one.value)) for one in found] == limits
    assert {one.policy for one in found} <= {"warm"}
    assert limits_of(plan, "door", "temperature") == []
