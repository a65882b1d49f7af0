"""Lint over all policies of a site. [PO-12]"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rapport.cli.main import run
from rapport.core.errors import Problem
from rapport.site.site import check_site

SITE = """
[site]
name = "stations"

[concepts.station.attributes]
temperature = "number"
humidity = "number"
kind = "text"

[sources.heat]
concept = "station"
attribute = "temperature"
key = "station"
value = ["value"]

[sources.damp]
concept = "station"
attribute = "humidity"
key = "station"
value = ["value"]

[tables.stations]
csv = "stations.csv"
concept = "station"
key = "id"
columns = { kind = "kind" }

[peers.guard]
addresses = ["inbox:"]
"""
MESSAGE = """
[actions."{phrase}"]
send_to = "peer:guard"
text = "now"
"""
POLICY = """concepts
  station S (kind='mast')
conditions
  {condition}
actions
  {action}
"""
Check = Callable[..., list[Problem]]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Problems of a site with these policies (condition, actions) and more in its file."""

    def found(policies: dict[str, tuple[str, ...]], more: str = "") -> list[Problem]:
        (tmp_path / "stations.csv").write_text("id,kind\n1,mast\n2,buoy\n", encoding="utf-8")
        phrases = {action for _condition, *actions in policies.values() for action in actions}
        for phrase in sorted(phrases):
            if f'"{phrase}"' not in more and " policy " not in phrase:
                more += MESSAGE.format(phrase=phrase)
        (tmp_path / "site.toml").write_text(SITE + more, encoding="utf-8")
        for name, (condition, *actions) in policies.items():
            text = POLICY.format(condition=condition, action="\n  ".join(actions))
            (tmp_path / f"{name}.dpl").write_text(text, encoding="utf-8")
        return check_site(tmp_path)

    return found


HOT, COLD = "temperature of S above 30", "temperature of S below 20"
DAMP = "humidity of S above 80"


def test_contrary_actions_of_conditions_that_can_hold_together_are_a_warning(check: Check) -> None:
    (problem,) = check({"a": (HOT, "open window"), "b": (DAMP, "close the window")})
    assert (problem.code, problem.severity) == ("policy.contrary_actions", "warning")
    assert (problem.file, problem.line) == ("b.dpl", 6)
    assert "'close the window' here and 'open window' in a" in problem.message
    assert problem.hint


def test_contrary_actions_of_conditions_that_exclude_each_other_are_a_hint(check: Check) -> None:
    (problem,) = check({"a": (HOT, "open window"), "b": (COLD, "close window")})
    assert (problem.code, problem.severity) == ("policy.contrary_actions", "hint")
    assert "only for two different instances of station" in problem.hint


def test_contrary_actions_of_one_policy_are_told(check: Check) -> None:
    (problem,) = check({"a": (HOT, "open window", "close window")})
    assert "both are done at once" in problem.message


def test_the_sites_own_contrary_words_count(check: Check) -> None:
    policies = {"a": (HOT, "let in guests"), "b": (DAMP, "throw out guests")}
    assert check(policies) == []
    own = '\n[contrary]\npairs = [["let in", "throw out"]]\n'
    assert [one.code for one in check(policies, own)] == ["policy.contrary_actions"]
    wrong = '\n[contrary]\npairs = ["let in", "throw out"]\n'
    found = check(policies, wrong)
    assert {(one.code, one.file) for one in found} == {("site.bad_pairs", "site.toml")}


APPENDING = """
[actions."{phrase}"]
append = "raw.{source}"
type = "reading"
data = {{ station = "{{S}}", value = 99 }}
"""


def test_policies_that_set_each_other_off_are_warned_of_with_the_way(check: Check) -> None:
    more = APPENDING.format(phrase="wet", source="damp") + APPENDING.format(
        phrase="warm", source="heat"
    )
    found = check({"a": (HOT, "wet"), "b": (DAMP, "warm"), "c": (COLD, "go")}, more)
    chains = [one for one in found if one.code == "policy.chain"]
    assert [(one.file, one.severity, one.line) for one in chains] == [
        ("a.dpl", "warning", 6),
        ("b.dpl", "warning", 6),
    ]
    assert chains[0].message.endswith("a -> b -> a")


def test_a_chain_that_ends_is_left_alone(check: Check) -> None:
    more = APPENDING.format(phrase="wet", source="damp")
    found = check({"a": (HOT, "wet"), "b": (DAMP, "go")}, more)
    assert "policy.chain" not in {one.code for one in found}


def test_policies_that_stop_each_other_are_pointed_out(check: Check) -> None:
    found = check({"a": (HOT, "delete policy b"), "b": (DAMP, "pause policy a")})
    assert [(one.code, one.severity) for one in found] == [("policy.stop_each_other", "hint")]


def test_policies_that_say_nearly_the_same_are_pointed_out(check: Check) -> None:
    policies = {name: (HOT, f"go {name}") for name in "abcdefg"}
    found = check(policies)
    assert {one.code for one in found} == {"policy.similar"}
    assert len(found) == 6
    assert found[-1].message == "g says nearly the same as a, b, c and 3 more"
    assert found[-1].hint.endswith("rapport policy similar g")


def test_properties_that_no_instance_has_are_told(check: Check) -> None:
    assert check({"a": (HOT, "go")}) == []
    problems = check({"a": (f"{HOT}\n  kind of S is 'aeroplane'", "go")})
    assert [one.code for one in problems] == ["policy.never_fires"]


def test_similar_policies_are_listed_by_a_command(
    check: Check, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    check({"a": (HOT, "go"), "b": (COLD, "stay"), "c": (DAMP, "rest")})
    site = ["--site", str(tmp_path)]
    assert run(["policy", "similar", "a", *site]) == 0
    lines = capfdbinary.readouterr()[0].decode().splitlines()
    assert [line.split("\t")[1] for line in lines] == ["policy", "b", "c"]
    assert "station.kind = mast" in lines[1]
    assert run(["policy", "similar", "a", *site, "--json", "--limit", "1"]) == 0
    assert capfdbinary.readouterr()[0].startswith(b'[{"policy":"b","score":0.')
    assert run(["policy", "similar", "d", *site]) == 2
    assert run(["policy", "similar", "a", *site, "--limit", "0"]) == 2
