"""One share's view of channels and records in a cluster. [CO-17]

A message belongs to the share of its receiver; outcomes and answers belong to the share of the
message's record, deliveries to that of the peer, detections to the processes that know the
policies. A message that may bring deliveries to peers of another share crosses: see
`cluster_order.py`. Pages of a channel are divided once for all shares of a process, so that sixteen
shares cost little more than one reader. Records have keys of their own per share, and every change
is guarded by the lease.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from rapport.channel.channel import AppendResult, Channel, Channels, Subscription
from rapport.channel.log.logged_channel import Cursor, LoggedSubscription, load_cursor
from rapport.communication.adapters.attempts import OUTCOME
from rapport.communication.answers import ANSWER, CLOSE, CloseData
from rapport.communication.cluster_leases import HeldShare, share_of
from rapport.communication.message_plan import Route, no_routing, route_proven
from rapport.communication.records import DELIVERIES, RecentIds
from rapport.communication.transaction import OUTBOX, TABLE, Outgoing
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent
from rapport.core.message import MESSAGE, Identifier, Message
from rapport.kernel.tasks import run_blocking
from rapport.store.base import (
    READ_BYTES,
    Change,
    Delete,
    Guard,
    GuardedRecordStore,
    Put,
    RecordStore,
)

if TYPE_CHECKING:
    from rapport.communication.cluster_order import OrderedHandoff

OUTPUT = "output."
HANDED = "handed"
"""Channel of deliveries that one share made for another one's peers."""
DIVIDED = ("control", "input", "detections", HANDED)
"""Divided channels, besides every `output.<adapter>`."""
PLACE, TO = "place", "to"
"""Headers of a delivery in `handed`: the position of its message in `input`, and its channel."""

OWN = frozenset(
    {
        "communication",
        "communication.messages",
        "communication.situations",
        "communication.letters",
        "communication.members",
        "communication.due",
        "communication.chores",
        "communication.put_off",
        "communication.spreads",
        "communication.sending",
    }
)
"""Tables that each share has for itself; all others are common."""
COUNTED = frozenset({"communication.recent"})
"""Common tables that are read and changed: a change in between is detected."""
WHERE = "communication.where"
"""Common table: delivery record -> the share that holds it."""
PAGE = 256
_PAGES = 64
_PAGE_BYTES = 4_000_000
"""A larger page is not cached."""
_MOVE_ON = 2_000
"""A share's own position is written again after so many events of other shares."""


class ShareAssignment(msgspec.Struct, frozen=True):
    """The share of an event, unless the record of its message belongs to another one."""

    share: int
    about: str = ""
    """A message whose record may belong to another share; to be looked up."""


class _Sent(msgspec.Struct, rename={"refers_to": "refers-to"}):
    """Fields of a message that decide about its share."""

    sender: str = ""
    receiver: str = ""
    refers_to: str = ""


class _Reported(msgspec.Struct):
    """Fields of an outcome, an answer or a delivery that decide about its share."""

    message: str = ""
    peer: str = ""
    share: str = ""


_SENT, _REPORTED = msgspec.json.Decoder(_Sent), msgspec.json.Decoder(_Reported)


def is_divided(channel: str) -> bool:
    """Whether each share reads only its own part of a channel."""
    return channel in DIVIDED or channel.startswith(OUTPUT)


def assign_share(channel: str, event: Event, count: int) -> ShareAssignment:
    """The share of an event; an unreadable one goes by its id, and is dead-lettered there."""
    try:
        return _belonging(channel, event, count)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return ShareAssignment(share_of(event.id, count))


