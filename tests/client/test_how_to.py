"""docs/how-to/publish.md does what it says: its program and its commands run against a node.
[CH-5]
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes.node import NodeProcess
from support.written_log import WrittenLog

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "publish.md"
SITE = '[site]\nname = "lab"\n\n[concepts.sample.attributes]\nmass = "number"\n'


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.S)


def run(command: list[str], directory: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "PATH": path, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_the_page_can_be_followed_by_a_stranger(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(SITE)
    (program, direct), (commands, repeated, *_readings) = blocks("python"), blocks("sh")
    with NodeProcess(tmp_path) as node:
        node.start()
        assert node.doors is not None
        here = f"http://{node.doors[0]}:{node.doors[1]}"
        (tmp_path / "measure.py").write_text(program.replace("http://127.0.0.1:8484", here))
        assert run([sys.executable, "measure.py"], tmp_path) == "3 accepted\n"
        assert run([sys.executable, "-c", direct], tmp_path) == "sample.mass {'grams': 12.5}\n"
        shown = run(["sh", "-ec", commands], tmp_path)
        assert "pending\t0" in shown
        assert json.loads(shown.splitlines()[-1])["pending"] == 0
        answers = run(["sh", "-ec", repeated.replace("http://127.0.0.1:8484", here)], tmp_path)
        assert re.findall(r'"duplicates":(\d)', answers) == ["0", "1"]
        node.stop()
    stored = [one.event for one in WrittenLog(tmp_path / ".rapport" / "log")["lab"]]
    assert [one.payload() for one in stored[:3]] == [{"grams": g} for g in (12.5, 12.7, 12.4)]
    assert [one.headers["sequence"] for one in stored] == ["1", "2", "3", "1"]
