"""Reading a channel through a query: pages, sets of messages, waiting for a first match. [CH-2,
CH-4]

`ChannelPager` reads pages by index where one helps, else from the log; `Selection` (pure) fills the
set that one token will name; `Scanner` combines them for one request, without taken messages and
through interceptors.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Sequence
from operator import attrgetter
from typing import Protocol, cast

import msgspec

from rapport.channel.channel import Channel, gaps_between
from rapport.channel.interceptors.reader_view import ReaderDelivery
from rapport.channel.query.index_plan import LARGEST_INDEXABLE, IndexMatches
from rapport.channel.query.query_kinds import Query
from rapport.channel.requests.request import BatchLimits
from rapport.channel.requests.takes import TakenMessages
from rapport.channel.validation import MAX_HEADER_CHARACTERS
from rapport.core.errors import InvalidInput, RapportError
from rapport.core.event import Gap, StoredEvent
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import first_of

_position = attrgetter("position")
_FIRST_PAGE, _PAGE = 100, 1_000
_AHEAD = 2
_PAGE_BYTES = 4 * 1024 * 1024
SCAN_EVENTS = 100_000
"""Messages read for one set. A query without a match for longer gets an empty set and a token to
continue, so that no request costs more, however long the log is. Every 2 KiB of data count as one
more: about 200 MB at most.
"""
_BYTES_AS_ONE = 2_048
IsTaken = Callable[[StoredEvent], bool]
_SCAN_PAGE = 1_000
_PART_BYTES = 256 * 1024
"""Data that a query is tried on before others get their turn."""


class IndexedChannel(Channel, Protocol):
    """A channel that may find events without reading the others."""

    async def find_after(
        self, query: Query, position: int, *, until: int, limit: int, read: int | None = None
    ) -> IndexMatches | None:
        """Events that may match; see Finder. None when no index helps."""

    async def fetch(self, positions: Sequence[int]) -> list[StoredEvent] | None:
        """The events at positions; None when no index helps."""


class ChannelPage(msgspec.Struct, frozen=True):
    """Possible matches up to `through`, in order."""

    events: list[StoredEvent]
    through: int
    decided: bool = False
    """Whether all of them match, as decided by an index alone."""


class ChannelPager:
    """Pages of one channel for one query. Events that an index has not been fed yet are read, so
    there is neither a gap nor a repetition where the index ends.

    An index returns twice the number needed: a batch is answered together with the token of
    the next one, and one lookup is cheaper.
    """

    def __init__(self, channel: Channel, query: Query | None) -> None:
        self._channel, self.query = channel, query
        self._is_indexed = query is not None and hasattr(channel, "find_after")
        self._read_through = 0
        self._limit, self._grown = _FIRST_PAGE, _AHEAD
        self._ahead, self._ahead_after = ChannelPage([], 0), 0
        self._certain: Sequence[int] = ()
        """Positions of the next matches behind those found ahead, as far as the index knows."""

    def begin(self) -> None:
        """Starts a new set: pages are small again, matches found ahead are kept."""
        self._limit, self._grown = _FIRST_PAGE, _AHEAD

    async def after(
        self, position: int, last: int, *, wanted: int, reads_ahead: bool = True
    ) -> ChannelPage:
        """The next page after a position and up to `last`. Matches found for the page behind it are
        not read unless `reads_ahead`; see `certain_after`.
        """
        if self._is_indexed and position >= self._read_through:
            if not self._is_ahead_of(position):
                limit = max(min(wanted * self._grown, _PAGE), 1)
                await self._look_ahead(position, last, limit, None if reads_ahead else wanted)
            if self._is_ahead_of(position):
                return _portion(self._ahead, position, last, wanted)
        return await self._read(position, last)

    async def certain_after(self, position: int, last: int, *, wanted: int) -> Sequence[int] | None:
        """Positions of the next `wanted` matches after a position, when an index knows them without
        reading; None when it does not, or there are fewer.
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
            self._ahead = ChannelPage(found.events, found.through, found.decided)
            self._ahead_after = position
            self._certain = found.certain

    async def _read(self, position: int, last: int) -> ChannelPage:
        page = await self._channel.read_after(position, limit=self._limit)
        if not page:
            return ChannelPage([], last)
        self._limit = _next_limit(page)
        if page[-1].position <= last:
            return ChannelPage(page, page[-1].position)
        return ChannelPage([stored for stored in page if stored.position <= last], last)


def _portion(page: ChannelPage, position: int, last: int, wanted: int) -> ChannelPage:
    """The next `wanted` events of a page after a position, up to `last`."""
    start = bisect_right(page.events, position, key=_position)
    events, through = page.events[start : start + max(wanted, 1)], page.through
    if start + len(events) < len(page.events):
        through = events[-1].position
    if through > last:
        return ChannelPage(events[: bisect_right(events, last, key=_position)], last, page.decided)
    return ChannelPage(events, through, page.decided)


