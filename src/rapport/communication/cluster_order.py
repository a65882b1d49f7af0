"""Ordered hand-off between the shares of a cluster. [CO-17]

A message crosses when it may bring deliveries to peers of another share than its own: one to a
collective, one that routing rules pass on, an answer that is sent on. Such deliveries stand in the
channel `handed` until nothing earlier can come for the peer; then the peer's share appends them to
`output.<adapter>`, in the order in which their messages stand in `input`. Deliveries to a share's
own peers go out at once while no crossing message is open. Nothing is lost or doubled when a
process dies: the next holder of the one share appends again, that of the other reads again, and a
delivery has one id in both channels.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from rapport.channel.channel import AppendResult, Subscription
from rapport.communication.adapters.base import DELIVERY
from rapport.communication.cluster_channels import (
    HANDED,
    OUTPUT,
    TO,
    ShareChannels,
    SharedReader,
    ShareRecords,
    assign_share,
    handed_over,
    own_key,
    place_of,
    taken_over,
    with_place,
)
from rapport.communication.cluster_leases import HeldShare, ShareSettings, share_name
from rapport.core.errors import Corrupt
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import first_of, run_blocking
from rapport.kernel.telemetry import get_logger
from rapport.store.base import Put, RecordStore

REACHED = "communication.reached"
_POSITION = ("communication", "position/input")
_LOOK_AGAIN_NS = 10_000_000
"""Least interval of reads by all shares of a process together."""
READER = "handing"
BEGUN = "rapport.handing.begun"
_LOOK_MS = 20
_COMMIT_EVERY = 200
_PATIENCE_MS = 60_000
_PATIENCE_LEASES = 10
"""After the longer of the two, deliveries go out of order: a share that is stuck must not stop the
others."""
_NS_PER_MS = 1_000_000
_log = get_logger(__name__)


class ShareProgress(msgspec.Struct, frozen=True, array_like=True):
    """Progress of a share: all its messages in `input` up to `position` were handled, and their
    deliveries for other shares stand in `handed` at `through` or before.
    """

    position: int = 0
    through: int = 0


NOWHERE = ShareProgress()


class Crossings:
    """Crossing messages that are not yet handled, as far as one process knows."""

    def __init__(self) -> None:
        self._open: dict[int, deque[int]] = {}
        self._reached: dict[int, ShareProgress] = {}
        self._crossed: dict[int, int] = {}
        self.through = 0
        """Deliveries of some share stand in `handed` up to here."""
        self.covered = -1
        """Up to here it is known which messages cross; -1 = nothing is known yet. Messages beyond
        count as crossing.
        """

    def cover(self, position: int) -> None:
        """Notes that all crossing messages up to a position are known or handled."""
        self.covered = max(self.covered, position)

    def see(self, position: int, share: int) -> None:
        """Adds a crossing message of a share; in the order of positions, before `cover`."""
        if position > self.reached(share).position:
            self._open.setdefault(share, deque()).append(position)
        else:
            self._crossed[share] = position

    def advance(self, share: int, reached: ShareProgress) -> bool:
        """Notes the progress of a share; returns whether others may wait for it."""
        before = self.reached(share)
        self.through = max(self.through, reached.through)
        if reached.position <= before.position:
            return False
        self._reached[share] = ShareProgress(reached.position, max(before.through, reached.through))
        waiting, crossed = self._open.get(share), self._crossed.get(share, 0)
        while waiting and waiting[0] <= reached.position:
            self._crossed[share] = waiting.popleft()
        return self._crossed.get(share, 0) > crossed

    def reached(self, share: int) -> ShareProgress:
        return self._reached.get(share, NOWHERE)

    def has_crossed(self, share: int, since: int) -> bool:
        """Whether a crossing message of the share was handled after a position."""
        return self._crossed.get(share, 0) > since

    def first_open(self, share: int) -> int:
        """The first open crossing message of another share; 0 = none."""
        found = [waiting[0] for other, waiting in self._open.items() if waiting and other != share]
        return min(found, default=0)

    def bound(self, share: int) -> int:
        """No message in `input` before this position brings further deliveries to the share's
        peers.
        """
        # The last holder of the share may have come farther than this process has read.
        own = min(self.reached(share).position, self.covered) + 1
        return min(self.first_open(share) or own, own)

    def is_clear(self, share: int, place: int, *, settled: int, handed: int) -> bool:
        """Whether a share's own delivery of the message at `place` may go at once: no earlier
        message is open or pending. `settled`: everything in `handed` up to here has gone; `handed`:
        the share itself wrote there up to here.
        """
        first = self.first_open(share)
        is_next = self.covered >= place - 1 and (not first or first >= place)
        return is_next and settled >= max(self.through, handed)


class HandoffQueue:
    """Deliveries that wait in `handed` for a share's peers."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, StoredEvent]] = []
        self._positions: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, stored: StoredEvent, place: int) -> None:
        """Queues a delivery of the message at `place`; in the order of `handed`."""
        heapq.heappush(self._heap, (place, stored.position, stored))
        self._positions[stored.position] = None

    def take(self, bound: int) -> list[StoredEvent]:
        """Removes and returns the deliveries of messages up to the bound, in order."""
        taken = []
        while self._heap and self._heap[0][0] <= bound:
            _, position, stored = heapq.heappop(self._heap)
            del self._positions[position]
            taken.append(stored)
        return taken

    def last(self) -> int:
        """The position of the last queued message; 0 = none."""
        return max((place for place, _, _ in self._heap), default=0)

    def settled(self, read_until: int) -> int:
        """The position in `handed` up to which everything read was taken."""
        return next(iter(self._positions), read_until + 1) - 1


