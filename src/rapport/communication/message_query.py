"""The message query service: every handled message by criteria, page by page. [CO-10, CO-13]

Reads `log`, where sender, receiver, conversation and result are indexed (`LOG_INDEX`). A page shows
the log as it was when its first page was requested, so that going through the pages neither skips
nor repeats a message, and the same token always gives the same page.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Collection, Sequence
from typing import TypedDict, Unpack

import msgspec

from rapport.channel.channel import Channel, Channels
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.channel.event_lookup import BACKWARDS_MS, FoundByTime, position_before
from rapport.channel.query.compiler import compile_condition
from rapport.channel.query.query_kinds import Query, is_encodable
from rapport.channel.query.tree import (
    And,
    Compare,
    Comparison,
    Condition,
    Field,
    In,
    Like,
    Literal,
    Or,
    Scalar,
)
from rapport.channel.query.values import decode_payload, member
from rapport.channel.requests.scanner import ChannelPager, matching
from rapport.communication.ledger_events import (
    CONTROL_MESSAGE,
    DELIVERY_PREFIX,
    OPEN,
    ROUTED,
    LedgerLine,
    LoggedData,
    state_when_handled,
)
from rapport.communication.sessions.seals import from_text, to_text
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import MAX_NAME, StoredEvent
from rapport.core.message import MESSAGE, Identifier, Message
from rapport.core.times import parse_time
from rapport.kernel.clock import Clock

LOG_INDEX = ("subject", "data.sender", 'data."conversation-id"', "data.result")
"""The subject of a message is its receiver, that of a ledger line its message; the line that closes
a message has a result.
"""
FATES = (
    *(OPEN, "done", "failed", "timed_out", "ended"),
    *("notified", ROUTED, "no_receiver", "forwarded", "refused", "skipped"),
)
"""Fates of a message: its result, `open` until then; or, where it needs no delivery, its fate when
it was handled (`state_when_handled`).
"""
MOST_PER_PAGE = 1_000
LONGEST_CONTAINS = 500
_LONGEST_TOKEN = 8_192

_PAGE = 1_000
MOST_CLOSED = 20_000
"""Most messages of one fate that are looked up in advance."""
REACH, INDEXED_REACH = 200_000, 5_000_000
"""Positions that one page scans: without and with an indexed criterion. A query that finds too
little there gets a page that is not full and a token for the next, so that no page costs more,
however long the log is. Counted in positions and not in events read, which depend on the progress
of the index: the same token gives the same page.
"""
MOST_BYTES = 8 * 1024 * 1024
"""A page is closed before its messages have more data than this."""
_FIRST_SPAN, _LONGEST_SPAN = 256, 131_072
"""Positions of one step backwards. An index skips the longest in one search."""
_RARE = ("failed", "timed_out", "ended")
"""Rare results: finding all messages with them costs less than looking each message up."""
_AT_ONCE = 60
"""Messages whose fates are looked up together."""


class Criteria(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every criterion that is set must hold."""

    id: str = ""
    type: str = ""
    subtype: str = ""
    sender: str = ""
    """`kind:name`; a bare name is a peer."""
    receiver: str = ""
    conversation: str = ""
    refers_to: str = ""
    contains: str = ""
    """Occurs in the content, ignoring case."""
    fate: str = ""
    since_ms: int | None = None
    """Earliest time of logging."""
    until_ms: int | None = None
    """Latest time of logging."""
    newest_first: bool = False
    limit: int = 100
    """Messages per page."""


class CriteriaFields(TypedDict, total=False):
    """The criteria as keywords; times are milliseconds or ISO 8601."""

    id: str
    type: str
    subtype: str
    sender: str | Identifier
    receiver: str | Identifier
    conversation: str
    refers_to: str
    contains: str
    fate: str
    since: str | int
    until: str | int
    newest_first: bool
    limit: int


class PagePosition(msgspec.Struct, frozen=True, array_like=True):
    """The content of a token: criteria and range of a page. The log beyond `snapshot` does not
    count, so that the same token gives the same page however much was logged since.
    """

    criteria: Criteria
    low: int
    """Matches come after this position,"""
    high: int
    """and at this one at the latest."""
    snapshot: int


