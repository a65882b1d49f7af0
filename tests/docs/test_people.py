"""docs/tutorial/people.md can be followed by a stranger, and prints what it says. [CO-8, CO-10,
CO-16]
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rapport.testing.nats import free_port

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "people.md"
BLOCK = re.compile(r"```sh\n(.*?)```\n(?:```text\n(.*?)```\n)?", re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_a_drill_is_held_answered_escalated_and_looked_up_as_the_page_says(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) > 10
    _run(_script([commands for commands, _said in blocks]), tmp_path)
    for number, (commands, said) in enumerate(blocks):
        told = (tmp_path / f"told{number}").read_text(encoding="utf-8")
        if said:
            assert _is_as_said(told, said), f"{commands}\nprinted\n{told}\ninstead of\n{said}"


def _script(blocks: list[str]) -> str:
    """The blocks one after the other in one shell; what each prints goes into a file."""
    port, mail_port = str(free_port()), str(free_port())
    written = [
        block.replace("8484", port)
        .replace("2525", mail_port)
        .replace("[site]", f"[node]\nport = {port}\n\n[site]", 1)
        for block in blocks
    ]
    parts = (f'{{\n{block}}} > "$TOLD/told{number}" 2>&1' for number, block in enumerate(written))
    return "\n".join(parts)


def _is_as_said(told: str, said: str) -> bool:
    """Line by line; `…` stands for anything within a line."""
    lines = [re.escape(line.rstrip()).replace("…", ".*") for line in said.splitlines()]
    printed = "\n".join(line.rstrip() for line in told.splitlines())
    return re.fullmatch("\n".join(lines), printed) is not None


def _run(script: str, directory: Path) -> None:
    """Runs the page's commands; whatever they left running ends with them."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    plain = {"NO_COLOR": "1", "COLUMNS": "200", "TOLD": str(directory)}
    running = subprocess.Popen(
        ["bash", "-c", script],
        cwd=directory,
        env={**os.environ, "PATH": path, **plain},
        start_new_session=True,
    )
    try:
        running.wait(timeout=120)
    finally:
        try:
            os.killpg(running.pid, signal.SIGKILL)
        except ProcessLookupError:
            running.wait()
