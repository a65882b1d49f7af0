"""One process per site; a killed one is found out; asking to end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rapport.core.errors import Conflict, StoreUnavailable
from rapport.pipeline.running.run_state import (
    allow_start,
    ask_to_stop,
    hold_pipeline,
    wait_until,
    write_status,
)
from rapport.site.pipeline import RunPlaces, RunStatus, is_held, read_status, run_state

HOLDS = """
import sys
from pathlib import Path
from rapport.pipeline.running.run_state import hold_pipeline, write_status
from rapport.site.pipeline import RunPlaces, RunStatus
import os
places = RunPlaces(Path(sys.argv[1]))
with hold_pipeline(places):
    write_status(places, RunStatus(pid=os.getpid(), site="s", master="local[1]", state="running"))
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def places(tmp_path: Path) -> RunPlaces:
    return RunPlaces.of(tmp_path)


def test_a_second_run_is_refused_and_a_killed_one_leaves_no_lock(places: RunPlaces) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(places.directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"held\n"
        assert is_held(places.lock)
        with pytest.raises(Conflict, match=f"process {child.pid}") as caught, hold_pipeline(places):
            pass
        assert caught.value.code == "pipeline.running"
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
    told = read_status(places)
    assert told is not None
    assert told.pid == child.pid
    assert not is_held(places.lock)
    assert run_state(told, runs=False, now_ms=0) == "killed"
    with hold_pipeline(places):
        assert is_held(places.lock)


def test_how_a_process_is_follows_from_its_lock_and_its_last_word() -> None:
    told = RunStatus(pid=1, site="s", master="m", state="running", updated=1_000)
    assert run_state(told, runs=True, now_ms=2_000) == "running"
    assert run_state(told, runs=True, now_ms=40_000) == "silent"
    assert run_state(None, runs=True, now_ms=0) == "starting"
    assert run_state(None, runs=False, now_ms=0) == "down"
    told.state = "ended"
    assert run_state(told, runs=False, now_ms=0) == "down"


def test_what_cannot_be_understood_is_as_if_nothing_was_said(places: RunPlaces) -> None:
    assert read_status(places) is None
    places.directory.mkdir(parents=True)
    places.status.write_bytes(b'{"pid": "a lo')
    assert read_status(places) is None
    write_status(places, RunStatus(pid=1, site="s", master="m", format=99))
    assert read_status(places) is None
    write_status(places, RunStatus(pid=1, site="s", master="m"))
    assert read_status(places) == RunStatus(pid=1, site="s", master="m")
    assert sorted(path.name for path in places.directory.iterdir()) == ["status.json"]


def test_asking_to_stop_stays_until_it_is_taken_back(places: RunPlaces) -> None:
    assert not ask_to_stop(places)
    assert places.stop.exists()
    with hold_pipeline(places):
        assert ask_to_stop(places)
    assert allow_start(places)
    assert not allow_start(places)


def test_waiting_ends_when_it_is_so_or_the_time_is_over() -> None:
    left = [3]

    def is_so() -> bool:
        left[0] -= 1
        return left[0] == 0

    assert wait_until(is_so, 5)
    assert not wait_until(lambda: False, 0.1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreUnavailable), hold_pipeline(RunPlaces.of(tmp_path)):
        pass
