"""The source side of channels: requests by query or token, sessions, streams. [CH-1, CH-2, CH-3,
CH-4, CH-12]

A batch is answered together with the token of the set after it, chosen at that moment: a token
names one closed set for ever, and the source keeps no state except what was taken.
`ChannelFollower` gives streams the same sets with the same tokens, so a reader may continue by
request where its stream broke, and the other way round.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from rapport.channel.channel import Channel
from rapport.channel.interceptors.reader_view import ReaderDelivery, deliver_to
from rapport.channel.query.query_kinds import VIEWS, Query, Scripts, make_query
from rapport.channel.requests.leases import Answers, SettlementResult, delivery_id
from rapport.channel.requests.request import (
    DEFAULT_MESSAGES,
    LONGEST_LEASE_MS,
    LONGEST_WAIT_MS,
    MOST_MESSAGES,
    Batch,
    BatchLimits,
    LeasedDelivery,
    Present,
    Request,
    check_request,
    interpretation_of,
    request_limits,
    with_interpretation,
)
from rapport.channel.requests.scanner import LiveStream, MessageSet, Scanner
from rapport.channel.requests.taker import LeasedTakes, SourceChannels, Taker
from rapport.channel.requests.takes import TakenMessages
from rapport.channel.requests.tokens import (
    SessionLeases,
    TokenPlace,
    TokenSigner,
    granted_minutes,
    identity_digest,
    request_secret,
)
from rapport.channel.validation import batch_ttl, delivered_once, is_delivered_once
from rapport.core.errors import InvalidInput, Unsupported
from rapport.core.event import Gap, StoredEvent
from rapport.store.memory import MemoryLogStore

WriteToken = Callable[[MessageSet], str]
GiveOut = Callable[[MessageSet], Awaitable[bool]]
"""Records durably that messages of a set are delivered; False when another reader was faster."""
_SESSION_BYTES = 8
SHARED_SESSION = bytes(_SESSION_BYTES)
"""Of streams where leases do not matter."""


class FollowedSet(msgspec.Struct, frozen=True):
    """A set to deliver; `gone` when messages of a token's set are no longer stored, `gaps` when
    positions up to its end are unreadable. It has messages, gaps or both.
    """

    chosen: MessageSet
    gone: bool = False
    gaps: tuple[Gap, ...] = ()


class ChannelFollower:
    """One reader's progress through a channel, in memory only; nothing is read ahead."""

    def __init__(
        self,
        channel: Channel,
        scanner: Scanner,
        query: Query,
        limits: BatchLimits,
        *,
        reach: int,
        write_token: WriteToken,
        give_out: GiveOut,
        first: FollowedSet | None = None,
        handback: str = "",
        has_own_session: bool = True,
    ) -> None:
        self.query, self.limits, self.handback = query, limits, handback
        self.reach = reach
        """How far was looked: the next set begins after it."""
        self.has_own_session = has_own_session
        """Whether its tokens differ from those of others that follow the same."""
        self._channel, self._scanner = channel, scanner
        self._write_token, self._give_out, self._first = write_token, give_out, first

    @property
    def is_over(self) -> bool:
        """Whether the query bounds its positions and the last of them has been passed."""
        last = self.query.bounds.last
        return self._first is None and last is not None and self.reach >= last

    async def next_set(self, *, wait_ms: int | None = None) -> FollowedSet | None:
        """The next set with messages or gaps, waiting up to `wait_ms` (None = for ever). None when
        the time passed, the node closes, or nothing can follow (`is_over`).
        """
        if self._first is not None:
            first, self._first = self._first, None
            return first
        while not self.is_over:
            chosen = await self._scanner.choose(self.query, self.limits, self.reach)
            if chosen.events and not await self._give_out(chosen):
                continue  # then there are fewer to choose from
            gaps = self._scanner.gaps(self.query, self.reach, chosen.reach)
            self.reach = chosen.reach
            if chosen.events or gaps:
                return FollowedSet(chosen, gaps=gaps)
            if chosen.at_end and not await self._wait(chosen, wait_ms):
                return None
        return None

    async def _wait(self, chosen: MessageSet, wait_ms: int | None) -> bool:
        if wait_ms is not None:
            return await self._scanner.wait(self.query, chosen, wait_ms)
        return self.is_over or await self._channel.wait_after(chosen.reach)

    def go_on_after(self, position: int) -> None:
        """Continues after a position reached before, without a token's own set."""
        self.reach, self._first = max(self.reach, position), None

    def given(self, followed: FollowedSet) -> Sequence[StoredEvent]:
        """The messages of a set as the reader receives them, through interceptors."""
        return self._scanner.delivery.given(self.query, followed.chosen.events)

    @property
    def is_intercepted(self) -> bool:
        """Whether the reader may receive anything but the stored events."""
        return self._scanner.delivery.is_intercepted

    def tokens(self, followed: FollowedSet) -> tuple[str, str]:
        """The token of a set, and one that continues after it (it names the empty set there)."""
        chosen = followed.chosen
        after = MessageSet((), chosen.reach, chosen.reach, chosen.reach, at_end=True)
        return self._write_token(chosen), self._write_token(after)


