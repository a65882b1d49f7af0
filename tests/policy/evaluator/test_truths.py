"""Truths, and properties with units, mean the same wherever and however they are said. [PO-3,
PO-7]"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from rapport.core.detection import Detection
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.runner.local import LocalRunner
from rapport.tables.instances import Instances
from support.judge.occurrences import Reading
from support.judge.trials import Trial, judged, outcome_lines, run_locally
from support.varied.worlds import Pull, readings_batch


def source(attribute: str) -> PushSource:
    return PushSource(name=attribute, concept="door", attribute=attribute, key="k", value=("v",))


ONTOLOGY = Ontology(
    concepts={"door": {"vip": "boolean", "height": "number", "armed": "boolean", "heat": "number"}},
    relationships={},
    sources={each: source(each) for each in ("armed", "heat")},
    units={"door": {"height": "m", "heat": "degC"}},
)
VIP = np.empty(4, object)
VIP[:] = (True, False, None, True)
PULL = Pull(
    {
        "door": Instances(
            "door",
            ["yes", "no", "unknown", "armed"],
            {"vip": VIP, "height": np.array([2.0, 2.5, np.nan, 3.0])},
        )
    }
)


def readings(*said: tuple[str, str, object]) -> tuple[Reading, ...]:
    """(attribute, door, value), one after the other."""
    return tuple(
        Reading(time, f"e{time}", f"door.{attribute}", key, (value,))
        for time, (attribute, key, value) in enumerate(said)
    )


HEARD = readings(
    ("heat", "yes", 40.0),
    ("heat", "no", 40.0),
    ("heat", "unknown", 40.0),
    ("heat", "stranger", 40.0),
)
ARMED = readings(("armed", "yes", True), ("armed", "no", False), ("armed", "unknown", True))


def policy(properties: str, condition: str) -> str:
    return f"concepts\n  door D {properties}\nconditions\n  {condition}\nactions\n  look\n"


def found(text: str, heard: Iterable[Reading]) -> list[str]:
    """The doors that evaluator and local runner agree on."""
    trial = Trial(text=text, ontology=ONTOLOGY, pull=PULL, readings=tuple(heard), window_ms=100)
    lines = outcome_lines(judged(trial))
    for batch in (0, 1):
        assert outcome_lines(run_locally(trial, batch=batch)) == lines
    return [line.split("D=")[1].split(":")[0] for line in lines]


TRUE = ("vip=true", "vip='yes'", 'vip = "True"', "vip!=false", "vip is true", "vip is not 'no'")
FALSE = ("vip=false", "vip='no'", "vip!=true", "vip is not true", "vip is 'false'")


@pytest.mark.parametrize("said", TRUE)
def test_a_property_that_is_true_holds_of_those_that_are_and_of_nothing_missing(said: str) -> None:
    assert found(policy(f"({said})", "heat of D above 30 degC"), HEARD) == ["yes"]


@pytest.mark.parametrize("said", FALSE)
def test_a_property_that_is_false_holds_of_those_that_are_not(said: str) -> None:
    assert found(policy(f"({said})", "heat of D above 30 degC"), HEARD) == ["no"]


@pytest.mark.parametrize("said", TRUE)
def test_a_comparison_of_a_table_s_truth_says_the_same(said: str) -> None:
    compared = said.replace("vip", "vip of D")
    text = policy("", f"heat of D above 30 degC\n  {compared}")
    assert found(text, HEARD) == ["yes"]


@pytest.mark.parametrize("said", ["is true", "is 'yes'", "= true", "is not false", "!= 'no'"])
def test_a_reading_that_is_true_is_found_however_it_is_said(said: str) -> None:
    assert found(policy("", f"armed of D {said}"), ARMED) == ["yes", "unknown"]


@pytest.mark.parametrize("said", ["is false", "is not true", "!= 'yes'"])
def test_a_reading_that_is_false_is_found_however_it_is_said(said: str) -> None:
    assert found(policy("", f"armed of D {said}"), ARMED) == ["no"]


def test_two_truths_are_compared_with_each_other() -> None:
    assert found(policy("", "armed of D = vip of D"), ARMED) == ["yes", "no"]
    assert found(policy("", "armed of D is true for 50 ms"), ARMED) == ["yes", "unknown"]


def test_policies_that_differ_only_in_a_truth_are_distinguished_when_they_run_together() -> None:
    plans = [
        compile_policy(
            policy(f"({said})", "heat of D above 30 degC"),
            name=name,
            ontology=ONTOLOGY,
            window_ms=100,
        ).plan
        for name, said in (("a", "vip=true"), ("b", "vip=false"), ("c", "vip='yes'"))
    ]
    runner = LocalRunner(plans, PULL, lateness_ms=0, sources=ONTOLOGY.sources)
    told: list[Detection] = list(runner.feed(readings_batch(HEARD, ONTOLOGY)))
    told += runner.finish()
    assert sorted((one.policy, one.bindings["D"]) for one in told) == [
        ("a", "yes"),
        ("b", "no"),
        ("c", "yes"),
    ]


def codes(properties: str) -> set[str]:
    text = policy(properties, "heat of D above 30 degC")
    compiled = compile_policy(text, name="p", ontology=ONTOLOGY, window_ms=100)
    return {problem.code for problem in compiled.problems}


def test_truths_that_exclude_each_other_are_warned_of_and_others_are_not() -> None:
    assert "policy.never_satisfied" in codes("(vip=true vip='no')")
    assert "policy.never_satisfied" in codes("(vip is true, vip is not 'yes')")
    assert not codes("(vip=true vip!='no' vip='yes')")


# --- properties with units ---


@pytest.mark.parametrize(
    "said",
    [
        "(height > 2 m)",
        "(height above 200 cm)",
        "(height at least 2.0001 m)",
        "(height is not at most 0.002 km)",
        "with property height over 2m",
    ],
)
def test_a_property_is_compared_in_whatever_unit_it_is_said(said: str) -> None:
    assert found(policy(said, "heat of D above 30 degC"), HEARD) == ["no"]


def test_a_property_in_another_unit_is_the_same_number_in_the_plan() -> None:
    plans = [
        compile_policy(
            policy(f"(height>{said})", "heat of D above 30 degC"),
            name="p",
            ontology=ONTOLOGY,
            window_ms=100,
        ).plan
        for said in ("2 m", "200 cm", "2000 mm", "0.002 km")
    ]
    assert {plan.terms[0].first.constraints[0].value for plan in plans} == {2.0}
