"""What is left when a node's process ends, and what a second one is told. [UX-5, UX-9]"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rapport.channel.backends.local import open_embedded
from rapport.core.errors import Unavailable
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock
from rapport.scenarios.json_client import post_json
from support.processes.node import NodeProcess
from support.written_log import WrittenLog

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


FEW_DESCRIPTORS = """
import resource, sys
from rapport.cli.main import run

resource.setrlimit(resource.RLIMIT_NOFILE, (512, 1024))
run(["up", "--port", "0", "--site", sys.argv[1]])
"""
MANY = 5_000


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="looks into /proc")
def test_a_node_with_five_thousand_channels_starts_with_few_descriptors(tmp_path: Path) -> None:
    site, program = tmp_path / "site", tmp_path / "few.py"
    site.mkdir()
    (site / "site.toml").write_text('[concepts.room.attributes]\nlight = "number"\n')
    program.write_text(FEW_DESCRIPTORS)
    logs = _write_channels(site / "data" / "log")
    with NodeProcess(site, program=program) as node:
        node.start()
        assert node.doors is not None
        limits = Path(f"/proc/{node.pid}/limits").read_text()
        assert re.search(r"Max open files +1024 +1024 ", limits)
        assert _resident_mb(node.pid) < 400
        url = f"http://{node.doors[0]}:{node.doors[1]}/channels"
        for number in range(0, MANY, 500):
            asyncio.run(post_json(f"{url}/many-{number}/events", _reading("2")))
        assert len(os.listdir(f"/proc/{node.pid}/fd")) < 512
        assert node.stop()[0] == 0
    # Nothing of the reserved room is left: a channel takes what it holds.
    assert sum(file.stat().st_size for file in logs.rglob("*")) < MANY * 1_000 + MANY * 4_096


def _write_channels(directory: Path) -> Path:
    """As many channels with an event each; all but the first are copies of it."""

    async def write() -> None:
        directory.parent.mkdir(parents=True)
        channels = open_embedded(directory, SystemClock())
        await channels.channel("many-0").append([Event("s", "1", "t", "", 1, b"{}")])
        await channels.close()

    asyncio.run(write())
    logs = directory / "logs"
    for number in range(1, MANY):
        shutil.copytree(logs / "many-0", logs / f"many-{number}")
    return logs


def _reading(id: str) -> dict[str, object]:
    return {"id": id, "source": "s", "type": "t", "data": {}}


def _resident_mb(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) // 1024
