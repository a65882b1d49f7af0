"""What is held back now, read from `quarantine` and `releases`; nothing here is kept. [ME-11,
ME-16]

Built by reading both channels from the start and kept up to date by `refresh`, so it can never say
anything else than the log does. However many are held back, memory is needed for ten thousand.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Literal

import msgspec

from rapport.channel.channel import Channels
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent
from rapport.core.release import BATCH_RELEASED, RELEASES, ReleasedBatch
from rapport.mediation.binding import RAW_PREFIX
from rapport.mediation.holding.quarantine import QUARANTINE, REJECTED_TYPE
from rapport.mediation.holding.scratch import MOST_IN_MEMORY, Scratch
from rapport.store.base import Delete, Put

State = Literal["held", "rejected again", "released"]
_PAGE = 500
_MOST_RELEASED = 10_000
"""So many released ones are still known one by one; older ones are counted only."""

_HELD, _READINGS, _IDS, _CORRECTIONS = "held", "readings", "ids", "corrections"

RawPlace = tuple[str, int]
"""Channel and position of a raw event."""


class Held(msgspec.Struct, gc=False, kw_only=True):
    """A raw event that had no meaning, or a reading that policies cannot use."""

    id: str
    """Of the first event in `quarantine` about it."""
    source: str
    channel: str
    """Where the raw event lies."""
    raw_position: int
    reason: str
    message: str
    hint: str
    time: int
    received: int
    """When it was held back first."""
    first: int
    """Position of the first event in `quarantine` about it."""
    position: int
    """Position of the newest one."""
    attempts: int = 1
    state: State = "held"
    release: str = ""
    is_reading: bool = False
    """Held back by the policies: it has a meaning, which only mediating again can change."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which ones; what is left empty fits any."""

    source: str = ""
    reason: str = ""
    since_ms: int = 0
    ids: tuple[str, ...] = ()

    def fits(self, held: Held) -> bool:
        """Whether it is one of them."""
        return (
            self.source in ("", held.source)
            and self.reason in ("", held.reason)
            and self.since_ms <= held.received
            and (not self.ids or held.id in self.ids)
        )


class _Rejected(msgspec.Struct):
    """What an event of `quarantine` says; the raw form is left where it is."""

    reason: str = ""
    message: str = ""
    hint: str = ""
    source: str = ""
    event: _Reading | None = None


class _Reading(msgspec.Struct):
    source: str = ""
    rawchannel: str = ""
    rawposition: str = "0"


_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(Held).decode


