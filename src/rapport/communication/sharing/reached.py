"""How far the shares of all processes have come: read and written down for those who wait. [CO-17]

One record per share, written only when others may wait for it, and now and then. Fenced like every
change of a share; what was true stays true, so reading an old one only delays.
"""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from rapport.communication.aside import run_aside
from rapport.communication.sharing.ordering import Crossings, Reached
from rapport.communication.sharing.reading import SharedReading
from rapport.communication.sharing.records import ShareRecords, own_key
from rapport.communication.sharing.shares import share_name
from rapport.core.errors import Corrupt
from rapport.kernel.clock import Clock
from rapport.store.base import Put, RecordStore

REACHED = "communication.reached"
_POSITION = ("communication", "position/input")
_LOOK_AGAIN_NS = 10_000_000
"""All shares of a process together look no more often than this."""


class Progress:
    """What one process knows of all shares; shared by those that it holds."""

    def __init__(
        self, reading: SharedReading, records: RecordStore, clock: Clock, count: int
    ) -> None:
        self.crossings = Crossings()
        self._reading, self._records, self._clock, self._count = reading, records, clock, count
        self._turn = asyncio.Lock()
        self._written: dict[int, int] = {}
        self._looked_ns = 0
        self._listening: set[asyncio.Event] = set()

    def listen(self, woken: asyncio.Event) -> None:
        """Sets this whenever one of our shares has handled a message that others wait for."""
        self._listening.add(woken)

    def forget(self, woken: asyncio.Event) -> None:
        """Sets it no more."""
        self._listening.discard(woken)

    async def note(self, share: int, reached: Reached) -> None:
        """A share of this process has come so far."""
        if reached.position <= self.crossings.reached(share).position:
            return
        await self.cover(reached.position)
        if self.crossings.hear(share, reached):
            for woken in self._listening:
                woken.set()

    async def cover(self, position: int) -> None:
        """Knows of all messages up to a position of `input` whether they cross. Costs nothing for
        what a share of this process has read just now.
        """
        crossings = self.crossings
        if 0 <= crossings.covered >= position:
            return
        async with self._turn:
            if crossings.covered < 0:
                crossings.cover(await run_aside(self._look))
            source = self._reading.channels.channel("input")
            while (covered := crossings.covered) < position:
                if source.last_position() <= covered:
                    await source.wait_after(covered)  # another process has seen more
                page = await self._reading.page("input", covered)
                for place, share in page.crossings:
                    if place > covered:
                        crossings.see(place, share)
                crossings.cover(page.through)

    async def look(self) -> None:
        """Hears how far the shares of other processes have come."""
        now_ns = self._clock.steady_ns()
        if now_ns - self._looked_ns >= _LOOK_AGAIN_NS:
            self._looked_ns = now_ns
            for share, reached in await run_aside(self._read):
                self.crossings.hear(share, reached)

    async def write_down(self, share: int, records: ShareRecords, *, always: bool = False) -> None:
        """Says how far our share has come, when others may wait to hear it; with `always` also
        otherwise. Raises GuardFailed when the share is another's now.
        """
        reached, written = self.crossings.reached(share), self._written.get(share, 0)
        if reached.position <= written:
            return
        if always or self.crossings.has_crossed(share, written):
            said = Put(REACHED, share_name(share), msgspec.msgpack.encode(reached))
            await run_aside(partial(records.apply, (said,)))
            self._written[share] = reached.position

    def _read(self) -> list[tuple[int, Reached]]:
        return [(int(key), _decode(key, kept)) for key, kept in self._records.find(REACHED)]

    def _look(self) -> int:
        """Where the first message may stand that crosses and was not handled."""
        found = dict(self._read())
        for share, reached in found.items():
            self.crossings.hear(share, reached)
        return min(self._start(share, found.get(share)) for share in range(self._count))

    def _start(self, share: int, reached: Reached | None) -> int:
        if reached is not None:
            return reached.position
        # Nothing was written down by those who worked here before: as far as they had read.
        table, key = _POSITION
        kept = self._records.get(table, own_key(share_name(share), key))
        return int(kept) if kept else 0


def _decode(key: str, kept: bytes) -> Reached:
    try:
        return msgspec.msgpack.decode(kept, type=Reached)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Corrupt(
            f"the record {key!r} of {REACHED} cannot be read: {error}",
            code="shares.bad_record",
            hint="another version wrote it; remove it: order may suffer once, nothing is lost",
        ) from None
