"""Why a situation was what it was at a time. [SI-12]"""

from __future__ import annotations

from rapport.core.detection import NamedValue
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.explain.situation_evidence import situation_at
from rapport.policy.explain.situation_wording import evidence_lines
from tests.policy.engine.situation_site import FREEZER
from tests.policy.engine.test_value_record import SITE, readings

S = 1_000


def evidence(text, rows, time, station="s1", settled=None):
    compiled = compile_policy(text, name="freezer", ontology=SITE.ontology, window_ms=5 * S)
    batch = readings(sorted(rows))
    given = (compiled.plan, SITE.ontology, SITE.tables, batch, {"F": station}, time)
    return situation_at(*given, settled=settled)


ROWS = [(n * S, f"r{n:02}", "s1", value) for n, value in enumerate((-20.0, -14.0, -13.0, -12.0))]


def test_each_atom_has_its_value_since_when_it_holds_and_the_distance_to_the_limit():
    found = evidence(FREEZER, ROWS, 3 * S)
    warm, silent = found.atoms
    assert found.truth == "true"
    assert (warm.atom.truth, warm.since, warm.atom.distance) == ("true", 1 * S, 3.0)
    assert warm.atom.unit == "K"  # a distance of temperatures is not a temperature
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


def test_what_was_true_before_the_readings_says_no_wrong_since():
    rows = [(n * S, f"r{n:02}", "s1", -12.0) for n in range(1, 9)]
    [warm, _silent] = evidence(FREEZER, rows, 8 * S).atoms
    assert warm.since == 1 * S
    cut = evidence(FREEZER, rows[4:], 8 * S, settled=6 * S)
    assert (cut.atoms[0].since, cut.looked_from) == (None, 6 * S)
    assert cut.lacks_since()
    [line, *_] = evidence_lines(cut)
    assert line.endswith(": -12 degC, 3 K above, since 1970-01-01T00:00:06.000Z or longer")


ALONE = FREEZER.replace(
    "temperature of F above -15 degC OR no temperature of F for 30 min",
    "at least 2 station B with (temperature of B above -15 degC AND "
    "temperature of B above temperature of F)",
)


def test_a_quantifier_shows_how_many_count_and_which_with_their_values():
    rows = [(n, f"r{n}", f"s{n}", -20.0 + 2 * n) for n in range(1, 10)]
    found = evidence(ALONE, rows, 10)
    [one] = found.atoms
    assert (one.atom.truth, one.atom.count) == ("true", 7)
    assert [each.id for each in one.atom.instances] == ["s3", "s4", "s5", "s6", "s7"]
    first = one.atom.instances[0].atoms[0]
    assert (first.text, first.distance, first.unit) == ("temperature of B > -15", 1.0, "K")
    assert one.atom.values == {"temperature of F": NamedValue(-18.0, "degC")}
    lines = list(evidence_lines(found))
    assert lines[0].startswith("at least 2 station B with (temperature of B > -15 and ")
    assert "7 counted (s3, s4, s5, s6, s7, ...)" in lines[0]
    assert lines[1:3] == ["  s3:", "    temperature of B > -15 is true: -14 degC, 1 K above"]


def test_a_quantifier_that_is_unknown_names_the_value_that_is_missing():
    rows = [(39 * S + n, f"r{n}", f"s{n}", -10.0) for n in range(2, 5)]
    found = evidence(ALONE, [(0, "r1", "s1", -18.0), *rows], 40 * S)
    assert found.atoms[0].atom.truth == "unknown"
    assert found.atoms[0].atom.missing == ("temperature of F",)