def _belonging(channel: str, event: Event, count: int) -> ShareAssignment:
    if channel == HANDED or channel.startswith(OUTPUT):
        return ShareAssignment(_of_peer(_REPORTED.decode(event.data).peer, count))
    if channel == "input" and event.type == MESSAGE:
        sent = _SENT.decode(event.data)
        share = share_of(_with_kind(sent.receiver or sent.sender), count)
        # A peer that answers got the message, so that its record exists by now if it ever does, and
        # all processes find the same. For other senders it may not exist yet.
        is_of_peer = _with_kind(sent.sender).startswith("peer:")
        return ShareAssignment(share, sent.refers_to if is_of_peer else "")
    if channel == "control" and event.type == OUTCOME:
        reported = _REPORTED.decode(event.data)
        if reported.share.isdigit():
            return ShareAssignment(int(reported.share))
        # A bounce names no share.
        return ShareAssignment(_of_peer(reported.peer, count), reported.message)
    if channel == "control" and event.type == ANSWER:
        reported = _REPORTED.decode(event.data)
        return ShareAssignment(_of_peer(reported.peer, count), reported.message)
    if channel == "control" and event.type == CLOSE:
        closed: CloseData = event.payload_as(CloseData)
        return ShareAssignment(share_of(_with_kind(closed.receiver), count), closed.message)
    if channel == "detections":
        return ShareAssignment(count)
    return ShareAssignment(share_of(event.id, count))


def crosses(event: Event, share: int, count: int, route: Route = no_routing) -> bool:
    """Whether a message of a share may bring deliveries to peers of another one."""
    if event.type != MESSAGE:
        return False
    try:
        receiver = _SENT.decode(event.data).receiver
        others: Sequence[Identifier] = ()
        if route is not no_routing:
            others = route_proven(route, Message.from_event(event), event.headers)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, InvalidInput):
        return False
    if any(other.kind != "component" for other in others):
        return True
    name = _with_kind(receiver) if receiver else ""
    if name.startswith("peer:"):
        return share_of(name, count) != share
    return name.startswith("collective:")


def _of_peer(peer: str, count: int) -> int:
    return share_of(f"peer:{peer}", count)


def _with_kind(name: str) -> str:
    return name if ":" in name else f"peer:{name}"


def with_place(event: Event, place: int) -> Event:
    """A delivery with the position of its message in `input`."""
    return msgspec.structs.replace(event, headers=event.headers | {PLACE: str(place)})


def handed_over(event: Event, channel: str, place: int) -> Event:
    """A delivery as it is written to `handed`."""
    headers = event.headers | {PLACE: str(place), TO: channel}
    return msgspec.structs.replace(event, headers=headers)