def check_criteria(criteria: Criteria) -> Criteria:
    """The criteria in canonical form; raises InvalidInput for invalid ones."""
    if not 1 <= criteria.limit <= MOST_PER_PAGE:
        raise _bad(f"a page cannot have {criteria.limit} messages", f"1 to {MOST_PER_PAGE}")
    if criteria.fate and criteria.fate not in FATES:
        raise UnknownName("fate of a message", criteria.fate, FATES, code="query.unknown_fate")
    if len(criteria.contains) > LONGEST_CONTAINS:
        raise _bad("the text to look for is too long", f"at most {LONGEST_CONTAINS} characters")
    for name in ("id", "type", "subtype", "sender", "receiver", "conversation", "refers_to"):
        if len(getattr(criteria, name)) > 2 * MAX_NAME:
            raise _bad(f"{name} is too long", f"at most {2 * MAX_NAME} characters")
    texts = [each for each in msgspec.structs.astuple(criteria) if isinstance(each, str)]
    if not all(map(is_encodable, texts)):
        raise _bad("a text has lone surrogates", "write whole characters")
    since, until = criteria.since_ms, criteria.until_ms
    if since is not None and until is not None and since > until:
        raise _bad("since lies after until", "exchange them")
    return msgspec.structs.replace(
        criteria,
        sender=_identifier_text(criteria.sender),
        receiver=_identifier_text(criteria.receiver),
    )


def is_looked_up(criteria: Criteria) -> bool:
    """Whether LOG_INDEX covers one of the criteria."""
    return bool(criteria.sender or criteria.receiver or criteria.conversation)


def query_of(criteria: Criteria, closed: Collection[str] | None = None) -> Query:
    """The criteria as a query of the channel, which uses its index. `closed`: the only messages
    that can have the fate, where that is known beforehand.
    """
    condition = And(tuple(_parts(criteria)))
    fits, text = compile_condition(condition), criteria.contains.casefold()
    if not text and closed is None:
        return Query("messages", "", fits, condition=condition, is_its_condition=True)

    def matches(stored: StoredEvent) -> bool:
        if not fits(stored):
            return False
        payload = decode_payload(stored.event.data)
        if closed is not None and stored.event.id not in closed:
            return bool(member(payload, "fate") == criteria.fate) and text in _content(payload)
        return text in _content(payload)

    return Query("messages", "", matches, condition=condition)


def compared(field: Field, operator: Comparison, value: Scalar) -> Condition:
    return Compare(operator, field, Literal(value))


def with_log_index(declared: ChannelsConfig) -> ChannelsConfig:
    """The channel rules of a site, with the index of `log` unless the site sets another one."""
    own = ChannelRules(pattern="log", index=LOG_INDEX)
    return msgspec.structs.replace(declared, rules=(own, *declared.rules))


# --- tokens ---


def write_token(place: PagePosition) -> str:
    """The position as a text of letters, digits, `-` and `_`. It is not signed: rights are checked
    at every request, and it grants nothing.
    """
    body = msgspec.msgpack.encode(place)
    return to_text(zlib.crc32(body).to_bytes(4, "big") + body)


def read_token(token: str) -> PagePosition:
    """The content of a token; raises InvalidInput unless it is unchanged."""
    try:
        if len(token) > _LONGEST_TOKEN:
            raise ValueError("too long")
        raw = from_text(token) or b""
        if zlib.crc32(raw[4:]).to_bytes(4, "big") != raw[:4]:
            raise ValueError("changed")
        place = msgspec.msgpack.decode(raw[4:], type=PagePosition)
        sound = 0 <= place.low <= 2**62 and 0 <= place.high <= place.snapshot <= 2**62
        if not sound or check_criteria(place.criteria) != place.criteria:
            raise ValueError("made up")
    except (ValueError, InvalidInput, msgspec.DecodeError) as error:
        raise InvalidInput(
            f"this is no token of a page: {error}",
            code="query.bad_token",
            hint="send a token unchanged, or send criteria",
        ) from None
    return place


# --- conditions ---


def _parts(criteria: Criteria) -> list[Condition]:
    kinds = tuple(compared(Field(("type",)), "=", name) for name in (MESSAGE, CONTROL_MESSAGE))
    parts: list[Condition] = [Or(kinds)]
    for field, wanted in (
        (Field(("id",)), criteria.id),
        (Field(("subject",)), criteria.receiver),
        (Field(("data", "type")), criteria.type),
        (Field(("data", "subtype")), criteria.subtype),
        (Field(("data", "sender")), criteria.sender),
        (Field(("data", "conversation-id")), criteria.conversation),
        (Field(("data", "refers-to")), criteria.refers_to),
    ):
        if wanted:
            parts.append(compared(field, "=", wanted))
    if criteria.since_ms is not None:
        parts.append(compared(Field(("received",)), ">=", criteria.since_ms))
    if criteria.until_ms is not None:
        parts.append(compared(Field(("received",)), "<=", criteria.until_ms))
    return parts


def _content(payload: object) -> str:
    """The content in the form in which it is searched."""
    content = member(payload, "content")
    return content.casefold() if isinstance(content, str) else ""


def _identifier_text(text: str) -> str:
    if not text:
        return ""
    return str(Identifier.parse(text if ":" in text else f"peer:{text}"))


