"""Choosing the set of messages that one token will name: pure, one page at a time. [CH-2, CH-4]"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from rapport.channel.checking import MAX_HEADER_CHARACTERS
from rapport.channel.query.kinds import Query
from rapport.channel.requesting.batch import Limits
from rapport.core.errors import InvalidInput, RapportError
from rapport.core.event import StoredEvent

SCAN_EVENTS = 100_000
"""Messages looked at for one set. A query that matches nothing for longer gets an empty set and a
token to go on, so that no request costs more than this, however long the log is. Every 2 KiB of
data count as one more: some 200 MB at most.
"""
_BYTES_AS_ONE = 2_048

IsTaken = Callable[[StoredEvent], bool]


def matching(
    query: Query, page: Sequence[StoredEvent], is_taken: IsTaken | None, *, decided: bool = False
) -> Sequence[StoredEvent]:
    """The messages of a page that a query wants and nobody took; `decided`: it wants them all."""
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


class Chosen(msgspec.Struct, frozen=True):
    """A set, closed for ever: the matches after `after` up to `through`."""

    events: tuple[StoredEvent, ...]
    after: int
    through: int
    reach: int
    """How far was looked: the next set begins after it."""
    at_end: bool
    """Whether nothing stood after `reach` at the time."""
    unread: int = 0
    """Messages of a set that was chosen by their positions alone."""

    @property
    def count(self) -> int:
        """How many messages the set has."""
        return len(self.events) or self.unread


class Selection:
    """Takes in pages of a channel in order until the set is full."""

    def __init__(self, query: Query, limits: Limits, after: int, is_taken: IsTaken | None) -> None:
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
        """Looks at the next page; sets `is_full` when the set is closed. `through` says how far the
        page reaches when it holds only what can match, `decided` that all of it does.
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
        """Notes that nothing readable stands up to a position."""
        self.reach = max(self.reach, position)

    def chosen(self, *, at_end: bool) -> Chosen:
        """The set as it is. Its range is as narrow as its messages, so that reading it again does
        not look at what was passed over before them.
        """
        events = tuple(self._events)
        after = events[0].position - 1 if events else self.reach
        through = events[-1].position if events else self.reach
        return Chosen(events, after, through, self.reach, at_end and not self.is_full)

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
        """What counts of messages: their data, and their headers unless they are too few for these
        to matter.
        """
        size = sum([len(stored.event.data) for stored in found])
        if self._counts_headers:
            headers = [stored.event.headers for stored in found if stored.event.headers]
            size += sum([sum(map(len, each.values())) for each in headers])
        return size
