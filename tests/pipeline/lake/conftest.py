"""A lake filled from channels in memory, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rapport.channel.backends.local import open_memory
from rapport.channel.export.lake_export import export_channels
from rapport.core.event import Event, make_event
from rapport.kernel.clock import ManualClock
from rapport.policy.ontology import Ontology, PushSource

DAY = 86_400_000
BEGIN = 1_772_409_600_000
"""A midnight: 2026-03-02."""


def make_ontology(**kinds: str) -> Ontology:
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
        concepts=concepts, relationships={}, sources=sources, units={"room": {"warmth": "°C"}}
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


class FilledLake:
    """Channels in memory and the lake they are exported into."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock(BEGIN + 10 * 3_600_000)
        self._channels = open_memory(self.clock)

    def append(self, channel: str, *events: Event) -> None:
        asyncio.run(self._append(channel, events))

    def export(self, *names: str, rows_per_file: int = 100_000) -> None:
        given = {"names": names} if names else {}
        asyncio.run(
            export_channels(self._channels, self.path, rows_per_file=rows_per_file, **given)
        )

    def fill(self, *events: Event) -> None:
        """Appends to `events` and exports all."""
        self.append("events", *events)
        self.export()

    def rows(self, table: str = "stream=person.position") -> list[dict[str, Any]]:
        """The rows of a table of silver in the order of positions."""
        return self.all_rows(f"silver/{table}")

    def all_rows(self, folder: str) -> list[dict[str, Any]]:
        files = sorted((self.path / folder).rglob("*.parquet"))
        rows = [row for path in files for row in pq.read_table(path, partitioning=None).to_pylist()]
        return sorted(rows, key=lambda row: (row["position"], row["id"]))

    def states(self, table: str = "stream=person.position") -> dict[str, str]:
        return {row["id"]: row["status"] for row in self.rows(table)}

    async def _append(self, channel: str, events: Sequence[Event]) -> None:
        await self._channels.channel(channel).append(list(events))


@pytest.fixture
def filled(tmp_path: Path) -> FilledLake:
    return FilledLake(tmp_path / "lake")


@pytest.fixture
def ontology() -> Ontology:
    return make_ontology()


@pytest.fixture(scope="session")
def new_lake() -> Callable[[Path], FilledLake]:
    return FilledLake


@pytest.fixture(scope="session")
def given_reading() -> Callable[..., Event]:
    return reading


@pytest.fixture(scope="session")
def ontology_with() -> Callable[..., Ontology]:
    return make_ontology


@pytest.fixture(scope="session")
def begin() -> int:
    return BEGIN


def write_table(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
