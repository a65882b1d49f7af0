"""Bronze written by tasks of Spark is the bronze that a node writes. [LK-3]"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rapport.channel.backends.stores import open_channels
from rapport.channel.config import channels_from_site
from rapport.channel.log.channels import LoggedChannels
from rapport.core.errors import Conflict, Corrupt
from rapport.core.event import Event, StoredEvent, make_event
from rapport.kernel.clock import ManualClock
from rapport.kernel.toml import TomlFile
from rapport.lake.bronze import WRITER, export_channels, stored_events
from rapport.lake.places import Lake
from rapport.pipeline.datasource import offsets
from rapport.pipeline.lake.bronze_job import export_by_spark
from support.servers.postgres import LocalPostgres, postgres_server  # noqa: F401

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

NOW = 1_772_442_000_000
SITE = '[site]\nname = "small"\n\n[concepts.sample.attributes]\nmass = "number"\n'


def numbered(first: int, last: int) -> list[Event]:
    return [
        make_event(
            source="s",
            id=f"e{n}",
            type=f"t{n % 3}",
            time=NOW + n if n % 5 else -(2**60),  # a time that no TIMESTAMP holds
            data={"n": n, "text": "é" * (n % 4)},
            headers={"cause": f"c{n}"} if n % 2 else None,
        )
        for n in range(first, last + 1)
    ]


class Log:
    """The channels of a small site, opened for a moment at a time."""

    def __init__(self, site: Path, settings: str = "") -> None:
        site.mkdir()
        (site / "site.toml").write_text(SITE + settings, encoding="utf-8")
        self.site, self._clock = site, ManualClock(NOW)

    def append(self, channel: str, events: list[Event]) -> None:
        async def work() -> None:
            channels = self._opened()
            for event in events:
                await channels.channel(channel).append([event])
            await channels.close()

        asyncio.run(work())
        self._clock.set_ms(self._clock.now_ms() + 86_400_000)

    def export(self, lake: Lake) -> int:
        async def work() -> int:
            channels = self._opened()
            done = await export_channels(channels, lake)
            await channels.close()
            return done.rows

        return asyncio.run(work())

    def _opened(self) -> LoggedChannels:
        declared, _problems = channels_from_site(TomlFile.load(self.site / "site.toml"))
        log = self.site / ".rapport" / "log"
        return open_channels(log, self._clock, declared, site=self.site, segment_bytes=1_000_000)


def rows(lake: Lake, channel: str) -> list[StoredEvent]:
    found = stored_events(lake.open("bronze", channel).read())
    return sorted(found, key=lambda one: one.position)


@pytest.fixture(params=["embedded", "postgres"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    if request.param == "embedded":
        return Log(tmp_path / "site")
    server: LocalPostgres = request.getfixturevalue("postgres_server")
    log = Log(tmp_path / "site", '\n[channels]\nlog = "postgres"\npostgres = "file:address"\n')
    (log.site / "address").write_text(server.new_database(), encoding="utf-8")
    return log


def test_tasks_write_what_a_node_writes_and_both_go_on_behind_each_other(
    spark: SparkSession, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "LEAST_RANGE_ROWS", 10)
    by_spark, by_node = Lake.at(tmp_path / "by-spark"), Lake.at(tmp_path / "by-node")
    log.append("events", numbered(1, 35))
    log.append("raw.badges", numbered(1, 3))
    done = export_by_spark(spark, log.site, by_spark, rows_at_once=20)
    assert (done.rows, done.positions["events"], done.passed_over) == (38, 35, 0)
    assert log.export(by_spark) == 0, "the node goes on where the job ended"
    log.append("events", numbered(36, 50))
    assert log.export(by_spark) == 15
    assert export_by_spark(spark, log.site, by_spark).rows == 0
    log.append("events", numbered(51, 60))
    assert export_by_spark(spark, log.site, by_spark, names=["events"]).rows == 10
    log.export(by_node)
    for channel in ("events", "raw.badges"):
        assert rows(by_spark, channel) == rows(by_node, channel)
    assert by_spark.open("bronze", "events").progress(WRITER) == 60


def test_another_log_and_damaged_positions_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    log, lake = Log(tmp_path / "site"), Lake.at(tmp_path / "lake")
    log.append("events", numbered(1, 20))
    export_by_spark(spark, log.site, lake)
    other = Log(tmp_path / "other")
    other.append("events", numbered(1, 5))
    with pytest.raises(Conflict, match="ends before"):
        export_by_spark(spark, other.site, lake)
    log.append("events", numbered(21, 40))
    (segment,) = (log.site / ".rapport" / "log" / "logs" / "events").glob("*.log")
    octets = bytearray(segment.read_bytes())
    octets[len(octets) * 3 // 4] ^= 0xFF
    segment.write_bytes(octets)
    with pytest.raises(Corrupt):
        export_by_spark(spark, log.site, lake)
    assert lake.open("bronze", "events").progress(WRITER) == 20
