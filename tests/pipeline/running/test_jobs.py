"""Jobs over history: what they take, and what they leave to others."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from rapport.channel.backends.local import open_embedded
from rapport.core.errors import RapportError
from rapport.core.event import make_event
from rapport.kernel.clock import ManualClock
from rapport.lake import maintenance
from rapport.lake.places import Lake
from rapport.lake.table import Table
from rapport.pipeline.running.jobs import (
    JobStopped,
    compact_step,
    expire_step,
    export_step,
    history_jobs,
    silver_step,
    vacuum_step,
)
from rapport.pipeline.running.lag import Behind, Lag
from rapport.pipeline.streaming.live_query import ReloadedSite
from rapport.site.site import Site, load_site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_site_without_a_log_has_nothing_to_export(directory: Path, tmp_path: Path) -> None:
    site = load_site(directory)
    (site.data_directory / "log").rename(tmp_path / "moved")
    lake = site.data_directory / "lake"
    assert export_step(site, lake).rows == 0
    assert Lag(directory, lake).of_export(0) == Behind()


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_only_what_the_site_says_and_silver_has_taken_is_let_go_of(
    spark: SparkSession, directory: Path
) -> None:
    site = load_site(directory)
    lake = site.data_directory / "lake"
    export_step(site, lake)
    assert expire_step(site, lake).rows == 0, "the site says nothing"
    with (directory / "site.toml").open("a", encoding="utf-8") as file:
        file.write("\n[pipeline.keep]\nbronze = 0\n")
    site = load_site(directory)
    assert expire_step(site, lake).rows == 0, "silver waits for it"
    silver_step(spark, site, lake, threading.Event())
    assert expire_step(site, lake).rows > 0
    assert Lake.at(lake).open("bronze", "events").rows() == 0


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_silver_ends_between_two_steps_when_it_is_asked_to(
    spark: SparkSession, directory: Path
) -> None:
    site, stop = load_site(directory), threading.Event()
    lake = site.data_directory / "lake"
    export_step(site, lake)
    stop.set()
    with pytest.raises(JobStopped):
        silver_step(spark, site, lake, stop)
    assert silver_step(spark, site, lake, threading.Event()).rows == 0, "the step was kept"


def test_lag_is_told_in_events_and_in_the_age_of_the_oldest(directory: Path) -> None:
    site = load_site(directory)
    lake = site.data_directory / "lake"
    lag = Lag(directory, lake)
    received = lag.of_export(0)
    assert received.events == 200
    far = 10**13
    export = lag.of_export(far)
    assert export.ms > 0
    assert lag.of_live(150, far) == Behind(50, export.ms)
    assert lag.of_live(200, far) == Behind(0, 0)
    export_step(site, lake)
    assert (lag.of_export(far), lag.of_silver(far)) == (Behind(), Behind(200, export.ms))
    assert lag.exported() == 200


def test_what_the_site_says_of_its_channels_holds_for_the_next_export(directory: Path) -> None:
    site = load_site(directory)
    jobs = history_jobs(cast("Any", None), site, site.data_directory / "lake", threading.Event())
    assert jobs["export"]().rows == 200
    with (directory / "site.toml").open("a", encoding="utf-8") as file:
        file.write('\n[channels]\nlog = "postgres"\npostgres = "env:NOBODY_SET_THIS"\n')
    with pytest.raises(RapportError, match="NOBODY_SET_THIS"):
        jobs["export"]()


def test_a_site_that_is_being_edited_is_taken_as_it_was(directory: Path) -> None:
    now = ReloadedSite(load_site(directory))
    file = directory / "site.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('lateness = "2s"', 'lateness = "7s"'), encoding="utf-8")
    changed = now.site()
    assert changed.lateness_ms == 7_000
    file.write_text("[site", encoding="utf-8")
    assert now.site() is changed


def append(site: Site, id: str) -> None:
    async def work() -> None:
        channels = open_embedded(site.data_directory / "log", ManualClock(100_000))
        event = make_event(
            source="positions", id=id, type="person.position", time=100_000, data={"key": "2"}
        )
        await channels.channel("events").append([event])
        await channels.close()

    asyncio.run(work())


def test_small_files_are_joined_and_old_ones_deleted_by_jobs_of_the_service(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = load_site(directory)
    lake = site.data_directory / "lake"
    jobs = history_jobs(cast("Any", None), site, lake, threading.Event())
    assert (jobs["compact"]().rows, jobs["vacuum"]().rows) == (0, 0), "there is no lake yet"
    for number in range(4):
        append(site, str(number))
        export_step(site, lake)
    table = Lake.at(lake).open("bronze", "events")
    files, rows = len(table.files()), table.rows()
    assert compact_step(lake).rows == files - 1 > 0
    assert vacuum_step(lake).rows == 0, "readers may still use the files of today"
    monkeypatch.setattr(maintenance.vacuum, "__kwdefaults__", {"kept_hours": 0, "dry_run": False})
    assert vacuum_step(lake).rows == files
    assert Lake.at(lake).open("bronze", "events").rows() == rows


def test_a_table_that_cannot_be_compacted_fails_the_job(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = load_site(directory)
    lake = site.data_directory / "lake"
    export_step(site, lake)

    def refuse(*_: object, **__: object) -> list[str]:
        raise RapportError("the disk is full", code="lake.unavailable")

    monkeypatch.setattr(Table, "vacuum", refuse)
    with pytest.raises(RapportError, match="bronze/events: the disk is full") as found:
        vacuum_step(lake)
    assert found.value.code == "lake.maintenance_failed"
