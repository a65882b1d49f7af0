"""Reading a channel through a query: whole sets, sets again, waiting for a first match. [CH-4]"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from rapport.channel.batch import Limits
from rapport.channel.channel import Channel
from rapport.channel.query.kinds import Query
from rapport.channel.selection import Chosen, IsTaken, Selection, matching
from rapport.channel.taking import Taken
from rapport.core.event import StoredEvent
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import first_of

_FIRST_PAGE, _PAGE = 100, 1_000
_PAGE_BYTES = 4 * 1024 * 1024


class Scanner:
    """One channel as one request sees it: without what was taken."""

    def __init__(
        self,
        channel: Channel,
        clock: Clock,
        taken: Taken,
        *,
        closing: asyncio.Event | None = None,
    ) -> None:
        self._channel, self._clock, self._taken = channel, clock, taken
        self._closing = closing

    async def choose(self, query: Query, limits: Limits, after: int) -> Chosen:
        """The set of matches after a position, as far as there are any by now."""
        selection = Selection(query, limits, after, self._is_taken())
        last, limit = self._last(query), _FIRST_PAGE
        selection.skip_to(min(self._taken.skip(selection.reach), last))
        while not selection.is_full and selection.reach < last:
            page = await self._channel.read_after(selection.reach, limit=limit)
            if page:
                selection.add(page)
                limit = _next_limit(page)
            else:
                selection.skip_to(last)
            await self._clock.sleep(0)  # others get their turn during a long scan
            last = self._last(query)
        return selection.chosen(at_end=True)

    async def choose_or_wait(
        self, query: Query, limits: Limits, after: int, wait_ms: int
    ) -> Chosen:
        """The same, waiting up to `wait_ms` while there is no match."""
        deadline = self._clock.steady_ns() + wait_ms * 1_000_000
        while True:
            chosen = await self.choose(query, limits, after)
            left_ms = (deadline - self._clock.steady_ns()) // 1_000_000
            if chosen.events or not await self.wait(query, chosen, left_ms):
                return chosen
            after = chosen.reach

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
        is_taken = self._is_taken()
        found: list[StoredEvent] = []
        async for page in self._pages(after, through):
            found += matching(query, page, is_taken)
        return tuple(found)

    async def at(self, positions: Sequence[int]) -> tuple[StoredEvent, ...]:
        """The messages at positions, taken or not, as far as they are still there."""
        wanted = frozenset(positions)
        found: list[StoredEvent] = []
        async for page in self._pages(min(wanted) - 1, max(wanted)):
            found += [stored for stored in page if stored.position in wanted]
        return tuple(found)

    async def _pages(self, after: int, through: int) -> AsyncIterator[list[StoredEvent]]:
        limit = _FIRST_PAGE
        while after < through:
            page = await self._channel.read_after(after, limit=limit)
            if not page:
                return
            yield [stored for stored in page if stored.position <= through]
            after, limit = page[-1].position, _next_limit(page)
            await self._clock.sleep(0)

    def _last(self, query: Query) -> int:
        last = self._channel.last_position()
        return last if query.bounds.last is None else min(last, query.bounds.last)

    def _is_taken(self) -> IsTaken | None:
        return None if self._taken.is_untouched() else self._taken.holds

    def _is_closing(self) -> bool:
        return self._closing is not None and self._closing.is_set()


def _next_limit(page: Sequence[StoredEvent]) -> int:
    """How many messages to read next, so that large ones do not fill the memory."""
    size = sum(len(stored.event.data) for stored in page)
    return min(max(_PAGE_BYTES * len(page) // (size + 1), 1), _PAGE)
