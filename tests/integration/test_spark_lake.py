"""A real log, an export that is killed again and again, and Spark that finds every event once."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rapport.channel.backends.local import open_embedded
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.core.event import make_event
from rapport.kernel.clock import Chance, ManualClock, SystemClock
from rapport.lake.bronze import export_channels
from rapport.lake.places import Lake
from rapport.node.maintenance import LakeExporter
from rapport.pipeline.lake.spark_tables import plan_text, read_bronze, read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = 5
DAY_MS = 86_400_000
EXPORTED = ChannelsConfig(common=ChannelRules(export=True))

# Appends and exports small files without end; says a line when the first export is through.
CHILD = """
import asyncio, sys
from pathlib import Path
from rapport.channel.backends.local import open_embedded
from rapport.lake.bronze import export_channels
from rapport.core.event import make_event
from rapport.kernel.clock import SystemClock

async def work(log, lake, name):
    channels = open_embedded(Path(log), SystemClock())
    number = 0
    while True:
        events = [
            make_event(source="s", id=f"{name}-{number + n}", type=f"t{n % 3}", time=n)
            for n in range(40)
        ]
        number += 40
        await channels.channel("events").append(events)
        await export_channels(channels, Path(lake), rows_at_once=15)
        print("exported", flush=True)

asyncio.run(work(*sys.argv[1:]))
"""


def run_and_kill(log: Path, lake: Path, name: str, chance: Chance) -> None:
    command = [sys.executable, "-c", CHILD, str(log), str(lake), name]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"exported\n"
        # A moment that falls anywhere in an export; waiting on a pipe that nobody reads from.
        select.select([], [], [], chance.uniform(0.0, 0.1))
        os.kill(child.pid, signal.SIGKILL)


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_killed_exports_lose_nothing_and_double_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, lake, chance = tmp_path / "log", tmp_path / "lake", Chance(7)
    for number in range(ROUNDS):
        run_and_kill(log, lake, f"r{number}", chance)

    async def finish() -> int:
        channels = open_embedded(log, SystemClock())
        await export_channels(channels, lake)
        last = channels.channel("events").last_position()
        await channels.close()
        return last

    last = asyncio.run(finish())
    assert last >= ROUNDS * 40
    rows = read_bronze(spark, Lake.at(lake), "events").select("position", "id").toArrow()
    assert sorted(rows["position"].to_pylist()) == list(range(1, last + 1))
    assert len(set(rows["id"].to_pylist())) == last


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_reads_exported_segments_as_the_log_has_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    async def scenario() -> list[tuple[object, ...]]:
        clock = ManualClock(1_772_442_000_000)
        channels = open_embedded(tmp_path / "log", clock, segment_bytes=3_000)
        exporting = LakeExporter(channels, EXPORTED, tmp_path / "lake", clock)
        for first in range(0, 200, 10):
            events = [
                make_event(source="s", id=f"e{n}", type=f"t{n % 3}", subject=f"thing/{n}", time=n)
                for n in range(first, first + 10)
            ]
            await channels.channel("events").append(events)
            clock.set_ms(clock.now_ms() + DAY_MS // 8)
            await exporting.export_due()
        stored = await channels.channel("events").read_after(0, limit=1_000)
        await channels.close()
        return [
            (one.position, one.received, one.event.id, one.event.type, one.event.subject)
            for one in stored
        ]

    logged = asyncio.run(scenario())
    table = read_bronze(spark, Lake.at(tmp_path / "lake"), "events")
    rows = table.select("position", "received", "id", "type", "subject").toArrow().to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == logged
    files = Lake.at(tmp_path / "lake").open("bronze", "events").files()
    days = sorted({str(file.partition["day"]) for file in files})
    assert days == ["2026-03-02", "2026-03-03", "2026-03-04"]
    one_day = read_table(spark, Lake.at(tmp_path / "lake"), "bronze", "events").where(
        "day = DATE'2026-03-03' AND position > 70"
    )
    plan = plan_text(one_day)
    assert one_day.count() > 0
    assert {row["day"].isoformat() for row in one_day.collect()} == {"2026-03-03"}
    assert "PartitionFilters: [isnotnull(day" in plan
    assert "GreaterThan(position,70)" in plan