class SessionRequest(msgspec.Struct, frozen=True):
    """A parsed request: identity, channel, query and session."""

    name: str
    identity: str
    session: bytes
    query: Query
    limits: BatchLimits
    request: Request
    scanner: Scanner
    lease_minutes: int
    handback: str
    start: int = 0
    """A query begins after this position."""


class OpenedSession(msgspec.Struct, frozen=True):
    """A session that was begun without requesting messages."""

    session: str
    token: str
    lease_minutes: int
    handback: str


class Sessions:
    """Leases (of channels in memory) and signed tokens of one source; keeps no state of readers."""

    def __init__(self, channels: SourceChannels) -> None:
        self._channels = channels
        self._clock = channels.clock
        self.leases = SessionLeases() if isinstance(channels.log, MemoryLogStore) else None
        self.tokens: TokenSigner | None = None
        self._signing = asyncio.Lock()

    def new(self) -> bytes:
        return secrets.token_bytes(_SESSION_BYTES)

    def of_stream(self) -> bytes:
        """The session of a stream. Sessions matter only for leases. Without leases all streams
        share one session: equal requests then get equal tokens, written once.
        """
        return SHARED_SESSION if self.leases is None else self.new()

    def check(self, session: bytes) -> None:
        """Raises LeaseExpired."""
        if self.leases is not None:
            self.leases.check(session, self._steady_ms())

    def grant(self, session: bytes, minutes: int) -> int:
        """The granted lease in minutes."""
        if self.leases is None:
            return granted_minutes(minutes)
        return self.leases.grant(session, minutes, self._steady_ms())

    def end(self, session: bytes) -> None:
        if self.leases is not None:
            self.leases.end(session)

    async def signer(self) -> TokenSigner:
        """Signs and reads tokens; its secret is made at the first call."""
        async with self._signing:  # two first requests must not make two secrets
            if self.tokens is None:
                secret = await self._channels.off_loop(
                    lambda: request_secret(self._channels.records)
                )
                self.tokens = TokenSigner(secret)
            return self.tokens

    def token(self, parsed: SessionRequest, chosen: MessageSet) -> str:
        """The token that names a set for ever; after `signer`."""
        assert self.tokens is not None
        return self.tokens.write(
            TokenPlace(
                channel=parsed.name,
                identity=identity_digest(parsed.identity),
                session=parsed.session,
                kind=parsed.query.kind,
                query=parsed.query.text,
                after=chosen.after,
                through=chosen.through,
                count=chosen.count,
                reach=chosen.reach,
                messages=parsed.limits.messages,
                time_range_ms=parsed.limits.time_range_ms,
                handback=parsed.handback,
            )
        )

    def _steady_ms(self) -> int:
        """Leases in memory run on time that never jumps."""
        return self._clock.steady_ns() // 1_000_000