def place_of(event: Event) -> int:
    """The position of a delivery's message in `input`; 0 when it is not given.

    >>> place_of(Event("s", "1", "t", "", 0, headers={"place": "7"}))
    7
    """
    text = event.headers.get(PLACE, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def taken_over(event: Event) -> Event:
    """A delivery as it is written to its own channel."""
    if PLACE not in event.headers:
        return event
    headers = {name: text for name, text in event.headers.items() if name not in (PLACE, TO)}
    return msgspec.structs.replace(event, headers=headers)


def with_share(event: Event, share: str) -> Event:
    """A delivery with the share that gets its outcome."""
    data = msgspec.json.decode(event.data) | {"share": share}
    return msgspec.structs.replace(event, data=msgspec.json.encode(data))


class ShareRecords:
    """See RecordStore: the records of one share. A change raises GuardFailed when another process
    holds the share now, or when a counted record changed since it was read.
    """

    def __init__(
        self,
        records: GuardedRecordStore,
        held: HeldShare,
        *,
        with_places: Callable[[Event], Event] | None = None,
    ) -> None:
        """`with_places`: adds to a delivery what the next holder of the share needs."""
        self._records, self._held, self._with_places = records, held, with_places
        self._prefix = own_key(held.name, "")
        self._read: dict[tuple[str, str], bytes | None] = {}
        self._placed = RecentIds()
        """Delivery records whose share is written, as far as is remembered."""

    def get(self, table: str, key: str) -> bytes | None:
        kept = self._records.get(table, self._own(table, key))
        if table in COUNTED:
            self._read[table, key] = kept
        return kept

    def put(self, table: str, key: str, value: bytes) -> None:
        self.apply((Put(table, key, value),))

    def delete(self, table: str, key: str) -> None:
        self.apply((Delete(table, key),))

    def apply(self, changes: Sequence[Change]) -> None:
        guards = [self._held.guard]
        own: list[Change] = []
        placed: set[str] = set()
        for change in changes:
            place = (change.table, change.key)
            if place in self._read:
                guards.append(Guard(*place, self._read[place]))
            if change.table == DELIVERIES:
                own += self._whereabouts(change, placed)
            own.append(self._moved(self._outboxed(change)))
        self._read.clear()
        self._records.apply_guarded(own, guards)
        for key in placed:
            self._placed.add(key)

    def find(
        self, table: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        if table not in OWN:
            return self._records.find(table, prefix=prefix, after=after, limit=limit)
        start = self._prefix + after if after else ""
        found = self._records.find(table, prefix=self._prefix + prefix, after=start, limit=limit)
        return [(key.removeprefix(self._prefix), value) for key, value in found]

    def close(self) -> None:
        """Nothing: the records belong to all shares."""

    def _own(self, table: str, key: str) -> str:
        return self._prefix + key if table in OWN else key

    def _moved(self, change: Change) -> Change:
        key = self._own(change.table, change.key)
        if isinstance(change, Put):
            return Put(change.table, key, change.value)
        return Delete(change.table, key)

    def _outboxed(self, change: Change) -> Change:
        """The outbox with what another process needs."""
        if self._with_places is None or (change.table, change.key) != (TABLE, OUTBOX):
            return change
        assert isinstance(change, Put), "the last outbox stays"
        outgoing = msgspec.msgpack.decode(change.value, type=Outgoing)
        for name, events in outgoing.items():
            if name.startswith(OUTPUT):
                outgoing[name] = [self._with_places(event) for event in events]
        return Put(change.table, change.key, msgspec.msgpack.encode(outgoing))

    def _whereabouts(self, change: Change, placed: set[str]) -> list[Change]:
        """The changes of the table of shares for a delivery record; written once."""
        if isinstance(change, Delete):
            self._placed.discard(change.key)
            return [Delete(WHERE, change.key)]
        if change.key in self._placed:
            return []
        placed.add(change.key)
        return [Put(WHERE, change.key, self._held.name.encode())]


def own_key(share: str, key: str) -> str:
    """The key of a share's own record in the table of all shares."""
    return f"{share}/{key}"


class ChannelPage(msgspec.Struct, frozen=True):
    """A range of a channel: how far it was read, and the events of each share."""

    through: int
    parts: dict[int, list[StoredEvent]]
    size: int = 0
    """Bytes of data."""
    crossings: tuple[tuple[int, int], ...] = ()
    """Of `input`: position and share of the messages that cross."""


class SharedReader:
    """Reads channels once for all shares of this process."""

    def __init__(
        self,
        channels: Channels,
        records: RecordStore,
        count: int,
        route: Route = no_routing,
    ) -> None:
        self.channels, self._records, self._count = channels, records, count
        self._route = route
        self._pages: OrderedDict[tuple[str, int], ChannelPage] = OrderedDict()

    async def page(self, name: str, position: int) -> ChannelPage:
        """The page with the event after a position, as far as the channel reaches."""
        number = position // PAGE
        page, last = self._pages.get((name, number)), self.channels.channel(name).last_position()
        if page is None or page.through < min(last, (number + 1) * PAGE):
            before = page or ChannelPage(number * PAGE, {})
            page = await self._read_on(name, before, min((number + 1) * PAGE, last))
            self._remember((name, number), page)
        return page

    async def share_of(self, channel: str, event: Event) -> int:
        found = assign_share(channel, event, self._count)
        if not found.about:
            return found.share
        kept = await run_blocking(partial(self._records.get, WHERE, found.about))
        return found.share if kept is None else int(kept)

    async def _read_on(self, name: str, before: ChannelPage, end: int) -> ChannelPage:
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
                    if name == "input" and crosses(stored.event, share, self._count, self._route):
                        crossings.append((stored.position, share))
            # A deleted range may be much larger than a page.
            place = _reached(batch, end)
        return ChannelPage(place, parts, size, tuple(crossings))

    def _remember(self, place: tuple[str, int], page: ChannelPage) -> None:
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
    """See Channel: the events of one share in a divided channel, at their positions."""

    def __init__(
        self,
        name: str,
        reading: SharedReader,
        held: HeldShare,
        handoff: OrderedHandoff | None = None,
    ) -> None:
        self.name, self._reading, self._held, self._handoff = name, reading, held, handoff
        self._source: Channel = reading.channels.channel(name)
        self._base = self._clear = self._given = 0
        """Between base and clear there are no own events; `given` was returned last."""
        self.place: LoggedSubscription | None = None

    def begin_at(self, place: LoggedSubscription) -> None:
        """Sets the reader's durable position: all own events up to it were handled."""
        self.place = place
        self._base, self._clear, self._given = 0, place.position, 0

    async def append(self, events: Sequence[Event]) -> AppendResult:
        """See Channel; deliveries name the share that waits for their outcome."""
        if self.name.startswith(OUTPUT):
            events = [with_share(event, self._held.name) for event in events]
            if self._handoff is not None:
                return await self._handoff.append(self.name, events)
        return await self._source.append(events)

    async def read_after(self, position: int, *, limit: int = 1000) -> list[StoredEvent]:
        """See Channel. A reader that continues after a position has handled everything up to it;
        other shares rely on that.
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
        if self.name == "input" and self._handoff is not None:
            self._handoff.places = {stored.event.id: stored.position for stored in found}
            await self._handoff.note(found[0].position - 1 if found else self._clear)
        return found

    async def wait_after(self, position: int, *, timeout_ms: int | None = None) -> bool:
        """See Channel; true also when only events of other shares came."""
        return await self._source.wait_after(self._start(position), timeout_ms=timeout_ms)

    def last_position(self) -> int:
        """See Channel; of all shares."""
        return self._source.last_position()

    def _start(self, position: int) -> int:
        return self._clear if self._base <= position < self._clear else position

    async def _move_on(self) -> None:
        """Moves the position past events of other shares once all own ones are handled."""
        place = self.place
        if place is None or place.position < self._given:
            return
        if self._clear - place.position >= _MOVE_ON:
            await place.commit(self._clear)


class ShareChannels:
    """See Channels: of one share."""

    def __init__(self, reading: SharedReader, records: ShareRecords, held: HeldShare) -> None:
        self._reading, self._records, self._held = reading, records, held
        self.whole = reading.channels
        self._divided: dict[str, ShareChannel] = {}
        self.handoff: OrderedHandoff | None = None
        """None = deliveries go out at once."""

    def channel(self, name: str) -> Channel:
        if not is_divided(name):
            return self.whole.channel(name)
        if name not in self._divided:
            self._divided[name] = ShareChannel(name, self._reading, self._held, self.handoff)
        return self._divided[name]

    def names(self) -> list[str]:
        return self.whole.names()

    async def subscribe(
        self, channel: str, reader: str, *, from_start: bool = True
    ) -> Subscription:
        """See Channels; the share has a position of its own, moved only while it is held."""
        if not is_divided(channel):
            return await self.whole.subscribe(channel, reader, from_start=from_start)
        source, name = self.whole.channel(channel), f"{reader}.{self._held.name}"
        cursor = await run_blocking(partial(load_cursor, self._records, channel, name))
        start = 0 if from_start else source.last_position()
        place = LoggedSubscription(source, name, cursor or Cursor(start), self._apply)
        if cursor is None:
            await place.commit(start)  # retention waits for it from now on
        divided = self.channel(channel)
        assert isinstance(divided, ShareChannel), "divided channels are of this kind"
        divided.begin_at(place)
        if channel == "input" and self.handoff is not None:
            await self.handoff.open()
        return place

    async def find_event(self, event_id: str) -> list[tuple[str, StoredEvent]]:
        """See Channels; of all shares."""
        return await self.whole.find_event(event_id)

    async def is_ours(self, channel: str, stored: StoredEvent | None) -> bool:
        if stored is None:
            return self._held.number == 0
        return await self._reading.share_of(channel, stored.event) == self._held.number

    async def close(self) -> None:
        """Nothing: the channels belong to all shares."""

    async def _apply(self, changes: Sequence[Change]) -> None:
        await run_blocking(partial(self._records.apply, changes))
