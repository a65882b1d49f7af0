"""docs/how-to/add-a-source.md can be followed word by word. [CN-6]"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-source.md"


def test_a_file_is_added_tried_and_taken_back_by_the_commands_of_the_page(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", "set -e\n" + "\n".join(blocks)],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "my-freezers: 5 rows of csv, about freezer" in done.stdout
    assert "cellar" in done.stdout.split("too-warm", 1)[1], "the back-test speaks of the file"
    assert "[interpretations." in (tmp_path / "with.toml").read_text()
    assert "[interpretations." not in (tmp_path / "house" / "site.toml").read_text()
    assert "no problems found" in done.stderr
