"""`rapport peers`: who can be reached, on a site at rest and through a running node. [CO-3]"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rapport.cli.main import run

SITE = """
[site]
name = "people"
[concepts.person.attributes]
status = "text"
[node]
port = 9
[peers.ana]
addresses = ["inbox:", "webhook:https://example.org/hook?key=secret"]
[collectives.guards]
members = ["ana"]
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "site.toml").write_text(SITE)
    return tmp_path


def asked(site: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = run(["peers", *words, "--site", str(site)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_people_are_added_changed_listed_and_removed(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, told = asked(
        site, capsys, "add", "zoe", "inbox:", "--quiet", "22:00-07:00", "--zone", "Europe/Vienna"
    )
    assert (code, told) == (0, "")
    assert json.loads(out)["settings"]["quiet"] == "22:00-07:00"
    code, out, told = asked(site, capsys, "change", "zoe", "--without", "zone")
    assert (code, "peer.quiet_without_zone" in told) == (0, True)
    assert "zone" not in json.loads(out)["settings"]
    code, out, _ = asked(site, capsys, "list")
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[:2] for row in rows[1:]] == [["ana", "site"], ["zoe", "store"]]
    assert "secret" not in out
    assert asked(site, capsys, "join", "guards", "zoe")[2] == "1 joined guards\n"
    code, out, _ = asked(site, capsys, "show", "zoe")
    assert json.loads(out)["collectives"] == ["guards"]
    code, out, _ = asked(site, capsys, "members", "guards", "--json")
    assert json.loads(out) == ["ana", "zoe"]
    assert asked(site, capsys, "leave", "guards", "zoe")[2] == "1 left guards\n"
    assert asked(site, capsys, "remove", "zoe")[:2] == (0, "")
    assert asked(site, capsys, "show", "zoe")[0] == 2


def test_collectives_are_made_and_removed(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = asked(site, capsys, "make", "night", "ana", "--delivery", "at-least 1")
    assert (code, json.loads(out)["name"]) == (0, "night")
    code, out, _ = asked(site, capsys, "list", "--collectives", "--json")
    assert [one["name"] for one in json.loads(out)] == ["guards", "night"]
    assert asked(site, capsys, "members", "night")[1] == "member\nana\n"
    assert asked(site, capsys, "remove", "night", "--collective")[0] == 0
    assert asked(site, capsys, "members", "night")[0] == 2


def test_who_is_on_duty_is_shown_with_the_next_change(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (site / "site.toml").open("a") as file:
        file.write('roster = [{ person = "ana", hours = "08:00-20:00" }]\n')
    code, out, told = asked(site, capsys, "duty", "guards", "--at", "2026-12-24T12:00:00Z")
    assert (code, out, told) == (0, "ana\n", "until 2026-12-24T20:00:00.000Z\n")
    code, out, _ = asked(site, capsys, "duty", "guards", "--at", "2026-12-24T22:00:00Z")
    assert (code, out) == (0, "nobody: messages go to all members\n")
    code, out, _ = asked(site, capsys, "duty", "guards", "--json")
    assert json.loads(out)["group"] == "guards"
    code, _, told = asked(site, capsys, "duty", "gards")
    assert (code, "guards" in told) == (2, True)


def test_wrong_use_names_what_would_be_right(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, told = asked(site, capsys, "add", "zoe", "inbx:")
    assert (code, "adapter.unknown" in told, "inbox" in told) == (1, True, True)
    code, _, told = asked(site, capsys, "join", "guards", "anna")
    assert (code, "did you mean 'ana'?" in told) == (2, True)
    code, _, told = asked(site, capsys, "join", "gards", "ana")
    assert (code, "did you mean 'guards'?" in told) == (2, True)
    code, _, told = asked(site, capsys, "remove", "ana")
    assert (code, "site.toml" in told) == (1, True)
    assert asked(site, capsys, "change", "zoe")[0] == 2
    assert asked(site, capsys, "join", "guards")[0] == 2
