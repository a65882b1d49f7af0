"""`rapport why-not` and `rapport explain` as people type them. [PO-11]"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rapport.cli.arguments import parse_moment
from rapport.cli.main import run

Read = pytest.CaptureFixture[str]


def ask(checks: Path, *more: str) -> list[str]:
    site = checks / "secure-building"
    recorded = ["--site", str(site), "--events", str(site / "events.csv")]
    return ["why-not", "secure-building", *more, *recorded]


def test_what_fired_is_shown_with_its_conditions(checks: Path, capsys: Read) -> None:
    assert run(ask(checks, "A=182", "R=53", "--at", "1005061")) == 0
    shown = capsys.readouterr().out
    assert "secure-building fired" in shown
    assert "✓ A is inside R" in shown
    assert "182 was inside 53" in shown


def test_what_did_not_fire_says_what_was_missing(checks: Path, capsys: Read) -> None:
    assert run(ask(checks, "A=182", "R=7", "--at", "1005061")) == 1
    shown = capsys.readouterr().out
    assert "secure-building did not fire for A = 182, R = 7" in shown
    assert "✗ A is inside R" in shown
    assert "m outside 7" in shown
    assert "Nearest miss:" in shown


def test_the_answer_comes_as_json_too(
    checks: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run(ask(checks, "A=182", "R=53", "--at", "1005061", "--json")) == 0
    answer = json.loads(capsysbinary.readouterr().out)
    assert answer["fired"][0]["bindings"] == {"A": "182", "R": "53"}


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (("182", "--at", "1005061"), "explain.bad_identity"),
        (("X=182", "--at", "1005061"), "explain.unknown_alias"),
        (("A=182", "--at", "noon"), "time.bad_time"),
        (("A=182", "--at", "1005061", "--window", "5"), "time.bad_duration"),
    ],
)
def test_wrong_questions_are_refused(
    checks: Path, capsys: Read, more: tuple[str, ...], code: str
) -> None:
    assert run(ask(checks, *more)) == 2
    assert code in capsys.readouterr().err


def test_how_long_a_node_may_look_is_said_to_a_node_only(checks: Path, capsys: Read) -> None:
    assert run(ask(checks, "A=182", "--at", "1005061", "--within", "1min")) == 2
    told = capsys.readouterr().err
    assert "--within is about a node that is asked" in told
    assert "add --url" in told


def test_a_policy_that_is_not_there_is_refused_with_the_nearest(checks: Path, capsys: Read) -> None:
    site = checks / "secure-building"
    wrong = ["why-not", "secure-bilding", "--at", "0", "--site", str(site)]
    assert run([*wrong, "--events", str(site / "events.csv")]) == 2
    assert "did you mean 'secure-building'?" in capsys.readouterr().err


def test_a_time_of_day_is_one_of_today() -> None:
    assert parse_moment("9:05") % 86_400_000 == 9 * 3_600_000 + 5 * 60_000
    assert parse_moment("1970-01-01T00:00:01Z") == 1_000
