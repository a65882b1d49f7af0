"""Why a situation was what it was at a time. [SI-12]"""

from __future__ import annotations

from rapport.core.detection import NamedValue
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.explain.situation_evidence import situation_at
from tests.policy.engine.situation_site import FREEZER
from tests.policy.engine.test_value_record import SITE, readings

S = 1_000


def evidence(text, rows, time, station="s1"):
    compiled = compile_policy(text, name="freezer", ontology=SITE.ontology, window_ms=5 * S)
    batch = readings(sorted(rows))
    return situation_at(compiled.plan, SITE.ontology, SITE.tables, batch, {"F": station}, time)


ROWS = [(n * S, f"r{n:02}", "s1", value) for n, value in enumerate((-20.0, -14.0, -13.0, -12.0))]


def test_each_atom_has_its_value_since_when_it_holds_and_the_distance_to_the_limit():
    found = evidence(FREEZER, ROWS, 3 * S)
    warm, silent = found.atoms
    assert found.truth == "true"
    assert (warm.atom.truth, warm.since, warm.atom.distance) == ("true", 1 * S, 3.0)
    assert warm.atom.values == {"temperature of F": NamedValue(-12.0, "degC")}
    assert silent.atom.truth == "false"


def test_a_condition_that_has_to_last_says_since_when_it_has():
    text = FREEZER.replace("above -15 degC OR", "above -15 degC for 2 s OR")
    found = evidence(text, ROWS, 3 * S)
    assert (found.atoms[0].atom.text, found.atoms[0].since) == (
        "temperature of F > -15 for 2s",
        3 * S,
    )
    assert evidence(text, ROWS, 2 * S).truth != "true"


def test_an_aggregate_names_the_readings_that_it_had():
    text = FREEZER.replace(
        "temperature of F above", "mean of temperature of F in the last 2 s above"
    )
    found = evidence(text, ROWS, 3 * S)
    [one] = found.aggregates
    assert (one.count, one.readings) == (2, ((2 * S, "r02"), (3 * S, "r03")))
    [value] = found.atoms[0].atom.values.values()
    assert value == NamedValue(-12.5, "degC")


def test_a_value_that_is_missing_is_named():
    found = evidence(FREEZER, [*ROWS, (3 * S, "x", "s2", 1.0)], 40 * S)
    assert found.atoms[0].atom.truth == "unknown"
    assert found.atoms[0].atom.missing == ("temperature of F",)
