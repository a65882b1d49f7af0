"""A channel: a named, durable, ordered log of events with an append side and a read side. [CH-1,
CH-6]

A stretch of a channel, however large its events are. [CH-1]
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from rapport.core.event import BareStored, Event, Gap, StoredEvent
from rapport.core.packed_events import Carried


class AppendResult(msgspec.Struct, frozen=True):
    """What append did: `positions[i]` of the i-th event (that of the first copy when it was a
    duplicate; 0 when a publisher's own count told so and the first copy is no longer known).
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
        """Returns True as soon as there is an event after `position`, False when the time-out
        passed.
        """

    def last_position(self) -> int:
        """Position of the newest durable event; 0 when empty."""


@runtime_checkable
class HeaderlessReader(Protocol):
    """A channel that can leave headers out where they are not needed."""

    async def read_bare_after(self, position: int, *, limit: int = 1000) -> Sequence[BareStored]:
        """Like `read_after`, without headers; empty when they matter, or are in memory anyway:
        then read whole ones.
        """


@runtime_checkable
class GapReader(Protocol):
    """A channel that tells what of a stretch it could not read."""

    def gaps_between(self, after: int, through: int) -> Sequence[Gap]:
        """The positions after `after` and up to `through` that should be there and could not be
        read, in order. To be asked after reading them.
        """


def gaps_between(channel: Channel, after: int, through: int) -> Sequence[Gap]:
    """The gaps of a stretch that was read from a channel; none from one that cannot tell."""
    return channel.gaps_between(after, through) if isinstance(channel, GapReader) else ()


class PackedRange(msgspec.Struct, frozen=True, gc=False):
    """What is carried for packed events at consecutive positions that came in together."""

    first: int
    last: int
    received: int
    largest: int
    """No event has more bytes of data."""
    carried: Sequence[Carried]

    def __len__(self) -> int:
        return self.last - self.first + 1


class PackedReader(Protocol):
    """A channel that knows for a moment what the makers of packed events carry along."""

    def read_packed_after(self, position: int, *, limit: int) -> PackedRange | None:
        """What is carried for packed events right after a position, up to `limit` of them; None
        when they are others, or it is known no more: then `read_after` has them.
        """

    def let_packed_go(self, stretch: PackedRange) -> None:
        """Nobody else will ask for what is carried: it need not stay in memory."""

    def unpacked_after(self, position: int, *, limit: int) -> int:
        """How many events to read after a position: up to the next for which something is carried,
        `limit` at the most and 1 at the least.
        """


class Subscription(Protocol):
    """A named reader's durable place in a channel, with a state that moves together with it."""

    channel: str
    reader: str
    position: int
    """The last committed position; 0 before the first commit."""
    state: bytes
    """What the reader saved with its last commit; empty before."""

    async def next_batch(
        self, *, limit: int = 1000, timeout_ms: int | None = None
    ) -> list[StoredEvent]:
        """Events after the last batch handed out; waits until there is one or the time-out passed
        (then empty).

        Goes on in memory without a commit; a new subscription starts again after the committed
        position.
        """

    async def next_bare_batch(
        self, *, limit: int = 1000, timeout_ms: int | None = None
    ) -> Sequence[StoredEvent | BareStored]:
        """The same for a reader that can do without headers: they may be missing."""

    async def commit(self, position: int, state: bytes | None = None) -> None:
        """Saves cursor and state (None = as before) in one transaction; durable when it returns."""


class Channels(Protocol):
    """All channels of a node."""

    def channel(self, name: str) -> Channel:
        """The channel of that name, made when first used. Raises InvalidInput for an impossible
        name.
        """

    def names(self) -> list[str]:
        """Channels that hold something, sorted."""

    async def subscribe(
        self, channel: str, reader: str, *, from_start: bool = True
    ) -> Subscription:
        """The reader's place in the channel, kept under its name; new ones start at the first or
        the next event.
        """

    async def find_event(self, event_id: str) -> list[tuple[str, StoredEvent]]:
        """Every (channel, event) with this id, by index; for explaining, not for hot paths."""

    async def close(self) -> None:
        """Waits for appends under way, then closes the stores."""


async def pages_of(
    channel: Channel, after: int, *, limit: int, last: int | None = None
) -> AsyncIterator[list[StoredEvent]]:
    """The events after a position, at most `limit` of them and none beyond `last`, in portions of
    bounded size; what is not there any more is passed over.
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
