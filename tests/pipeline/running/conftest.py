"""The shared Spark session, and a site whose policies run there."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from rapport.channel.backends.local import open_embedded
from rapport.core.event import Event, make_event
from rapport.core.schema import PARTS
from rapport.kernel.clock import ManualClock
from rapport.policy.recordings.files import read_recorded
from rapport.policy.replay.replay import recordings_of
from rapport.site.site import Site, load_site
from support.servers.spark import spark

__all__ = ["spark"]

CHECKS = Path(__file__).parent.parent.parent / "data" / "checks"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The small policies, all of them on Spark; 200 events in the log."""
    copy = shutil.copytree(CHECKS / "small-policies", tmp_path / "site")
    file = copy / "site.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(
        text.replace("[policies]\n", '[policies]\non_spark = ["*"]\n'), encoding="utf-8"
    )
    fill(load_site(copy))
    return copy


def fill(site: Site) -> None:
    """Appends the site's recorded events as a node would have mediated them."""
    [recording] = recordings_of(site.ontology, site.directory)
    rows = read_recorded(recording.path, recording.source, site.ontology, batch=10_000)
    events = [event_of(row, site) for row in pa.concat_batches(list(rows)).to_pylist()]

    async def work() -> None:
        clock = ManualClock(max(event.time for event in events))
        channels = open_embedded(site.data_directory / "log", clock)
        await channels.channel("events").append(events)
        await channels.close()

    asyncio.run(work())


def event_of(row: dict[str, object], site: Site) -> Event:
    stream = str(row["stream"])
    parts = PARTS[site.ontology.streams()[stream]]
    return make_event(
        source=str(row["source"]),
        id=str(row["id"]),
        type=stream,
        subject=f"{stream.partition('.')[0]}/{row['key']}",
        time=int(str(row["time"])),
        data={"key": row["key"], "value": [row[f"{stream}.{part}"] for part in parts]},
    )
