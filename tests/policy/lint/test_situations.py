"""Lint of situations, and of conditions that mean situations."""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.core.errors import Problem
from rapport.kernel.toml import TomlFile
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.config.loader import ontology_from_site
from rapport.policy.ontology import Ontology

SITE = """
[concepts.station.attributes]
temperature = "number"
humidity = "number"
region = "text"
[concepts.station.units]
temperature = "degC"
humidity = "%"
[concepts.person.attributes]
status = "text"
position = "point"
[relationships.within]
between = ["person.position", "person.position"]
function = "within"
[sources.thermometers]
concept = "station"
attribute = "temperature"
key = "station"
value = "value"
period = "10min"
[sources.hygrometers]
concept = "station"
attribute = "humidity"
key = "station"
value = "value"
[sources.positions]
concept = "person"
attribute = "position"
key = "person"
value = ["x", "y"]
"""


@pytest.fixture(scope="module")
def ontology(tmp_path_factory: pytest.TempPathFactory) -> Ontology:
    path: Path = tmp_path_factory.mktemp("lint") / "site.toml"
    path.write_text(SITE)
    found, problems = ontology_from_site(TomlFile.load(path))
    assert problems == []
    return found


def problems_of(
    situation: str, ontology: Ontology, cleared: str = "", concepts: str = "station S"
) -> tuple[Problem, ...]:
    ending = f"cleared by\n  {cleared}\n" if cleared else ""
    text = f"concepts\n  {concepts}\nsituation\n  {situation}\n{ending}actions\n  raise alarm\n"
    return compile_policy(text, name="x", ontology=ontology, window_ms=5_000).problems


def codes(problems: tuple[Problem, ...]) -> list[str]:
    assert all(each.line and each.hint and each.excerpt for each in problems)
    return [each.code.removeprefix("policy.") for each in problems]


@pytest.mark.parametrize(
    "situation",
    [
        "humidity of S above 30 %\n  humidity of S below 20 %",
        "humidity of S above 30 % for 5 min\n  humidity of S at most 30 %",
        "humidity of S between 10 % and 20 %\n  NOT (humidity of S below 30 %)",
        "region of S is 'north'\n  region of S is one of ('south', 'west')",
        "count of humidity of S in the last 1 h below 0",
        "time is on Sat\n  time is not on Sat\n  humidity of S above 1 %",
        "time is between 22:00 and 06:00\n  time is between 08:00 and 12:00\n"
        "  humidity of S above 1 %",
        "time is on 24 Dec\n  time is on 25 Dec\n  humidity of S above 1 %",
        "some station T with (humidity of T above 3 % AND humidity of T below 2 %)\n"
        "  humidity of S above 1 %",
        "(humidity of S above 30 % OR humidity of S below 20 %) AND humidity of S is 25 %",
        "no humidity of S for 3 h\n  NOT (no humidity of S for 3 h)",
    ],
)
def test_a_situation_that_is_never_true_is_warned_of(situation: str, ontology: Ontology) -> None:
    found = problems_of(situation, ontology)
    assert codes(found) == ["never_fires"]
    assert found[0].severity == "warning"


@pytest.mark.parametrize(
    "situation",
    [
        "humidity of S above 30 %\n  temperature of S below 20 degC",
        "humidity of S above 30 % OR humidity of S below 20 %",
        "NOT (humidity of S above 30 % for 5 min)\n  humidity of S above 30 %",
        "time is between 22:00 and 06:00\n  time is between 05:00 and 12:00\n"
        "  humidity of S above 1 %",
        "time is between 22:00 and 06:00 on 24 Dec\n  time is on 25 Dec\n  humidity of S above 1 %",
        "time is between 08:00 and 12:00 in 'Asia/Tokyo'\n"
        "  time is between 22:00 and 06:00 in 'Europe/Berlin'\n  humidity of S above 1 %",
        "mean of humidity of S in the last 1 h above 30 %\n  humidity of S below 20 %",
        "some station T with (humidity of T above 3 %)\n  humidity of S below 2 %",
        "at most 2 station T with (humidity of T above 3 %)\n  humidity of S below 2 %",
        "no humidity of S for 3 h\n  NOT (no humidity of S for 4 h)",
        "region of S is not 'north'\n  region of S is not 'south'",
    ],
)
def test_a_situation_that_may_be_true_and_false_is_not_warned_of(
    situation: str, ontology: Ontology
) -> None:
    assert problems_of(situation, ontology) == ()


@pytest.mark.parametrize(
    "situation",
    [
        "humidity of S above 20 % OR humidity of S below 30 %",
        "NOT (humidity of S above 30 % AND humidity of S below 20 %)",
        "count of humidity of S in the last 1 h at least 0",
    ],
)
def test_a_situation_that_is_always_true_is_warned_of(situation: str, ontology: Ontology) -> None:
    assert codes(problems_of(situation, ontology)) == ["always_true"]


