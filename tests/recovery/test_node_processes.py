"""What is left when a node's process ends, and what a second one is told. [UX-5, UX-9]"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rapport.core.errors import Unavailable
from rapport.scenarios.posting import post_json
from rapport.testing.processes.node import NodeProcess
from rapport.testing.written_log import WrittenLog

pytestmark = pytest.mark.slow

HANGS = "import time\n\ndef wait(bearing, distance):\n    time.sleep(3600)\n"
RULE = (
    'convert = [{ call = "floors:wait", take = ["bearing", "distance"], '
    'give = ["bearing", "distance"], deadline = "2s" }]\n'
)
CAMERAS = "[interpretations.cameras]\n"


@pytest.fixture
def site(building_site: Path) -> Path:
    """The secure building, with cameras whose conversion hangs."""
    file = building_site / "site.toml"
    file.write_text(file.read_text().replace(CAMERAS, CAMERAS + RULE))
    (building_site / "floors.py").write_text(HANGS)
    return building_site


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> bool:
    """Looks twenty times a second; says whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.05)
    return True


def workers_of(site: Path) -> list[str]:
    """Processes of conversions that were started for this site."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().decode("utf-8", "replace")
        except OSError:
            continue  # it ended while we looked
        if "rapport.kernel.worker" in command and str(site) in command:
            found.append(entry.parent.name)
    return found


def see_somebody(node: NodeProcess) -> None:
    assert node.doors is not None
    url = f"http://{node.doors[0]}:{node.doors[1]}/sources/cameras"
    seen = {"cam": "c2", "face": "p07", "bearing_deg": 0, "dist_ft": 12, "ts": 1_772_452_800}
    asyncio.run(post_json(url, seen))


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks into /proc")
def test_a_killed_node_leaves_no_process_behind_though_its_conversion_hangs(site: Path) -> None:
    with NodeProcess(site) as node:
        node.start()
        see_somebody(node)
        assert wait_until(lambda: bool(workers_of(site)))
        node.kill()
        assert wait_until(lambda: not workers_of(site))
        node.start()
        assert wait_until(lambda: bool(WrittenLog(site / ".rapport" / "log")["quarantine"]))
        assert node.stop()[0] == 0
    (held,) = WrittenLog(site / ".rapport" / "log")["quarantine"]
    assert held.event.payload()["reason"] == "conversion.timeout"
    assert workers_of(site) == []


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks into /proc")
def test_a_node_ends_soon_and_with_its_worker_though_a_conversion_hangs(site: Path) -> None:
    with NodeProcess(site) as node:
        node.start()
        see_somebody(node)
        assert wait_until(lambda: bool(workers_of(site)))
        code, seconds = node.stop()
        assert (code, seconds < 5) == (0, True), (code, seconds, node.told)
        assert workers_of(site) == []


def test_a_second_node_on_the_same_data_ends_at_once_and_names_the_first(site: Path) -> None:
    with NodeProcess(site) as node:
        node.start()
        command = [sys.executable, "-m", "rapport.cli.main", "up", "--port", "0"]
        second = subprocess.run(
            [*command, "--site", str(site)],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "NO_COLOR": "1"},
        )
        assert second.returncode == 1
        holder = (site / ".rapport" / "log" / "lock").read_text().strip()
        assert f"is being written by process {holder}" in second.stderr
        assert "error[store.locked]" in second.stderr
        assert "Traceback" not in second.stderr
        see_somebody(node)
        assert node.stop()[0] == 0


def test_a_node_on_a_site_with_faults_does_not_start_and_says_where_they_are(site: Path) -> None:
    file = site / "site.toml"
    file.write_text(file.read_text().replace('csv = "rooms.csv"', 'csv = "room.csv"'))
    with NodeProcess(site) as node, pytest.raises(Unavailable, match=r"room\.csv"):
        node.start()
    assert not any("Traceback" in line for line in node.told)


def test_a_faulty_interpretation_refuses_only_itself_and_is_told_at_the_start(site: Path) -> None:
    file = site / "site.toml"
    file.write_text(file.read_text().replace('table = "badges"', 'table = "badge"'))
    with NodeProcess(site) as node:
        node.start()
        assert any("did you mean 'badges'" in line for line in node.told)
        assert node.stop()[0] == 0


def test_only_its_owner_can_read_what_a_node_writes(building_site: Path) -> None:
    data = building_site / ".rapport"
    data.mkdir(mode=0o755)  # as earlier versions made it
    before = os.umask(0o022)
    try:
        with NodeProcess(building_site) as node:
            node.start()
            assert node.doors is not None
            asyncio.run(post_json("http://{}:{}/sources/readers".format(*node.doors), {"a": 1}))
            node.stop()
    finally:
        os.umask(before)
    written = [data, *data.rglob("*")]
    assert len(written) > 5
    for path in written:
        wanted = 0o700 if path.is_dir() else 0o600
        assert path.stat().st_mode & 0o777 == wanted, path
