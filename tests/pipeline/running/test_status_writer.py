"""What a process says about itself comes again when the disk takes it again; faults of all kinds
become ours.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rapport.core.errors import Conflict, StoreUnavailable
from rapport.kernel.clock import ManualClock
from rapport.pipeline.running.run_state import StatusWriter, ask_to_stop, error_of
from rapport.site.pipeline import RunPlaces, RunStatus, read_status


def test_a_status_that_cannot_be_written_is_said_the_next_time(tmp_path: Path) -> None:
    places, clock = RunPlaces.of(tmp_path), ManualClock(5)
    writer = StatusWriter(places, RunStatus(pid=1, site="s", master="local[1]"), clock)
    writer.write("running")  # there is no directory yet
    assert read_status(places) is None
    places.directory.mkdir(parents=True)
    asyncio.run(clock.advance(2))
    writer.write()
    told = read_status(places)
    assert told is not None
    assert (told.state, told.updated) == ("running", 7)


def test_nothing_is_left_behind_by_what_could_not_be_written(tmp_path: Path) -> None:
    places = RunPlaces.of(tmp_path)
    places.status.mkdir(parents=True)  # no file can take its place
    StatusWriter(places, RunStatus(pid=1, site="s", master="local[1]"), ManualClock(5)).write(
        "running"
    )
    assert list(places.directory.iterdir()) == [places.status]


def test_asking_to_stop_tells_what_the_disk_refused(tmp_path: Path) -> None:
    places = RunPlaces.of(tmp_path)
    places.directory.parent.mkdir(parents=True, exist_ok=True)
    places.directory.write_text("no folder")
    with pytest.raises(StoreUnavailable) as told:
        ask_to_stop(places)
    assert told.value.code == "pipeline.unavailable"


def test_faults_of_others_become_ours() -> None:
    ours = Conflict("no", code="a.b")
    assert error_of(ours, "export") is ours
    full = error_of(OSError(28, "No space left on device"), "export")
    assert (full.code, full.message) == ("pipeline.unavailable", "export: No space left on device")
    odd = error_of(ValueError("odd"), "silver")
    assert (odd.code, odd.message) == ("pipeline.job_failed", "silver: ValueError: odd")
