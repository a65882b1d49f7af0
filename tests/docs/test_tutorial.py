"""docs/tutorial/channel.md can be followed by a stranger, word by word. [CH-5, CH-7, CH-11]"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.servers.ports import free_port

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "channel.md"


def commands_of(page: str) -> str:
    """All shell blocks as one script; it stops at the first command that fails."""
    return "set -e\n" + "\n".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL))


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_the_tutorial_can_be_followed_as_it_stands(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for port in ("8484", "8485"):
        page = page.replace(port, str(free_port()))
    lab = re.search(r'url = "http://127.0.0.1:(\d+)"', page)
    assert lab is not None
    # The lab's own port is the default in the page, so it stands nowhere: it is told by variable.
    program = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert program is not None
    (tmp_path / "measure.py").write_text(program[1], encoding="utf-8")
    script = commands_of(page).replace(
        "[channels.measurements]", f"[node]\nport = {lab[1]}\n\n[channels.measurements]", 1
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    running = subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        told, trouble = running.communicate(timeout=120)
    finally:
        # Whatever the page left running ends with the test.
        try:
            os.killpg(running.pid, signal.SIGKILL)
        except ProcessLookupError:
            running.wait()
    assert running.returncode == 0, told[-3000:] + trouble[-3000:]
    accepted = int(re.search(r"accepted: +(\d+)", told)[1])
    assert accepted > 5
    assert "the same 2 messages" in told
    counts = dict(re.findall(r"(lab|archive) (\d+) events, each once", told))
    assert counts["lab"] == counts["archive"]
    assert int(counts["lab"]) >= accepted + 1
    assert "sample 7 looks odd" in told
