"""The message query service: every message that was handled, by criteria, page by page. [CO-13]

Reads `log`. A page shows the log as it was when its first page was asked for, so going through the
pages neither skips nor repeats a message, and the same token always gives the same page.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Unpack

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.event_lookup import BACKWARDS_MS, FoundByTime, position_before
from rapport.channel.requests.scanner import ChannelPager, matching
from rapport.communication.ledger import OPEN, state_when_handled
from rapport.communication.services.query_criteria import (
    Criteria,
    GivenCriteria,
    Place,
    checked,
    is_looked_up,
    query_of,
    read_token,
    write_token,
)
from rapport.communication.services.query_fates import Fates
from rapport.core.errors import InvalidInput
from rapport.core.event import StoredEvent
from rapport.core.message import Message
from rapport.core.times import parse_time
from rapport.kernel.clock import Clock

REACH, INDEXED_REACH = 200_000, 5_000_000
"""How many positions one page looks through: with criteria that have to be read, and with one that
an index knows. A query that finds too little there gets a page that is not full and a token to go
on, so no page costs more, however long the log is. Never by what was read: that depends on how far
the index is, and the same token gives the same page.
"""
MOST_BYTES = 8 * 1024 * 1024
"""A page is closed before its messages have more data than this."""
_FIRST_SPAN, _LONGEST_SPAN = 256, 131_072
"""How far one step back looks. An index passes over the longest in one search."""
_RARE = ("failed", "timed_out")
"""Results that few messages are closed with: asking which ones are costs less than asking each."""
_AT_ONCE = 60
"""Messages whose fates are looked up together."""


class LoggedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it was handled, and what became of it by the time of the query."""

    message: Message
    position: int
    received: int
    """When it was logged."""
    time: int
    fate: str
    policy: str = ""
    detection: str = ""


class MessagePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some messages, and how to go on."""

    messages: tuple[LoggedMessage, ...]
    token: str
    """Names this page: gives it again."""
    next_token: str = ""
    """Names the page behind it; empty when there is none."""


class MessageQueries:
    """Answers queries over one node's log."""

    def __init__(self, channels: Channels, clock: Clock) -> None:
        self._channels, self._clock = channels, clock
        self._fates = Fates(channels, clock)

    def create_query(self, **criteria: Unpack[GivenCriteria]) -> QueryCriteria:
        """A query to be narrowed down and asked; see QueryCriteria."""
        return QueryCriteria(self).where(**criteria)

    async def page(self, criteria: Criteria | None = None, *, token: str = "") -> MessagePage:
        """The first page of criteria, or the page of a token.

        Cost: what the index finds, or REACH events read. Raises InvalidInput for criteria or a
        token that cannot be.
        """
        if token and criteria is not None:
            raise InvalidInput(
                "a token has its criteria in itself",
                code="query.bad_criteria",
                hint="send the token alone",
            )
        place = read_token(token) if token else await self._begin(checked(criteria or Criteria()))
        turn = _Turn(self._channels, self._clock, self._fates, place)
        found, following = await turn.page()
        return MessagePage(
            messages=tuple(found),
            token=write_token(place),
            next_token=write_token(following) if following is not None else "",
        )

    async def _begin(self, criteria: Criteria) -> Place:
        """Where the matches can be, by the time they were logged."""
        log = self._channels.channel("log")
        low, last = 0, log.last_position()
        high = last
        if criteria.since_ms is not None:
            low = min(await position_before(log, criteria.since_ms), last)
        if criteria.until_ms is not None and not isinstance(log, FoundByTime):
            # Once for what the search allows the clock to have been set back, once for ours.
            behind = criteria.until_ms + 1 + 2 * BACKWARDS_MS
            high = max(min(await position_before(log, behind), last), low)
        return Place(criteria, low, high, last)


class QueryCriteria:
    """A query being put together; every call gives a new one, so parts can be shared:
    `queries.create_query(type="TASK").where(sender="peer:ana").newest_first()`.
    """

    def __init__(self, queries: MessageQueries, criteria: Criteria | None = None) -> None:
        self._queries, self.criteria = queries, criteria or Criteria()

    def where(self, **given: Unpack[GivenCriteria]) -> QueryCriteria:
        """Narrowed down by more criteria; those given again are replaced."""
        fields: dict[str, object] = dict(given)
        for name in ("since", "until"):
            if name in fields:
                fields[f"{name}_ms"] = parse_time(fields.pop(name))  # type: ignore[arg-type]
        for name in ("sender", "receiver"):
            if name in fields:
                fields[name] = str(fields[name])
        return QueryCriteria(self._queries, msgspec.structs.replace(self.criteria, **fields))

    def newest_first(self) -> QueryCriteria:
        """The newest message first, instead of the oldest."""
        return self.where(newest_first=True)

    async def page(self, token: str = "") -> MessagePage:
        """The first page, or that of a token which an earlier page gave."""
        return await self._queries.page(None if token else self.criteria, token=token)

    async def __aiter__(self) -> AsyncIterator[LoggedMessage]:
        """Every match, page after page."""
        page = await self.page()
        while True:
            for message in page.messages:
                yield message
            if not page.next_token:
                return
            page = await self.page(page.next_token)


