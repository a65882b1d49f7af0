"""The source side of direct mode: queries, tokens, leases and waiting over a buffer. [CH-8, CH-2,
CH-3]

Answers as a channel in memory does, with the same tokens, and needs none of its stores. What it
lacks is `take`: without a store, what was taken could not be kept from being handed out twice.
"""

from __future__ import annotations

import asyncio
import secrets

from rapport.channel.agents.direct_buffer import DirectBuffer
from rapport.channel.finding.scanning import Scanner
from rapport.channel.query.kinds import Query, make_query
from rapport.channel.requesting.batch import (
    LONGEST_WAIT_MS,
    Batch,
    Limits,
    Request,
    check_request,
    request_limits,
)
from rapport.channel.requesting.lease import Leases
from rapport.channel.requesting.selection import Chosen
from rapport.channel.requesting.taking import Taken
from rapport.channel.requesting.tokens import Place, Tokens, identity_digest
from rapport.core.errors import UnknownName, Unsupported
from rapport.core.event import StoredEvent
from rapport.kernel.clock import Clock

_SESSION_BYTES = 8


class DirectRequests:
    """Answers requests for one buffer. All calls belong to one event loop.

    Tokens are signed with a secret of this process: after a restart they are refused, as the events
    they named are no more.
    """

    def __init__(self, buffer: DirectBuffer, clock: Clock, closing: asyncio.Event) -> None:
        self._buffer, self._clock = buffer, clock
        self._leases = Leases()
        self._tokens = Tokens(secrets.token_bytes(32))
        self._scanner = Scanner(buffer, clock, Taken(buffer.name), closing=closing)

    async def request(self, name: str, request: Request, *, identity: str) -> Batch:
        """See MessageSource.request; raises Unsupported for `take`."""
        check_request(request)
        if name != self._buffer.name:
            raise UnknownName("channel", name, [self._buffer.name])
        if request.take:
            raise Unsupported(
                "take", "a direct source", hint="put a node in between, or ask without take"
            )
        if request.interpretation:
            raise Unsupported("an interpretation", "a direct source", hint="put a node in between")
        if request.token:
            place = self._tokens.read(request.token, channel=name, identity=identity)
            return await self._go_on(place, request)
        return await self._begin(request, identity)

    async def _begin(self, request: Request, identity: str) -> Batch:
        query, limits = make_query(request.kind, request.query), request_limits(request)
        session = secrets.token_bytes(_SESSION_BYTES)
        start = 0 if request.from_start else self._buffer.last_position()
        wait_ms = min(request.wait_ms, LONGEST_WAIT_MS)
        lease = self._leases.grant(session, request.lease_minutes, self._now_ms())
        chosen = await self._scanner.choose_or_wait(query, limits, start, wait_ms)
        place = Place(
            channel=self._buffer.name,
            identity=identity_digest(identity),
            session=session,
            kind=query.kind,
            query=query.text,
            after=chosen.after,
            through=chosen.through,
            count=len(chosen.events),
            reach=chosen.reach,
            messages=limits.messages,
            time_range_ms=limits.time_range_ms,
            handback=request.handback,
        )
        token = self._tokens.write(place)
        return await self._answer(place, token, query, limits, chosen.events, lease)

    async def _go_on(self, place: Place, request: Request) -> Batch:
        self._leases.check(place.session, self._now_ms())
        if request.lease_minutes == 0:
            self._leases.end(place.session)
            return Batch(events=(), current_token=request.token, handback=place.handback)
        lease = self._leases.grant(place.session, request.lease_minutes, self._now_ms())
        query = make_query(place.kind, place.query)
        limits = request_limits(request, Limits(place.messages, place.time_range_ms))
        events: tuple[StoredEvent, ...] = ()
        if place.count and not request.seen:
            events = await self._scanner.matches_in(query, place.after, place.through)
            if len(events) != place.count:
                return await self._answer(place, request.token, query, limits, (), lease, gone=True)
        wait_ms = 0 if events else min(request.wait_ms, LONGEST_WAIT_MS)
        return await self._answer(
            place, request.token, query, limits, events, lease, wait_ms=wait_ms
        )

    async def _answer(
        self,
        place: Place,
        token: str,
        query: Query,
        limits: Limits,
        events: tuple[StoredEvent, ...],
        lease: int,
        *,
        wait_ms: int = 0,
        gone: bool = False,
    ) -> Batch:
        """The batch, with the token of the set after it when there is one."""
        reach = place.after if gone else place.reach
        following = await self._scanner.choose_or_wait(query, limits, reach, wait_ms)
        is_more = bool(following.events) or not following.at_end
        return Batch(
            events=events,
            current_token=token,
            next_token=self._tokens.write(_moved(place, following, limits)) if is_more else None,
            lease_minutes=lease,
            gone=gone,
            handback=place.handback,
        )

    def _now_ms(self) -> int:
        return self._clock.steady_ns() // 1_000_000


def _moved(place: Place, chosen: Chosen, limits: Limits) -> Place:
    """The place of the set that follows."""
    return Place(
        channel=place.channel,
        identity=place.identity,
        session=place.session,
        kind=place.kind,
        query=place.query,
        after=chosen.after,
        through=chosen.through,
        count=len(chosen.events),
        reach=chosen.reach,
        messages=limits.messages,
        time_range_ms=limits.time_range_ms,
        handback=place.handback,
    )