class ClusterProgress:
    """The progress of all shares as one process knows it; common to those it holds. Progress is
    written to records when other processes may wait for it.
    """

    def __init__(
        self, reading: SharedReader, records: RecordStore, clock: Clock, count: int
    ) -> None:
        self.crossings = Crossings()
        self._reading, self._records, self._clock, self._count = reading, records, clock, count
        self._turn = asyncio.Lock()
        self._written: dict[int, int] = {}
        self._looked_ns = 0
        self._listening: set[asyncio.Event] = set()

    def listen(self, woken: asyncio.Event) -> None:
        """Sets the event whenever an own share has handled a message that others wait for."""
        self._listening.add(woken)

    def forget(self, woken: asyncio.Event) -> None:
        """Ends `listen`."""
        self._listening.discard(woken)

    async def note(self, share: int, reached: ShareProgress) -> None:
        """Notes the progress of an own share."""
        if reached.position <= self.crossings.reached(share).position:
            return
        await self.cover(reached.position)
        if self.crossings.advance(share, reached):
            for woken in self._listening:
                woken.set()

    async def cover(self, position: int) -> None:
        """Finds the crossing messages up to a position of `input`; free for pages that were read
        just now.
        """
        crossings = self.crossings
        if 0 <= crossings.covered >= position:
            return
        async with self._turn:
            if crossings.covered < 0:
                crossings.cover(await run_blocking(self._look))
            source = self._reading.channels.channel("input")
            while (covered := crossings.covered) < position:
                if source.last_position() <= covered:
                    await source.wait_after(covered)  # another process has read more
                page = await self._reading.page("input", covered)
                for place, share in page.crossings:
                    if place > covered:
                        crossings.see(place, share)
                crossings.cover(page.through)

    async def look(self) -> None:
        """Reads the progress of other processes."""
        now_ns = self._clock.steady_ns()
        if now_ns - self._looked_ns >= _LOOK_AGAIN_NS:
            self._looked_ns = now_ns
            for share, reached in await run_blocking(self._read):
                self.crossings.advance(share, reached)

    async def write_down(self, share: int, records: ShareRecords, *, always: bool = False) -> None:
        """Writes the progress of an own share when others may wait for it, or with `always`. Raises
        GuardFailed when another process holds the share now.
        """
        reached, written = self.crossings.reached(share), self._written.get(share, 0)
        if reached.position <= written:
            return
        if always or self.crossings.has_crossed(share, written):
            record = Put(REACHED, share_name(share), msgspec.msgpack.encode(reached))
            await run_blocking(partial(records.apply, (record,)))
            self._written[share] = reached.position

    def _read(self) -> list[tuple[int, ShareProgress]]:
        return [(int(key), _decode(key, kept)) for key, kept in self._records.find(REACHED)]

    def _look(self) -> int:
        """The position before the first crossing message that may be open."""
        found = dict(self._read())
        for share, reached in found.items():
            self.crossings.advance(share, reached)
        return min(self._start(share, found.get(share)) for share in range(self._count))

    def _start(self, share: int, reached: ShareProgress | None) -> int:
        if reached is not None:
            return reached.position
        # Without a record, the reader's position decides.
        table, key = _POSITION
        kept = self._records.get(table, own_key(share_name(share), key))
        return int(kept) if kept else 0


