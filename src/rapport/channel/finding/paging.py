"""Pages of a channel for a query: by index where one helps, by reading where none does. [CH-4]"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol, cast

import msgspec

from rapport.channel.channel import Channel
from rapport.channel.finding.planning import Found
from rapport.channel.query.kinds import Query
from rapport.core.event import StoredEvent

_FIRST_PAGE, _PAGE = 100, 1_000
_AHEAD = 2
_PAGE_BYTES = 4 * 1024 * 1024


class IndexedChannel(Channel, Protocol):
    """A channel that may find events without reading the others."""

    async def find_after(
        self, query: Query, position: int, *, until: int, limit: int, read: int | None = None
    ) -> Found | None:
        """Events that may match; see Finder. None when no index helps."""

    async def fetch(self, positions: Sequence[int]) -> list[StoredEvent] | None:
        """The events at positions; None when no index helps."""


class Page(msgspec.Struct, frozen=True):
    """What can match up to `through`, in order; never what stands behind it."""

    events: list[StoredEvent]
    through: int
    decided: bool = False
    """Whether all of them match: an index alone told."""


class Pages:
    """One reading of one channel. What an index has not been fed yet is read, so there is neither
    a gap nor a repetition where the index ends.

    An index is asked for twice what is wanted: a batch is answered together with the token of the
    one behind it, and asking once costs less.
    """

    def __init__(self, channel: Channel, query: Query | None) -> None:
        self._channel, self.query = channel, query
        self._is_indexed = query is not None and hasattr(channel, "find_after")
        self._read_through = 0
        self._limit, self._grown = _FIRST_PAGE, _AHEAD
        self._ahead, self._ahead_after = Page([], 0), 0
        self._certain: Sequence[int] = ()
        """Where the next matches behind what was found ahead stand, as far as the index tells."""

    def begin(self) -> None:
        """A new set begins: pages are small again, what was found ahead is kept."""
        self._limit, self._grown = _FIRST_PAGE, _AHEAD

    async def after(
        self, position: int, last: int, *, wanted: int, reads_ahead: bool = True
    ) -> Page:
        """The next page after a position and up to `last`, which lies behind it. What was found
        for the page behind it need not be read, unless `reads_ahead`; see `certain_after`.
        """
        if self._is_indexed and position >= self._read_through:
            if not self._is_ahead_of(position):
                limit = max(min(wanted * self._grown, _PAGE), 1)
                await self._look_ahead(position, last, limit, None if reads_ahead else wanted)
            if self._is_ahead_of(position):
                return _portion(self._ahead, position, last, wanted)
        return await self._read(position, last)

    async def certain_after(self, position: int, last: int, *, wanted: int) -> Sequence[int] | None:
        """Where the next `wanted` matches after a position stand, when an index knows without
        reading them; None when it does not, or there are fewer.
        """
        if not self._is_indexed or position < self._read_through:
            return None
        is_known = position == self._ahead.through and len(self._certain) > 0
        if not is_known and not self._is_ahead_of(position):
            await self._look_ahead(position, last, wanted, 0)
        if position != self._ahead.through or len(self._certain) < wanted:
            return None
        return self._certain[:wanted]

    def _is_ahead_of(self, position: int) -> bool:
        return self._ahead_after <= position < self._ahead.through

    async def _look_ahead(self, position: int, last: int, limit: int, read: int | None) -> None:
        channel, query = cast(IndexedChannel, self._channel), self.query
        assert query is not None
        found = await channel.find_after(query, position, until=last, limit=limit, read=read)
        if found is None:
            self._is_indexed = False
        elif found.events is None:
            self._read_through = found.through
        else:
            self._grown *= 2  # few of the candidates match: look at more of them at once
            self._ahead = Page(found.events, found.through, found.decided)
            self._ahead_after = position
            self._certain = found.certain

    async def _read(self, position: int, last: int) -> Page:
        page = await self._channel.read_after(position, limit=self._limit)
        if not page:
            return Page([], last)
        self._limit = _next_limit(page)
        if page[-1].position <= last:
            return Page(page, page[-1].position)
        return Page([stored for stored in page if stored.position <= last], last)


def _portion(page: Page, position: int, last: int, wanted: int) -> Page:
    """The next `wanted` events of a page after a position, up to `last`."""
    start = bisect_right(page.events, position, key=_position)
    events, through = page.events[start : start + max(wanted, 1)], page.through
    if start + len(events) < len(page.events):
        through = events[-1].position
    if through > last:
        return Page(events[: bisect_right(events, last, key=_position)], last, page.decided)
    return Page(events, through, page.decided)


def _position(stored: StoredEvent) -> int:
    return stored.position


async def fetch(channel: Channel, positions: Sequence[int]) -> list[StoredEvent] | None:
    """The events at positions, by index; None when the channel has none."""
    if not hasattr(channel, "fetch"):
        return None
    return await cast(IndexedChannel, channel).fetch(positions)


def _next_limit(page: Sequence[StoredEvent]) -> int:
    """How many messages to read next, so that large ones do not fill the memory."""
    size = sum(len(stored.event.data) for stored in page)
    return min(max(_PAGE_BYTES * len(page) // (size + 1), 1), _PAGE)
