"""docs/how-to/listen.md does what it says: its programs and its commands run against a node.
[CH-7, CH-8]
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rapport.client import Publisher
from support.processes.node import NodeProcess

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "listen.md"
SITE = '[site]\nname = "lab"\n\n[concepts.sample.attributes]\nmass = "number"\n'


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


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


def test_the_page_can_be_followed_by_a_stranger(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(SITE)
    with NodeProcess(tmp_path) as node:
        node.start()
        assert node.doors is not None
        here = f"http://{node.doors[0]}:{node.doors[1]}"
        pull, push, direct = (
            block.replace("http://127.0.0.1:8484", here) for block in blocks("python")
        )
        with Publisher(tmp_path / "outbox", here, channel="lab", source="b") as publisher:
            for mass in (12.5, 12.7, 12.4):
                publisher.publish(type="sample.mass", data={"grams": mass})
            assert publisher.flush(20)
            assert run([sys.executable, "-c", pull], tmp_path) == "1 12.5\n2 12.7\n3 12.4\n"
            publisher.publish(type="sample.mass", data={"grams": 1.5})
            assert run([sys.executable, "-c", pull], tmp_path) == "4 1.5\n"
        told = run([sys.executable, "-c", push], tmp_path).splitlines()
        assert told[:3] == ["12.5 bench 4", "12.7 bench 4", "12.4 bench 4"]
        (commands,) = blocks("sh")
        shown = run(["sh", "-ec", commands.replace("http://127.0.0.1:8484", here)], tmp_path)
        lines = shown.splitlines()
        assert [json.loads(line)["position"] for line in lines[:2]] == [1, 2]
        assert [line.split("\t")[0] for line in lines[2:]] == ["position", "1", "2", "3"]
        node.stop()
    assert run([sys.executable, "-c", direct], tmp_path) == "sample.mass {'grams': 12.5}\n"
