"""The ontology from a site file; the faults are in tests/golden/site."""

from pathlib import Path

import pytest

from rapport.core.errors import SiteError
from rapport.kernel.toml import TomlFile
from rapport.policy.config.loader import ontology_from_site
from rapport.policy.ontology import PushSource, Relationship

CHECKS = Path(__file__).parents[1] / "data" / "checks"


def parsed(text: str) -> TomlFile:
    return TomlFile.parse(text.encode(), name="site.toml")


def test_the_recorded_site_is_read_whole() -> None:
    ontology, problems = ontology_from_site(TomlFile.load(CHECKS / "secure-building" / "site.toml"))
    assert problems == []
    assert ontology.concepts == {
        "person": {"status": "text", "position": "point"},
        "room": {"security": "text", "area": "rectangle"},
    }
    assert ontology.relationships["inside"] == Relationship(
        "inside", ("person", "position"), ("room", "area"), "inside"
    )
    assert ontology.sources["positions"] == PushSource(
        name="positions",
        concept="person",
        attribute="position",
        id="id",
        time="ts",
        key="person",
        value=("x", "y"),
        events="events.csv",
    )
    assert ontology.streams() == {"person.position": "point"}


def test_a_source_with_an_interpretation_names_no_fields() -> None:
    ontology, problems = ontology_from_site(
        parsed(
            '[concepts.person.attributes]\nposition = "point"\n'
            '[sources.badges]\nconcept = "person"\nattribute = "position"\n'
            'interpretation = "badge-readers"\n'
        )
    )
    assert problems == []
    assert ontology.sources["badges"].interpretation == "badge-readers"
    assert ontology.sources["badges"].value == ()


def test_a_site_that_is_not_trusted_imports_nothing() -> None:
    text = (
        '[concepts.person.attributes]\nposition = "point"\n'
        '[relationships.near]\nbetween = ["person.position", "person.position"]\n'
        'function = "there_is_no_such_module:near"\n'
    )
    _, problems = ontology_from_site(parsed(text), trusted=False)
    assert [(p.code, p.line) for p in problems] == [("relations.untrusted", 5)]
    _, problems = ontology_from_site(parsed(text))
    assert [(p.code, p.line) for p in problems] == [("relations.cannot_import", 5)]


def test_faulty_entries_are_left_out_and_the_rest_is_kept() -> None:
    ontology, problems = ontology_from_site(
        parsed(
            '[concepts.person.attributes]\nposition = "point"\nmood = "colour"\n'
            '[sources.moods]\nconcept = "person"\nattribute = "mood"\nkey = "k"\nvalue = "v"\n'
            '[sources.positions]\nconcept = "person"\nattribute = "position"\n'
            'key = "k"\nvalue = ["x", "y"]\n'
        )
    )
    assert [p.code for p in problems] == ["ontology.unknown_type"]
    assert list(ontology.sources) == ["positions"]


def test_a_file_that_is_no_toml_is_refused_with_its_place() -> None:
    with pytest.raises(SiteError) as caught:
        parsed("[concepts\n")
    assert (caught.value.problems[0].code, caught.value.problems[0].line) == ("site.bad_toml", 1)


def source_with(period: str) -> str:
    return (
        '[concepts.person.attributes]\nposition = "point"\n'
        '[sources.gate]\nconcept = "person"\nattribute = "position"\n'
        f'key = "who"\nvalue = ["x", "y"]\nperiod = {period}\n'
    )


def test_a_source_may_declare_a_period() -> None:
    ontology, problems = ontology_from_site(parsed(source_with('"2s"')))
    assert problems == []
    assert ontology.sources["gate"].period_ms == 2_000


@pytest.mark.parametrize("period", ['"0s"', '"often"', "2", '""'])
def test_a_period_is_a_duration_longer_than_nothing(period: str) -> None:
    ontology, problems = ontology_from_site(parsed(source_with(period)))
    assert [problem.severity for problem in problems] == ["error"]
    assert (problems[0].line, problems[0].hint) == (8, problems[0].hint)
    assert problems[0].hint
    assert ontology.sources == {}
