"""docs/tutorial/history.md can be followed by a stranger, and prints what it says. [PI-9]"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.servers.spark import QUICK_START

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("spark")]

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "history.md"
BLOCK = re.compile(r"```sh\n(.*?)```\n(?:```text\n(.*?)```\n)?", re.DOTALL)
SMALL_SPARK = QUICK_START | {"RAPPORT_SPARK_MASTER": "local[2]", "RAPPORT_SPARK_MEMORY": "512m"}


def test_a_month_is_made_up_tried_on_explained_and_compared_as_the_page_says(
    tmp_path: Path,
) -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) == 10
    parts = (
        f'{{\n{commands}}} > "$TOLD/told{number}" 2>&1'
        for number, (commands, _said) in enumerate(blocks)
    )
    _run("\n".join(parts), tmp_path)
    for number, (commands, said) in enumerate(blocks):
        told = (tmp_path / f"told{number}").read_text(encoding="utf-8")
        assert _is_as_said(told, said), f"{commands}\nprinted\n{told}\ninstead of\n{said}"


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
        env={**os.environ, "PATH": path, **plain, **SMALL_SPARK},
        start_new_session=True,
    )
    try:
        running.wait(timeout=300)
    finally:
        try:
            os.killpg(running.pid, signal.SIGKILL)
        except ProcessLookupError:
            running.wait()
