"""The program in README.md, run as it stands there against a real node."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rapport.core.event import StoredEvent
from rapport.scenarios.secure_building.play import prepare_site
from rapport.testing.processes.node import NodeProcess
from rapport.testing.written_log import WrittenLog

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.slow
def test_the_program_in_the_readme_reaches_the_log_and_is_understood(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    site = prepare_site(
        tmp_path / "site", mail_port=9, phone_url="http://127.0.0.1:9/x", answer_within="60s"
    )
    with NodeProcess(site) as node:
        node.start()
        host, port = node.doors
        program = found[1].replace("127.0.0.1:8484", f"{host}:{port}")
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        reading = _first_reading(site / ".rapport" / "log")
    assert reading.event.payload() == {"key": "p01", "value": [6.2, 3.6]}


def _first_reading(log: Path) -> StoredEvent:
    """Mediation works beside the door: looks until it is there, twenty seconds at most."""
    for _ in range(200):
        if found := WrittenLog(log)["events"]:
            return found[0]
        time.sleep(0.1)
    raise AssertionError("the reading did not arrive")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="the lines use curl")
def test_the_lines_for_curl_in_the_readme_publish_and_ask(tmp_path: Path) -> None:
    lines = re.findall(r"^curl http.*/channels/lab/.*$", README.read_text(encoding="utf-8"), re.M)
    assert len(lines) == 2
    (tmp_path / "site.toml").write_text(
        '[site]\nname = "lab"\n\n[concepts.a.attributes]\nb = "number"\n'
    )
    with NodeProcess(tmp_path) as node:
        node.start()
        host, port = node.doors
        published, asked = (
            json.loads(_shell(line.replace("127.0.0.1:8484", f"{host}:{port}"))) for line in lines
        )
        assert published == {"positions": [1], "duplicates": 0}
        assert [event["data"] for event in asked["events"]] == [{"grams": 12.5}]
        for page in ("openapi", "asyncapi"):
            assert json.loads(_shell(f"curl http://{host}:{port}/schema/{page}.json"))["info"]
        node.stop()


def _shell(line: str) -> str:
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True).stdout
