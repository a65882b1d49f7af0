"""Whatever is shown stays text: escape sequences, markup and names of pictures from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rapport.channel.agents.listener_state import ReceivedEvent
from rapport.cli.events import _line
from rapport.cli.main import run
from rapport.cli.output import show_table, stderr, stdout
from rapport.core.event import Event


def test_a_tree_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(Text("red \x1b[31m"))
    tree.add(Text("back \u202e"))
    stdout().print(tree)
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "\u202e" not in told
    assert "red \\x1b[31m" in told
    assert "back \\u202e" in told


def test_names_are_neither_markup_nor_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    stderr().print("made site[draft]; urn:ngsi-ld:bus:12 [/red]", soft_wrap=True)
    stdout().print("urn:ngsi-ld:bus:12", markup=False)
    show_table("of [draft]", ["max[x]", "min[red]"], [["1", "[/b]"]])
    said = capsys.readouterr()
    assert said.err == "made site[draft]; urn:ngsi-ld:bus:12 [/red]\n"
    assert said.out.startswith("urn:ngsi-ld:bus:12\n")
    assert "of [draft]" in said.out
    assert "min[red]" in said.out


def test_a_row_of_listen_does_not_steer_the_terminal() -> None:
    event = Event(id="1", source="s", type="t", subject="", time=0, data=b'"a \xe2\x80\xae b"')
    received = ReceivedEvent(position=1, received=0, event=event, handback="")
    assert _line(received, as_json=False).endswith(b'"a \\u202e b"\n')


def test_a_command_whose_output_finds_no_room_says_so() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no device that is always full")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rapport.cli.main", "doctor", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error[cli.system] No space left on device")
    assert "Traceback" not in done.stderr


def test_a_place_that_the_system_refuses_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(["outbox", "status", str(tmp_path / "file")]) == 1
    assert f"error[cli.system] {tmp_path}/file/outbox.json: Not a direc" in capsys.readouterr().err


def test_an_argument_that_is_no_text_is_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site.toml").write_text('[site]\nname = "x"\n')
    name = os.fsdecode(b"\xff")
    assert run(["channel", "state", name, "--site", str(tmp_path)]) == 2
    assert "cli.not_text" in capsys.readouterr().err


def test_letters_that_a_terminal_does_not_have_are_spelled() -> None:
    code = (
        "from rapport.cli import main, output\n"
        "main.run = lambda arguments: output.stdout().print('\u2713 held') or 0\n"
        "main.main([])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "\\u2713 held\n")
