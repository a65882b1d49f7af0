"""Channels of which each share sees its part: read once for all shares of a process. [CO-17]

Pages of fixed places in the log are divided once and remembered for a while, so sixteen shares cost
little more than one reader.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import msgspec

from rapport.channel.channel import AppendResult, Channel, Channels, Subscription
from rapport.channel.subscriptions import Cursor, LoggedSubscription, load_cursor
from rapport.communication.aside import run_aside
from rapport.communication.delivering.handling import Route, nobody_else
from rapport.communication.sharing.events import (
    OUTPUT,
    belonging,
    crosses,
    is_divided,
    with_share,
)
from rapport.communication.sharing.leases import HeldShare
from rapport.communication.sharing.records import WHERE, ShareRecords
from rapport.core.event import Event, StoredEvent
from rapport.store.base import READ_BYTES, Change, RecordStore

PAGE = 256
_PAGES = 64
_PAGE_BYTES = 4_000_000
"""A page with more than this is not remembered."""
_MOVE_ON = 2_000
"""After so much of others' events a share's own place is written anew."""


class Page(msgspec.Struct, frozen=True):
    """A stretch of a channel: how far it was read, and the events of each share."""

    through: int
    parts: dict[int, list[StoredEvent]]
    size: int = 0
    """Bytes of data."""
    crossings: tuple[tuple[int, int], ...] = ()
    """Of `input`: position and share of the messages that cross."""


class HandsOver(Protocol):
    """How a share's deliveries get to their peers in order: `handing.py`."""

    places: Mapping[str, int]
    """By the id of each message that the engine was given last where it stands in `input`."""

    async def open(self) -> None:
        """Before the engine reads."""

    async def note(self, position: int) -> None:
        """The engine has handled everything up to here."""

    async def append(self, channel: str, events: Sequence[Event]) -> AppendResult:
        """Deliveries for a channel."""


class SharedReading:
    """Divides what this process reads among its shares."""

    def __init__(
        self,
        channels: Channels,
        records: RecordStore,
        count: int,
        route: Route = nobody_else,
    ) -> None:
        self.channels, self._records, self._count = channels, records, count
        self._route = route
        self._pages: OrderedDict[tuple[str, int], Page] = OrderedDict()

    async def page(self, name: str, position: int) -> Page:
        """The page that holds the event after a position, as far as the channel reaches; which is
        farther than the position.
        """
        number = position // PAGE
        page, last = self._pages.get((name, number)), self.channels.channel(name).last_position()
        if page is None or page.through < min(last, (number + 1) * PAGE):
            before = page or Page(number * PAGE, {})
            page = await self._read_on(name, before, min((number + 1) * PAGE, last))
            self._remember((name, number), page)
        return page

    async def share_of(self, channel: str, event: Event) -> int:
        """The share that an event belongs to."""
        found = belonging(channel, event, self._count)
        if not found.about:
            return found.share
        kept = await run_aside(partial(self._records.get, WHERE, found.about))
        return found.share if kept is None else int(kept)

    async def _read_on(self, name: str, before: Page, end: int) -> Page:
        parts = {share: list(events) for share, events in before.parts.items()}
        crossings = list(before.crossings)
        place, size = before.through, before.size
        while place < end:
            batch = await self.channels.channel(name).read_after(place, limit=end - place)
            for stored in batch:
                if stored.position <= end:
                    share = await self.share_of(name, stored.event)
                    parts.setdefault(share, []).append(stored)
                    size += len(stored.event.data)
                    if name == "input" and self._crosses(stored.event, share):
                        crossings.append((stored.position, share))
            # What is gone from the channel may be much more than a page.
            place = _reached(batch, end)
        return Page(place, parts, size, tuple(crossings))

    def _crosses(self, event: Event, share: int) -> bool:
        return crosses(event, share, self._count, self._route)

    def _remember(self, place: tuple[str, int], page: Page) -> None:
        self._pages.pop(place, None)
        if page.size <= _PAGE_BYTES:
            self._pages[place] = page
        while len(self._pages) > _PAGES:
            self._pages.popitem(last=False)


def _reached(batch: Sequence[StoredEvent], end: int) -> int:
    if not batch:
        return end
    first, last = batch[0].position, batch[-1].position
    return first - 1 if first > end else min(last, end)


