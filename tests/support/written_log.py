"""What a node's log says, read off the disk as another process would. For tests. [CO-10]"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from rapport.channel.backends.readonly import open_readonly
from rapport.communication.ledger_events import DELIVERY_PREFIX
from rapport.core.detection import DETECTED
from rapport.core.event import StoredEvent
from rapport.core.message import MESSAGE
from rapport.kernel.clock import SystemClock
from rapport.policy.engine.stream_steps import LATE_TYPE

_EVERYTHING = 10_000_000


class WrittenLog:
    """All channels of a log directory as they were when this was made; holds them in memory.

    Blocks, and runs an event loop of its own: not to be made inside one.
    """

    def __init__(self, directory: Path) -> None:
        self.channels = asyncio.run(_read_all(directory))

    def __getitem__(self, channel: str) -> list[StoredEvent]:
        return self.channels.get(channel, [])

    def raw(self) -> list[StoredEvent]:
        """What was received, of all sources."""
        return [one for name in self.channels if name.startswith("raw.") for one in self[name]]

    def detections(self) -> list[str]:
        """Ids, in order."""
        return [one.event.id for one in self["detections"] if one.event.type == DETECTED]

    def late(self) -> list[str]:
        """Ids of the readings that came after their time had been decided."""
        kept = (one.event for one in self["detections"])
        return [event.payload()["id"] for event in kept if event.type == LATE_TYPE]

    def messages(self) -> dict[str, str]:
        """The detection of each message."""
        kept = (one.event for one in self["log"])
        return {event.id: event.causes()[0] for event in kept if event.type == MESSAGE}

    def states(self) -> dict[tuple[str, str], list[str]]:
        """What the ledger said, in order, about each message at each address."""
        found: dict[tuple[str, str], list[str]] = {}
        for line, state in self._ledger():
            if line.get("address"):
                found.setdefault((line["message"], line["address"]), []).append(state)
        return found

    def said(self) -> dict[str, Counter[tuple[str, str]]]:
        """Per message how often the ledger said what (state) of whom (peer, empty: of itself)."""
        found: dict[str, Counter[tuple[str, str]]] = {}
        for line, state in self._ledger():
            if not line.get("address"):
                found.setdefault(line["message"], Counter())[line.get("peer", ""), state] += 1
        return found

    def _ledger(self) -> list[tuple[Any, str]]:
        """The data and the state of every ledger line."""
        kept = (one.event for one in self["log"])
        return [
            (event.payload(), event.type.removeprefix(DELIVERY_PREFIX))
            for event in kept
            if event.type.startswith(DELIVERY_PREFIX)
        ]


async def _read_all(directory: Path) -> dict[str, list[StoredEvent]]:
    channels = open_readonly(directory, SystemClock())
    try:
        return {
            name: await channels.channel(name).read_after(0, limit=_EVERYTHING)
            for name in channels.names()
        }
    finally:
        await channels.close()
