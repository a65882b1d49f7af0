"""A node that starts the pipeline's process and watches over it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rapport.core.errors import Conflict
from rapport.kernel.clock import SystemClock
from rapport.node.pipeline_process import PipelineProcess, pipeline_command
from rapport.pipeline.running.run_state import allow_start, ask_to_stop
from rapport.site.pipeline import RunPlaces, is_held, read_status

STANDS_IN = """
import os, sys, time
from pathlib import Path
from rapport.pipeline.running.run_state import hold_pipeline, write_status
from rapport.site.pipeline import RunPlaces, RunStatus
places = RunPlaces(Path(sys.argv[1]))
with hold_pipeline(places):
    write_status(places, RunStatus(pid=os.getpid(), site="s", master="m", state="running"))
    while not places.stop.exists():
        time.sleep(0.05)
"""
FAILS = "import sys; sys.exit(3)"


class QuickClock(SystemClock):
    """Pauses are shorter than they are said to be, and are noted."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    async def sleep(self, duration_ms: float) -> None:
        self.pauses.append(duration_ms)
        await super().sleep(min(duration_ms, 50))


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)


@pytest.fixture
def places(tmp_path: Path) -> RunPlaces:
    return RunPlaces.of(tmp_path)


def watched(places: RunPlaces, program: str, clock: SystemClock) -> PipelineProcess:
    return PipelineProcess(places, clock, (sys.executable, "-c", program, str(places.directory)))


def pid_of(places: RunPlaces) -> int:
    told = read_status(places)
    return told.pid if told is not None and is_held(places.lock) else 0


@pytest.mark.slow
def test_a_killed_process_is_started_again_and_a_stopped_one_is_not(places: RunPlaces) -> None:
    async def scenario() -> None:
        watch = watched(places, STANDS_IN, QuickClock())
        running = asyncio.create_task(watch.run())
        await until(lambda: pid_of(places) > 0)
        assert is_held(places.watched)
        first = pid_of(places)
        os.kill(first, signal.SIGKILL)
        await until(lambda: pid_of(places) not in (0, first))
        assert watch.starts == 2
        ask_to_stop(places)
        await until(lambda: not is_held(places.lock))
        await asyncio.sleep(0.5)
        assert watch.starts == 2
        allow_start(places)
        await until(lambda: pid_of(places) > 0)
        assert watch.starts == 3
        running.cancel()
        await asyncio.wait([running])
        assert not is_held(places.lock), "the process ends with its node"
        assert not is_held(places.watched)

    asyncio.run(scenario())


def test_one_that_keeps_failing_is_started_later_each_time(places: RunPlaces) -> None:
    async def scenario() -> None:
        clock = QuickClock()
        watch = watched(places, FAILS, clock)
        running = asyncio.create_task(watch.run())
        await until(lambda: len(clock.pauses) >= 4)
        running.cancel()
        await asyncio.wait([running])
        assert clock.pauses[:4] == [1_000, 2_000, 4_000, 8_000]
        assert watch.problem == "the pipeline ended with code 3"

    asyncio.run(scenario())


@pytest.mark.slow
def test_somebody_elses_process_is_let_be_and_two_nodes_do_not_watch_one(
    places: RunPlaces,
) -> None:
    async def scenario() -> None:
        by_hand = await asyncio.create_subprocess_exec(
            sys.executable, "-c", STANDS_IN, str(places.directory)
        )
        await until(lambda: pid_of(places) > 0)
        watch = watched(places, STANDS_IN, QuickClock())
        running = asyncio.create_task(watch.run())
        await asyncio.sleep(0.3)
        assert watch.starts == 0
        with pytest.raises(Conflict):
            await watched(places, STANDS_IN, QuickClock()).run()
        by_hand.kill()
        await by_hand.wait()
        await until(lambda: watch.starts == 1 and pid_of(places) > 0)
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(scenario())


def test_the_command_is_the_one_for_people() -> None:
    assert pipeline_command("here")[2:] == ("rapport.cli.main", "pipeline", "run", "--site", "here")
