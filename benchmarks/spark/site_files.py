"""A site around the building of the workload, whose one policy runs on Spark. [PI-5, PO-8]"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import pyarrow as pa

from benchmarks.policy.building import ALONE, Building, policy_text
from benchmarks.policy.parts import CLOCK
from rapport.channel.backends.readonly import open_readonly
from rapport.core.detection import DETECTED
from rapport.core.event import Event, StoredEvent
from rapport.policy.engine.stream_steps import TIME_TYPE, TimeMoved
from rapport.policy.runner.local import LocalRunner
from rapport.site.site import Site

_READ = 10_000
_SITE = """[site]
name = "bench"
lateness = "2s"

[node]
port = {port}

[concepts.person.attributes]
status = "text"
position = "point"
[concepts.room.attributes]
security = "text"
area = "rectangle"

[relationships.inside]
between = ["person.position", "room.area"]
function = "inside"
[relationships.within]
between = ["person.position", "person.position"]
function = "within"

[tables.persons]
concept = "person"
csv = "persons.csv"
key = "id"
columns = {{ status = "status" }}
[tables.rooms]
concept = "room"
csv = "rooms.csv"
key = "id"
columns = {{ security = "security", area = ["x1", "y1", "x2", "y2"] }}

[sources.positions]
concept = "person"
attribute = "position"
key = "person"
value = ["x", "y"]

[policies]
files = ["*.dpl"]
window = "5s"
on_spark = ["*"]

[peers.guard]
addresses = ["inbox:"]
[actions."raise alarm"]
send_to = "peer:guard"
text = "Guest {{A}} is alone in {{R}}"
"""


def write_site(directory: Path, building: Building, port: int) -> Path:
    """The site's files; its node listens at `port`."""
    directory.mkdir(parents=True)
    people, rooms = building.instances("person"), building.instances("room")
    statuses = zip(people.ids, people.columns["status"].tolist(), strict=True)
    rows = zip(
        rooms.ids, rooms.columns["security"].tolist(), rooms.columns["area"].tolist(), strict=True
    )
    texts = {
        "site.toml": _SITE.format(port=port),
        "alone.dpl": policy_text(ALONE),
        "persons.csv": _lines("id,status", (f"{id},{status}" for id, status in statuses)),
        "rooms.csv": _lines(
            "id,security,x1,y1,x2,y2",
            (f"{id},{security},{','.join(map(repr, area))}" for id, security, area in rows),
        ),
    }
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    return directory


def log_of(site: Path) -> Path:
    """Where its channels are."""
    return site / ".rapport" / "log"


def read_channel(site: Path, channel: str) -> list[StoredEvent]:
    """All events of a channel, in the order of their positions."""

    async def work() -> list[StoredEvent]:
        channels, found = open_readonly(log_of(site), CLOCK), list[StoredEvent]()
        while part := await channels.channel(channel).read_after(
            found[-1].position if found else 0, limit=_READ
        ):
            found += part
        await channels.close()
        return found

    return asyncio.run(work())


def detections_in(site: Path) -> list[StoredEvent]:
    """What the policy found, of all that stands in `detections`."""
    return [one for one in read_channel(site, "detections") if one.event.type == DETECTED]


def beats_in(site: Path) -> list[TimeMoved]:
    """Where the node's own clock moved time on, in order."""
    told = [one.event for one in read_channel(site, "detections") if one.event.type == TIME_TYPE]
    return [msgspec.json.decode(event.data, type=TimeMoved) for event in told]


def expected_in(
    site: Site, readings: pa.RecordBatch, step: int, beats: Sequence[TimeMoved] = ()
) -> Iterator[tuple[int, list[Event]]]:
    """What a runner in this process finds when it is fed so many readings at a time, and time moves
    on by beats between them: how many it had by then, and the events that became certain; 0
    where a beat decided. Last, with none left, what the rest of time decides.
    """
    runner = LocalRunner(
        [one.plan for one in site.policies.values()],
        site.tables,
        lateness_ms=site.lateness_ms,
        sources=site.ontology.sources,
    )
    moved: dict[int, int] = {}
    for beat in beats:
        moved[beat.after] = max(beat.time, moved.get(beat.after, beat.time))
    if 0 in moved:
        runner.advance(moved[0])
    edges = sorted({*range(0, len(readings), step), *moved, len(readings)} | {0})
    for first, until in pairwise(edge for edge in edges if edge <= len(readings)):
        found = runner.feed(readings.slice(first, until - first))
        yield until, [one.to_event(source=site.name) for one in found]
        if until in moved and until < len(readings):
            found = runner.advance(moved[until])
            yield 0, [one.to_event(source=site.name) for one in found]
    yield len(readings), [one.to_event(source=site.name) for one in runner.finish()]


def _lines(heading: str, rows: Iterator[str]) -> str:
    return "\n".join([heading, *rows]) + "\n"
