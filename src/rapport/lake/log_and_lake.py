"""A log with its lake: events that the log has trimmed are read from the lake. [CH-16, PO-11]"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from rapport.channel.channel import AppendResult, Channel, Channels, Subscription, gaps_between
from rapport.channel.event_lookup import BACKWARDS_MS, oldest, position_before
from rapport.core.errors import Corrupt, Unsupported
from rapport.core.event import Event, Gap, StoredEvent
from rapport.lake.channels import LakeChannels

Where = Literal["log", "lake"]


class LakeRange(msgspec.Struct, frozen=True):
    """Where events of a channel were found, from which position to which."""

    channel: str
    where: Where
    first: int
    last: int

    def __str__(self) -> str:
        span = f"#{self.first}" if self.first == self.last else f"#{self.first} to #{self.last}"
        return f"{self.channel} {span}"


class LogAndLake:
    """See Channels; read-only. `was_needed`: whether events came from the lake; `found`: which."""

    def __init__(self, log: Channels, lake: LakeChannels) -> None:
        self._log, self.lake = log, lake
        self.was_needed = False
        self._oldest: dict[str, int] = {}
        self._found: dict[tuple[str, Where], LakeRange] = {}

    def channel(self, name: str) -> LogAndLakeChannel:
        return LogAndLakeChannel(name, self._log.channel(name), self)

    def names(self) -> list[str]:
        return sorted({*self._log.names(), *self.lake.names()})

    async def subscribe(
        self, channel: str, reader: str, *, from_start: bool = True
    ) -> Subscription:
        """Refused, as by both."""
        raise Unsupported("a subscription", "a log with its lake", hint="use read_after")

    async def find_event(self, event_id: str) -> list[tuple[str, StoredEvent]]:
        """See Channels. The lake is searched only for channels with trimmed events; raises Corrupt
        when only a damaged file of it may hold the event.
        """
        in_log = await self._log.find_event(event_id)
        for name, stored in in_log:
            self.note(name, "log", (stored,))
        gaps = [name for name in self.lake.names() if await self.oldest_in_log(name) > 1]
        if not gaps:
            return in_log
        known = {(name, stored.position) for name, stored in in_log}
        try:
            in_lake = await self.lake.find_event(event_id, among=gaps)
        except Corrupt:
            if not in_log:
                raise
            return in_log  # `lake.damaged` names it
        gone = [(name, one) for name, one in in_lake if (name, one.position) not in known]
        for name, stored in gone:
            self.note(name, "lake", (stored,))
        return [*in_log, *gone]

    async def close(self) -> None:
        await self._log.close()
        await self.lake.close()

    def found(self) -> list[LakeRange]:
        """The ranges read so far, by channel."""
        return [self._found[key] for key in sorted(self._found)]

    def note(self, name: str, where: Where, events: Sequence[StoredEvent]) -> None:
        """These were found there."""
        if not events:
            return
        self.was_needed |= where == "lake"
        first, last = events[0].position, events[-1].position
        known = self._found.get((name, where))
        if known is not None:
            first, last = min(first, known.first), max(last, known.last)
        self._found[name, where] = LakeRange(name, where, first, last)

    async def oldest_in_log(self, name: str, *, anew: bool = False) -> int:
        """The oldest position in the log; one past its end when it is empty.
        Cached unless `anew`.
        """
        known = self._oldest.get(name)
        if known is None or anew:
            channel = self._log.channel(name)
            first = await oldest(channel)
            known = channel.last_position() + 1 if first is None else first.position
            self._oldest[name] = known
        return known


class LogAndLakeChannel:
    """See Channel."""

    def __init__(self, name: str, log: Channel, both: LogAndLake) -> None:
        self.name, self._log, self._both = name, log, both

    async def append(self, events: Sequence[Event]) -> AppendResult:
        """Refused: publish to the node that writes."""
        raise Unsupported("appending", "a log with its lake", hint="use rapport publish")

    async def read_after(self, position: int, *, limit: int = 1000) -> list[StoredEvent]:
        first = await self._both.oldest_in_log(self.name)
        while True:
            found = await self._from_lake(position, first, limit)
            if len(found) >= limit:
                return found
            after = max(position, first - 1)
            in_log = await self._log.read_after(after, limit=limit - len(found))
            if (in_log and in_log[0].position == after + 1) or first == (
                first := await self._both.oldest_in_log(self.name, anew=True)
            ):
                self._both.note(self.name, "log", in_log)
                return found + in_log
            # The log was trimmed meanwhile: once more, then from the lake.

    async def _from_lake(self, position: int, first: int, limit: int) -> list[StoredEvent]:
        """Events after a position and before the log's first one."""
        if position + 1 >= first:
            return []
        kept = await self._both.lake.channel(self.name).read_after(position, limit=limit)
        found = [one for one in kept if one.position < first]
        self._both.note(self.name, "lake", found)
        return found

    def gaps_between(self, after: int, through: int) -> Sequence[Gap]:
        """See GapReader; those of the log."""
        return gaps_between(self._log, after, through)

    async def wait_after(self, position: int, *, timeout_ms: int | None = None) -> bool:
        return await self._log.wait_after(position, timeout_ms=timeout_ms)

    async def position_before(self, received_ms: int) -> int:
        """See `by_time.position_before`: in the lake when the log begins later."""
        first = await oldest(self._log)
        if first is not None and first.received < received_ms - BACKWARDS_MS:
            return await position_before(self._log, received_ms)
        in_lake = await self._both.lake.channel(self.name).position_before(received_ms)
        return min(in_lake, await self._both.oldest_in_log(self.name) - 1)

    def last_position(self) -> int:
        return max(self._log.last_position(), self._both.lake.channel(self.name).last_position())


def lake_ranges_text(found: Iterable[LakeRange]) -> str:
    """The ranges that came from the lake as a short text; empty without any."""
    return ", ".join(str(one) for one in found if one.where == "lake")