def _decode(key: str, kept: bytes) -> ShareProgress:
    try:
        return msgspec.msgpack.decode(kept, type=ShareProgress)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Corrupt(
            f"the record {key!r} of {REACHED} cannot be read: {error}",
            code="shares.bad_record",
            hint="another version wrote it; remove it: order may suffer once, nothing is lost",
        ) from None


class OrderedHandoff:
    """Appends the deliveries of one share in order: to `handed` for other shares' peers, to
    `output.<adapter>` for its own.
    """

    def __init__(
        self,
        reading: SharedReader,
        progress: ClusterProgress,
        records: ShareRecords,
        held: HeldShare,
        clock: Clock,
        settings: ShareSettings,
    ) -> None:
        self._reading, self._whole, self._progress = reading, reading.channels, progress
        self._records, self._held, self._clock, self._settings = records, held, clock, settings
        self.places: Mapping[str, int] = {}
        """Positions in `input` of the messages of the last batch, by id."""
        self._through = 0
        self._opened = 0
        self._queue = HandoffQueue()
        self._read_until = self._settled = -1
        self._bound = self._given_up = -1
        self._since_ns = self._beat_ns = 0
        self._woken = asyncio.Event()

    # --- deliveries of the share's engine ---

    async def open(self) -> None:
        """Called before the engine reads; appends a mark behind everything that earlier holders of
        the share wrote to `handed`.
        """
        self._opened += 1
        name = f"begun.{self._held.name}.{self._held.lease.epoch}.{self._opened}"
        mark = Event("communication", name, BEGUN, "", self._clock.now_ms(), b"{}")
        self._reach((await self._whole.channel(HANDED).append([mark])).positions)

    async def note(self, position: int) -> None:
        """Notes that the engine has handled everything up to a position of `input`."""
        await self._progress.note(self._held.number, ShareProgress(position, self._through))
        if self._queue:
            self._woken.set()

    def with_place(self, event: Event) -> Event:
        """A delivery with the position of its message, for the next holder of the share."""
        place = self.places.get(event.subject, 0)
        return with_place(event, place) if place else event

    async def append(self, channel: str, events: Sequence[Event]) -> AppendResult:
        """Appends deliveries to the channel or to `handed`; the positions are those of the channel
        that each went to.
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
                written = [_as_written(events[n], name, channel, places[n]) for n in numbers]
                appended = await self._whole.channel(name).append(written)
                duplicates += appended.duplicates
                for number, position in zip(numbers, appended.positions, strict=True):
                    positions[number] = position
        self._reach([positions[number] for number in handed])
        return AppendResult(tuple(positions), duplicates)

    def _is_ours(self, channel: str, event: Event) -> bool:
        return assign_share(channel, event, self._settings.count).share == self._held.number

    def _reach(self, positions: Sequence[int]) -> None:
        self._through = max([self._through, *positions])

    # --- deliveries of other shares ---

    async def run(self, channels: ShareChannels) -> None:
        """Works until cancelled; restarted it continues at the last commit."""
        place = await channels.subscribe(HANDED, READER)
        self._queue, self._read_until = HandoffQueue(), place.position
        self._progress.listen(self._woken)
        try:
            while True:
                self._woken.clear()
                if not await self._step(place):
                    grown = self._whole.channel(HANDED).wait_after(self._read_until)
                    pause_ms = _LOOK_MS if self._queue else self._settings.beat_ms
                    paused = self._clock.sleep(pause_ms)
                    await first_of(grown, self._woken.wait(), paused)
        finally:
            self._progress.forget(self._woken)

    async def _step(self, place: Subscription) -> int:
        """Appends the deliveries whose turn it is; returns their number."""
        share = self._held.number
        await self._progress.cover(self._progress.crossings.reached(share).position)
        if self._queue:
            await self._progress.look()
        # Progress is read before `handed`, so that nothing is missed.
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
        """Reads `handed` to its end, which is not before `least`."""
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
        """The bound; ignored when it stood still for too long while something waited."""
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
        _log.warning("order abandoned", share=self._held.name, after=bound, waiting=waiting)
        return self._queue.last()

    async def _let_go(self, events: Sequence[Event]) -> None:
        to: dict[str, list[Event]] = {}
        for event in events:
            channel = event.headers.get(TO, "")
            if channel.startswith(OUTPUT):
                to.setdefault(channel, []).append(taken_over(event))
        for channel, deliveries in to.items():
            await self._whole.channel(channel).append(deliveries)


def _as_written(event: Event, name: str, channel: str, place: int) -> Event:
    return handed_over(event, channel, place) if name == HANDED else taken_over(event)