class MessageSource:
    """The source side of all channels of a node. All calls belong to one event loop.

    A request costs at most two scans of SCAN_EVENTS messages, whatever the length of the log.
    """

    def __init__(self, channels: SourceChannels) -> None:
        self._channels = channels
        self._clock = channels.clock
        self.taker = Taker(channels)
        self.sessions = Sessions(channels)
        self._leased = LeasedTakes(channels, self.taker)
        self.views = VIEWS
        """The meaning of interpretations in queries."""
        self.scripts = Scripts()
        self.present: Present | None = None
        """Translates messages into an interpretation; set by mediation."""

    async def request(
        self,
        name: str,
        request: Request,
        *,
        identity: str,
        closing: asyncio.Event | None = None,
    ) -> Batch:
        """The messages of a token, or the first ones of a query, with the token of the following
        set.

        The same token always gives the same messages; when some of them were taken or trimmed, the
        answer is `gone` and nothing else. A take is durable when this returns: should the answer
        get lost, the same token from the same identity gives it again while the lease lasts. To
        lose nothing, request without `take` first and then take by the `current_token`.

        A waiting request is answered at once when `closing` is set. Raises InvalidInput (query,
        token, field), NotAllowed (forged or another identity's token), LeaseExpired (channels in
        memory only), ChannelUnavailable.
        """
        check_request(request)
        request = with_interpretation(name, request)
        if request.push_address:
            raise Unsupported(
                "a push address", "this endpoint", hint="use a node's request endpoints"
            )
        channel = self._channels.channel(name)
        if request.lease_ms:
            return await self._lease(name, request, identity, closing)
        tokens = await self.sessions.signer()
        taken = await self.taker.taken(name)
        scanner = Scanner(
            channel,
            self._clock,
            taken,
            closing=closing,
            delivery=self._delivery(name, request, identity),
            is_leased=self._leased_now(taken) if request.take else None,
        )
        if request.token:
            place = tokens.read(request.token, channel=name, identity=identity)
            return await self._go_on(place, request, identity, scanner)
        return await self._begin(self._parsed(name, request, identity, scanner))

    async def open(self, name: str, request: Request, *, identity: str) -> OpenedSession:
        """A session before its first message: that of a query, or that of a token's set. Its sets
        hold at most `max_push` messages; nothing is read or taken yet. Raises as `request` does.
        """
        check_request(request)
        request = with_interpretation(name, request)
        tokens = await self.sessions.signer()
        scanner = Scanner(self._channels.channel(name), self._clock, await self.taker.taken(name))
        place = None
        if request.token:
            place = tokens.read(request.token, channel=name, identity=identity)
        most = min(request.max_push or DEFAULT_MESSAGES, MOST_MESSAGES)
        limits = BatchLimits(most, request.max_time_range_ms)
        parsed = self._parsed(name, request, identity, scanner, place, limits=limits)
        chosen = MessageSet((), parsed.start, parsed.start, parsed.start, at_end=True)
        token = self.sessions.token(parsed, chosen)
        return OpenedSession(parsed.session.hex(), token, parsed.lease_minutes, parsed.handback)

    async def session_of(self, name: str, token: str, *, identity: str) -> str:
        """The session a token belongs to; raises as `request` does for a token."""
        tokens = await self.sessions.signer()
        return tokens.read(token, channel=name, identity=identity).session.hex()

    async def settle(self, name: str, answers: Answers) -> SettlementResult:
        """Applies a worker's answers, durably; raises InvalidInput, ChannelUnavailable."""
        return await self._leased.settle(name, answers)

    async def _lease(
        self, name: str, request: Request, identity: str, closing: asyncio.Event | None
    ) -> Batch:
        query, delivery = (
            self._query(request.kind, request.query),
            self._delivery(name, request, identity),
        )
        work = await self._leased.take(
            name, request, query, identity=identity, delivery=delivery, closing=closing
        )
        given = await self._shown(name, delivery.given(query, work.events), query, identity)
        leases = [work.leases[stored.position] for stored in given]
        return Batch(
            events=tuple(given),
            current_token="",
            ttl_ms=batch_ttl(work.events, self._channels.ttl_of(name), self._clock.now_ms()),
            handback=request.handback,
            lease_ms=min(request.lease_ms, LONGEST_LEASE_MS),
            gaps=work.gaps,
            deliveries=tuple(
                LeasedDelivery(id=delivery_id(stored.position, lease.lease), tries=lease.tries)
                for stored, lease in zip(given, leases, strict=True)
            ),
        )

    # --- following ------------------------------------------------------------------------------

    async def follow(
        self,
        name: str,
        request: Request,
        *,
        identity: str,
        after: int = 0,
        closing: asyncio.Event | None = None,
    ) -> ChannelFollower:
        """The sets of a query after a position, or those from a token's on, to be pushed.

        `seen` leaves out the token's own set. Raises as `request` does; a stream does not take.
        """
        check_request(request)
        request = with_interpretation(name, request)
        if request.take or request.push_address or (request.token and after):
            raise InvalidInput(
                "a subscription neither takes messages nor has an address, and a token contains "
                "its position",
                code="request.bad_field",
            )
        tokens, channel = await self.sessions.signer(), self._channels.channel(name)
        taken, delivery = await self.taker.taken(name), self._delivery(name, request, identity)
        listening = LiveStream(channel.last_position(), partial(self._is_once, name))
        scanner = Scanner(
            channel,
            self._clock,
            taken,
            closing=closing,
            delivery=delivery,
            refresh=lambda: self.taker.taken(name),
            listening=listening,
        )
        first = None
        if request.token:
            place = tokens.read(request.token, channel=name, identity=identity)
            self.sessions.check(place.session)
            parsed = self._parsed(name, request, identity, scanner, place)
            first, reach = await self._followed(parsed, place), place.reach
        else:
            session = self.sessions.of_stream()
            parsed = self._parsed(name, request, identity, scanner, session=session)
            reach = max(after, parsed.start)
        return ChannelFollower(
            channel,
            scanner,
            parsed.query,
            parsed.limits,
            reach=reach,
            write_token=lambda chosen: self._token_of_stream(parsed, chosen),
            give_out=lambda chosen: self._give_out(parsed, chosen, listening),
            first=first,
            handback=parsed.handback,
            has_own_session=parsed.session != SHARED_SESSION,
        )

    async def _followed(self, parsed: SessionRequest, place: TokenPlace) -> FollowedSet | None:
        """The token's own set, unless it was seen."""
        if parsed.request.seen or place.count == 0:
            return None
        events = await self._events_of(parsed, place)
        chosen = MessageSet(events or (), place.after, place.through, place.reach, at_end=True)
        gaps = parsed.scanner.gaps(parsed.query, place.after, place.reach)
        return FollowedSet(chosen, gone=events is None, gaps=gaps)

    async def _give_out(
        self, parsed: SessionRequest, chosen: MessageSet, listening: LiveStream
    ) -> bool:
        """Takes messages that are delivered once when a stream's set has them; see GiveOut. All
        streams that were open when they arrived receive them.
        """
        leaving = self._leaving(parsed, chosen.events)
        if not leaving:
            return True
        async with self.taker.exclusive(parsed.name):
            taken = await self.taker.taken_latest(parsed.name)
            left = [stored for stored in leaving if not taken.holds(stored.position)]
            gone = [stored for stored in leaving if taken.holds(stored.position)]
            if not all(map(listening.receives, gone)):
                return False
            token = self.sessions.token(parsed, chosen)
            return not left or await self.taker.take(parsed.name, left, token, parsed.lease_minutes)

    async def not_given_out(
        self, name: str, events: Sequence[StoredEvent]
    ) -> Sequence[StoredEvent]:
        """The events without those that are delivered once and were delivered. For reads by
        position, which are no delivery.
        """
        leaving = delivered_once(events, self._channels.ttl_of(name))
        if not leaving:
            return events
        taken = await self.taker.taken(name)
        gone = {stored.position for stored in leaving if taken.holds(stored.position)}
        return [stored for stored in events if stored.position not in gone]

    def _is_once(self, name: str, stored: StoredEvent) -> bool:
        return is_delivered_once(stored, self._channels.ttl_of(name))

    def _token_of_stream(self, parsed: SessionRequest, chosen: MessageSet) -> str:
        self.sessions.grant(parsed.session, parsed.lease_minutes)  # a stream keeps its lease alive
        return self.sessions.token(parsed, chosen)

    # --- a query ----------------------------------------------------------------------------------

    async def _begin(self, parsed: SessionRequest) -> Batch:
        chosen, token = await self._first_set(parsed)
        looked = (parsed.start, chosen.reach)
        return await self._answer(parsed, chosen.events, token, looked, wait_ms=0)

    async def _first_set(self, parsed: SessionRequest) -> tuple[MessageSet, str]:
        """The first set, waiting for a match; taken if the request says so."""
        wait_ms = min(parsed.request.wait_ms, LONGEST_WAIT_MS)
        if not parsed.request.take:
            chosen = await parsed.scanner.choose_or_wait(
                parsed.query, parsed.limits, parsed.start, wait_ms
            )
            if not self._leaving(parsed, chosen.events):
                return chosen, self.sessions.token(parsed, chosen)
        deadline = self._clock.steady_ns() + wait_ms * 1_000_000
        after = parsed.start
        while True:
            async with self.taker.exclusive(parsed.name):
                chosen, token = await self._choose_and_take(parsed, after)
            left_ms = (deadline - self._clock.steady_ns()) // 1_000_000
            if chosen.events or not await parsed.scanner.wait(parsed.query, chosen, left_ms):
                return chosen, token
            after = chosen.reach

    async def _choose_and_take(self, parsed: SessionRequest, after: int) -> tuple[MessageSet, str]:
        """Chooses and takes a set; again when another taker was faster."""
        while True:
            await self.taker.taken_latest(parsed.name)
            chosen = await parsed.scanner.choose(parsed.query, parsed.limits, after)
            token, leaving = (
                self.sessions.token(parsed, chosen),
                self._leaving(parsed, chosen.events),
            )
            if not leaving or await self.taker.take(
                parsed.name, leaving, token, parsed.lease_minutes
            ):
                return chosen, token

    # --- a token ----------------------------------------------------------------------------------

    async def _go_on(
        self, place: TokenPlace, request: Request, identity: str, scanner: Scanner
    ) -> Batch:
        self.sessions.check(place.session)
        if request.lease_minutes == 0:
            return self._end(place, request.token)
        parsed = self._parsed(place.channel, request, identity, scanner, place)
        events = await self._events_of(parsed, place)
        if events is None:
            looked = (place.after, place.after)
            return await self._answer(parsed, (), request.token, looked, wait_ms=0, gone=True)
        wait_ms = 0 if events else min(request.wait_ms, LONGEST_WAIT_MS)
        looked = (place.after, place.reach)
        return await self._answer(parsed, events, request.token, looked, wait_ms=wait_ms)

    async def _events_of(
        self, parsed: SessionRequest, place: TokenPlace
    ) -> tuple[StoredEvent, ...] | None:
        """The messages of a token, taken if the request says so; None when some are gone."""
        if place.count == 0 or (parsed.request.seen and not parsed.request.take):
            return ()
        if not parsed.request.take:
            events = await self._recall(parsed, place)
            if not events or not self._leaving(parsed, events):
                return events
        async with self.taker.exclusive(parsed.name):
            events = await self._recall_and_take(parsed, place)
        return () if parsed.request.seen and events is not None else events

    async def _recall_and_take(
        self, parsed: SessionRequest, place: TokenPlace
    ) -> tuple[StoredEvent, ...] | None:
        token = parsed.request.token
        while True:
            await self.taker.taken_latest(parsed.name)
            events = await self._recall(parsed, place)
            if events is None or await self.taker.positions_of(parsed.name, token) is not None:
                return events
            leaving = self._leaving(parsed, events)
            if await self.taker.take(parsed.name, leaving, token, parsed.lease_minutes):
                return events

    async def _recall(
        self, parsed: SessionRequest, place: TokenPlace
    ) -> tuple[StoredEvent, ...] | None:
        own = await self.taker.positions_of(parsed.name, parsed.request.token)
        events = await parsed.scanner.matches_in(parsed.query, place.after, place.through)
        if own:
            found = {stored.position: stored for stored in events}
            found |= {stored.position: stored for stored in await parsed.scanner.at(own)}
            events = tuple(found[position] for position in sorted(found))
        return events if len(events) == place.count else None

    def _leaving(
        self, parsed: SessionRequest, events: tuple[StoredEvent, ...]
    ) -> tuple[StoredEvent, ...]:
        """Messages that no other request will see: all of a take, else those delivered once.
        Messages that an interceptor hides from this reader were not delivered.
        """
        if parsed.request.take:
            return events
        leaving = delivered_once(events, self._channels.ttl_of(parsed.name))
        delivery = parsed.scanner.delivery
        if not leaving or not delivery.is_intercepted:
            return leaving
        given = {stored.position for stored in delivery.given(parsed.query, leaving)}
        return tuple(stored for stored in leaving if stored.position in given)

    def _end(self, place: TokenPlace, token: str) -> Batch:
        self.sessions.end(place.session)
        return Batch(events=(), current_token=token, lease_minutes=0, handback=place.handback)

    # --- both -------------------------------------------------------------------------------------

    async def _answer(
        self,
        parsed: SessionRequest,
        events: tuple[StoredEvent, ...],
        token: str,
        looked: tuple[int, int],
        *,
        wait_ms: int,
        gone: bool = False,
    ) -> Batch:
        """The batch, with the token of the set that follows when there is one. `looked`: after
        which position the set begins, and how far was looked for it.
        """
        since, reach = looked
        # An index may name messages that were damaged meanwhile: what comes instead of a set that
        # is gone is read.
        look = parsed.scanner.choose_or_wait if gone else parsed.scanner.foresee_or_choose
        following = await look(parsed.query, parsed.limits, reach, wait_ms)
        is_more = following.count > 0 or not following.at_end
        given = parsed.scanner.delivery.given(parsed.query, events)
        given = await self._shown(parsed.name, given, parsed.query, parsed.identity)
        return Batch(
            events=tuple(given),
            current_token=token,
            next_token=self.sessions.token(parsed, following) if is_more else None,
            lease_minutes=parsed.lease_minutes,
            ttl_ms=batch_ttl(events, self._channels.ttl_of(parsed.name), self._clock.now_ms()),
            gone=gone,
            handback=parsed.handback,
            gaps=parsed.scanner.gaps(parsed.query, since, following.after),
        )

    async def _shown(
        self, name: str, given: list[StoredEvent], query: Query, identity: str
    ) -> list[StoredEvent]:
        """Messages in the words of the query's interpretation, if it names one."""
        words = interpretation_of(query)
        if not words or self.present is None:
            return given
        return await self.present(name, given, words, identity)

    def _leased_now(self, taken: TakenMessages) -> Callable[[int], bool]:
        now_ms = self.taker.now_ms()
        return lambda position: taken.leases.is_leased(position, now_ms)

    def _delivery(self, name: str, request: Request, identity: str) -> ReaderDelivery:
        return ReaderDelivery(
            lambda: deliver_to(self._channels, name, identity), takes=request.take
        )

    def _parsed(
        self,
        name: str,
        request: Request,
        identity: str,
        scanner: Scanner,
        place: TokenPlace | None = None,
        *,
        session: bytes = b"",
        limits: BatchLimits | None = None,
    ) -> SessionRequest:
        """A request of its token's session, else of a session that begins now."""
        before = None
        if place is None:
            query, session = (
                self._query(request.kind, request.query),
                session or self.sessions.new(),
            )
            start = 0 if request.from_start else self._channels.channel(name).last_position()
            handback = request.handback
        else:
            query, session = self._query(place.kind, place.query), place.session
            start, handback = place.reach if request.seen else place.after, place.handback
            before = BatchLimits(place.messages, place.time_range_ms)
        limits = limits or request_limits(request, before)
        lease = self.sessions.grant(session, request.lease_minutes)
        return SessionRequest(
            name, identity, session, query, limits, request, scanner, lease, handback, start
        )

    def _query(self, kind: str, given: Any) -> Query:
        return make_query(kind, given, self.views, self.scripts)