class ShareChannel:
    """See Channel: of a divided one the events of one share, at the positions they have."""

    def __init__(
        self, name: str, reading: SharedReading, held: HeldShare, handing: HandsOver | None = None
    ) -> None:
        self.name, self._reading, self._held, self._handing = name, reading, held, handing
        self._source: Channel = reading.channels.channel(name)
        self._base = self._clear = self._given = 0
        """Between base and clear there is nothing of ours; `given` was handed out last."""
        self.place: LoggedSubscription | None = None

    def begin_at(self, place: LoggedSubscription) -> None:
        """The reader's durable place: everything of ours up to it was taken."""
        self.place = place
        self._base, self._clear, self._given = 0, place.position, 0

    async def append(self, events: Sequence[Event]) -> AppendResult:
        """See Channel; deliveries are told where their outcome is waited for."""
        if self.name.startswith(OUTPUT):
            events = [with_share(event, self._held.name) for event in events]
            if self._handing is not None:
                return await self._handing.append(self.name, events)
        return await self._source.append(events)

    async def read_after(self, position: int, *, limit: int = 1000) -> list[StoredEvent]:
        """See Channel. Who asks for what comes after a position is done with everything up to it:
        others may rely on that.
        """
        found: list[StoredEvent] = []
        place, size = self._start(position), 0
        while len(found) < limit and size < READ_BYTES and place < self._source.last_position():
            page = await self._reading.page(self.name, place)
            ours = [s for s in page.parts.get(self._held.number, ()) if s.position > place]
            found += ours[: limit - len(found)]
            place = found[-1].position if len(found) == limit else page.through
            size += sum([len(stored.event.data) for stored in ours])
        if found:
            self._given = found[-1].position
            self._base, self._clear = self._given, max(place, self._given)
        else:
            self._base, self._clear = min(self._base, position), max(place, position)
            await self._move_on()
        if self.name == "input" and self._handing is not None:
            self._handing.places = {stored.event.id: stored.position for stored in found}
            await self._handing.note(found[0].position - 1 if found else self._clear)
        return found

    async def wait_after(self, position: int, *, timeout_ms: int | None = None) -> bool:
        """See Channel; true also when only others' events came: reading tells."""
        return await self._source.wait_after(self._start(position), timeout_ms=timeout_ms)

    def last_position(self) -> int:
        """See Channel; of all shares."""
        return self._source.last_position()

    def _start(self, position: int) -> int:
        return self._clear if self._base <= position < self._clear else position

    async def _move_on(self) -> None:
        """Lets go of others' events: what we were given is done, and nothing of ours came since."""
        place = self.place
        if place is None or place.position < self._given:
            return
        if self._clear - place.position >= _MOVE_ON:
            await place.commit(self._clear)


class ShareChannels:
    """See Channels: of one share."""

    def __init__(self, reading: SharedReading, records: ShareRecords, held: HeldShare) -> None:
        self._reading, self._records, self._held = reading, records, held
        self.whole = reading.channels
        self._divided: dict[str, ShareChannel] = {}
        self.handing: HandsOver | None = None
        """None = deliveries go out as they are decided."""

    def channel(self, name: str) -> Channel:
        """See Channels."""
        if not is_divided(name):
            return self.whole.channel(name)
        if name not in self._divided:
            self._divided[name] = ShareChannel(name, self._reading, self._held, self.handing)
        return self._divided[name]

    def names(self) -> list[str]:
        """See Channels."""
        return self.whole.names()

    async def subscribe(
        self, channel: str, reader: str, *, from_start: bool = True
    ) -> Subscription:
        """See Channels; the share has a place of its own, moved only while it is ours."""
        if not is_divided(channel):
            return await self.whole.subscribe(channel, reader, from_start=from_start)
        source, name = self.whole.channel(channel), f"{reader}.{self._held.name}"
        cursor = await run_aside(partial(load_cursor, self._records, channel, name))
        start = 0 if from_start else source.last_position()
        place = LoggedSubscription(source, name, cursor or Cursor(start), self._apply)
        if cursor is None:
            await place.commit(start)  # from now on retention waits for it
        divided = self.channel(channel)
        assert isinstance(divided, ShareChannel), "divided channels are of this kind"
        divided.begin_at(place)
        if channel == "input" and self.handing is not None:
            await self.handing.open()
        return place

    async def find_event(self, event_id: str) -> list[tuple[str, StoredEvent]]:
        """See Channels; of all shares."""
        return await self.whole.find_event(event_id)

    async def is_ours(self, channel: str, stored: StoredEvent | None) -> bool:
        """See PartOfChannels."""
        if stored is None:
            return self._held.number == 0
        return await self._reading.share_of(channel, stored.event) == self._held.number

    async def close(self) -> None:
        """Nothing: the channels belong to all shares."""

    async def _apply(self, changes: Sequence[Change]) -> None:
        await run_aside(partial(self._records.apply, changes))
