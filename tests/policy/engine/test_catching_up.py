"""The engine on a log that was written before it started: headers are read only where needed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rapport.channel.backends.local import open_embedded
from rapport.channel.channel import Channels
from rapport.core.detection import DETECTED, Detection, detection_lines
from rapport.core.event import Event, make_event
from rapport.kernel.clock import ManualClock
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.recordings.files import read_recorded
from rapport.site.site import load_site

CHECK = Path(__file__).parents[2] / "data" / "checks" / "small-policies"
SITE = load_site(CHECK)
NOW = 100_000
NAMES = ("and-not", "within", "mixed", "chain-not")


def recorded() -> list[Event]:
    source = SITE.ontology.sources["positions"]
    [rows] = read_recorded(CHECK / "events_shuffled.csv", source, SITE.ontology)
    return [
        make_event(
            source="positions",
            id=row["id"],
            type="person.position",
            subject=f"person/{row['key']}",
            time=row["time"],
            data={
                "key": row["key"],
                "value": [row["person.position.x"], row["person.position.y"]],
            },
            headers={"cause": row["id"], "rawchannel": "raw.positions"},
        )
        for row in rows.to_pylist()
    ]


def expected() -> bytes:
    lines = [(CHECK / f"{name}.expected.jsonl").read_bytes().splitlines() for name in NAMES]
    return b"\n".join(sorted(line for part in lines for line in part))


async def caught_up(folder: Path, events: list[Event]) -> tuple[Channels, PolicyEngine]:
    clock = ManualClock(NOW)
    channels = open_embedded(folder, clock)
    for first in range(0, len(events), 20):
        await channels.channel("events").append(events[first : first + 20])
    await channels.close()
    channels = open_embedded(folder, clock)
    engine = PolicyEngine(
        channels,
        clock,
        name="site",
        ontology=SITE.ontology,
        pull=SITE.tables,
        plans=[SITE.policies[name].plan for name in NAMES],
        lateness_ms=2_000,
        batch=30,
    )
    while await engine.step(timeout_ms=0):
        pass
    clock.set_ms(2 * NOW)
    while await engine.step(timeout_ms=0):
        pass
    return channels, engine


async def of_type(channels: Channels, channel: str, type: str) -> list[Any]:
    stored = await channels.channel(channel).read_after(0, limit=100_000)
    return [item.event for item in stored if item.event.type == type]


def changed(events: list[Event], how: str) -> list[Event]:
    """With one event more that cannot be taken without a closer look."""
    if how == "nothing":
        return events
    if how == "unnamed source":
        return [msgspec.structs.replace(event, source="gate/7") for event in events]
    odd = events[7]
    if how == "no reading":
        odd = msgspec.structs.replace(odd, id="odd", data=b'{"key": "1"}')
    else:
        odd = msgspec.structs.replace(odd, id="odd", time=NOW + 10**9)
    return [*events[:25], odd, *events[25:]]


@pytest.mark.parametrize("how", ["nothing", "unnamed source", "no reading", "far ahead"])
def test_what_lies_in_the_log_is_found_as_if_it_came_live(tmp_path: Path, how: str) -> None:
    async def run() -> None:
        channels, engine = await caught_up(tmp_path, changed(recorded(), how))
        found = [
            Detection.from_event(event) for event in await of_type(channels, "detections", DETECTED)
        ]
        lines = b"\n".join(sorted(detection_lines(found).splitlines()))
        assert lines == expected()
        aside = await of_type(channels, "quarantine", "rapport.policy.quarantined")
        assert len(aside) == engine.counts.quarantined == int(how in ("no reading", "far ahead"))
        await channels.close()

    asyncio.run(run())
