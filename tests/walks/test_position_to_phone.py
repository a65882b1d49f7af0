"""The walk: one position from a sensor to a phone and into the lake; real doors, mail and Spark.

The whole secure building plays at once; the steps of the walk are then looked at one by one.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rapport.channel.backends.readonly import ReadOnlyChannels
from rapport.channel.backends.stores import open_reading
from rapport.channel.config import channels_from_site
from rapport.channel.event_lookup import CauseNode, cause_tree
from rapport.core.event import StoredEvent
from rapport.kernel.clock import SystemClock
from rapport.kernel.toml import TomlFile
from rapport.lake.bronze import export_channels
from rapport.pipeline.figures.reports import make_report
from rapport.scenarios.secure_building.building_play import BuildingRun, play, stage
from rapport.scenarios.secure_building.building_scenes import EXPECTED, EXPECTED_UNDECIDED, reports

pytestmark = pytest.mark.slow


class Walk(msgspec.Struct):
    site: Path
    played: BuildingRun
    told: list[str]

    def events(self, channel: str) -> list[StoredEvent]:
        async def read() -> list[StoredEvent]:
            channels = open_to_read(self.site)
            try:
                return await channels.channel(channel).read_after(0, limit=10_000)
            finally:
                await channels.close()

        return asyncio.run(read())

    def explain(self, event_id: str) -> CauseNode:
        async def read() -> CauseNode:
            channels = open_to_read(self.site)
            try:
                return await cause_tree(channels, event_id)
            finally:
                await channels.close()

        return asyncio.run(read())


def open_to_read(site: Path) -> ReadOnlyChannels:
    """The site's channels, wherever it keeps them."""
    declared, _problems = channels_from_site(TomlFile.load(site / "site.toml"))
    return open_reading(site / ".rapport" / "log", SystemClock(), declared, site=site)


@pytest.fixture(scope="module")
def walk(back_end: str, tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """The scenes played once, in real time (about 25 s)."""
    site = tmp_path_factory.mktemp("walk") / "site"
    told: list[str] = []

    async def run() -> BuildingRun:
        clock = SystemClock()
        async with stage(site, clock, told.append) as scene:
            return await play(scene, clock, told.append)

    return Walk(site, asyncio.run(run()), told)


def test_exactly_the_deserved_alarms_are_raised(walk: Walk) -> None:
    assert sorted(walk.played.alarms) == sorted(EXPECTED)


def test_where_a_reader_died_nobody_is_told_and_the_silent_source_is_named(walk: Walk) -> None:
    (unsure,) = walk.played.undecided
    assert [(unsure.bindings["A"], unsure.bindings["R"], unsure.silent)] == list(EXPECTED_UNDECIDED)
    assert walk.played.as_expected()
    (reading,) = walk.explain(unsure.id()).causes
    assert reading.channel == "events"
    assert unsure.id() not in {row.detection for row in walk.played.ledger}


def test_every_report_is_in_the_raw_log_untouched(walk: Walk) -> None:
    sent = [report for report in reports(0) if report.source == "readers"]
    raw = walk.events("raw.readers")
    assert len(raw) == len(sent)
    assert {"reader", "tag", "dx", "dy", "t"} == set(raw[0].event.payload())


def test_readings_are_in_building_metres_and_name_persons(walk: Walk) -> None:
    seen = {
        item.event.subject: item.event.payload()["value"]
        for item in walk.events("events")
        if item.event.source == "cameras"
    }
    assert seen == {
        "person/p17": [pytest.approx(4.0), pytest.approx(29.0)],
        "person/p08": [pytest.approx(5.0), pytest.approx(40.0)],
    }


def test_a_source_nobody_bound_is_held_back_with_the_reason(walk: Walk) -> None:
    held = [item.event.payload() for item in walk.events("quarantine")]
    assert [(one["source"], one["reason"]) for one in held] == [("oldcam", "source.unbound")]


def test_guards_are_told_by_mail_and_the_first_answer_ends_it(walk: Walk) -> None:
    states = {(row.peer, row.state) for row in walk.played.ledger if not row.address}
    assert ("ana", "answered") in states
    assert walk.told.count("ana pressed the button: on my way") == 2


def test_the_lead_is_asked_only_where_nobody_answered(walk: Walk) -> None:
    lead = [row for row in walk.played.ledger if row.peer == "lea" and row.adapter == "webhook"]
    assert [row.state for row in lead] == ["confirmed"]
    about = walk.explain(lead[0].detection)
    assert b"archive" in bytes(about.data)


def test_explain_walks_from_the_message_back_to_the_raw_reading(walk: Walk) -> None:
    message = walk.explain(walk.played.sent[0].message)
    (detection,) = message.causes
    (reading,) = detection.causes
    (raw,) = reading.causes
    assert [node.channel for node in (message, detection, reading, raw)] == [
        "log",
        "detections",
        "events",
        "raw.readers",
    ]
    assert raw.id == reading.id
    assert raw.causes == []
    assert raw.missing == []


def test_commands_read_the_same_log(walk: Walk) -> None:
    def rapport(*arguments: str) -> Any:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "rapport.cli.main",
                *arguments,
                "--site",
                str(walk.site),
                "--json",
            ],
            capture_output=True,
            check=True,
            env={**os.environ, "NO_COLOR": "1"},
        )
        return msgspec.json.decode(done.stdout)

    assert len(rapport("ledger")) == len(walk.played.ledger)
    assert rapport("explain", walk.played.sent[0].message)["type"] == "rapport.message"
    assert rapport("mediate", "quarantine")[0]["reason"] == "source.unbound"
    counts = {row["channel"]: row["events"] for row in rapport("read")}
    raw = [counts[f"raw.{source}"] for source in ("readers", "gate", "cameras", "doors")]
    assert counts["events"] == sum(raw)


@pytest.mark.spark
def test_the_report_on_spark_tells_the_same_story(walk: Walk, spark: Any) -> None:
    lake = walk.site / ".rapport" / "lake"

    async def export() -> int:
        channels = open_to_read(walk.site)
        try:
            return (await export_channels(channels, lake)).rows
        finally:
            await channels.close()

    assert asyncio.run(export()) > 0
    report = make_report(spark, lake)
    assert [(item.policy, item.count) for item in report.detections] == [("secure-building", 3)]
    assert sum(item.count for item in report.messages) == 3
    assert report.answered == 2
    assert [(item.reason, item.count) for item in report.quarantined] == [("source.unbound", 1)]
    (timing,) = report.sensor_to_phone
    # The window of 5 s and the lateness of 5 s pass first; what we add ourselves is small.
    assert 9_000 <= timing.from_door.median < 20_000
