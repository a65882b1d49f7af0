"""A channel: a named, durable, ordered log of events. [CH-1, CH-6]"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import cache
from typing import Protocol, cast, runtime_checkable

import msgspec

from rapport.core.event import BareStoredEvent, Event, Gap, StoredEvent
from rapport.store.base import Change


class AppendResult(msgspec.Struct, frozen=True):
    """The result of an append: `positions[i]` of the i-th event (of the first copy for a duplicate;
    0 when its sequence number marks it as old and the first copy is no longer known).
    """

    positions: tuple[int, ...]
    duplicates: int


class Channel(Protocol):
    """A named channel. Positions count from 1; reading after one never returns it again."""

    name: str

    async def append(self, events: Sequence[Event]) -> AppendResult:
        """Makes the events durable, all or none, and returns; concurrent calls share one disk sync.

        Events whose (source, id) the channel has seen are dropped and counted.
        Raises InvalidInput (an event out of bounds) or ChannelUnavailable (disk full, closed).
        """

    async def read_after(self, position: int, *, limit: int = 1000) -> list[StoredEvent]:
        """Up to `limit` events after a position, in order; empty when there are none (yet). Fewer
        when there are no more, or when those have READ_BYTES of data together.
        """

    async def wait_after(self, position: int, *, timeout_ms: int | None = None) -> bool:
        """True as soon as there is an event after `position`, False when the time-out passed."""

    def last_position(self) -> int:
        """Position of the newest durable event; 0 when empty."""


@runtime_checkable
class HeaderlessReader(Protocol):
    """A channel that can leave headers out where they are not needed."""

    async def read_bare_after(
        self, position: int, *, limit: int = 1000
    ) -> Sequence[BareStoredEvent]:
        """Like `read_after`, without headers; empty when headers matter, or the events are cached:
        then use `read_after`.
        """


@runtime_checkable
class GapReader(Protocol):
    """A channel that knows which positions of a range it could not read."""

    def gaps_between(self, after: int, through: int) -> Sequence[Gap]:
        """Unreadable positions after `after` and up to `through`; call it after reading them."""


def gaps_between(channel: Channel, after: int, through: int) -> Sequence[Gap]:
    """The unreadable positions of a range that was read; none from a channel without GapReader."""
    if not _reads_gaps(type(channel)):
        return ()
    return cast(GapReader, channel).gaps_between(after, through)


@cache
def _reads_gaps(kind: type) -> bool:
    # Checked once a class: the check takes a tenth of a small query.
    return issubclass(kind, GapReader)


class Subscription(Protocol):
    """A named reader's durable cursor in a channel, with a state that moves together with it."""

    channel: str
    reader: str
    position: int
    """The last committed position; 0 before the first commit."""
    state: bytes
    """The state of the last commit; empty before."""

    async def next_batch(
        self, *, limit: int = 1000, timeout_ms: int | None = None
    ) -> list[StoredEvent]:
        """Events after the last batch returned; waits until there is one or the time-out passed
        (then empty).

        Continues in memory without a commit; a new subscription starts again after the committed
        position.
        """

    async def next_bare_batch(
        self, *, limit: int = 1000, timeout_ms: int | None = None
    ) -> Sequence[StoredEvent | BareStoredEvent]:
        """The same for a reader that can do without headers: they may be missing."""

    async def commit(
        self, position: int, state: bytes | None = None, *, changes: Sequence[Change] = ()
    ) -> None:
        """Saves cursor and state (None = as before), and `changes` of other records, in one
        transaction; durable when it returns.
        """


class ChannelLookup(Protocol):
    """Channels by name."""

    def channel(self, name: str) -> Channel:
        """The channel of that name, made when first used; raises InvalidInput."""


class Channels(ChannelLookup, Protocol):
    """All channels of a node."""

    def names(self) -> list[str]:
        """Channels that hold something, sorted."""

    async def subscribe(
        self, channel: str, reader: str, *, from_start: bool = True
    ) -> Subscription:
        """The reader's stored cursor; a new one stands at the first or the next event."""

    async def find_event(self, event_id: str) -> list[tuple[str, StoredEvent]]:
        """Every (channel, event) with this id, by index; for explaining, not for hot paths."""

    async def close(self) -> None:
        """Waits for pending appends, then closes the stores."""


async def pages_of(
    channel: Channel, after: int, *, limit: int, last: int | None = None
) -> AsyncIterator[list[StoredEvent]]:
    """The events after a position, at most `limit` of them and none beyond `last`, in portions of
    bounded size; missing events are skipped.
    """
    left = limit
    while last is None or after < last:
        page = await channel.read_after(after, limit=left)
        if not page:
            return
        found = page if last is None else [stored for stored in page if stored.position <= last]
        if found:
            yield found
        after, left = page[-1].position, left - len(page)
        if left <= 0:
            return


async def events_between(channel: Channel, first: int, last: int) -> list[StoredEvent]:
    """The events at positions `first` to `last` that are still there; costs their memory."""
    found: list[StoredEvent] = []
    async for page in pages_of(channel, first - 1, limit=last - first + 1, last=last):
        found += page
    return found
