"""The channels of a lake: what was exported, read only, with positions and times as in the log.
[CH-16, PI-3, PO-11]

Needs neither Spark nor the log. Raises Corrupt, which names the file, where a damaged file may hold
what is asked for; what surely lies in others is still given.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import pyarrow as pa

from rapport.channel.backends.lake_files import ChannelFiles
from rapport.channel.backends.lake_ids import WORTH_INDEXING, LakeIds
from rapport.channel.channel import Appended, Subscription
from rapport.channel.checking import check_channel_name
from rapport.channel.export.files import BRONZE, partition_name
from rapport.channel.export.manifest import MANIFEST, read_manifest
from rapport.channel.finding.by_time import BACKWARDS_MS
from rapport.core.errors import Corrupt, UnknownName, Unsupported
from rapport.core.event import Event, StoredEvent
from rapport.core.event_columns import ENVELOPE

T = TypeVar("T")

_COLUMNS = tuple(ENVELOPE.names)
_CHANNEL = "channel="


class Aside(Protocol):
    """Where files are read: in a thread beside the loop."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """What `work` returns or raises."""


def open_lake(
    directory: Path, *, aside: Aside = asyncio.to_thread, look_up: Callable[[], None] | None = None
) -> LakeChannels:
    """The channels as the lake has them now; raises UnknownName when it is none, Corrupt for a
    damaged manifest. See LakeChannels.
    """
    if not (directory / BRONZE).is_dir():
        raise UnknownName("lake", str(directory), code="lake.none")
    return LakeChannels(directory, aside=aside, look_up=look_up)


class LakeChannels:
    """See Channels; whatever would write is refused with Unsupported."""

    def __init__(
        self,
        directory: Path,
        *,
        worth_indexing: int = WORTH_INDEXING,
        aside: Aside = asyncio.to_thread,
        look_up: Callable[[], None] | None = None,
    ) -> None:
        """`look_up` is called before each row group that is read, in the reading thread: what it
        raises ends the reading there.
        """
        self.directory = directory
        self._aside, self._look_up = aside, look_up
        self._names: list[str] | None = None
        manifest = read_manifest(directory) if (directory / MANIFEST).exists() else None
        self._ends = None if manifest is None else manifest.channels
        self._files: dict[str, ChannelFiles] = {}
        self._ids = LakeIds(directory, worth_indexing=worth_indexing)
        self._turn = threading.Lock()

    def channel(self, name: str) -> LakeChannel:
        """See Channels."""
        check_channel_name(name)
        return LakeChannel(name, self)

    def names(self) -> list[str]:
        """See Channels. The first call lists all files; what comes later is not shown."""
        if self._names is None:
            folders = (self.directory / BRONZE).glob(f"{_CHANNEL}*")
            names = sorted(folder.name.removeprefix(_CHANNEL) for folder in folders)
            self._names = [name for name in names if self.files(name).last]
        return list(self._names)

    async def subscribe(
        self, channel: str, reader: str, *, from_start: bool = True
    ) -> Subscription:
        """Refused: nothing comes to a lake's channel that a reader could wait for."""
        raise Unsupported("a subscription", "a lake", hint="use read_after")

    async def find_event(
        self, event_id: str, *, among: Collection[str] | None = None
    ) -> list[tuple[str, StoredEvent]]:
        """See Channels; `among`: only these channels are looked at. The first question builds an
        index beside a large lake: about a second for a million events. Raises Corrupt when it is
        not found and a damaged file may hold it.
        """
        return await self._aside(partial(self._find, event_id, among))

    async def close(self) -> None:
        """Nothing is held open."""

    def _find(self, event_id: str, among: Collection[str] | None) -> list[tuple[str, StoredEvent]]:
        found: list[tuple[str, StoredEvent]] = []
        faults: list[Corrupt] = []
        for name in self.names():
            if among is not None and name not in among:
                continue
            with self._turn:
                files = self.files(name)
                find = partial(self._ids.positions, name, files, event_id)
                positions = files.steadily(find)
                faults += files.damaged.values()
            for position in positions:
                stored = self.read_now(name, position - 1, 1)
                if stored and stored[0].event.id == event_id:
                    found.append((name, stored[0]))
        if not found and faults:
            raise faults[0]
        return found

    def read_now(self, name: str, position: int, limit: int) -> list[StoredEvent]:
        """The same as a channel's `read_after`, blocking."""
        with self._turn:
            rows = self.files(name).read_after(position, limit, _COLUMNS)
        return _stored(rows)

    async def aside(self, work: Callable[[], T]) -> T:
        """Reads where this lake's files are read."""
        return await self._aside(work)

    def position_before(self, name: str, received_ms: int) -> int:
        """A position after which all stands that was received at a time or later."""
        with self._turn:
            return self.files(name).position_before(received_ms)

    def damaged(self) -> list[Corrupt]:
        """The files that could not be read so far."""
        return [fault for files in self._files.values() for fault in files.damaged.values()]

    def files(self, name: str) -> ChannelFiles:
        """The files of a channel; none for one that the lake does not have."""
        found = self._files.get(name)
        if found is None:
            folder = self.directory / BRONZE / partition_name("channel", name)
            limit = None
            if self._ends is not None:
                limit = self._ends[name].exported if name in self._ends else 0
            found = self._files[name] = ChannelFiles(folder, limit, self._look_up)
        return found


class LakeChannel:
    """See Channel."""

    def __init__(self, name: str, lake: LakeChannels) -> None:
        self.name, self._lake = name, lake

    async def append(self, events: Sequence[Event]) -> Appended:
        """Refused: the lake follows the log."""
        raise Unsupported("appending", "a lake", hint="publish to the node; its log is exported")

    async def read_after(self, position: int, *, limit: int = 1000) -> list[StoredEvent]:
        """See Channel."""
        return await self._lake.aside(partial(self._lake.read_now, self.name, position, limit))

    async def wait_after(self, position: int, *, timeout_ms: int | None = None) -> bool:
        """Whether there is something now; it does not grow."""
        return self.last_position() > position

    async def position_before(self, received_ms: int) -> int:
        """See `by_time.position_before`: from folders and footers, and one row group."""
        wanted = received_ms - BACKWARDS_MS
        return await self._lake.aside(partial(self._lake.position_before, self.name, wanted))

    def last_position(self) -> int:
        """See Channel."""
        return self._lake.files(self.name).last


def _stored(rows: pa.Table) -> list[StoredEvent]:
    columns = [rows.column(name).to_pylist() for name in _COLUMNS]
    return [
        StoredEvent(
            position,
            received,
            Event(
                source=source,
                id=id,
                type=type,
                subject=subject,
                time=time,
                data=data,
                headers=dict(headers),
            ),
        )
        for position, received, time, source, id, type, subject, headers, data in zip(
            *columns, strict=True
        )
    ]