class _Turn:
    """The making of one page."""

    def __init__(self, channels: Channels, clock: Clock, fates: Fates, place: Place) -> None:
        self._channels, self._clock, self._fates = channels, clock, fates
        self._log = channels.channel("log")
        self._place, self._criteria = place, place.criteria
        self._query = query_of(place.criteria)
        """Of rare fates: narrowed down before the page is made."""
        self._reach = INDEXED_REACH if is_looked_up(place.criteria) else REACH
        self._found: list[LoggedMessage] = []

    async def page(self) -> tuple[list[LoggedMessage], Place | None]:
        """The messages of the page and the place of the next one."""
        if self._criteria.id:
            return await self._by_id(), None
        if self._criteria.fate in _RARE:
            closed = await self._fates.closed_with(
                self._criteria.fate, after=self._place.low, through=self._place.snapshot
            )
            self._query = query_of(self._criteria, closed)
        if self._criteria.newest_first:
            return self._close(await self._backwards())
        return self._close(await self._forwards())

    async def _by_id(self) -> list[LoggedMessage]:
        found = await self._channels.find_event(self._criteria.id)
        events = [stored for name, stored in found if name == "log" and self._is_wanted(stored)]
        return await self._shown(events)

    def _is_wanted(self, stored: StoredEvent) -> bool:
        within = self._place.low < stored.position <= self._place.high
        return within and self._query.matches(stored)

    async def _forwards(self) -> int:
        """Looks until there is one message more than the page takes; returns how far."""
        reached, pages = self._place.low, ChannelPager(self._log, self._query)
        end = min(self._place.high, reached + self._reach)
        while reached < end and not self._is_full():
            wanted = self._criteria.limit + 1 - len(self._found)
            page = await pages.after(reached, end, wanted=wanted)
            await self._take(matching(self._query, page.events, None, decided=page.decided))
            reached = page.through
            await self._clock.sleep(0)  # others get their turn during a long scan
        return reached

    async def _backwards(self) -> int:
        """The same from the end: stretch by stretch, longer ones where little is found."""
        reached, span = self._place.high, _FIRST_SPAN
        end = max(self._place.low, reached - self._reach)
        while reached > end and not self._is_full():
            start = max(end, reached - span)
            found = await self._stretch(start, reached)
            await self._take(found[::-1])
            reached = start
            if len(found) < self._criteria.limit:
                span = min(span * 4, _LONGEST_SPAN)
        return reached

    async def _stretch(self, after: int, through: int) -> list[StoredEvent]:
        """Every match after a position up to another, in order."""
        found: list[StoredEvent] = []
        pages = ChannelPager(self._log, self._query)
        while after < through:
            page = await pages.after(after, through, wanted=1_000)
            found += matching(self._query, page.events, None, decided=page.decided)
            after = page.through
            await self._clock.sleep(0)
        return found

    async def _take(self, events: Sequence[StoredEvent]) -> None:
        """Adds matches with the right fate until the page is full; the rest is for the next."""
        for start in range(0, len(events), _AT_ONCE):
            if not self._is_full():
                self._found += await self._shown(events[start : start + _AT_ONCE])

    def _is_full(self) -> bool:
        """Whether there is one message more than the page takes."""
        return len(self._found) > self._criteria.limit

    async def _shown(self, events: Sequence[StoredEvent]) -> list[LoggedMessage]:
        """The messages with their fates, without those of another fate than the one asked for."""
        read = [message for message in map(_logged, events) if message is not None]
        unknown = [each for each in read if each.fate == OPEN]
        if unknown:
            results = await self._fates.results(
                [each.message.id for each in unknown],
                after=min(each.position for each in unknown),
                through=self._place.snapshot,
            )
            read = [_with_result(each, results.get(each.message.id, "")) for each in read]
        wanted = self._criteria.fate
        return [each for each in read if not wanted or each.fate == wanted]

    def _close(self, reached: int) -> tuple[list[LoggedMessage], Place | None]:
        """Cuts what was found to a page; the rest of it comes with the next."""
        given = self._found[: self._criteria.limit]
        size, fitting = 0, 0
        for one in given:
            size += len(one.message.content)
            if fitting and size > MOST_BYTES:
                break
            fitting += 1
        given = given[:fitting]
        if len(given) < len(self._found):
            reached = given[-1].position - (1 if self._criteria.newest_first else 0)
        return given, self._following(reached)

    def _following(self, reached: int) -> Place | None:
        place = self._place
        if self._criteria.newest_first:
            is_more, following = reached > place.low, msgspec.structs.replace(place, high=reached)
        else:
            is_more, following = reached < place.high, msgspec.structs.replace(place, low=reached)
        return following if is_more else None


class _Beside(msgspec.Struct):
    """What a message's event says beside the message."""

    policy: str = ""
    detection: str = ""
    fate: str = ""
    """Where the message was over as soon as it was handled."""


def _logged(stored: StoredEvent) -> LoggedMessage | None:
    try:
        message = Message.from_event(stored.event)
        beside: _Beside = stored.event.payload_as(_Beside)
    except InvalidInput:
        return None  # `log` outlives versions: what cannot be read must not hide the rest
    return LoggedMessage(
        message=msgspec.structs.replace(message, id=stored.event.id),
        position=stored.position,
        received=stored.received,
        time=stored.event.time,
        fate=state_when_handled(beside.fate, str(message.receiver or "")),
        policy=beside.policy,
        detection=beside.detection,
    )


def _with_result(logged: LoggedMessage, result: str) -> LoggedMessage:
    if not result or logged.fate != OPEN:
        return logged
    return msgspec.structs.replace(logged, fate=result)
