import json
import subprocess
import sys
from pathlib import Path

import pytest

from rapport import __version__
from rapport.cli.main import COMMANDS, run


@pytest.mark.slow
def test_every_command_can_be_loaded_and_explains_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for commands in COMMANDS.values():
        for name, _path, _help in commands:
            assert run([name, "--help"]) == 0
            assert name in capsys.readouterr().out


def test_help_groups_commands_by_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    groups = ["Start", "Sources", "Policies", "History", "People", "Operate", "Network"]
    places = [shown.index(f"─ {group} ─") for group in groups]
    assert places == sorted(places)
    assert "interpretation " not in shown


def test_former_names_work_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["messages", "--help"]) == 0
    assert "rapport messages is now rapport ledger messages" in capsys.readouterr().err
    assert run(["interpretation", "--help"]) == 0
    assert "rapport interpretation is now rapport mediate" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(shell: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(["completion", shell]) == 0
    script = capfdbinary.readouterr().out
    assert b"why-not" in script
    assert b"as-live" in script


@pytest.mark.parametrize(
    "arguments",
    [
        ["chek"],
        ["check", "--sit", "x"],
        ["replay", "--batch", "many"],
        ["bench", "nothing"],
        ["publish"],
    ],
)
def test_wrong_use_exits_with_two_and_says_so_on_stderr(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error[")
    assert "hint: " in said.err


@pytest.mark.parametrize(
    ("arguments", "told", "hint"),
    [
        (["chek"], '"check"', "rapport --help"),
        (["channel", "nope"], "intercept", "rapport channel --help"),
        (["channel", "state"], "--channel", "rapport channel state --help"),
        (["peers", "--site", "x"], "list", "rapport peers --help"),
        (["read", "--limit", "[red]many"], '"[red]many"', "rapport read --help"),
    ],
)
def test_wrong_use_has_a_code_and_names_the_help_of_its_command(
    arguments: list[str], told: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error[cli.wrong_use] ")
    assert told in first
    assert second == f"hint: {hint}"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["publish", "{folder}/absent", "--channel", "lab"], "cli.no_file"),
        (["publish", "{folder}/odd", "--channel", "lab"], "event.bad_data"),
        (["listen", "lab", "--count", "0"], "cli.wrong_use"),
        (["links", "--token-file", "{folder}/absent"], "cli.no_file"),
    ],
)
def test_what_cannot_be_used_is_told_with_what_to_do(
    arguments: list[str], code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd").write_text("no json\n")
    words = [word.format(folder=tmp_path) for word in arguments]
    assert run([*words, "--url", "http://127.0.0.1:1"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error[{code}] ")
    assert "\nhint: " in told


def test_a_site_that_is_not_there_is_a_problem_with_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", "--site", str(tmp_path), "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)
    assert problem["code"] == "site.unreadable"
    assert "rapport init" in problem["hint"]


def test_init_makes_a_site_without_mistakes_and_never_overwrites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "mine"
    assert run(["init", str(site)]) == 0
    assert run(["check", "--site", str(site)]) == 0
    assert run(["init", str(site)]) == 1
    assert "init.not_empty" in capsys.readouterr().err


def test_check_finds_mistakes_of_every_room_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "mine"
    run(["init", str(site), "--template", "secure-building"])
    text = (site / "site.toml").read_text()
    text = text.replace('members = ["ana", "ben"]', 'members = ["ana", "bob"]')
    text = text.replace('unit = "ft"', 'unit = "foots"')
    text = text.replace('function = "within"', 'function = "wihtin"')
    (site / "site.toml").write_text(text)
    policy = (site / "secure-building.dpl").read_text()
    (site / "secure-building.dpl").write_text(policy.replace("person B", "persn B"))
    capsys.readouterr()
    assert run(["check", "--site", str(site), "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)
    assert {"file", "line", "column", "severity", "code", "message", "hint"} <= set(problems[0])
    hints = " ".join(problem["hint"] for problem in problems if problem["severity"] == "error")
    for right in ("ben", "foot", "within"):
        assert right in hints
    assert all(problem["line"] for problem in problems if problem["severity"] == "error")


def test_commands_that_read_say_when_there_is_nothing_to_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "mine"
    run(["init", str(site)])
    for command in (["read"], ["ledger"], ["explain", "x"], ["mediate", "quarantine"]):
        assert run([*command, "--site", str(site)]) == 2
        assert "rapport up" in capsys.readouterr().err


def test_publishing_to_a_node_that_is_not_up_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "mine"
    run(["init", str(site)])
    (tmp_path / "events.jsonl").write_text('{"a": 1}\n')
    arguments = [
        "publish",
        str(tmp_path / "events.jsonl"),
        "--source",
        "readers",
        "--site",
        str(site),
    ]
    assert run([*arguments, "--url", "http://127.0.0.1:9"]) == 1
    assert "node.unreachable" in capsys.readouterr().err


def test_stages_of_a_policy_can_be_looked_at(
    checks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for stage in ("parsed", "ecnf", "tree", "plan", "json", "partitions"):
        arguments = ["policy", "show", "secure-building", "--stage", stage]
        assert run([*arguments, "--site", str(checks / "secure-building")]) == 0
        assert capsys.readouterr().out.strip()


@pytest.mark.slow
def test_output_can_be_cut_short_by_its_reader(checks: Path) -> None:
    command = (
        f"{sys.executable} -m rapport.cli.main replay --site {checks / 'secure-building'} | head -1"
    )
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "closed", "code"),
    [
        (["check", "--site", "{site}"], ">&-", 0),
        (["check", "--site", "{site}", "--json"], ">&-", 0),
        (["publish", "--channel", "lab", "--url", "http://127.0.0.1:1"], "<&-", 0),
        (["chek"], "2>&-", 2),
    ],
)
def test_a_stream_that_was_closed_is_no_reason_to_fail(
    words: list[str], closed: str, code: int, tmp_path: Path
) -> None:
    site = tmp_path / "mine"
    run(["init", str(site)])
    rest = " ".join(words).format(site=site)
    command = f"{sys.executable} -m rapport.cli.main {rest} {closed}"
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_python_m_rapport_is_the_command() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "rapport", "--version"], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == __version__