async def fetch(channel: Channel, positions: Sequence[int]) -> list[StoredEvent] | None:
    """The events at positions, by index; None when the channel has none."""
    if not hasattr(channel, "fetch"):
        return None
    return await cast(IndexedChannel, channel).fetch(positions)


def _next_limit(page: Sequence[StoredEvent]) -> int:
    """How many messages to read next, so that large ones do not fill the memory."""
    size = sum(len(stored.event.data) for stored in page)
    return min(max(_PAGE_BYTES * len(page) // (size + 1), 1), _PAGE)


def matching(
    query: Query, page: Sequence[StoredEvent], is_taken: IsTaken | None, *, decided: bool = False
) -> Sequence[StoredEvent]:
    """The messages of a page that match and are not taken; `decided`: all of them match."""
    matches, last = query.matches, query.bounds.last
    try:
        found = page if decided else [stored for stored in page if matches(stored)]
    except RapportError:
        raise
    except Exception as error:  # a plug-in's fault is the request's, not the node's
        raise InvalidInput(
            f"the query failed: {error!r}", code="query.failed", hint="change the query"
        ) from error
    if is_taken is not None:
        found = [stored for stored in found if not is_taken(stored)]
    if last is not None:
        found = [stored for stored in found if stored.position <= last]
    return found


class MessageSet(msgspec.Struct, frozen=True):
    """A set, closed for ever: the matches after `after` up to `through`."""

    events: tuple[StoredEvent, ...]
    after: int
    through: int
    reach: int
    """How far was looked: the next set begins after it."""
    at_end: bool
    """Whether nothing was stored after `reach` at the time."""
    unread: int = 0
    """Messages of a set that was chosen by their positions alone."""

    @property
    def count(self) -> int:
        return len(self.events) or self.unread


class Selection:
    """Adds pages of a channel in order until the set is full."""

    def __init__(
        self, query: Query, limits: BatchLimits, after: int, is_taken: IsTaken | None
    ) -> None:
        self._query, self._limits, self._is_taken = query, limits, is_taken
        self.reach = max(after, query.bounds.after)
        self.is_full = False
        self._events: list[StoredEvent] = []
        self._left = SCAN_EVENTS
        self._counts_headers = limits.messages * MAX_HEADER_CHARACTERS > limits.data_bytes
        self._bytes = 0
        self._earliest = self._latest = 0

    @property
    def wanted(self) -> int:
        """How many messages the set can still take."""
        return self._limits.messages - len(self._events)

    def add(
        self, page: Sequence[StoredEvent], through: int | None = None, *, decided: bool = False
    ) -> None:
        """Adds the next page; sets `is_full` when the set is closed. `through` is how far a page of
        possible matches reaches; `decided`: all of them match.
        """
        found = matching(self._query, page, self._is_taken, decided=decided)
        if not self._put_all(found):
            for stored in found:
                if not self._fits(stored):
                    self.reach, self.is_full = stored.position - 1, True
                    return
                self._put(stored)
                if len(self._events) == self._limits.messages:
                    break
        if len(self._events) == self._limits.messages:
            self.reach, self.is_full = self._events[-1].position, True
            return
        self.reach = page[-1].position if through is None else through
        size = sum(len(stored.event.data) for stored in page)
        self._left -= len(page) + size // _BYTES_AS_ONE
        self.is_full = self._left <= 0

    def skip_to(self, position: int) -> None:
        """Records that nothing readable is stored up to a position."""
        self.reach = max(self.reach, position)

    def chosen(self, *, at_end: bool) -> MessageSet:
        """The set so far. Its range is as narrow as its messages, so that reading it again does not
        scan what was passed over before them.
        """
        events = tuple(self._events)
        after = events[0].position - 1 if events else self.reach
        through = events[-1].position if events else self.reach
        return MessageSet(events, after, through, self.reach, at_end and not self.is_full)

    def _fits(self, stored: StoredEvent) -> bool:
        if not self._events:
            return True
        if self._bytes + self._size((stored,)) > self._limits.data_bytes:
            return False
        allowed = self._limits.time_range_ms
        if not allowed:
            return True
        earliest = min(self._earliest, stored.event.time)
        latest = max(self._latest, stored.event.time)
        return latest - earliest <= allowed

    def _put_all(self, found: Sequence[StoredEvent]) -> bool:
        """Puts all in at once if it is plain that all fit; most pages do."""
        size = self._size(found)
        if (
            self._limits.time_range_ms
            or len(found) > self.wanted
            or self._bytes + size > self._limits.data_bytes
        ):
            return False
        self._bytes += size
        self._events += found
        return True

    def _put(self, stored: StoredEvent) -> None:
        if self._limits.time_range_ms:
            time = stored.event.time
            self._earliest = min(self._earliest, time) if self._events else time
            self._latest = max(self._latest, time) if self._events else time
        self._bytes += self._size((stored,))
        self._events.append(stored)

    def _size(self, found: Sequence[StoredEvent]) -> int:
        """The size of messages: their data, and their headers unless the messages are few."""
        size = sum([len(stored.event.data) for stored in found])
        if self._counts_headers:
            headers = [stored.event.headers for stored in found if stored.event.headers]
            size += sum([sum(map(len, each.values())) for each in headers])
        return size


class LiveStream(msgspec.Struct, frozen=True):
    """Lets a stream receive messages that are delivered once and were already delivered to others,
    if they arrived while the stream was open.
    """

    since: int
    """The last position when it began."""
    is_once: Callable[[StoredEvent], bool]

    def receives(self, stored: StoredEvent) -> bool:
        """Whether it was there in time."""
        return stored.position > self.since and self.is_once(stored)


class Scanner:
    """One channel as one request sees it: without taken messages, and through interceptors."""

    def __init__(
        self,
        channel: Channel,
        clock: Clock,
        taken: TakenMessages,
        *,
        closing: asyncio.Event | None = None,
        delivery: ReaderDelivery | None = None,
        refresh: Callable[[], Awaitable[object]] | None = None,
        listening: LiveStream | None = None,
        is_leased: Callable[[int], bool] | None = None,
    ) -> None:
        """`refresh` loads what other nodes took, before each set; `listening` is for streams.
        Leased positions count as taken.
        """
        self._channel, self._clock, self._taken = channel, clock, taken
        self.delivery, self._refresh = delivery or ReaderDelivery(), refresh
        self._closing, self._listening = closing, listening
        self._is_leased = is_leased
        self._pages: ChannelPager | None = None

    async def choose(
        self, query: Query, limits: BatchLimits, after: int, *, reads_ahead: bool = True
    ) -> MessageSet:
        """The set of present matches after a position. With `reads_ahead` the next set will be
        chosen and read as well.
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
        """Unreadable positions of a range that was scanned for a query."""
        bounds = query.bounds
        last = through if bounds.last is None else min(through, bounds.last)
        return tuple(gaps_between(self._channel, max(after, bounds.after), last))

    async def choose_or_wait(
        self, query: Query, limits: BatchLimits, after: int, wait_ms: int
    ) -> MessageSet:
        """Like `choose`, but waits up to `wait_ms` while there is no match. Only the token of the
        next set is needed.
        """
        deadline = self._clock.steady_ns() + wait_ms * 1_000_000
        while True:
            chosen = await self.choose(query, limits, after, reads_ahead=False)
            left_ms = (deadline - self._clock.steady_ns()) // 1_000_000
            if chosen.events or not await self.wait(query, chosen, left_ms):
                return chosen
            after = chosen.reach

    async def foresee_or_choose(
        self, query: Query, limits: BatchLimits, after: int, wait_ms: int
    ) -> MessageSet:
        """Like `choose_or_wait`, for callers that need only the set's token: its messages are not
        read when an index alone knows enough of their positions.
        """
        foreseen = await self._foresee(query, limits, after)
        return foreseen or await self.choose_or_wait(query, limits, after, wait_ms)

    async def _foresee(self, query: Query, limits: BatchLimits, after: int) -> MessageSet | None:
        query = self.delivery.seen(query)
        last = self._last(query)
        is_small = limits.messages * LARGEST_INDEXABLE <= limits.data_bytes
        if limits.time_range_ms or not is_small or after >= last:
            return None
        found = await self._pages_of(query).certain_after(after, last, wanted=limits.messages)
        if not found or any(map(self._taken.holds, found)):
            return None
        return MessageSet((), found[0] - 1, found[-1], found[-1], at_end=False, unread=len(found))

    async def wait(self, query: Query, chosen: MessageSet, left_ms: int) -> bool:
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
            page = await pages.after(after, through, wanted=_SCAN_PAGE)
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
        wanted, pages = frozenset(positions), ChannelPager(self._channel, None)
        after, through = min(wanted) - 1, max(wanted)
        found: list[StoredEvent] = []
        while after < through:
            page = await pages.after(after, through, wanted=_SCAN_PAGE)
            found += [stored for stored in page.events if stored.position in wanted]
            after = page.through
            await self._clock.sleep(0)
        return tuple(found)

    def _pages_of(self, query: Query) -> ChannelPager:
        if self._pages is None or self._pages.query is not query:
            self._pages = ChannelPager(self._channel, query)
        self._pages.begin()
        return self._pages

    def _last(self, query: Query) -> int:
        last = self._channel.last_position()
        return last if query.bounds.last is None else min(last, query.bounds.last)

    def _skip(self, reach: int) -> int:
        """The position to start from, past messages that were taken and are not for this reader."""
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
        return lambda stored: taken.holds(stored.position) and not listening.receives(stored)

    def _is_closing(self) -> bool:
        return self._closing is not None and self._closing.is_set()


def _parts(page: ChannelPage) -> Iterator[tuple[list[StoredEvent], int]]:
    """A page in parts of about _PART_BYTES of data, each with how far it reaches; in one part if no
    query is evaluated on it.
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
