"""`rapport policy list|register|...`: on a site at rest, and through a running node. [PO-9]"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rapport.cli.main import run
from support.processes.node import NodeProcess

POLICY = """concepts
  person A (status='guest')
  room R (security='restricted')
conditions
  A is inside R
actions
  raise alarm
  delete policy nobody
"""


@pytest.fixture
def site(tmp_path: Path, checks: Path) -> Path:
    directory = Path(shutil.copytree(checks / "small-policies", tmp_path / "site"))
    for file in directory.glob("*.dpl"):
        if file.stem not in ("or", "within"):
            file.unlink()
    with (directory / "site.toml").open("a") as file:
        file.write("[node]\nport = 9\n")
    return directory


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["policy", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def states(out: str) -> dict[str, str]:
    return {row["name"]: row["state"] for row in json.loads(out)}


def test_policies_of_a_site_at_rest_are_changed_and_keep_their_history(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--site", str(site))
    _code, out, _ = asked(capsys, "list", "--json", *where)
    assert states(out) == {"or": "running", "within": "running"}
    file = tmp_path / "fresh.dpl"
    file.write_text(POLICY)
    code, out, told = asked(capsys, "register", str(file), *where)
    assert (code, json.loads(out)["what"]) == (0, "registered")
    assert "there is no policy named 'nobody' to delete" in told
    assert "fresh: registered before the first event, version" in told
    assert "no node runs: it holds from its next start on" in told
    file.write_text(POLICY.replace("  delete policy nobody\n", ""))
    assert asked(capsys, "replace", str(file), *where)[0] == 0
    assert asked(capsys, "pause", "fresh", *where)[0] == 0
    code, out, told = asked(capsys, "pause", "fresh", *where)
    assert (json.loads(out)["changed"], "fresh: paused already" in told) == (False, True)
    assert asked(capsys, "delete", "or", *where)[0] == 0
    code, _out, told = asked(capsys, "delete", "or", *where)
    assert (code, "it was deleted" in told) == (2, True)
    code, out, told = asked(capsys, "list", *where)
    rows = [line.split("\t") for line in out.splitlines()]
    assert rows[0][4:] == ["readings", "found", "undecided", "suppressed", "errors", "ms"]
    assert (rows[1][:2], set(rows[1][4:])) == (["fresh", "paused"], {"-"})
    assert "no node runs" in told
    _code, out, _ = asked(capsys, "list", "--json", *where)
    assert states(out) == {"fresh": "paused", "within": "running"}
    _code, out, _ = asked(capsys, "history", "fresh", "--diff", *where)
    assert "-  delete policy nobody" in out
    _code, out, _ = asked(capsys, "history", "or", "--json", *where)
    assert [one["what"] for one in json.loads(out)] == ["registered", "deleted"]


def test_what_is_refused_names_every_problem_and_ends_with_its_code(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--site", str(site))
    file = tmp_path / "fresh.dpl"
    file.write_text(POLICY.replace("inside", "insde"))
    code, _out, told = asked(capsys, "register", str(file), *where)
    assert (code, "fresh.dpl:5:" in told) == (1, True)
    assert asked(capsys, "pause", "nobody", *where)[0] == 2
    assert asked(capsys, "shadow", *where)[0] == 2
    assert asked(capsys, "register", str(tmp_path / "none.dpl"), *where)[0] == 2
    assert asked(capsys, "shadow", str(site / "or.dpl"), *where)[0] == 1


@pytest.mark.slow
def test_a_running_node_is_changed_over_its_doors(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "or.dpl"
    with NodeProcess(site) as node:
        node.start()
        assert node.doors is not None
        where = ("--site", str(site), "--url", "http://{}:{}".format(*node.doors))
        file.write_text(POLICY)
        assert asked(capsys, "list", "--site", str(site)) == asked(capsys, "list", *where)
        assert asked(capsys, "shadow", str(file), *where)[0] == 0
        _code, out, _ = asked(capsys, "list", *where)
        assert "running (shadow" in out
        code, out, _ = asked(capsys, "shadow", "--name", "or", "--promote", *where)
        assert (code, json.loads(out)["what"]) == (0, "promoted")
        file.write_text(POLICY.replace("inside", "insde"))
        code, _out, told = asked(capsys, "replace", str(file), *where)
        assert (code, "did you mean" in told) == (1, True)
        (site / "within.dpl").write_text(POLICY)
        code, out, _ = asked(capsys, "reload", *where)
        assert [(one["name"], one["what"]) for one in json.loads(out)] == [("within", "replaced")]
        node.kill()
        node.start()
        assert node.doors is not None
        where = ("--site", str(site), "--url", "http://{}:{}".format(*node.doors))
        _code, out, _ = asked(capsys, "history", "or", "--json", *where)
        assert [one["what"] for one in json.loads(out)] == ["registered", "shadowed", "promoted"]
        assert node.stop()[0] == 0


@pytest.mark.slow
def test_a_node_starts_though_a_policy_is_broken_and_says_why(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "or.dpl").write_text(POLICY.replace("inside", "insde"))
    with NodeProcess(site) as node:
        node.start()
        assert node.doors is not None
        where = ("--site", str(site), "--url", "http://{}:{}".format(*node.doors))
        _code, out, _ = asked(capsys, "list", "--json", *where)
        assert states(out) == {"or": "broken", "within": "running"}
        _code, out, told = asked(capsys, "list", *where)
        assert "or.dpl:5:" in told
        assert any("or.dpl:5:" in line for line in node.told)
        assert node.stop()[0] == 0
