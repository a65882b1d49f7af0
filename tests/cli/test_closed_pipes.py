"""Who reads our output may leave early (`| head`): that ends any command quietly, with the exit
code of all tools that are ended so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rapport.cli.main import run

_UNREAD = 141
_BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
_NO_ROOM = "error[cli.system] No space left on device\n"


def run_unread(words: list[str], *, closed: str = "stdout") -> subprocess.CompletedProcess[str]:
    """The command with a pipe at `closed` whose reader has left; the other stream is kept."""
    reader, writer = os.pipe()
    os.close(reader)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, closed: writer}
    try:
        return subprocess.run(
            [sys.executable, "-m", "rapport.cli.main", *words],
            text=True,
            check=False,
            env=_BUFFERED,
            **streams,
        )
    finally:
        os.close(writer)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["channel", "--help"],
        ["doctor"],
        ["doctor", "--json"],
        ["access", "check", "local", "admin", "--site", "{site}"],  # a line that stays in a buffer
    ],
)
def test_output_that_nobody_reads_ends_a_command_quietly(words: list[str], tmp_path: Path) -> None:
    site = tmp_path / "site"
    run(["init", str(site)])
    done = run_unread([word.format(site=site) for word in words])
    assert (done.returncode, done.stderr) == (_UNREAD, "")


def test_a_verdict_that_nobody_reads_is_still_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('[site]\nname = "x"\n[access.ana]\ntoken = "env:T"\n')
    words = ["access", "check", "ana", "admin", "--site", str(tmp_path)]
    done = run_unread(words)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["chek"], 2),
        (["bench", "nothing"], 2),
        (["read", "--site", "{folder}"], 1),
        (["check", "--site", "{folder}"], _UNREAD),  # broken off while it told what is wrong
    ],
)
def test_an_error_that_nobody_reads_is_still_the_exit_code(
    words: list[str], code: int, tmp_path: Path
) -> None:
    done = run_unread([word.format(folder=tmp_path) for word in words], closed="stderr")
    assert (done.returncode, done.stdout) == (code, "")


def test_a_reader_that_takes_one_line_gets_it() -> None:
    command = f"{sys.executable} -m rapport.cli.main --help | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("Usage: rapport COMMAND\n", "")
    assert done.returncode in (0, _UNREAD)  # all of it may be out before the reader leaves


def test_a_line_that_finds_no_room_is_told_and_no_success(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no device that is always full")
    run(["init", str(tmp_path / "site")])
    words = ["access", "check", "local", "admin", "--site", str(tmp_path / "site")]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rapport.cli.main", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=_BUFFERED,
        )
    assert done.returncode == 1
    assert done.stderr.startswith(_NO_ROOM)
    assert "Exception" not in done.stderr
