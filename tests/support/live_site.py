"""A site whose policies run live on Spark, and what one runner finds in the same events."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from rapport.channel.backends.local import open_embedded
from rapport.channel.backends.readonly import open_readonly
from rapport.core.event import Event, StoredEvent, make_event
from rapport.core.schema import PARTS
from rapport.kernel.clock import ManualClock
from rapport.pipeline.streaming.live_query import LiveCounts, LiveSettings, run_live
from rapport.policy.engine.stream_steps import TIME_TYPE, TimeMoved, late_event, time_event
from rapport.policy.recordings.files import read_recorded
from rapport.policy.replay.replay import recordings_of
from rapport.policy.runner.local import LocalRunner
from rapport.site.site import Site, load_site

CHECKS = Path(__file__).parent.parent / "data" / "checks"


class LiveSite:
    """A site whose policies run on Spark, with events that a node would have mediated."""

    def __init__(
        self, name: str, directory: Path, policies: Mapping[str, str] | None = None
    ) -> None:
        """`policies`: texts of further policies by name."""
        self.directory = shutil.copytree(CHECKS / name, directory / "site", dirs_exist_ok=True)
        for policy, text in (policies or {}).items():
            (self.directory / f"{policy}.dpl").write_text(text, encoding="utf-8")
        file = self.directory / "site.toml"
        text = file.read_text(encoding="utf-8")
        head = '[policies]\non_spark = ["*"]\n'
        file.write_text(text.replace("[policies]\n", head), encoding="utf-8")
        self.site = load_site(self.directory)
        self.checkpoint = directory / "checkpoint"
        [recording] = recordings_of(self.site.ontology, self.directory)
        self.readings = pa.concat_batches(
            list(read_recorded(recording.path, recording.source, self.site.ontology, batch=10_000))
        )
        self.events = events_of(self.readings, self.site)

    def append(self, channel: str, events: list[Event], now_ms: int) -> None:
        async def work() -> None:
            channels = open_embedded(self.log, ManualClock(now_ms))
            await channels.channel(channel).append(events)
            await channels.close()

        asyncio.run(work())

    @property
    def log(self) -> Path:
        return self.directory / ".rapport" / "log"

    def read(self, channel: str) -> list[StoredEvent]:
        async def work() -> list[StoredEvent]:
            channels = open_readonly(self.log, ManualClock())
            found = await channels.channel(channel).read_after(0, limit=100_000)
            await channels.close()
            return found

        return asyncio.run(work())

    def beat(self, time: int) -> None:
        moved = TimeMoved(time, len(self.read("events")))
        self.append("detections", [time_event(self.site.name, moved)], time)

    def run(self, spark: Any, **how: Any) -> LiveCounts:
        settings = LiveSettings(**how)
        return run_live(
            spark, self.directory, checkpoint=self.checkpoint, once=True, settings=settings
        )

    def found(self) -> list[Event]:
        """What was told, in the order of ids."""
        told = [one.event for one in self.read("detections") if one.event.type != TIME_TYPE]
        return sorted(told, key=lambda event: event.id)

    def expected(self, *rows: pa.RecordBatch, end: int) -> list[Event]:
        """What one runner says that is fed with the same."""
        site = self.site
        runner = LocalRunner(
            [one.plan for one in site.policies.values()],
            site.tables,
            lateness_ms=site.lateness_ms,
            sources=site.ontology.sources,
        )
        detections = [found for batch in rows for found in runner.feed(batch)]
        detections += runner.advance(end)
        events = [one.to_event(source=site.name) for one in detections]
        events += [one.to_event(source=site.name) for one in runner.take_undecided()]
        events += [late_event(site.name, one) for one in runner.take_late()]
        return sorted(events, key=lambda event: event.id)


def events_of(readings: pa.RecordBatch, site: Site) -> list[Event]:
    kinds = site.ontology.streams()
    return [
        make_event(
            source=row["source"],
            id=row["id"],
            type=row["stream"],
            subject=f"{row['stream'].partition('.')[0]}/{row['key']}",
            time=row["time"],
            data={
                "key": row["key"],
                "value": [row[f"{row['stream']}.{part}"] for part in PARTS[kinds[row["stream"]]]],
            },
        )
        for row in readings.to_pylist()
    ]
