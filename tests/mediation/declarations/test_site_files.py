"""Typed interpretations of a site: in site.toml and in the files it names. [ME-7, ME-10]"""

from pathlib import Path

import pytest

from rapport.kernel.toml import TomlFile
from rapport.mediation.config import interpretations_from_site

SITE = """
[interpretations]
files = ["feeds/*.toml", "feeds/*.y*ml", "feeds/*.xml"]

[interpretations.badges]
identity = { field = "tag" }
value = { field = "v", unit = "m" }

[interpretations.us]
units = { "station.temperature" = "degF" }
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    feeds = tmp_path / "feeds"
    feeds.mkdir()
    (tmp_path / "site.toml").write_text(SITE)
    (feeds / "a.toml").write_text(
        '[interpretations."us/a".types.A]\nx = "m"\n'
        '[interpretations.cameras]\nidentity = { field = "face" }\n'
        'value = { field = "v", unit = "m" }\n'
    )
    (feeds / "b.yaml").write_text("interpretations:\n  us/b:\n    types: { B: { x: ft } }\n")
    (feeds / "c.yml").write_text(
        "interpretations:\n  tags:\n    identity: { field: tag }\n"
        "    value: { field: v, unit: m }\n"
    )
    (feeds / "d.xml").write_text(
        '<context id="us/d"><types><type name="D" extends="A"/></types></context>'
    )
    return tmp_path


def test_each_form_is_read_by_its_own_reader(site: Path) -> None:
    file = TomlFile.load(site / "site.toml")
    found, typed = interpretations_from_site(file, site)
    assert set(found) == {"badges", "cameras", "tags"}
    assert not typed.problems
    assert set(typed.interpretations) == {"us", "us/a", "us/b", "us/d"}
    assert typed.interpretations["us/a"].parent == "us"


def test_each_fault_is_reported_once_with_its_file(site: Path) -> None:
    (site / "feeds/a.toml").write_text("[interpretations")
    (site / "feeds/b.yaml").write_text("a: *b\n")
    (site / "feeds/d.xml").write_text("<context/>")
    file = TomlFile.load(site / "site.toml")
    results = interpretations_from_site(file, site)[1].problems
    assert sorted((each.file, each.code) for each in results) == [
        ("feeds/a.toml", "site.bad_toml"),
        ("feeds/b.yaml", "yaml.alias"),
        ("feeds/d.xml", "interpretation.missing_key"),
    ]


def test_a_name_in_both_forms_or_twice_is_a_fault(site: Path) -> None:
    (site / "feeds/b.yaml").write_text(
        "interpretations:\n  badges:\n    parent: us\n  us:\n    parent: root\n"
    )
    file = TomlFile.load(site / "site.toml")
    problems = interpretations_from_site(file, site)[1].problems
    assert [(each.code, each.file, each.line) for each in problems] == [
        ("interpretation.duplicate", "site.toml", 5),
        ("interpretation.duplicate", "feeds/b.yaml", 4),
    ]
    assert "site.toml line 9" in problems[1].message


def test_an_unknown_name_is_reported_when_the_canonical_model_is_known(site: Path) -> None:
    (site / "feeds/b.yaml").write_text(
        "interpretations:\n  us/b:\n    types: { B: { x: statoin } }\n"
    )
    file = TomlFile.load(site / "site.toml")
    assert not interpretations_from_site(file, site)[1].problems
    _, typed = interpretations_from_site(file, site, known=["station"])
    (problem, *_) = typed.problems
    assert (problem.code, problem.hint) == ("type.unknown", "did you mean 'station'?")
