"""What is held back now, read from `quarantine` and `releases`; nothing here is stored. [ME-11,
ME-16]

Built by reading both channels from the start and kept up to date by `refresh`, so it can never say
anything else than the log does.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from rapport.channel.channel import Channels
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent
from rapport.core.release import BATCH_DONE, RELEASES, BatchDone
from rapport.mediation.binding import RAW_PREFIX
from rapport.mediation.holding.quarantine import QUARANTINE, REJECTED_TYPE

State = Literal["held", "rejected again", "released"]
_PAGE = 2_000
_MOST_RELEASED = 50_000
"""So many released ones are still known one by one; older ones are counted only."""

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


class HeldBack:
    """The states of everything in quarantine. Belongs to one event loop."""

    def __init__(self, channels: Channels) -> None:
        self._quarantine = channels.channel(QUARANTINE)
        self._releases = channels.channel(RELEASES)
        self._read_to = self._released_to = 0
        self._held: dict[RawPlace, Held] = {}
        self._readings: dict[RawPlace, Held] = {}
        self._released: dict[RawPlace, Held] = {}
        self._counts: dict[str, int] = {}
        self._by_reason: Counter[tuple[str, str]] = Counter()
        self.corrections: dict[tuple[str, str], str] = {}
        """Of every reading that was corrected (raw channel, id) the id that stands in for it."""

    async def refresh(self) -> None:
        """Takes in what was appended since; the first time all there is."""
        # Releases up to here speak of what is in quarantine already.
        last = self._releases.last_position()
        while batch := await self._quarantine.read_after(self._read_to, limit=_PAGE):
            for stored in batch:
                self._take_rejection(stored)
            self._read_to = batch[-1].position
        while self._released_to < last:
            batch = await self._releases.read_after(self._released_to, limit=_PAGE)
            for stored in batch:
                if stored.position <= last and stored.event.type == BATCH_DONE:
                    self._take_release(stored.event)
            self._released_to = min(batch[-1].position, last) if batch else last

    def held(self, wanted: Wanted | None = None) -> list[Held]:
        """What is held back now, oldest first."""
        return [one for one in self._all() if wanted is None or wanted.fits(one)]

    def one(self, id: str) -> Held | None:
        """The one that an event of `quarantine` is about, whatever became of it."""
        known: Iterable[Held] = (*self._all(), *self._released.values())
        return next((one for one in known if one.id == id), None)

    def at(self, channel: str, position: int) -> Held | None:
        """The raw event of a place, when it is held back."""
        return self._held.get((channel, position))

    def counts(self) -> Counter[tuple[str, str]]:
        """How many are held back of each source and reason; costs nothing however many."""
        return +self._by_reason

    def released(self) -> dict[str, int]:
        """How many raw events of each source were released."""
        return dict(sorted(self._counts.items()))

    def _all(self) -> Iterator[Held]:
        yield from self._held.values()
        yield from self._readings.values()

    def _take_rejection(self, stored: StoredEvent) -> None:
        try:
            said: _Rejected = stored.event.payload_as(_Rejected)
            place = _place_of(stored.event, said)
        except (InvalidInput, ValueError):
            return  # not ours: it says of no event why it is held
        is_reading = stored.event.type != REJECTED_TYPE
        table = self._readings if is_reading else self._held
        known = table.get(place)
        if known is None:
            held = table[place] = _held(stored, said, place, is_reading)
            self._by_reason[held.source, held.reason] += 1
            return
        self._by_reason[known.source, known.reason] -= 1
        self._by_reason[known.source, said.reason] += 1
        known.reason, known.position = sys.intern(said.reason), stored.position
        known.message, known.hint = sys.intern(said.message), sys.intern(said.hint)
        known.attempts += 1
        known.state = "rejected again"

    def _take_release(self, event: Event) -> None:
        done: BatchDone = event.payload_as(BatchDone)
        source = done.channel.removeprefix(RAW_PREFIX)
        for position in done.released:
            held = self._held.pop((done.channel, position), None)
            if held is not None:
                self._by_reason[held.source, held.reason] -= 1
                held.state, held.release = "released", done.release
                self._released[done.channel, position] = held
        for position in done.mended_readings:
            reading = self._readings.pop((done.channel, position), None)
            if reading is not None:
                self._by_reason[reading.source, reading.reason] -= 1
        for id, stands_in in done.corrected.items():
            self.corrections[done.channel, id] = stands_in
        self._counts[source] = self._counts.get(source, 0) + len(done.released)
        while len(self._released) > _MOST_RELEASED:
            del self._released[next(iter(self._released))]


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
        source=sys.intern(source),
        channel=sys.intern(channel),
        raw_position=raw_position,
        reason=sys.intern(said.reason),
        message=sys.intern(said.message),
        hint=sys.intern(said.hint),
        time=stored.event.time,
        received=stored.received,
        first=stored.position,
        position=stored.position,
        is_reading=is_reading,
    )
