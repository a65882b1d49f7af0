import asyncio

import pytest
from structlog.testing import capture_logs

from rapport.core.errors import DuplicateName, UnknownName
from rapport.kernel.clock import ManualClock
from rapport.kernel.plugins import Plugins
from rapport.kernel.tasks import Tasks, cancel_until_done
from rapport.kernel.telemetry import hide_secrets


def test_a_failing_task_is_started_again_and_the_others_go_on() -> None:
    async def scenario() -> tuple[int, int]:
        clock = ManualClock()
        tasks, runs, ticks = Tasks(clock), 0, 0

        async def fails_twice() -> None:
            nonlocal runs
            runs += 1
            if runs < 3:
                raise ValueError("not yet")

        async def steady() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await clock.sleep(100)

        tasks.start("fails", fails_twice)
        tasks.start("steady", steady)
        await clock.advance(1000)
        await tasks.stop()
        return runs, ticks

    with capture_logs() as logs:
        runs, ticks = asyncio.run(scenario())
    assert runs == 3
    assert ticks >= 10
    assert [entry["again_in_ms"] for entry in logs] == [100, 200]


def test_plugins_are_found_by_name_and_near_names_are_offered() -> None:
    plugins = Plugins()
    plugins.add("adapters", "mail", lambda: "mail")
    assert plugins.get("adapters", "mail")() == "mail"
    with pytest.raises(DuplicateName):
        plugins.add("adapters", "mail", lambda: "again")
    with pytest.raises(UnknownName, match="mial"):
        plugins.get("adapters", "mial")


def test_secrets_do_not_reach_the_log() -> None:
    entry = hide_secrets(None, "info", {"event": "x", "smtp_password": "p", "session_token": "t"})
    assert entry == {"event": "x", "smtp_password": "***", "session_token": "***"}


@pytest.mark.slow
def test_work_that_misses_a_cancellation_is_asked_again_until_it_ends() -> None:
    async def scenario() -> int:
        missed = 0

        async def deaf() -> None:
            nonlocal missed
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    missed += 1
                    if missed == 3:
                        raise

        work = asyncio.ensure_future(deaf())
        await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await cancel_until_done(work)
        return missed

    assert asyncio.run(scenario()) == 3


def test_all_tasks_are_ended_also_by_one_that_is_being_cancelled() -> None:
    async def scenario() -> list[str]:
        tasks, ended = Tasks(ManualClock()), []

        async def waits(name: str) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(name)

        async def owner() -> None:
            tasks.start("one", lambda: waits("one"))
            tasks.start("two", lambda: waits("two"))
            try:
                await asyncio.Event().wait()
            finally:
                await tasks.stop()
                ended.append("owner")

        owning = asyncio.ensure_future(owner())
        for _ in range(3):
            await asyncio.sleep(0)
        owning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owning
        return ended

    assert asyncio.run(scenario()) == ["two", "one", "owner"]


def test_a_stop_that_is_cancelled_leaves_no_task_running() -> None:
    async def scenario() -> list[str]:
        tasks, ended = Tasks(ManualClock()), []
        goes_on = asyncio.Event()

        async def waits(name: str) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                if name == "slow":
                    await goes_on.wait()
                ended.append(name)

        for name in ("first", "slow"):
            tasks.start(name, lambda name=name: waits(name))
        await asyncio.sleep(0)
        stopping = asyncio.create_task(tasks.stop())
        for _ in range(3):
            await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        goes_on.set()
        for _ in range(3):
            await asyncio.sleep(0)
        return sorted(ended)

    assert asyncio.run(scenario()) == ["first"]


def test_a_task_whose_cleaning_up_fails_is_stopped_all_the_same() -> None:
    """What fails while it is being cancelled is not started again: who stops it would wait for
    ever.
    """

    async def scenario() -> int:
        clock = ManualClock()
        tasks, runs = Tasks(clock), 0

        async def work() -> None:
            nonlocal runs
            runs += 1
            try:
                await asyncio.Event().wait()
            finally:
                if runs == 1:
                    raise OSError("the disk is full")

        tasks.start("work", work)
        await clock.advance(10)
        stopping = asyncio.create_task(tasks.stop())
        await clock.advance(60_000)
        is_stopped = stopping.done()
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        assert is_stopped
        return runs

    with capture_logs() as logs:
        assert asyncio.run(scenario()) == 1
    assert [(entry["event"], entry["error"]) for entry in logs] == [
        ("task failed", "OSError('the disk is full')")
    ]
