"""Policies with a situation in a site: days in tables, what is kept, data, actions, commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rapport.cli.main import run
from rapport.core.errors import Problem
from rapport.policy.compiler.compile import CompiledSituation
from rapport.policy.situation_plan import SituationPlan
from rapport.site.site import check_site, load_site

WORKED = Path(__file__).parents[1] / "data" / "situations"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The site of the worked situations, without its policies."""
    directory = tmp_path / "site"
    shutil.copytree(WORKED, directory, ignore=shutil.ignore_patterns("*.dpl", "*.jsonl"))
    return directory


def problems_of(site: Path, situation: str, more: str = "", name: str = "warm") -> list[Problem]:
    text = f"concepts\n  station S\nsituation\n  {situation}\nactions\n  tell the guards\n{more}"
    (site / f"{name}.dpl").write_text(text, encoding="utf-8")
    return [each for each in check_site(site) if each.file == f"{name}.dpl"]


def test_the_worked_site_has_no_problems_and_plans_of_situations() -> None:
    assert check_site(WORKED) == []
    policies = load_site(WORKED).policies
    assert len(policies) == 37
    assert all(isinstance(each, CompiledSituation) for each in policies.values())
    assert all(isinstance(each.plan, SituationPlan) for each in policies.values())


def test_days_of_a_table_are_iso_dates(site: Path) -> None:
    line = "time is on holidays AND temperature of S above 3 degC"
    assert problems_of(site, line) == []
    (site / "holidays.csv").write_text("date,name\n2024-01-06,a\n24.12.2024,b\n")
    [found] = problems_of(site, line)
    assert (found.code, found.severity, found.line) == ("policy.bad_day", "error", 4)
    assert "'24.12.2024'" in found.message


def test_a_guard_names_days_too(site: Path) -> None:
    (site / "holidays.csv").write_text("date,name\nsoon,a\n")
    text = "concepts\n  station S\nconditions\n  temperature of S above 3 degC\nwhile\n"
    (site / "warm.dpl").write_text(f"{text}  time is on holidays\nactions\n  tell the guards\n")
    found = [each for each in check_site(site) if each.file == "warm.dpl"]
    assert ("policy.bad_day", 6) in [(each.code, each.line) for each in found]


def test_a_table_of_a_concept_lists_no_days(site: Path) -> None:
    [found] = problems_of(site, "time is on stations AND temperature of S above 3 degC")
    assert found.code == "policy.unknown_days"


def test_looking_back_further_than_readings_are_kept_is_warned_of(site: Path) -> None:
    line = "mean of humidity of S in the last 30 d above 3 %"
    assert problems_of(site, line) == []
    with (site / "site.toml").open("a", encoding="utf-8") as file:
        file.write('\n[channels.events]\nkeep_for = "7d"\n')
    [found] = problems_of(site, line)
    assert (found.code, found.severity) == ("policy.window_longer_than_kept", "warning")
    assert found.hint == '[channels.events] keep_for = "30d"'
    assert problems_of(site, "mean of humidity of S in the last 7 d above 3 %") == []


def test_what_no_table_gives_is_an_error_at_its_place(site: Path) -> None:
    text = (site / "site.toml").read_text(encoding="utf-8")
    text = text.replace('name = "name", region = "region", limit = "limit"', 'name = "name"')
    (site / "site.toml").write_text(text, encoding="utf-8")
    found = problems_of(site, "temperature of S above 3 degC\n  region of S is 'north'")
    assert [(each.code, each.line) for each in found] == [("policy.no_data", 5)]


def test_what_a_guard_reads_is_given(site: Path) -> None:
    text = (site / "site.toml").read_text(encoding="utf-8")
    text = text.replace('name = "name", region = "region", limit = "limit"', 'name = "name"')
    (site / "site.toml").write_text(text, encoding="utf-8")
    policy = "concepts\n  station S\nconditions\n  temperature of S above 3 degC\nwhile\n"
    (site / "warm.dpl").write_text(f"{policy}  region of S is 'north'\nactions\n  go\n")
    found = [each for each in check_site(site) if each.code == "policy.no_data"]
    assert [(each.file, each.line) for each in found] == [("warm.dpl", 6)]


def test_properties_that_nobody_has_are_warned_of(site: Path) -> None:
    line = "some station T (region='norht') with (temperature of T above 3 degC)"
    [found] = problems_of(site, f"{line}\n  temperature of S above 3 degC")
    assert (found.code, found.severity) == ("policy.no_such_instance", "warning")
    assert (found.line, found.column) == (4, 19)
    assert found.hint == "did you mean 'north'?"


