"""A whole node whose wall clock jumps 400 days ahead and back, and that is killed with -9 between:
its policies work again without a restart, and `replay --as-live` finds what it found. [PO-7, PO-8]

The clock is moved by libfaketime, under `rapport up` as it is; without the library that test is
left out. `tests/policy/engine/test_clock.py` has the same with a clock moved by hand.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rapport.cli.main import run
from rapport.core.detection import DETECTED, Detection, detection_lines, detection_order
from rapport.kernel.clock import SystemClock
from rapport.policy.engine.stream_steps import RESET_TYPE
from support.processes.node import NodeProcess
from support.written_log import WrittenLog

pytestmark = pytest.mark.slow

CHECK = Path(__file__).parents[1] / "data" / "checks" / "small-policies"
LIBRARIES = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
    "/usr/lib/faketime/libfaketimeMT.so.1",
]
LIBRARY = next((one for one in LIBRARIES if os.path.exists(one)), None)


class Jumps:
    """The wall clock of the node: the machine's plus so many days."""

    def __init__(self, file: Path) -> None:
        self._file, self._days = file, 0
        self.set(0)

    def set(self, days: int) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(f"+{days}d\n")
        new.replace(self._file)
        self._days = days

    def now_ms(self) -> int:
        return SystemClock().now_ms() + self._days * 86_400_000


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CHECK, tmp_path / "site"))


@pytest.fixture
def jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Jumps:
    if LIBRARY is None:
        pytest.skip("libfaketime is not installed (package libfaketime or faketime)")
    file = tmp_path / "faketime"
    jumps = Jumps(file)
    monkeypatch.setenv("LD_PRELOAD", LIBRARY)
    monkeypatch.setenv("FAKETIME_TIMESTAMP_FILE", str(file))
    monkeypatch.setenv("FAKETIME_NO_CACHE", "1")
    monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    return jumps


def post(node: NodeProcess, id: str, time_ms: int) -> None:
    assert node.doors is not None
    connection = http.client.HTTPConnection(*node.doors, timeout=10)
    try:
        payload = {"id": id, "ts": time_ms, "person": "2", "x": 5, "y": 5}
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/sources/positions", json.dumps(payload), headers)
        assert connection.getresponse().status == 200
    finally:
        connection.close()


def found_in(site: Path) -> list[Detection]:
    kept = [one.event for one in WrittenLog(site / ".rapport" / "log")["detections"]]
    return [Detection.from_event(event) for event in kept if event.type == DETECTED]


def wait_for(site: Path, id: str) -> None:
    """Until a policy found something because of a reading."""
    wait_until(lambda: any(id in [each for _, each in one.causes] for one in found_in(site)), id)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.1)


def check_as_live(site: Path, out: Path) -> None:
    assert run(["replay", "--as-live", "--site", str(site), "--out", str(out)]) == 0
    assert out.read_bytes() == detection_lines(sorted(found_in(site), key=detection_order))


def test_a_reading_ahead_of_the_clock_waits_for_its_time_also_over_kill_nine(
    site: Path, tmp_path: Path
) -> None:
    clock = SystemClock()
    with NodeProcess(site) as node:
        node.start()
        ahead_ms = clock.now_ms() + 12_000
        post(node, "ahead", ahead_ms)
        for number in range(8):
            post(node, f"true{number}", clock.now_ms())
        wait_for(site, "true7")
        assert node.kill() == -signal.SIGKILL
        node.start()
        post(node, "after", clock.now_ms())
        wait_for(site, "after")
        wait_for(site, "ahead")
        assert node.stop()[0] == 0, node.told
    kept = WrittenLog(site / ".rapport" / "log")["detections"]
    received = [one.received for one in kept if "ahead" in one.event.causes()]
    assert min(received) >= ahead_ms, "it did not wait"
    assert WrittenLog(site / ".rapport" / "log").late() == []
    check_as_live(site, tmp_path / "as-live.jsonl")


def test_after_a_jump_of_400_days_and_back_policies_work_without_a_restart(
    site: Path, jumps: Jumps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with NodeProcess(site) as node:
        node.start()
        post(node, "ahead", jumps.now_ms() + 50_000)
        for number in range(8):
            post(node, f"true{number}", jumps.now_ms())
        wait_for(site, "true7")
        assert node.kill() == -signal.SIGKILL
        node.start()
        jumps.set(400)
        post(node, "wrong", jumps.now_ms())
        wait_for(site, "wrong")
        wait_for(site, "ahead")  # it waited over the death of the process
        jumps.set(0)
        post(node, "after", jumps.now_ms())
        wait_for(site, "after")
        assert node.kill() == -signal.SIGKILL
    written = WrittenLog(site / ".rapport" / "log")
    assert written.late() == []
    resets = [one.event for one in written["detections"] if one.event.type == RESET_TYPE]
    assert len(resets) == 1
    monkeypatch.delenv("LD_PRELOAD")
    check_as_live(site, tmp_path / "as-live.jsonl")
