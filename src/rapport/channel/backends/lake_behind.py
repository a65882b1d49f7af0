"""A log with its lake behind it: what the log has let go of is read from the lake. [CH-16,
PO-11]
"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.channel.backends.lake import LakeChannels
from rapport.channel.by_time import BACKWARDS_MS, oldest, position_before
from rapport.channel.channel import Appended, Channel, Channels, Subscription
from rapport.core.errors import Corrupt, Unsupported
from rapport.core.event import Event, StoredEvent


class LogAndLake:
    """See Channels; reading only. `was_needed` says whether something came from the lake."""

    def __init__(self, log: Channels, lake: LakeChannels) -> None:
        self._log, self.lake = log, lake
        self.was_needed = False
        self._oldest: dict[str, int] = {}

    def channel(self, name: str) -> LogAndLakeChannel:
        """See Channels."""
        return LogAndLakeChannel(name, self._log.channel(name), self)

    def names(self) -> list[str]:
        """See Channels."""
        return sorted({*self._log.names(), *self.lake.names()})

    async def subscribe(
        self, channel: str, reader: str, *, from_start: bool = True
    ) -> Subscription:
        """Refused, as by both."""
        raise Unsupported("a subscription", "a log with its lake", hint="use read_after")

    async def find_event(self, event_id: str) -> list[tuple[str, StoredEvent]]:
        """See Channels. The lake is asked only when some channel has let something go; raises
        Corrupt when only a damaged file of it may hold the event.
        """
        found = await self._log.find_event(event_id)
        if not await self._has_gaps():
            return found
        known = {(name, stored.position) for name, stored in found}
        try:
            in_lake = await self.lake.find_event(event_id)
        except Corrupt:
            if not found:
                raise
            return found  # `lake.damaged` tells
        for name, stored in in_lake:
            if (name, stored.position) not in known:
                self.was_needed = True
                found = [*found, (name, stored)]
        return found

    async def close(self) -> None:
        """See Channels."""
        await self._log.close()
        await self.lake.close()

    async def oldest_in_log(self, name: str) -> int:
        """The oldest position that the log still has; one behind its end when it has none."""
        known = self._oldest.get(name)
        if known is None:
            channel = self._log.channel(name)
            first = await oldest(channel)
            known = channel.last_position() + 1 if first is None else first.position
            self._oldest[name] = known
        return known

    async def _has_gaps(self) -> bool:
        for name in self.lake.names():
            if await self.oldest_in_log(name) > 1:
                return True
        return False


class LogAndLakeChannel:
    """See Channel."""

    def __init__(self, name: str, log: Channel, both: LogAndLake) -> None:
        self.name, self._log, self._both = name, log, both

    async def append(self, events: Sequence[Event]) -> Appended:
        """Refused: publish through a door of the node that writes."""
        raise Unsupported("appending", "a log with its lake", hint="use rapport publish")

    async def read_after(self, position: int, *, limit: int = 1000) -> list[StoredEvent]:
        """See Channel."""
        first = await self._both.oldest_in_log(self.name)
        found: list[StoredEvent] = []
        if position + 1 < first:
            kept = await self._both.lake.channel(self.name).read_after(position, limit=limit)
            found = [one for one in kept if one.position < first]
            self._both.was_needed |= bool(found)
        if len(found) < limit:
            after = max(position, first - 1)
            found += await self._log.read_after(after, limit=limit - len(found))
        return found

    async def wait_after(self, position: int, *, timeout_ms: int | None = None) -> bool:
        """See Channel."""
        return await self._log.wait_after(position, timeout_ms=timeout_ms)

    async def position_before(self, received_ms: int) -> int:
        """See `by_time.position_before`: in the lake when the log begins later."""
        first = await oldest(self._log)
        if first is not None and first.received < received_ms - BACKWARDS_MS:
            return await position_before(self._log, received_ms)
        in_lake = await self._both.lake.channel(self.name).position_before(received_ms)
        return min(in_lake, await self._both.oldest_in_log(self.name) - 1)

    def last_position(self) -> int:
        """See Channel."""
        return max(self._log.last_position(), self._both.lake.channel(self.name).last_position())
