"""A lake of Delta tables, filled from channels in memory and taken into silver step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rapport.channel.backends.local import open_memory
from rapport.core.event import Event, make_event
from rapport.kernel.clock import ManualClock
from rapport.lake.bronze import export_channels, exported_position
from rapport.lake.places import Lake
from rapport.policy.ontology import Ontology, PushSource

DAY = 86_400_000
BEGIN = 1_772_409_600_000
"""A midnight: 2026-03-02."""


def make_ontology(unit: str = "degC", **kinds: str) -> Ontology:
    """`person.position` as points, `room.warmth` as numbers; and what is given besides."""
    concepts: dict[str, dict[str, Any]] = {
        "person": {"position": "point"},
        "room": {"warmth": "number"},
    }
    for name, kind in kinds.items():
        concept, _, attribute = name.partition("_")
        concepts.setdefault(concept, {})[attribute] = kind
    sources = {
        f"{concept}_{attribute}": PushSource(
            name=f"{concept}_{attribute}",
            concept=concept,
            attribute=attribute,
            key="k",
            value=("v",),
        )
        for concept, attributes in concepts.items()
        for attribute in attributes
    }
    return Ontology(
        concepts=concepts, relationships={}, sources=sources, units={"room": {"warmth": unit}}
    )


def reading(
    id: str,
    time: int = BEGIN,
    value: Sequence[object] = (1.0, 2.0),
    *,
    key: str = "5",
    stream: str = "person.position",
    source: str = "person_position",
    **headers: str,
) -> Event:
    return make_event(
        source=source,
        id=id,
        type=stream,
        subject=f"person/{key}",
        time=time,
        data={"key": key, "value": list(value)},
        headers=headers,
    )


def warm(id: str, time: int = BEGIN, value: float = 21.0, **headers: str) -> Event:
    return reading(
        id, time, [value], key="r1", stream="room.warmth", source="room_warmth", **headers
    )


class SilverLake:
    """Channels in memory and the lake they are exported into."""

    def __init__(self, path: Path) -> None:
        self.lake = Lake.at(path)
        self.clock = ManualClock(BEGIN + 10 * 3_600_000)
        self._channels = open_memory(self.clock, dedupe_window=0)

    def append(self, channel: str, *events: Event) -> None:
        asyncio.run(self._append(channel, events))

    def export(
        self,
        *names: str,
        until: Mapping[str, int] | None = None,
        rows_at_once: int = 100_000,
    ) -> None:
        work = export_channels(
            self._channels,
            self.lake,
            names=names or None,
            until=until,
            rows_at_once=rows_at_once,
        )
        asyncio.run(work)

    def fill(self, *events: Event) -> None:
        """Appends to `events` and exports all."""
        self.append("events", *events)
        self.export()

    def exported(self, channel: str) -> int:
        return exported_position(self.lake, channel)

    def rows(self, table: str = "person.position", layer: str = "silver") -> list[dict[str, Any]]:
        """The rows of a table in the order of positions; none where there is no table."""
        if not self.lake.has(layer, table):
            return []
        rows = self.lake.open(layer, table).read().to_pylist()
        return sorted(rows, key=lambda row: (row["position"], row["id"]))

    def states(self, table: str = "person.position") -> dict[str, str]:
        return {row["id"]: row["status"] for row in self.rows(table)}

    async def _append(self, channel: str, events: Sequence[Event]) -> None:
        # One by one, so that the channel takes repeated events.
        for event in events:
            await self._channels.channel(channel).append([event])