@pytest.mark.parametrize(
    ("cleared", "expected"),
    [
        ("humidity of S above 30 %", ["never_cleared"]),
        ("humidity of S above 20 %\n  humidity of S below 10 %", ["never_cleared"]),
        ("humidity of S above 29 %", []),
        ("humidity of S below 20 % for 5 min", []),
        ("temperature of S below 20 degC", []),
        ("humidity of S above 30 % OR no humidity of S for 3 h", []),
        ("humidity of S between 40 % and 50 %", ["never_cleared"]),
    ],
)
def test_an_end_that_never_comes_is_warned_of(
    cleared: str, expected: list[str], ontology: Ontology
) -> None:
    found = problems_of("humidity of S at least 30 %", ontology, cleared)
    assert codes(found) == expected
    assert all(each.line == 6 for each in found)


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        ("mean of temperature of S in the last 5 min above 3 degC", 1),
        ("mean of temperature of S in the last 10 min above 3 degC", 0),
        ("change of temperature of S in the last 10 min above 3 K", 1),
        ("mean of temperature of S in the last 1 h (at least 7 readings) above 3 degC", 1),
        ("count of temperature of S in the last 1 min above 3", 0),
        ("mean of humidity of S in the last 5 s above 3 %", 0),
        ("no temperature of S for 10 min", 1),
        ("no event of S for 10 min", 1),
        ("no temperature of S for 11 min", 0),
        ("some station T with (no temperature of T for 1 min) AND humidity of S above 3 %", 1),
    ],
)
def test_a_window_shorter_than_the_period_of_its_source_is_warned_of(
    situation: str, expected: int, ontology: Ontology
) -> None:
    found = codes(problems_of(situation, ontology))
    assert found == ["window_shorter_than_period"] * expected


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        ("humidity of S above 3 % AND temperature of S above 3 degC for 5 min", 1),
        ("humidity of S above 3 % AND (temperature of S above 3 degC for 5 min)", 0),
        ("(humidity of S above 3 % AND temperature of S above 3 degC) for 5 min", 0),
        ("humidity of S above 3 %\n  temperature of S above 3 degC for 5 min", 0),
        ("humidity of S above 3 % for 5 min AND temperature of S above 3 degC for 5 min", 0),
        ("humidity of S above 3 % OR temperature of S above 3 degC for 5 min", 0),
    ],
)
def test_a_for_after_the_last_part_only_is_pointed_out(
    situation: str, expected: int, ontology: Ontology
) -> None:
    found = problems_of(situation, ontology)
    assert codes(found) == ["only_last_for"] * expected
    if found:
        assert found[0].severity == "hint"
        assert (
            "(humidity of S above 3 % AND temperature of S above 3 degC) for 5min" in found[0].hint
        )


def test_properties_that_exclude_each_other_are_warned_of(ontology: Ontology) -> None:
    concepts = "station S (region='north' region='south')"
    assert codes(problems_of("humidity of S above 3 %", ontology, concepts=concepts)) == [
        "never_satisfied"
    ]


def meant(conditions: str, ontology: Ontology, concepts: str = "station S") -> list[Problem]:
    text = f"concepts\n  {concepts}\nconditions\n  {conditions}\nactions\n  raise alarm\n"
    found = compile_policy(text, name="x", ontology=ontology, window_ms=5_000).problems
    return [each for each in found if each.code == "policy.meant_as_situation"]


@pytest.mark.parametrize(
    ("conditions", "situation"),
    [
        (
            "temperature of S above 30 degC for 2 h\n  no humidity of S for 30 min",
            "temperature of S above 30 degC for 2h AND no humidity of S for 30min",
        ),
        (
            "humidity of S above 30 % for 2 h\n  temperature of S above 3 degC",
            "humidity of S above 30 % for 2h AND temperature of S above 3 degC",
        ),
        (
            "humidity of S above 30 %\n  humidity of S below 50 %",
            "humidity of S above 30 % AND humidity of S below 50 %",
        ),
    ],
)
def test_lines_about_instants_that_mean_states_are_pointed_out_with_the_situation(
    conditions: str, situation: str, ontology: Ontology
) -> None:
    [found] = meant(conditions, ontology)
    assert found.severity == "hint"
    assert found.hint.endswith(f"write instead of 'conditions': situation {situation}")
    assert problems_of(situation, ontology) == ()


def test_absence_becomes_no_in_the_situation_that_is_written_out(ontology: Ontology) -> None:
    [found] = meant(
        "(A is within 5 m of C) for 5 s\n  A is not within 3 m of B OR C is not within 3 m of B"
        "\n  A is within 2 m of C",
        ontology,
        "person A\n  person B (status='employee')\n  person C",
    )
    assert "no person B (status='employee') with (A is within 3m of B AND C is within 3m of B)" in (
        found.hint.replace("3 m", "3m")
    )


@pytest.mark.parametrize(
    "conditions",
    [
        "temperature of S above 30 degC for 2 h",
        "temperature of S above 30 degC for 2 h OR no humidity of S for 30 min",
        "no humidity of S for 30 min",
        "humidity of S above 30 % FOLLOWED-BY humidity of S below 3 %",
        "humidity of S above 30 %\n  temperature of S below 3 degC",
        "humidity of S above 30 %\n  humidity of T above 30 %",
        "humidity of S above 30 % OR humidity of S below 3 %",
    ],
)
def test_lines_that_mean_instants_are_left_alone(conditions: str, ontology: Ontology) -> None:
    concepts = "station S\n  station T" if " T " in f"{conditions} " else "station S"
    assert meant(conditions, ontology, concepts) == []


@pytest.mark.parametrize(
    ("guard", "expected"),
    [
        ("humidity of S above 3 %", []),
        ("humidity of S above 3 %\n  humidity of S below 2 %", ["never_fires"]),
        ("humidity of S above 3 % AND humidity of S below 9 % for 5 s", ["only_last_for"]),
        ("no temperature of S for 1 min", ["window_shorter_than_period"]),
        (
            "no station T (region='a' region='b') with (humidity of T above 3 %)",
            ["never_satisfied"],
        ),
    ],
)
def test_a_guard_is_linted_like_a_situation(
    guard: str, expected: list[str], ontology: Ontology
) -> None:
    text = "concepts\n  station S\nconditions\n  humidity of S above 3 %\nwhile\n"
    text += f"  {guard}\nactions\n  raise alarm\n"
    problems = compile_policy(text, name="x", ontology=ontology, window_ms=5_000).problems
    assert codes(problems) == expected
    assert all(each.line >= 6 for each in problems)
