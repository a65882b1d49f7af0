"""A lake filled from channels in memory, day by day."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.backends.local import open_memory
from rapport.core.event import Event, make_event
from rapport.kernel.clock import ManualClock
from rapport.lake.bronze import export_channels
from rapport.lake.places import Lake

DAY = 86_400_000
BEGIN = 1_772_409_600_000
"""A midnight: 2026-03-02."""


class FilledLake:
    """Channels in memory and the lake they are exported into."""

    def __init__(self, path: Path) -> None:
        self.path, self.lake = path, Lake.at(path)
        self.clock = ManualClock(BEGIN + DAY // 2)
        self._channels = open_memory(self.clock)

    def append(self, channel: str, *ids: str, **fields: Any) -> None:
        given = {"source": "s", "type": "person.position", "data": {"n": 1}} | fields
        given.setdefault("time", self.clock.now_ms())
        events = [make_event(id=id, **given) for id in ids]
        asyncio.run(self._append(channel, events))

    def export(self) -> None:
        asyncio.run(export_channels(self._channels, self.path))

    async def _append(self, channel: str, events: list[Event]) -> None:
        await self._channels.channel(channel).append(events)


@pytest.fixture
def filled(tmp_path: Path) -> FilledLake:
    return FilledLake(tmp_path / "a [lake]{1}*")
