"""A site's pipeline on a real Spark: once, until it is stopped, and with jobs that fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from rapport.channel.backends.local import open_embedded
from rapport.channel.log.channels import LoggedChannels
from rapport.core.errors import InvalidInput, StoreUnavailable
from rapport.core.event import Event, make_event
from rapport.kernel.clock import SystemClock
from rapport.pipeline.running import run
from rapport.pipeline.running.jobs import JobDone
from rapport.pipeline.running.live_thread import LiveThread
from rapport.pipeline.running.run import RunWanted, run_pipeline
from rapport.pipeline.running.run_state import ask_to_stop, wait_until
from rapport.pipeline.streaming.live_query import LiveSettings
from rapport.site.pipeline import PipelineSettings, RunPlaces, RunStatus, is_held, read_status
from rapport.site.site import Site, load_site
from support.servers.spark import TEST_SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

PIPELINE = PipelineSettings(every_ms=500, figures_every_ms=3_600_000, buckets=2)


def wanted(*, once: bool = True, live: bool = True) -> RunWanted:
    pipeline = PIPELINE if once else msgspec.structs.replace(PIPELINE, figures=False)
    return RunWanted(pipeline=pipeline, spark=TEST_SETTINGS, once=once, live=live, must_live=live)


def append(site: Site, events: list[Event]) -> None:
    """Appends to `events`, also while a live query writes to the same log now and then."""

    async def work() -> None:
        channels = await open_when_free(site.data_directory / "log")
        await channels.channel("events").append(events)
        await channels.close()

    asyncio.run(work())


async def open_when_free(log: Path, seconds: float = 30) -> LoggedChannels:
    """The log, as soon as nobody else writes it; raises the last refusal after so many seconds.

    One process writes a log at a time: a task of the query holds its lock for a moment.
    """
    clock = SystemClock()
    deadline_ns = clock.steady_ns() + int(seconds * 1e9)
    while True:
        try:
            return open_embedded(log, clock)
        except StoreUnavailable as error:
            if error.code != "store.locked" or clock.steady_ns() > deadline_ns:
                raise
        await clock.sleep(20)


def jobs(told: RunStatus) -> dict[str, tuple[str, int]]:
    return {one.job: (one.state, one.behind_events) for one in told.jobs}


def test_once_everything_is_done_and_nothing_is_left_to_do(
    spark: SparkSession, directory: Path
) -> None:
    told = run_pipeline(directory, wanted())
    assert told.state == "ended"
    assert jobs(told) == {
        "live": ("waiting", 0),
        "export": ("waiting", 0),
        "silver": ("waiting", 0),
        "figures": ("waiting", 0),
        "compact": ("waiting", 0),
        "vacuum": ("waiting", 0),
    }
    rows = {one.job: one.rows for one in told.jobs}
    assert rows["export"] > 200, "readings, detections and reports"
    assert rows["silver"] > 200
    places = RunPlaces.of(load_site(directory).data_directory)
    assert read_status(places) == told
    assert not is_held(places.lock)


def test_it_runs_on_until_it_is_asked_to_stop_and_a_failing_job_does_not_keep_the_others(
    spark: SparkSession, directory: Path
) -> None:
    site = load_site(directory)
    places, lake = RunPlaces.of(site.data_directory), site.data_directory / "lake"
    silver = lake / "silver"
    silver.mkdir(parents=True)
    (silver / "quarantined").write_text("in the way")  # so that silver cannot be made
    seen: list[RunStatus] = []

    def is_so(check: Callable[[RunStatus], bool]) -> Callable[[], bool]:
        def look() -> bool:
            told = read_status(places)
            return told is not None and check(told)

        return look

    def by(told: RunStatus, name: str) -> str:
        return next((one.state for one in told.jobs if one.job == name), "")

    def watch() -> None:
        assert wait_until(is_so(lambda told: by(told, "silver") == "failed"), 120)
        told = read_status(places)
        assert told is not None
        seen.append(told)
        (silver / "quarantined").unlink()
        assert wait_until(
            is_so(lambda told: any(one.job == "live" and one.batches for one in told.jobs)), 120
        )
        ask_to_stop(places)

    watching = threading.Thread(target=watch)
    watching.start()
    told = run_pipeline(directory, wanted(once=False))
    watching.join()
    [failed] = seen
    [job] = [one for one in failed.jobs if one.job == "silver"]
    assert job.problem is not None
    assert (job.problem.code, job.failures >= 1) == ("lake.unavailable", True)
    assert by(failed, "export") in ("waiting", "running"), "again and again"
    assert told.state == "ended"
    assert by(told, "live") == "off"
    assert places.stop.exists(), "a node does not start it again"


def test_figures_that_take_long_do_not_keep_export_and_silver_waiting(
    spark: SparkSession, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, exported = threading.Event(), threading.Semaphore(0)

    def export() -> JobDone:
        exported.release()
        return JobDone(1)

    def figures() -> JobDone:
        for _ in range(3):  # goes on only when others have worked meanwhile
            assert exported.acquire(timeout=60)
        stop.set()
        return JobDone(7)

    jobs = {"export": export, "figures": figures, "expire": lambda: JobDone(0)}
    monkeypatch.setattr(run, "history_jobs", lambda *_: jobs)
    pipeline = msgspec.structs.replace(PIPELINE, every_ms=1)
    told = run_pipeline(
        directory, RunWanted(pipeline=pipeline, spark=TEST_SETTINGS, live=False), stop=stop
    )
    assert {one.job: (one.state, one.rows) for one in told.jobs} == {
        "export": ("waiting", 1),
        "figures": ("waiting", 7),
    }


def test_live_without_a_policy_for_it_is_refused_only_when_it_was_asked_for(
    spark: SparkSession, directory: Path
) -> None:
    file = directory / "site.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('on_spark = ["*"]\n', ""), encoding="utf-8")
    with pytest.raises(InvalidInput, match="lets no policy run on Spark"):
        run_pipeline(directory, wanted())
    places = RunPlaces.of(load_site(directory).data_directory)
    told = read_status(places)
    assert told is not None
    assert (told.state, told.problem is not None) == ("failed", True)


def test_live_policies_are_started_again_after_what_nobody_thought_of(
    spark: SparkSession, directory: Path, tmp_path: Path
) -> None:
    """Here the disk refuses the checkpoint for a while."""
    checkpoint, stop = tmp_path / "live", threading.Event()
    in_the_way = checkpoint
    in_the_way.symlink_to(tmp_path / "nowhere" / "live")
    live = LiveThread(spark, directory, checkpoint, LiveSettings(buckets=1), SystemClock(), stop)
    live.start()
    try:
        assert wait_until(lambda: live.status.failures > 0, 60)
        assert live.status.problem is not None
        assert (live.status.state, live.status.problem.code) == ("failed", "pipeline.unavailable")
        in_the_way.unlink()

        def has_gone_on() -> bool:
            live.look()
            return live.status.reached >= 200

        assert wait_until(has_gone_on, 120)
        assert live.status.problem is None
    finally:
        stop.set()
        assert live.join(60)


class FastClock(SystemClock):
    """Shows a second as a quarter of an hour, so that tables are looked at often."""

    def steady_ns(self) -> int:
        return super().steady_ns() * 1_000


def test_live_policies_go_on_while_somebody_edits_the_site(
    spark: SparkSession, directory: Path, tmp_path: Path
) -> None:
    site, stop = load_site(directory), threading.Event()
    live = LiveThread(
        spark, directory, tmp_path / "live", LiveSettings(buckets=1), FastClock(), stop
    )

    def has_reached(position: int) -> Callable[[], bool]:
        def look() -> bool:
            live.look()
            return live.status.reached >= position or live.status.failures > 0

        return look

    live.start()
    try:
        assert wait_until(has_reached(200), 120)
        (directory / "site.toml").write_text("[policies\nhalf = ")
        again = [make_event(source="x", id=str(n), type="x.y", time=n) for n in range(50)]
        append(site, again)
        assert wait_until(has_reached(250), 60)
        assert (live.status.failures, live.status.reached) == (0, 250)
    finally:
        stop.set()
        assert live.join(60)