def _bad(message: str, hint: str) -> InvalidInput:
    return InvalidInput(message, code="query.bad_criteria", hint=hint)


class _LogScan:
    """The matches of a query in a range of `log`, page by page; others get a turn in between."""

    def __init__(self, log: Channel, query: Query, clock: Clock, after: int, through: int) -> None:
        self._pages, self._query, self._clock = ChannelPager(log, query), query, clock
        self.reached, self._through = after, through

    @property
    def is_over(self) -> bool:
        """Whether the whole range was read."""
        return self.reached >= self._through

    async def next(self, wanted: int = _PAGE) -> list[StoredEvent]:
        page = await self._pages.after(self.reached, self._through, wanted=wanted)
        found = matching(self._query, page.events, None, decided=page.decided)
        self.reached = page.through
        await self._clock.sleep(0)
        return list(found)


class MessageFates:
    """Looks up the results of messages in their ledger lines. Cost: the lines of these messages
    where `log` is indexed, else the log from the first of them on, until all are known.
    """

    def __init__(self, channels: Channels, clock: Clock) -> None:
        self._log, self._clock = channels.channel("log"), clock

    async def results(self, messages: Sequence[str], *, after: int, through: int) -> dict[str, str]:
        """The results of messages that were closed within a range, by id."""
        found: dict[str, str] = {}
        for start in range(0, len(messages), _AT_ONCE):
            found |= await self._look_up(messages[start : start + _AT_ONCE], after, through)
        return found

    async def closed_with(self, result: str, *, after: int, through: int) -> set[str] | None:
        """All messages that were closed with a rare result within a range; None when there are more
        than MOST_CLOSED.
        """
        query = _query_for(Compare("=", Field(("data", "result")), Literal(result)))
        scan, found = _LogScan(self._log, query, self._clock, after, through), set[str]()
        while not scan.is_over:
            found.update(line.event.subject for line in await scan.next())
            if len(found) > MOST_CLOSED:
                return None
        return found

    async def _look_up(self, messages: Sequence[str], after: int, through: int) -> dict[str, str]:
        query = _query_for(
            In(Field(("subject",)), tuple(Literal(message) for message in messages)),
            Compare(">", Field(("data", "result")), Literal("")),
        )
        scan = _LogScan(self._log, query, self._clock, after, through)
        found: dict[str, str] = {}
        while not scan.is_over and len(found) < len(set(messages)):
            for line in await scan.next():
                # The first result counts: a closed message is not closed again.
                found.setdefault(line.event.subject, line.event.payload_as(LedgerLine).result)
        return found


def _query_for(*parts: Condition) -> Query:
    condition = And((Like(Field(("type",)), DELIVERY_PREFIX + "%"), *parts))
    return Query("ledger", "", compile_condition(condition), condition=condition)


class LoggedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A handled message and its fate at the time of the query."""

    message: Message
    position: int
    received: int
    """When it was logged."""
    time: int
    fate: str
    policy: str = ""
    detection: str = ""


class MessagePage(msgspec.Struct, frozen=True, kw_only=True):
    messages: tuple[LoggedMessage, ...]
    token: str
    """Gives this page again."""
    next_token: str = ""
    """Gives the next page; empty when there is none."""


class MessageQueries:
    """Queries over the log of one node."""

    def __init__(self, channels: Channels, clock: Clock) -> None:
        self._channels, self._clock = channels, clock
        self._fates = MessageFates(channels, clock)

    def create_query(self, **criteria: Unpack[CriteriaFields]) -> QueryCriteria:
        """A query to narrow down and run; see QueryCriteria."""
        return QueryCriteria(self).where(**criteria)

    async def page(self, criteria: Criteria | None = None, *, token: str = "") -> MessagePage:
        """The first page of criteria, or the page of a token.

        Cost: what the index finds, or REACH events read. Raises InvalidInput for invalid criteria
        or an invalid token.
        """
        if token and criteria is not None:
            raise InvalidInput(
                "a token contains its criteria",
                code="query.bad_criteria",
                hint="send the token alone",
            )
        place = (
            read_token(token)
            if token
            else await self._begin(check_criteria(criteria or Criteria()))
        )
        turn = _PageSearch(self._channels, self._clock, self._fates, place)
        found, following = await turn.page()
        return MessagePage(
            messages=tuple(found),
            token=write_token(place),
            next_token=write_token(following) if following is not None else "",
        )

    async def _begin(self, criteria: Criteria) -> PagePosition:
        """The range of positions by the time of logging."""
        log = self._channels.channel("log")
        low, last = 0, log.last_position()
        high = last
        if criteria.since_ms is not None:
            low = min(await position_before(log, criteria.since_ms), last)
        if criteria.until_ms is not None and not isinstance(log, FoundByTime):
            # Twice the tolerance: the clock may have been set back in the search and here.
            behind = criteria.until_ms + 1 + 2 * BACKWARDS_MS
            high = max(min(await position_before(log, behind), last), low)
        return PagePosition(criteria, low, high, last)


class QueryCriteria:
    """A query under construction; every call returns a new one, so that parts can be shared:
    `queries.create_query(type="TASK").where(sender="peer:ana").newest_first()`.
    """

    def __init__(self, queries: MessageQueries, criteria: Criteria | None = None) -> None:
        self._queries, self.criteria = queries, criteria or Criteria()

    def where(self, **given: Unpack[CriteriaFields]) -> QueryCriteria:
        fields: dict[str, object] = dict(given)
        for name in ("since", "until"):
            if name in fields:
                fields[f"{name}_ms"] = parse_time(fields.pop(name))  # type: ignore[arg-type]
        for name in ("sender", "receiver"):
            if name in fields:
                fields[name] = str(fields[name])
        return QueryCriteria(self._queries, msgspec.structs.replace(self.criteria, **fields))

    def newest_first(self) -> QueryCriteria:
        return self.where(newest_first=True)

    async def page(self, token: str = "") -> MessagePage:
        """The first page, or that of a token."""
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


class _PageSearch:
    def __init__(
        self, channels: Channels, clock: Clock, fates: MessageFates, place: PagePosition
    ) -> None:
        self._channels, self._clock, self._fates = channels, clock, fates
        self._log = channels.channel("log")
        self._place, self._criteria = place, place.criteria
        self._query = query_of(place.criteria)
        """Narrowed down for rare fates."""
        self._reach = INDEXED_REACH if is_looked_up(place.criteria) else REACH
        self._found: list[LoggedMessage] = []

    async def page(self) -> tuple[list[LoggedMessage], PagePosition | None]:
        """The messages of the page and the position of the next one."""
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
        """Reads until there is one message more than the page takes; returns the position."""
        scan = self._scan(self._place.low, min(self._place.high, self._place.low + self._reach))
        while not scan.is_over and not self._is_full():
            await self._add(await scan.next(self._criteria.limit + 1 - len(self._found)))
        return scan.reached

    async def _backwards(self) -> int:
        """The same from the end, in steps that grow where little is found."""
        reached, span = self._place.high, _FIRST_SPAN
        end = max(self._place.low, reached - self._reach)
        while reached > end and not self._is_full():
            start = max(end, reached - span)
            scan, found = self._scan(start, reached), list[StoredEvent]()
            while not scan.is_over:
                found += await scan.next()
            await self._add(found[::-1])
            reached = start
            if len(found) < self._criteria.limit:
                span = min(span * 4, _LONGEST_SPAN)
        return reached

    def _scan(self, after: int, through: int) -> _LogScan:
        return _LogScan(self._log, self._query, self._clock, after, through)

    async def _add(self, events: Sequence[StoredEvent]) -> None:
        """Adds matches with the right fate until the page is full."""
        for start in range(0, len(events), _AT_ONCE):
            if not self._is_full():
                self._found += await self._shown(events[start : start + _AT_ONCE])

    def _is_full(self) -> bool:
        """Whether there is one message more than the page takes."""
        return len(self._found) > self._criteria.limit

    async def _shown(self, events: Sequence[StoredEvent]) -> list[LoggedMessage]:
        """The messages with their fates, without those of another fate than the wanted one."""
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

    def _close(self, reached: int) -> tuple[list[LoggedMessage], PagePosition | None]:
        """Cuts the matches to a page; the rest comes with the next one."""
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

    def _following(self, reached: int) -> PagePosition | None:
        place = self._place
        if self._criteria.newest_first:
            is_more, following = reached > place.low, msgspec.structs.replace(place, high=reached)
        else:
            is_more, following = reached < place.high, msgspec.structs.replace(place, low=reached)
        return following if is_more else None


def _logged(stored: StoredEvent) -> LoggedMessage | None:
    try:
        message = Message.from_event(stored.event)
        data: LoggedData = stored.event.payload_as(LoggedData)
    except InvalidInput:
        return None  # an unreadable event of another version must not hide the rest
    return LoggedMessage(
        message=msgspec.structs.replace(message, id=stored.event.id),
        position=stored.position,
        received=stored.received,
        time=stored.event.time,
        fate=state_when_handled(data.fate, str(message.receiver or "")),
        policy=data.policy,
        detection=data.detection,
    )


def _with_result(logged: LoggedMessage, result: str) -> LoggedMessage:
    if not result or logged.fate != OPEN:
        return logged
    return msgspec.structs.replace(logged, fate=result)
