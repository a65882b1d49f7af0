"""docs/tutorial/feeds.md can be followed by a stranger, word by word. [ME-10, ME-11, ME-13]"""

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

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "feeds.md"
READING = re.compile(r'(station\.\w+)\t\{"key":"([^"]+)","value":\[([-0-9.]+)\]\}')


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_three_feeds_that_disagree_become_one_stream_and_the_fourth_is_held_back(
    tmp_path: Path,
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for port in ("8484", "1883", "4333"):
        page = page.replace(port, str(free_port()))
    door = re.search(r"127\.0\.0\.1:(\d+)/readyz", page)
    program = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert door is not None
    assert program is not None
    (tmp_path / "gardens.py").write_text(program[1], encoding="utf-8")
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL))
    # The node's own port is the default in the page, so it stands nowhere in the site.
    script = "set -e\n" + blocks.replace("[site]", f"[node]\nport = {door[1]}\n\n[site]", 1)
    told = _run(script, tmp_path)
    stream = told[told.index("position\ttime") :]
    readings = {(attribute, key, float(value)) for attribute, key, value in READING.findall(stream)}
    platform = "urn:ngsi-ld:WeatherObserved:Santander-1"
    assert ("station.temperature", "A701", 19.4) in readings  # decimal comma
    assert ("station.humidity", "A701", 88.0) in readings
    assert ("station.temperature", platform, 21.5) in readings
    assert ("station.humidity", platform, 15.0) in readings  # 0.15 as a fraction
    assert ("station.temperature", "rose", 21.5) in readings  # 70.7 degF
    assert not any(key == "tulip" for _, key, _ in readings)
    assert len([one for one in readings if one[1] == "A701"]) == 13  # one cell is empty
    assert {("station.humidity", "attic", 42.0), ("station.humidity", "attic", 44.0)} <= readings
    held = (tmp_path / "held.txt").read_text(encoding="utf-8")
    assert "2 values of relative_humidity, always within 0.42..0.44" in held
    assert 'looks like a fraction: unit = "1"' in held
    assert '71.2 as a temperature looks like fahrenheit: unit = "degF"' in held
    assert '"temperature":70.7' in told.rsplit("visitor station", 1)[1]


def _run(script: str, directory: Path) -> str:
    """What the page's commands print; whatever they left running ends with them."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    running = subprocess.Popen(
        ["bash", "-c", script],
        cwd=directory,
        env={**os.environ, "PATH": path, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        told, trouble = running.communicate(timeout=180)
    finally:
        try:
            os.killpg(running.pid, signal.SIGKILL)
        except ProcessLookupError:
            running.wait()
    assert running.returncode == 0, told[-3000:] + trouble[-3000:]
    return told
