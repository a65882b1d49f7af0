"""How many channels an identity may begin. [CH-15]

A channel begins with its first event. Who began it is kept in the records once that event is on
disk; channels that the node itself makes, and those from before this was kept, count for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from rapport.core.errors import NotAllowed
from rapport.store.base import Change, Put, RecordStore

CHANNELS_PER_IDENTITY = 1_000
"""Unless `[channels] channels_per_identity` says otherwise."""
_TABLE = "channels_begun"
_PAGE = 1_000
T = TypeVar("T")


class KnownChannels(Protocol):
    """What a quota needs of the channels."""

    def holds(self, name: str) -> bool:
        """Whether a channel has, or ever had, events."""

    async def look(self, find: Callable[[RecordStore], T]) -> T:
        """What is found in the records."""

    async def apply(self, changes: Sequence[Change]) -> None:
        """Changes records, all or none; durable when it returns."""


class ChannelQuota:
    """Counts the channels that each identity began. All calls belong to one event loop."""

    def __init__(self, channels: KnownChannels, most: int = CHANNELS_PER_IDENTITY) -> None:
        self._channels, self._most = channels, most
        self._begun: dict[str, set[str]] | None = None
        self._loading = asyncio.Lock()

    @asynccontextmanager
    async def begin(self, identity: str, channel: str) -> AsyncIterator[None]:
        """While inside, the identity appends the first events of a channel; raises NotAllowed when
        it began too many others. Nothing is kept when the append fails.
        """
        own = (await self._all_begun()).setdefault(identity, set())
        if channel in own or self._channels.holds(channel):
            yield
            return
        if len(own) >= self._most:
            raise NotAllowed(
                f"{identity!r} has begun {len(own)} channels; {self._most} are allowed",
                code="channel.too_many_channels",
                hint="put what varies into the event's subject instead of the channel's name, or "
                "raise channels_per_identity in [channels]",
            )
        own.add(channel)  # before the append: others may begin channels meanwhile
        try:
            yield
        finally:
            if not self._channels.holds(channel):
                own.discard(channel)
        if channel in own:
            await self._channels.apply((Put(_TABLE, f"{identity}/{channel}", b""),))

    async def _all_begun(self) -> dict[str, set[str]]:
        async with self._loading:
            if self._begun is None:
                self._begun = await self._channels.look(self._load)
        return self._begun

    def _load(self, records: RecordStore) -> dict[str, set[str]]:
        begun: dict[str, set[str]] = {}
        after = ""
        while page := records.find(_TABLE, after=after, limit=_PAGE):
            for key, _value in page:
                identity, _, channel = key.rpartition("/")
                if self._channels.holds(channel):
                    begun.setdefault(identity, set()).add(channel)
            after = page[-1][0]
        return begun
