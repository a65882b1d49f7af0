"""Reading a channel through a query: whole sets, sets again, waiting for a first match. [CH-4]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec

from rapport.channel.channel import Channel, GapReading
from rapport.channel.delivering import Delivery
from rapport.channel.finding.paging import Page, Pages, fetch
from rapport.channel.finding.unusual import LARGEST_USUAL
from rapport.channel.query.kinds import Query
from rapport.channel.requesting.batch import Limits
from rapport.channel.requesting.selection import Chosen, IsTaken, Selection, matching
from rapport.channel.requesting.taking import Taken
from rapport.core.event import Gap, StoredEvent
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import first_of

_PAGE = 1_000
_PART_BYTES = 256 * 1024
"""Data that a query is tried on before others get their turn."""


class Listening(msgspec.Struct, frozen=True):
    """What a stream is given though it was given out to others before: whatever is given out once
    and came while the stream was there.
    """

    since: int
    """The last position when it began."""
    is_once: Callable[[StoredEvent], bool]

    def hears(self, stored: StoredEvent) -> bool:
        """Whether it was there in time."""
        return stored.position > self.since and self.is_once(stored)


class Scanner:
    """One channel as one request sees it: without what was taken, and through interceptors."""

    def __init__(
        self,
        channel: Channel,
        clock: Clock,
        taken: Taken,
        *,
        closing: asyncio.Event | None = None,
        delivery: Delivery | None = None,
        refresh: Callable[[], Awaitable[object]] | None = None,
        listening: Listening | None = None,
        is_leased: Callable[[int], bool] | None = None,
    ) -> None:
        """`refresh` makes known what was taken elsewhere, before each set; `listening` is for who
        follows. Positions that are leased count as taken.
        """
        self._channel, self._clock, self._taken = channel, clock, taken
        self.delivery, self._refresh = delivery or Delivery(), refresh
        self._closing, self._listening = closing, listening
        self._is_leased = is_leased
        # Asked once: every batch of every subscriber comes by here.
        self._gap_reading = channel if isinstance(channel, GapReading) else None
        self._pages: Pages | None = None

    async def choose(
        self, query: Query, limits: Limits, after: int, *, reads_ahead: bool = True
    ) -> Chosen:
        """The set of matches after a position, as far as there are any by now. With `reads_ahead`
        the set behind it will be chosen as well, and read.
        """
        if self._refresh is not None:
            await self._refresh()
        query = self.delivery.seen(query)
        selection = Selection(query, limits, after, self._is_taken())
        last, pages = self._last(query), self._pages_of(query)
        selection.skip_to(min(self._skip(selection.reach), last))
        while not selection.is_full and selection.reach < last:
            page = await pages.after(
                selection.reach, last, wanted=selection.wanted, reads_ahead=reads_ahead
            )
            for part, through in _parts(page):
                selection.add(part, through, decided=page.decided)
                if selection.is_full:
                    break
                await self._clock.sleep(0)  # others get their turn during a long scan
            last = self._last(query)
            if not selection.is_full:
                selection.skip_to(min(self._skip(selection.reach), last))
        return selection.chosen(at_end=True)

    def gaps(self, query: Query, after: int, through: int) -> tuple[Gap, ...]:
        """What could not be read of a range that was looked through for a query."""
        bounds = query.bounds
        last = through if bounds.last is None else min(through, bounds.last)
        if self._gap_reading is None:
            return ()
        return tuple(self._gap_reading.gaps_between(max(after, bounds.after), last))

    async def choose_or_wait(
        self, query: Query, limits: Limits, after: int, wait_ms: int
    ) -> Chosen:
        """The same, waiting up to `wait_ms` while there is no match. Of the set behind it nothing
        more than its token is expected to be asked for.
        """
        deadline = self._clock.steady_ns() + wait_ms * 1_000_000
        while True:
            chosen = await self.choose(query, limits, after, reads_ahead=False)
            left_ms = (deadline - self._clock.steady_ns()) // 1_000_000
            if chosen.events or not await self.wait(query, chosen, left_ms):
                return chosen
            after = chosen.reach

    async def foresee_or_choose(
        self, query: Query, limits: Limits, after: int, wait_ms: int
    ) -> Chosen:
        """The same set, for whom its token is enough: its messages are not read when an index alone
        tells where they are and there are enough of them.
        """
        foreseen = await self._foresee(query, limits, after)
        return foreseen or await self.choose_or_wait(query, limits, after, wait_ms)

    async def _foresee(self, query: Query, limits: Limits, after: int) -> Chosen | None:
        query = self.delivery.seen(query)
        last = self._last(query)
        is_small = limits.messages * LARGEST_USUAL <= limits.data_bytes
        if limits.time_range_ms or not is_small or after >= last:
            return None
        found = await self._pages_of(query).certain_after(after, last, wanted=limits.messages)
        if not found or any(map(self._taken.holds, found)):
            return None
        return Chosen((), found[0] - 1, found[-1], found[-1], at_end=False, unread=len(found))

    async def wait(self, query: Query, chosen: Chosen, left_ms: int) -> bool:
        """Waits for a message after a set; True when it is worth looking again."""
        is_over = query.bounds.last is not None and chosen.reach >= query.bounds.last
        if left_ms <= 0 or is_over or not chosen.at_end or self._is_closing():
            return False
        arrival = self._channel.wait_after(chosen.reach, timeout_ms=left_ms)
        if self._closing is None:
            return await arrival
        await first_of(arrival, self._closing.wait())
        return not self._is_closing() and self._channel.last_position() > chosen.reach

    async def matches_in(self, query: Query, after: int, through: int) -> tuple[StoredEvent, ...]:
        """Every match of a closed range that is still there."""
        query = self.delivery.seen(query)
        is_taken, pages = self._is_taken(), self._pages_of(query)
        found: list[StoredEvent] = []
        while after < through:
            page = await pages.after(after, through, wanted=_PAGE)
            for part, reached in _parts(page):
                found += matching(query, part, is_taken, decided=page.decided)
                after = reached
                if after < through:
                    await self._clock.sleep(0)
        return tuple(found)

    async def at(self, positions: Sequence[int]) -> tuple[StoredEvent, ...]:
        """The messages at positions, taken or not, as far as they are still there."""
        fetched = await fetch(self._channel, positions)
        if fetched is not None:
            return tuple(fetched)
        wanted, pages = frozenset(positions), Pages(self._channel, None)
        after, through = min(wanted) - 1, max(wanted)
        found: list[StoredEvent] = []
        while after < through:
            page = await pages.after(after, through, wanted=_PAGE)
            found += [stored for stored in page.events if stored.position in wanted]
            after = page.through
            await self._clock.sleep(0)
        return tuple(found)

    def _pages_of(self, query: Query) -> Pages:
        """What was found for one set and lies behind it serves the next one."""
        if self._pages is None or self._pages.query is not query:
            self._pages = Pages(self._channel, query)
        self._pages.begin()
        return self._pages

    def _last(self, query: Query) -> int:
        last = self._channel.last_position()
        return last if query.bounds.last is None else min(last, query.bounds.last)

    def _skip(self, reach: int) -> int:
        """Where to begin to look, past what was taken and is not for this reader either."""
        skipped = self._taken.skip(reach)
        if self._listening is None or skipped <= self._listening.since:
            return skipped
        return max(reach, self._listening.since)

    def _is_taken(self) -> IsTaken | None:
        taken, listening = self._taken, self._listening
        if taken.is_untouched():
            return None
        is_leased = self._is_leased
        if is_leased is not None:
            return lambda stored: is_leased(stored.position) or taken.holds(stored.position)
        if listening is None:
            return lambda stored: taken.holds(stored.position)
        return lambda stored: taken.holds(stored.position) and not listening.hears(stored)

    def _is_closing(self) -> bool:
        return self._closing is not None and self._closing.is_set()


def _parts(page: Page) -> Iterator[tuple[list[StoredEvent], int]]:
    """A page in parts of about _PART_BYTES of data, each with how far it reaches; in one where no
    query is tried on it.
    """
    if page.decided or sum([len(one.event.data) for one in page.events]) < _PART_BYTES:
        yield page.events, page.through
        return
    start, size = 0, 0
    for number, stored in enumerate(page.events):
        size += len(stored.event.data)
        if size >= _PART_BYTES and number + 1 < len(page.events):
            yield page.events[start : number + 1], stored.position
            start, size = number + 1, 0
    yield (page.events[start:] if start else page.events), page.through
