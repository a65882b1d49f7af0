"""The source side of a channel: request messages, by query or by token. [CH-1, CH-2, CH-3]

A batch is answered together with the token of the set after it, chosen at that moment: so a token
names one closed set for ever, and the source keeps no state but what was taken.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rapport.channel.delivering import Delivery, deliver_to
from rapport.channel.finding.scanning import Listening, Scanner
from rapport.channel.following import Followed, Following
from rapport.channel.query.kinds import Query, make_query
from rapport.channel.query.own_terms import VIEWS
from rapport.channel.query.script import Scripts
from rapport.channel.requesting.batch import (
    DEFAULT_MESSAGES,
    LONGEST_LEASE_MS,
    LONGEST_WAIT_MS,
    MOST_MESSAGES,
    Batch,
    LeasedDelivery,
    Limits,
    Request,
    check_request,
    request_limits,
)
from rapport.channel.requesting.leased_takes import LeasedTakes
from rapport.channel.requesting.message_leases import Answers, Settled, delivery_id
from rapport.channel.requesting.own_terms import Present, in_own_terms, interpretation_of
from rapport.channel.requesting.selection import Chosen
from rapport.channel.requesting.sessions import SHARED_SESSION, Asked, Opened, Sessions
from rapport.channel.requesting.takers import SourceChannels, Taker
from rapport.channel.requesting.taking import Taken
from rapport.channel.requesting.tokens import Place
from rapport.channel.retention.ttl import batch_ttl, given_once, is_once
from rapport.core.errors import InvalidInput, Unsupported
from rapport.core.event import StoredEvent


class MessageSource:
    """The source side of all channels of a node. All calls belong to one event loop.

    Cost of a request: at most two scans of SCAN_EVENTS messages, whatever the length of the log.
    """

    def __init__(
        self, channels: SourceChannels, *, chance: Callable[[int], bytes] = secrets.token_bytes
    ) -> None:
        self._channels = channels
        self._clock = channels.parts.clock
        self.taker = Taker(channels)
        self.sessions = Sessions(channels, chance=chance)
        self._leased = LeasedTakes(channels, self.taker, chance)
        self.views = VIEWS
        self.scripts = Scripts()
        """What the words of interpretations mean in queries."""
        self.present: Present | None = None
        """How messages are said in an interpretation; whoever runs mediation tells."""

    async def request(
        self,
        name: str,
        request: Request,
        *,
        identity: str,
        closing: asyncio.Event | None = None,
    ) -> Batch:
        """The messages of a token, or the first ones of a query, with the token of what follows.

        The same token gives the same messages, always; when some of them were taken or let go, the
        answer is `gone` and nothing else. Taking is durable when this returns: should the answer
        get lost, the same token asked again by the same identity gives it again while the lease
        lasts. To lose nothing, ask without `take` first and then take by the `current_token`.
        Who waits is answered at once when `closing` is set.

        Raises InvalidInput (query, token, field), NotAllowed (forged or another's token),
        LeaseExpired (channels in memory only), ChannelUnavailable.
        """
        check_request(request)
        request = in_own_terms(name, request)
        if request.push_address:
            raise Unsupported("a push address", "this door", hint="ask at a node's request doors")
        channel = self._channels.channel(name)
        if request.lease_ms:
            return await self._lease(name, request, identity, closing)
        tokens = await self.sessions.signer(self.taker)
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
        return await self._begin(name, request, identity, scanner)

    async def open(self, name: str, request: Request, *, identity: str) -> Opened:
        """A session that stands before its first message: that of a query, or that of the set a
        token names. Its sets hold at most `max_push` messages; nothing is read or taken yet.

        Raises as `request` does.
        """
        check_request(request)
        request = in_own_terms(name, request)
        tokens = await self.sessions.signer(self.taker)
        scanner = Scanner(self._channels.channel(name), self._clock, await self.taker.taken(name))
        most = min(request.max_push or DEFAULT_MESSAGES, MOST_MESSAGES)
        limits = Limits(most, request.max_time_range_ms)
        if request.token:
            place = tokens.read(request.token, channel=name, identity=identity)
            query, session = self._query(place.kind, place.query), place.session
            after, handback = place.reach if request.seen else place.after, place.handback
        else:
            query, session = self._query(request.kind, request.query), self.sessions.new()
            after = 0 if request.from_start else self._channels.channel(name).last_position()
            handback = request.handback
        lease = self.sessions.grant(session, request.lease_minutes)
        asked = Asked(
            name, identity, session, query, limits, request, scanner, lease, handback, after
        )
        chosen = Chosen((), after, after, after, at_end=True)
        return Opened(session.hex(), self.sessions.token(asked, chosen), lease, handback)

    async def session_of(self, name: str, token: str, *, identity: str) -> str:
        """The session a token belongs to; raises as `request` does for a token."""
        tokens = await self.sessions.signer(self.taker)
        return tokens.read(token, channel=name, identity=identity).session.hex()

    async def settle(self, name: str, answers: Answers) -> Settled:
        """Carries out what a worker says of messages that it was given by a leased take; durable
        when it returns. Raises InvalidInput, ChannelUnavailable.
        """
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
    ) -> Following:
        """The sets of a query after a position, or those from a token's on, to be pushed.

        `seen` leaves out the token's own set. Raises as `request` does; a stream does not take.
        """
        check_request(request)
        request = in_own_terms(name, request)
        if request.take or request.push_address or (request.token and after):
            raise InvalidInput(
                "a subscription neither takes messages nor has an address, and a token has its "
                "place in itself",
                code="request.bad_field",
            )
        tokens, channel = await self.sessions.signer(self.taker), self._channels.channel(name)
        taken, delivery = await self.taker.taken(name), self._delivery(name, request, identity)
        listening = Listening(channel.last_position(), partial(self._is_once, name))
        scanner = Scanner(
            channel,
            self._clock,
            taken,
            closing=closing,
            delivery=delivery,
            refresh=lambda: self.taker.taken(name),
            listening=listening,
        )
        if request.token:
            place = tokens.read(request.token, channel=name, identity=identity)
            asked, first = await self._followed(place, request, identity, scanner)
            reach = place.reach
        else:
            asked, first = self._follower(name, request, identity, scanner), None
            reach = max(after, 0 if request.from_start else channel.last_position())
        return Following(
            channel,
            scanner,
            asked.query,
            asked.limits,
            reach=reach,
            write_token=lambda chosen: self._token_of_stream(asked, chosen),
            give_out=lambda chosen: self._give_out(asked, chosen, listening),
            first=first,
            handback=asked.handback,
            has_own_session=asked.session != SHARED_SESSION,
        )

    def _follower(self, name: str, request: Request, identity: str, scanner: Scanner) -> Asked:
        session = self.sessions.of_stream()
        lease = self.sessions.grant(session, request.lease_minutes)
        query, limits = self._query(request.kind, request.query), request_limits(request)
        return Asked(
            name, identity, session, query, limits, request, scanner, lease, request.handback
        )

    async def _followed(
        self, place: Place, request: Request, identity: str, scanner: Scanner
    ) -> tuple[Asked, Followed | None]:
        """How to go on after a token, and the token's own set unless it was seen."""
        self.sessions.check(place.session)
        lease = self.sessions.grant(place.session, request.lease_minutes)
        limits = request_limits(request, Limits(place.messages, place.time_range_ms))
        query = self._query(place.kind, place.query)
        asked = Asked(
            *(place.channel, identity, place.session, query, limits, request, scanner, lease),
            handback=place.handback,
        )
        if request.seen or place.count == 0:
            return asked, None
        events = await self._events_of(asked, place)
        chosen = Chosen(events or (), place.after, place.through, place.reach, at_end=True)
        gaps = scanner.gaps(query, place.after, place.reach)
        return asked, Followed(chosen, gone=events is None, gaps=gaps)

    async def _give_out(self, asked: Asked, chosen: Chosen, listening: Listening) -> bool:
        """What is given out once leaves with a stream's set, too; see GiveOut. Those who listened
        when it came all get it.
        """
        leaving = self._leaving(asked, chosen.events)
        if not leaving:
            return True
        async with self.taker.alone(asked.name):
            taken = await self.taker.taken_now(asked.name)
            left = [stored for stored in leaving if not taken.holds(stored.position)]
            gone = [stored for stored in leaving if taken.holds(stored.position)]
            if not all(map(listening.hears, gone)):
                return False
            token = self.sessions.token(asked, chosen)
            return not left or await self.taker.take(asked.name, left, token, asked.lease_minutes)

    async def not_given_out(
        self, name: str, events: Sequence[StoredEvent]
    ) -> Sequence[StoredEvent]:
        """The events without those that are given out once, and were. For who looks by position,
        which is no delivery.
        """
        leaving = given_once(events, self._channels.ttl_of(name))
        if not leaving:
            return events
        taken = await self.taker.taken(name)
        gone = {stored.position for stored in leaving if taken.holds(stored.position)}
        return [stored for stored in events if stored.position not in gone]

    def _is_once(self, name: str, stored: StoredEvent) -> bool:
        return is_once(stored, self._channels.ttl_of(name))

    def _token_of_stream(self, asked: Asked, chosen: Chosen) -> str:
        self.sessions.grant(asked.session, asked.lease_minutes)  # a stream keeps its lease alive
        return self.sessions.token(asked, chosen)

    # --- a query ----------------------------------------------------------------------------------

    async def _begin(self, name: str, request: Request, identity: str, scanner: Scanner) -> Batch:
        query = self._query(request.kind, request.query)
        session = self.sessions.new()
        lease = self.sessions.grant(session, request.lease_minutes)
        limits = request_limits(request)
        start = 0 if request.from_start else self._channels.channel(name).last_position()
        asked = Asked(
            name, identity, session, query, limits, request, scanner, lease, request.handback, start
        )
        chosen, token = await self._first_set(asked)
        looked = (asked.start, chosen.reach)
        return await self._answer(asked, chosen.events, token, looked, wait_ms=0)

    async def _first_set(self, asked: Asked) -> tuple[Chosen, str]:
        """The first set, waiting for a match; taken when that was asked for."""
        wait_ms = min(asked.request.wait_ms, LONGEST_WAIT_MS)
        if not asked.request.take:
            chosen = await asked.scanner.choose_or_wait(
                asked.query, asked.limits, asked.start, wait_ms
            )
            if not self._leaving(asked, chosen.events):
                return chosen, self.sessions.token(asked, chosen)
        deadline = self._clock.steady_ns() + wait_ms * 1_000_000
        after = asked.start
        while True:
            async with self.taker.alone(asked.name):
                chosen, token = await self._choose_and_take(asked, after)
            left_ms = (deadline - self._clock.steady_ns()) // 1_000_000
            if chosen.events or not await asked.scanner.wait(asked.query, chosen, left_ms):
                return chosen, token
            after = chosen.reach

    async def _choose_and_take(self, asked: Asked, after: int) -> tuple[Chosen, str]:
        """A set of which nobody took anything meanwhile, in this node or another; taken."""
        while True:
            await self.taker.taken_now(asked.name)
            chosen = await asked.scanner.choose(asked.query, asked.limits, after)
            token, leaving = self.sessions.token(asked, chosen), self._leaving(asked, chosen.events)
            if not leaving or await self.taker.take(
                asked.name, leaving, token, asked.lease_minutes
            ):
                return chosen, token

    # --- a token ----------------------------------------------------------------------------------

    async def _go_on(
        self, place: Place, request: Request, identity: str, scanner: Scanner
    ) -> Batch:
        self.sessions.check(place.session)
        if request.lease_minutes == 0:
            return self._end(place, request.token)
        lease = self.sessions.grant(place.session, request.lease_minutes)
        limits = request_limits(request, Limits(place.messages, place.time_range_ms))
        query = self._query(place.kind, place.query)
        asked = Asked(
            place.channel,
            identity,
            place.session,
            query,
            limits,
            request,
            scanner,
            lease,
            place.handback,
        )
        events = await self._events_of(asked, place)
        if events is None:
            looked = (place.after, place.after)
            return await self._answer(asked, (), request.token, looked, wait_ms=0, gone=True)
        wait_ms = 0 if events else min(request.wait_ms, LONGEST_WAIT_MS)
        looked = (place.after, place.reach)
        return await self._answer(asked, events, request.token, looked, wait_ms=wait_ms)

    async def _events_of(self, asked: Asked, place: Place) -> tuple[StoredEvent, ...] | None:
        """The messages of a token, taken when that was asked for; None when some are gone."""
        if place.count == 0 or (asked.request.seen and not asked.request.take):
            return ()
        if not asked.request.take:
            events = await self._recall(asked, place)
            if not events or not self._leaving(asked, events):
                return events
        async with self.taker.alone(asked.name):
            events = await self._recall_and_take(asked, place)
        return () if asked.request.seen and events is not None else events

    async def _recall_and_take(self, asked: Asked, place: Place) -> tuple[StoredEvent, ...] | None:
        token = asked.request.token
        while True:
            await self.taker.taken_now(asked.name)
            events = await self._recall(asked, place)
            if events is None or await self.taker.has_taken(asked.name, token):
                return events
            leaving = self._leaving(asked, events)
            if await self.taker.take(asked.name, leaving, token, asked.lease_minutes):
                return events

    async def _recall(self, asked: Asked, place: Place) -> tuple[StoredEvent, ...] | None:
        own = await self.taker.positions_of(asked.name, asked.request.token)
        events = await asked.scanner.matches_in(asked.query, place.after, place.through)
        if own:
            found = {stored.position: stored for stored in events}
            found |= {stored.position: stored for stored in await asked.scanner.at(own)}
            events = tuple(found[position] for position in sorted(found))
        return events if len(events) == place.count else None

    def _leaving(self, asked: Asked, events: tuple[StoredEvent, ...]) -> tuple[StoredEvent, ...]:
        """What no other request will see: all of a take, else what is given out only once. What an
        interceptor hides from this reader was not given out.
        """
        if asked.request.take:
            return events
        leaving = given_once(events, self._channels.ttl_of(asked.name))
        delivery = asked.scanner.delivery
        if not leaving or not delivery.is_intercepted:
            return leaving
        given = {stored.position for stored in delivery.given(asked.query, leaving)}
        return tuple(stored for stored in leaving if stored.position in given)

    def _end(self, place: Place, token: str) -> Batch:
        self.sessions.end(place.session)
        return Batch(events=(), current_token=token, lease_minutes=0, handback=place.handback)

    # --- both -------------------------------------------------------------------------------------

    async def _answer(
        self,
        asked: Asked,
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
        look = asked.scanner.choose_or_wait if gone else asked.scanner.foresee_or_choose
        following = await look(asked.query, asked.limits, reach, wait_ms)
        is_more = following.count > 0 or not following.at_end
        given = asked.scanner.delivery.given(asked.query, events)
        given = await self._shown(asked.name, given, asked.query, asked.identity)
        return Batch(
            events=tuple(given),
            current_token=token,
            next_token=self.sessions.token(asked, following) if is_more else None,
            lease_minutes=asked.lease_minutes,
            ttl_ms=batch_ttl(events, self._channels.ttl_of(asked.name), self._clock.now_ms()),
            gone=gone,
            handback=asked.handback,
            gaps=asked.scanner.gaps(asked.query, since, following.after),
        )

    async def _shown(
        self, name: str, given: list[StoredEvent], query: Query, identity: str
    ) -> list[StoredEvent]:
        """Messages in the words of the query's interpretation, if it names one."""
        words = interpretation_of(query)
        if not words or self.present is None:
            return given
        return await self.present(name, given, words, identity)

    def _leased_now(self, taken: Taken) -> Callable[[int], bool]:
        now_ms = self.taker.now_ms()
        return lambda position: taken.leases.is_leased(position, now_ms)

    def _delivery(self, name: str, request: Request, identity: str) -> Delivery:
        return Delivery(lambda: deliver_to(self._channels, name, identity), takes=request.take)

    def _query(self, kind: str, given: Any) -> Query:
        return make_query(kind, given, self.views, self.scripts)
