"""Hands deliveries to the share of their peer, and lets each go when it is its turn. [CO-17]

What a share decides for another's peers stands in `handed` until the peer's share has heard that
nothing earlier can come; then that share appends it to `output.<adapter>`. Its own deliveries go
there at once while nobody's are waited for. Nothing is lost or doubled when either process dies:
what was decided is appended again by the next holder of the one share, what waits is read again by
that of the other, and a delivery has one id in both channels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from rapport.channel.channel import AppendResult, Subscription
from rapport.communication.adapters.base import DELIVERY
from rapport.communication.sharing.events import (
    HANDED,
    OUTPUT,
    TO,
    belonging,
    handed_over,
    place_of,
    taken_over,
    with_place,
)
from rapport.communication.sharing.leases import HeldShare
from rapport.communication.sharing.ordering import HandedQueue, Reached
from rapport.communication.sharing.reached import Progress
from rapport.communication.sharing.reading import ShareChannels, SharedReading
from rapport.communication.sharing.records import ShareRecords
from rapport.communication.sharing.shares import ShareSettings
from rapport.core.event import Event
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import first_of
from rapport.kernel.telemetry import get_logger

READER = "handing"
BEGUN = "rapport.handing.begun"
_LOOK_MS = 20
_COMMIT_EVERY = 200
_PATIENCE_MS = 60_000
_PATIENCE_LEASES = 10
"""After so long, whichever is longer, deliveries go out of their turn: a share that cannot go on at
all must not keep everybody silent."""
_NS_PER_MS = 1_000_000
_log = get_logger(__name__)


class Handing:
    """The queue of one share, and the way that its own decisions take."""

    def __init__(
        self,
        reading: SharedReading,
        progress: Progress,
        records: ShareRecords,
        held: HeldShare,
        clock: Clock,
        settings: ShareSettings,
    ) -> None:
        self._reading, self._whole, self._progress = reading, reading.channels, progress
        self._records, self._held, self._clock, self._settings = records, held, clock, settings
        self.places: Mapping[str, int] = {}
        """By the id of a message that the engine was given last where it stands in `input`."""
        self._through = 0
        self._opened = 0
        self._queue = HandedQueue()
        self._read_until = self._settled = -1
        self._bound = self._given_up = -1
        self._since_ns = self._beat_ns = 0
        self._woken = asyncio.Event()

    # --- what the share's engine decides ---

    async def open(self) -> None:
        """Called before the engine reads: all that holders before us handed over stands before the
        mark that this appends.
        """
        self._opened += 1
        name = f"begun.{self._held.name}.{self._held.lease.epoch}.{self._opened}"
        mark = Event("communication", name, BEGUN, "", self._clock.now_ms(), b"{}")
        self._reach((await self._whole.channel(HANDED).append([mark])).positions)

    async def note(self, position: int) -> None:
        """The engine has handled everything up to a position of `input`, and appended what follows
        from it.
        """
        await self._progress.note(self._held.number, Reached(position, self._through))
        if self._queue:
            self._woken.set()

    def with_place(self, event: Event) -> Event:
        """A delivery that says where its message stands, for who appends it in our place."""
        place = self.places.get(event.subject, 0)
        return with_place(event, place) if place else event

    async def append(self, channel: str, events: Sequence[Event]) -> AppendResult:
        """Appends deliveries to the channel, or hands them over; the positions are those of the
        channel that each went to.
        """
        places = [place_of(event) or self.places.get(event.subject, 0) for event in events]
        last = max(places, default=0)
        await self._progress.cover(last - 1)
        is_clear = self._progress.crossings.is_clear(
            self._held.number, last, settled=self._settled, handed=self._through
        )
        direct: list[int] = []
        handed: list[int] = []
        for number, (event, place) in enumerate(zip(events, places, strict=True)):
            is_direct = not place or (is_clear and self._is_ours(channel, event))
            (direct if is_direct else handed).append(number)
        positions = [0] * len(events)
        duplicates = 0
        for name, numbers in ((HANDED, handed), (channel, direct)):
            if numbers:
                said = [_as_said(events[n], name, channel, places[n]) for n in numbers]
                appended = await self._whole.channel(name).append(said)
                duplicates += appended.duplicates
                for number, position in zip(numbers, appended.positions, strict=True):
                    positions[number] = position
        self._reach([positions[number] for number in handed])
        return AppendResult(tuple(positions), duplicates)

    def _is_ours(self, channel: str, event: Event) -> bool:
        return belonging(channel, event, self._settings.count).share == self._held.number

    def _reach(self, positions: Sequence[int]) -> None:
        self._through = max([self._through, *positions])

    # --- what is handed to the share ---

    async def run(self, channels: ShareChannels) -> None:
        """Works until cancelled; started again it goes on where the last commit stood."""
        place = await channels.subscribe(HANDED, READER)
        self._queue, self._read_until = HandedQueue(), place.position
        self._progress.listen(self._woken)
        try:
            while True:
                self._woken.clear()
                if not await self._step(place):
                    grown = self._whole.channel(HANDED).wait_after(self._read_until)
                    paused = self._clock.sleep(self._pause_ms())
                    await first_of(grown, self._woken.wait(), paused)
        finally:
            self._progress.forget(self._woken)

    def _pause_ms(self) -> int:
        return _LOOK_MS if self._queue else self._settings.beat_ms

    async def _step(self, place: Subscription) -> int:
        """One look at what may go; how many went."""
        share = self._held.number
        await self._progress.cover(self._progress.crossings.reached(share).position)
        if self._queue:
            await self._progress.look()
        # First how far all have come, then what they handed over: so nothing of it is missed.
        bound = self._progress.crossings.bound(share)
        await self._read(max(self._progress.crossings.through, self._read_until))
        taken = self._queue.take(self._patient(bound))
        await self._let_go([stored.event for stored in taken])
        self._settled = self._queue.settled(self._read_until)
        is_beat = self._clock.steady_ns() - self._beat_ns >= self._settings.beat_ms * _NS_PER_MS
        await self._progress.write_down(share, self._records, always=is_beat)
        behind = self._settled - place.position
        if behind >= (1 if is_beat else _COMMIT_EVERY):
            await place.commit(self._settled)
        if is_beat:
            self._beat_ns = self._clock.steady_ns()
        return len(taken)

    async def _read(self, least: int) -> None:
        """Reads to the end, which is not before `least`."""
        source = self._whole.channel(HANDED)
        while self._read_until < max(source.last_position(), least):
            if source.last_position() <= self._read_until:
                await source.wait_after(self._read_until)
            page = await self._reading.page(HANDED, self._read_until)
            for stored in page.parts.get(self._held.number, ()):
                if stored.position > self._read_until and stored.event.type == DELIVERY:
                    self._queue.put(stored, place_of(stored.event))
            self._read_until = page.through

    def _patient(self, bound: int) -> int:
        """The bound; none where it stood still for too long while something waited, until it moves
        again.
        """
        now_ns = self._clock.steady_ns()
        if bound == self._given_up:
            return max(bound, self._queue.last())
        if bound != self._bound or not self._queue:
            self._bound, self._since_ns = bound, now_ns
        patience_ms = max(_PATIENCE_MS, _PATIENCE_LEASES * self._settings.lease_ms)
        if now_ns - self._since_ns < patience_ms * _NS_PER_MS:
            return bound
        self._given_up = bound
        waiting = len(self._queue)
        _log.warning("order given up", share=self._held.name, after=bound, waiting=waiting)
        return self._queue.last()

    async def _let_go(self, events: Sequence[Event]) -> None:
        to: dict[str, list[Event]] = {}
        for event in events:
            channel = event.headers.get(TO, "")
            if channel.startswith(OUTPUT):
                to.setdefault(channel, []).append(taken_over(event))
        for channel, deliveries in to.items():
            await self._whole.channel(channel).append(deliveries)


def _as_said(event: Event, name: str, channel: str, place: int) -> Event:
    return handed_over(event, channel, place) if name == HANDED else taken_over(event)