def test_the_actions_of_both_ends_are_checked(site: Path) -> None:
    more = "actions when cleared\n  al is well\n"
    [found] = problems_of(site, "temperature of S above 3 degC", more)
    assert (found.code, found.line) == ("policy.unmapped_action", 8)
    assert found.hint == "did you mean 'all is well'?"
    more = 'actions when cleared\n  all is well\n    say "{T} is fine"\n'
    assert "T" in problems_of(site, "temperature of S above 3 degC", more)[0].message


def test_a_situation_is_shown_in_every_stage_that_it_has(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = {}
    for stage in ("parsed", "plan", "tree", "json"):
        assert run(["policy", "show", "freezer", "--site", str(WORKED), "--stage", stage]) == 0
        shown[stage] = capsys.readouterr().out
    assert shown["parsed"] == (WORKED / "freezer.dpl").read_text().replace("10 s", "10s").replace(
        "30 s", "30s"
    ).replace("5 s", "5s")
    assert "silent 30s station.temperature of S" in shown["plan"]
    assert shown["tree"] == shown["plan"]
    assert json.loads(shown["json"])["policy"] == "freezer"
    for further in (["--stage", "ecnf"], ["--stage", "plan", "--svg"]):
        assert run(["policy", "show", "freezer", "--site", str(WORKED), *further]) != 0
        assert "situation" in capsys.readouterr().err


def test_situations_of_a_site_are_formatted(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problems_of(site, "temperature   of S IS above 3 degC for 120 s")
    assert run(["policy", "fmt", "--site", str(site)]) == 0
    assert "temperature of S above 3 degC for 2min" in (site / "warm.dpl").read_text()
    assert run(["policy", "fmt", "--site", str(site), "--check"]) == 0


def test_the_way_a_situation_is_divided_on_spark_is_explained(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problems_of(site, "temperature of S above 30 degC") == []
    assert run(["policy", "show", "warm", "--site", str(site), "--stage", "partitions"]) == 0
    assert capsys.readouterr().out.startswith("warm: buckets by alias S\n")
    text = (site / "site.toml").read_text()
    (site / "site.toml").write_text(text.replace("[policies]", '[policies]\non_spark = ["warm"]'))
    assert check_site(site) == []


NEAR = """cleared by
  some station C with (temperature of C above 3 degC)
actions
  tell the guards
    say "{}"
actions when cleared
  all is well
    say "{}"
"""


@pytest.mark.parametrize(
    ("situation", "begin", "end", "said"),
    [
        ("some station B with (humidity of B above 3 %)", "{B} {humidity of B}", "{C}", ""),
        ("some station B with (humidity of B above 3 %)", "{B.region}", "{C.name}", ""),
        ("some station B with (humidity of B above 3 %)", "{C}", "", "'some station C'"),
        ("some station B with (humidity of B above 3 %)", "", "{B.name}", "'some station B'"),
        ("no station B with (humidity of B above 3 %)", "{B}", "", "'no station B'"),
        ("no station B with (humidity of B above 3 %)", "{name of B}", "", "{name of S}"),
        ("at most 2 station B with (humidity of B above 3 %)", "{B}", "", "'at most 2 station B'"),
        ("NOT some station B with (humidity of B above 3 %)", "{B}", "", "within another part"),
        (
            "count of (humidity of S = 3 %) in the last 1 h > 2",
            "{count of (humidity of S is 3 %)}",
            "",
            "",
        ),
        (
            "count of (humidity of S = 3 %) in the last 1 h > 2",
            "{count of (humidity of S is 4 %)}",
            "",
            "{count of (humidity of S is 3 %)",
        ),
    ],
)
def test_texts_name_what_the_quantifiers_and_counts_of_their_section_give(
    site: Path, situation: str, begin: str, end: str, said: str
) -> None:
    text = f"concepts\n  station S\nsituation\n  temperature of S above 3 degC\n  {situation}\n"
    more = NEAR.replace("{}", begin or "x", 1).replace('"{}"', f'"{end or "x"}"')
    (site / "warm.dpl").write_text(text + more, encoding="utf-8")
    found = [each for each in check_site(site) if each.file == "warm.dpl"]
    assert [each.code for each in found] == (["action.unknown_field"] if said else [])
    for each in found:
        assert said in each.message + each.hint