class HeldBack:
    """The states of everything in quarantine. Belongs to one event loop."""

    def __init__(self, channels: Channels, *, most_in_memory: int = MOST_IN_MEMORY) -> None:
        self._quarantine = channels.channel(QUARANTINE)
        self._releases = channels.channel(RELEASES)
        self._read_to = self._released_to = 0
        self._scratch = Scratch(most_in_memory)
        self._fresh: dict[tuple[str, str], bytes | None] = {}
        """Records of the page that is being taken in; None: gone."""
        self._released: dict[RawPlace, Held] = {}
        self._counts: dict[str, int] = {}
        self._by_reason: Counter[tuple[str, str]] = Counter()
        self._turn = asyncio.Lock()

    async def refresh(self) -> None:
        """Takes in what was appended since; the first time all there is."""
        async with self._turn:
            # Releases up to here speak of what is in quarantine already.
            last = self._releases.last_position()
            while batch := await self._quarantine.read_after(self._read_to, limit=_PAGE):
                for stored in batch:
                    self._take_rejection(stored)
                self._read_to = batch[-1].position
                self._put_down()
            while self._released_to < last:
                batch = await self._releases.read_after(self._released_to, limit=_PAGE)
                for stored in batch:
                    if stored.position <= last and stored.event.type == BATCH_RELEASED:
                        self._take_release(stored.event)
                        self._put_down()
                self._released_to = min(batch[-1].position, last) if batch else last

    async def pages(self, wanted: Wanted | None = None) -> AsyncIterator[list[Held]]:
        """What is held back now, some at a time, by raw channel and position; readings last. What
        is released meanwhile may be among them.
        """
        for table in (_HELD, _READINGS):
            after = ""
            while found := await self._page(table, after):
                after = found[-1][0]
                page = [_DECODE(value) for _, value in found]
                if chosen := [one for one in page if wanted is None or wanted.fits(one)]:
                    yield chosen

    async def held(self, wanted: Wanted | None = None) -> list[Held]:
        """All of them at once: for who knows that they are few."""
        return [one async for page in self.pages(wanted) for one in page]

    def one(self, id: str) -> Held | None:
        """The one that an event of `quarantine` is about, whatever became of it."""
        place = self._get(_IDS, id)
        if place is not None:
            table, _, key = place.decode().partition(" ")
            return self._at(table, key)
        return next((one for one in self._released.values() if one.id == id), None)

    def at(self, channel: str, position: int) -> Held | None:
        """The raw event of a place, when it is held back."""
        return self._at(_HELD, _key((channel, position)))

    def newest(self, stored: StoredEvent) -> Held | None:
        """What an event of `quarantine` is the newest one about, when that is held back."""
        told = _told(stored.event)
        found = self._at(told.table, _key(told.place)) if told is not None else None
        return found if found is not None and found.position == stored.position else None

    def correction(self, channel: str, id: str) -> str:
        """The id that stands in for a reading of a raw channel by now; its own if none does."""
        found = self._get(_CORRECTIONS, f"{channel}/{id}")
        return id if found is None else found.decode()

    def counts(self) -> Counter[tuple[str, str]]:
        """How many are held back of each source and reason; costs nothing however many."""
        return +self._by_reason

    def released(self) -> dict[str, int]:
        """How many raw events of each source were released."""
        return dict(sorted(self._counts.items()))

    # --- taking in --------------------------------------------------------------------------------

    def _take_rejection(self, stored: StoredEvent) -> None:
        told = _told(stored.event)
        if told is None:
            return  # not ours: it says of no event why it is held
        said, key = told.said, _key(told.place)
        known = self._at(told.table, key)
        if known is None:
            known = _held(stored, said, told.place, told.table == _READINGS)
            self._fresh[_IDS, known.id] = f"{told.table} {key}".encode()
        else:
            self._by_reason[known.source, known.reason] -= 1
            known.reason, known.position = said.reason, stored.position
            known.message, known.hint = said.message, said.hint
            known.attempts += 1
            known.state = "rejected again"
        self._by_reason[known.source, known.reason] += 1
        self._fresh[told.table, key] = _ENCODE(known)

    def _take_release(self, event: Event) -> None:
        done: ReleasedBatch = event.payload_as(ReleasedBatch)
        source = done.channel.removeprefix(RAW_PREFIX)
        for position in done.released:
            held = self._take_out(_HELD, (done.channel, position))
            if held is not None:
                held.state, held.release = "released", done.release
                self._released[done.channel, position] = held
        for position in done.mended_readings:
            self._take_out(_READINGS, (done.channel, position))
        for id, stands_in in done.corrected.items():
            self._fresh[_CORRECTIONS, f"{done.channel}/{id}"] = stands_in.encode()
        self._counts[source] = self._counts.get(source, 0) + len(done.released)
        while len(self._released) > _MOST_RELEASED:
            del self._released[next(iter(self._released))]

    def _take_out(self, table: str, place: RawPlace) -> Held | None:
        key = _key(place)
        found = self._at(table, key)
        if found is not None:
            self._by_reason[found.source, found.reason] -= 1
            self._fresh[table, key] = self._fresh[_IDS, found.id] = None
        return found

    # --- records ----------------------------------------------------------------------------------

    def _at(self, table: str, key: str) -> Held | None:
        found = self._get(table, key)
        return None if found is None else _DECODE(found)

    def _get(self, table: str, key: str) -> bytes | None:
        if (table, key) in self._fresh:
            return self._fresh[table, key]
        return self._scratch.get(table, key)

    def _put_down(self) -> None:
        self._scratch.apply(
            [
                Delete(table, key) if value is None else Put(table, key, value)
                for (table, key), value in self._fresh.items()
            ]
        )
        self._fresh.clear()

    async def _page(self, table: str, after: str) -> list[tuple[str, bytes]]:
        if self._scratch.is_in_file:
            return await asyncio.to_thread(self._scratch.page, table, after)
        return self._scratch.page(table, after)


class _Told(msgspec.Struct, frozen=True):
    """What an event of `quarantine` says, and of what."""

    said: _Rejected
    place: RawPlace
    table: str


def _told(event: Event) -> _Told | None:
    try:
        said: _Rejected = event.payload_as(_Rejected)
        place = _place_of(event, said)
    except (InvalidInput, ValueError):
        return None
    return _Told(said, place, _HELD if event.type == REJECTED_TYPE else _READINGS)


def _key(place: RawPlace) -> str:
    """Keys of one channel stand together, in the order of its positions."""
    return f"{place[0]}/{place[1]:020d}"


def _place_of(event: Event, said: _Rejected) -> RawPlace:
    if event.type == REJECTED_TYPE:
        return event.headers.get("rawchannel", ""), int(event.headers.get("rawposition", "0"))
    if said.event is None or not said.reason:
        raise ValueError("neither a raw event nor a reading")
    # A reading that no raw event is known of is its own place.
    return said.event.rawchannel or event.id, int(said.event.rawposition)


def _held(stored: StoredEvent, said: _Rejected, place: RawPlace, is_reading: bool) -> Held:
    channel, raw_position = place
    source = said.source or channel.removeprefix(RAW_PREFIX)
    if is_reading and said.event is not None and not said.event.rawchannel:
        source = said.event.source
    return Held(
        id=stored.event.id,
        source=source,
        channel=channel,
        raw_position=raw_position,
        reason=said.reason,
        message=said.message,
        hint=said.hint,
        time=stored.event.time,
        received=stored.received,
        first=stored.position,
        position=stored.position,
        is_reading=is_reading,
    )
