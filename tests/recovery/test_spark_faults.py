"""A driver of Spark killed in the middle of live policies, and again in the middle of silver:
started again it comes to the same output as without. [PI-10]
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rapport.channel.backends.local import open_embedded
from rapport.channel.backends.readonly import open_readonly
from rapport.core.detection import DETECTED, Detection, detection_lines
from rapport.core.event import Event, StoredEvent, make_event
from rapport.core.schema import PARTS
from rapport.kernel.clock import ManualClock
from rapport.lake.places import Lake
from rapport.pipeline.lake.silver import silver_positions
from rapport.pipeline.running.run_state import wait_until
from rapport.policy.engine.stream_steps import TimeMoved, time_event
from rapport.policy.recordings.files import read_recorded
from rapport.policy.replay.replay import recordings_of
from rapport.site.site import load_site
from support.servers.spark_cluster import descendants, kill_process

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]

CHECKS = Path(__file__).parent.parent / "data" / "checks"
CHILD = Path(__file__).with_name("spark_child.py")
PATIENCE_SECONDS, FAR_MS = 240, 10_000_000


class Place:
    """The secure building with all its events in the log, and its policy on Spark."""

    def __init__(self, directory: Path) -> None:
        self.directory = shutil.copytree(CHECKS / "secure-building", directory / "site")
        file = self.directory / "site.toml"
        text = file.read_text(encoding="utf-8")
        text = text.replace("[policies]\n", '[policies]\non_spark = ["*"]\n')
        file.write_text(text, encoding="utf-8")
        self.site = load_site(self.directory)
        self.checkpoint = directory / "checkpoint"
        self.lake = self.site.data_directory / "lake"
        self.events = self._events()

    def _events(self) -> list[Event]:
        ontology = self.site.ontology
        [recording] = recordings_of(ontology, self.directory)
        rows = read_recorded(recording.path, recording.source, ontology, batch=10_000)
        kinds = ontology.streams()
        return [
            make_event(
                source=row["source"],
                id=row["id"],
                type=row["stream"],
                subject=f"{row['stream'].partition('.')[0]}/{row['key']}",
                time=row["time"],
                data={
                    "key": row["key"],
                    "value": [
                        row[f"{row['stream']}.{part}"] for part in PARTS[kinds[row["stream"]]]
                    ],
                },
            )
            for row in pa.concat_batches(list(rows)).to_pylist()
        ]

    def fill(self) -> None:
        last = max(event.time for event in self.events)
        moved = time_event(self.site.name, TimeMoved(last + FAR_MS, len(self.events)))

        async def work() -> None:
            channels = open_embedded(self.site.data_directory / "log", ManualClock(last))
            await channels.channel("events").append(self.events)
            await channels.channel("detections").append([moved])
            await channels.close()

        asyncio.run(work())

    def found(self) -> list[StoredEvent]:
        async def work() -> list[StoredEvent]:
            channels = open_readonly(self.site.data_directory / "log", ManualClock())
            found = await channels.channel("detections").read_after(0, limit=100_000)
            await channels.close()
            return [one for one in found if one.event.type == DETECTED]

        return asyncio.run(work())

    def silver_rows(self) -> list[dict[str, Any]]:
        lake = Lake.at(self.lake)
        streams = [name for name in lake.names("silver") if "." in name]
        return [row for name in streams for row in lake.open("silver", name).read().to_pylist()]

    def start(self, *how: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(CHILD), str(self.directory), str(self.checkpoint), *how]
        return subprocess.Popen(command, stderr=subprocess.PIPE)

    def silver_taken(self) -> int:
        return silver_positions(self.lake).get("events", 0)


def kill_driver(child: subprocess.Popen[bytes]) -> None:
    """Python, Java and its Python workers at once."""
    for pid in [child.pid, *descendants(child.pid)]:
        kill_process(pid)
    child.wait()
    assert child.stderr is not None
    child.stderr.close()


def ended(child: subprocess.Popen[bytes]) -> bool:
    return child.poll() is not None


def test_a_driver_killed_in_live_policies_and_in_silver_comes_to_the_same_output(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    place.fill()
    whole = len(place.events)

    child = place.start()
    commits = place.checkpoint / "commits"
    assert wait_until(lambda: (commits / "1").exists() or ended(child), PATIENCE_SECONDS)
    kill_driver(child)
    assert not (commits / "4").exists(), "it was killed in the middle"
    assert not place.lake.exists()

    child = place.start("hold")
    assert wait_until(lambda: place.silver_taken() > 0 or ended(child), PATIENCE_SECONDS)
    kill_driver(child)
    assert 0 < place.silver_taken() < whole, "it was killed in the middle"

    child = place.start()
    _, said = child.communicate(timeout=PATIENCE_SECONDS)
    assert child.returncode == 0, said.decode()

    told = place.found()
    ids = Counter(one.event.id for one in told)
    assert set(ids.values()) == {1}
    lines = detection_lines(Detection.from_event(one.event) for one in told)
    assert lines == (CHECKS / "secure-building" / "expected.jsonl").read_bytes()
    rows = place.silver_rows()
    assert sorted(row["id"] for row in rows) == sorted(event.id for event in place.events)
    assert {row["status"] for row in rows} == {"counted"}
    assert Lake.at(place.lake).open("gold", "detected").rows() == len(told)
