"""A kill between any two steps of a job on the lake neither loses nor doubles a row. [PI-10]"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rapport.channel.backends.local import open_memory
from rapport.channel.export.lake_export import export_channels
from rapport.core.event import Event, make_event
from rapport.kernel.clock import ManualClock
from rapport.pipeline.lake.compaction import compact
from rapport.pipeline.lake.journal import no_step
from rapport.pipeline.lake.retention import expire
from rapport.pipeline.lake.silver import update_silver
from rapport.policy.engine.stream_steps import late_event
from rapport.policy.ontology import Ontology, PushSource

CHILD = Path(__file__).with_name("lake_child.py")
BEGIN, DAY = 1_772_409_600_000, 86_400_000
SOURCE = PushSource(name="s", concept="room", attribute="warmth", key="k", value=("v",))
ONTOLOGY = Ontology(
    concepts={"room": {"warmth": "number"}}, relationships={}, sources={"s": SOURCE}
)


Job = Callable[[Path, Callable[[str], None]], None]


class Killed(BaseException):
    """Ends the job as a kill would: nothing of ours runs after it."""


def reading(number: int, **headers: str) -> Event:
    time = BEGIN + number % 3 * DAY + number
    data = {"key": "5", "value": [number]}
    return make_event(
        source="s", id=str(number), type="room.warmth", time=time, data=data, headers=headers
    )


class Growing:
    """A lake that gets new events in rounds."""

    def __init__(self, path: Path) -> None:
        self.path, self._clock = path, ManualClock(BEGIN)
        self._channels = open_memory(self._clock)

    def grow(self, *events: Event, late: tuple[int, ...] = ()) -> None:
        async def run() -> None:
            await self._channels.channel("events").append(list(events))
            told = [late_event("p", (reading(n).time, str(n))) for n in late]
            await self._channels.channel("detections").append(told)
            await export_channels(self._channels, self.path, rows_per_file=4)

        asyncio.run(run())


def rows_of(lake: Path, layer: str) -> list[tuple[Any, ...]]:
    found = []
    for path in sorted((lake / layer).rglob("*.parquet")):
        for row in pq.read_table(path, partitioning=None).to_pylist():
            found.append((row["position"], row["id"], row.get("status"), row.get("reason")))
    return sorted(found)


def kill_after(steps: int) -> Callable[[str], None]:
    """A kill at the step after so many."""
    left = steps

    def step(_name: str) -> None:
        nonlocal left
        if not left:
            raise Killed
        left -= 1

    return step


def killed_everywhere(lake: Path, job: Job) -> Iterator[Path]:
    """Copies of the lake on which the job was killed, each one step later, and then run again: that
    too killed once, early, before it came to its end.
    """
    for steps in range(1_000):
        copy = lake.with_name(f"{lake.name}-{steps}")
        shutil.copytree(lake, copy)
        try:
            job(copy, kill_after(steps))
        except Killed:
            with suppress(Killed):
                job(copy, kill_after(steps % 5))
            job(copy, no_step)
            yield copy
        else:
            return


def rounds(lake: Growing) -> list[Callable[[], None]]:
    """What happens to a lake: readings, verdicts about older ones, corrections."""
    return [
        lambda: lake.grow(*(reading(n) for n in range(10))),
        lambda: lake.grow(*(reading(n) for n in range(10, 18)), late=(1, 4)),
        lambda: lake.grow(reading(30, corrects="2"), reading(31, corrects="2"), late=(17,)),
    ]


def clean_run(path: Path) -> list[tuple[Any, ...]]:
    lake = Growing(path)
    for grow in rounds(lake):
        grow()
        update_silver(None, path, ONTOLOGY)
    return rows_of(path, "silver")


@pytest.mark.slow
def test_silver_killed_between_any_two_steps_holds_each_row_once(tmp_path: Path) -> None:
    def job(lake: Path, step: Callable[[str], None]) -> None:
        update_silver(None, lake, ONTOLOGY, rows_per_step=6, at_step=step)

    path = tmp_path / "lake"
    growing, kills, states = Growing(path), 0, set[str]()
    for grow in rounds(growing):
        grow()
        finished = tmp_path / "finished"
        shutil.copytree(path, finished)
        job(finished, no_step)
        expected = rows_of(finished, "silver")
        for copy in killed_everywhere(path, job):
            assert rows_of(copy, "silver") == expected
            shutil.rmtree(copy)
            kills += 1
        shutil.rmtree(path)
        finished.rename(path)
        states |= {str(row[2]) for row in expected}
        for left in tmp_path.glob("lake-*"):
            shutil.rmtree(left)
    assert kills > 30
    assert states == {"counted", "late", "corrected"}


@pytest.mark.slow
def test_compaction_killed_between_any_two_steps_keeps_every_row(tmp_path: Path) -> None:
    path = tmp_path / "lake"
    clean_run(path)
    before = rows_of(path, "silver"), rows_of(path, "bronze")

    def job(lake: Path, step: Callable[[str], None]) -> None:
        def checked(name: str) -> None:
            # What a reader sees at any moment, also just before the kill.
            assert (rows_of(lake, "silver"), rows_of(lake, "bronze")) == before
            step(name)

        compact(lake, fewest=3, at_step=checked)

    kills = 0
    for copy in killed_everywhere(path, job):
        kills += 1
        assert (rows_of(copy, "silver"), rows_of(copy, "bronze")) == before
        assert compact(copy, fewest=3).folders == 0
    assert kills > 5


def test_retention_killed_between_any_two_steps_removes_whole_days(tmp_path: Path) -> None:
    path = tmp_path / "lake"
    clean_run(path)
    expected = [row for row in rows_of(path, "silver") if int(row[1]) % 3 == 2]

    def job(lake: Path, step: Callable[[str], None]) -> None:
        clock = ManualClock(BEGIN + 2 * DAY)
        expire(lake, {"silver/room.warmth": 0}, clock=clock, at_step=step)

    copies = list(killed_everywhere(path, job))
    assert len(copies) > 8
    assert all(rows_of(copy, "silver") == expected for copy in copies)


@pytest.mark.slow
def test_a_really_killed_job_goes_on_where_it_was(tmp_path: Path) -> None:
    expected = clean_run(tmp_path / "clean")
    path = tmp_path / "killed"
    lake = Growing(path)
    deaths = (("prepared", "placed"), ("announced", "carried out"), ("confirmed", "placed"))
    for grow, steps in zip(rounds(lake), deaths, strict=True):
        grow()
        for step in steps:
            command = [sys.executable, str(CHILD), str(path), step]
            child = subprocess.run(command, env=os.environ, check=False, timeout=120)
            assert child.returncode in (-signal.SIGKILL, 0)
    update_silver(None, path, ONTOLOGY)
    assert rows_of(path, "silver") == expected
