"""Leased takes of the channels of a node: workers that share a queue, acks, redelivery, dead
letters. [CH-2, CH-14]

What is leased stands where takes stand (see takers.py) and is durable before it is given out; so a
killed worker, or a killed node, loses nothing, and what was acked never comes again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from rapport.channel.dead.letters import bury
from rapport.channel.delivering import Delivery
from rapport.channel.finding.scanning import Scanner
from rapport.channel.query.kinds import Query
from rapport.channel.requesting.batch import (
    LONGEST_LEASE_MS,
    LONGEST_WAIT_MS,
    MOST_BYTES,
    Limits,
    Request,
    request_limits,
)
from rapport.channel.requesting.message_leases import (
    Answers,
    MessageLease,
    Settled,
    Settlement,
    positions_of,
)
from rapport.channel.requesting.selection import Chosen, matching
from rapport.channel.requesting.takers import SourceChannels, Taker
from rapport.channel.requesting.taking import Taken, runs_of
from rapport.core.errors import InvalidInput
from rapport.core.event import Gap, StoredEvent
from rapport.kernel.tasks import first_of

READER = "take"
"""In whose name messages that were tried too often are dead-lettered."""
MOST_ANSWERS = 10_000
"""Acks, naks and renewals in one request."""
_MOST_FLOORS = 1_000
_LOOK_AGAIN_MS = 1_000
"""How soon a waiting worker looks again for what workers at other nodes gave back."""
_LEASE_BYTES = 8


class LeasedWork(msgspec.Struct, frozen=True):
    """Messages that a worker was given, and their leases by position."""

    events: tuple[StoredEvent, ...]
    leases: dict[int, MessageLease]
    gaps: tuple[Gap, ...] = ()
    """What could not be read behind what was looked at before."""


class _Asked(msgspec.Struct, frozen=True):
    name: str
    request: Request
    query: Query
    scanner: Scanner
    floor_key: tuple[str, str, str, str]


class LeasedTakes:
    """Gives out messages for a time and settles what workers answer. All calls belong to one event
    loop.

    A message is found once by its query; from then on it is known by its lease. So looking for work
    begins behind what was looked at before, however many messages are under way.
    """

    def __init__(
        self, channels: SourceChannels, taker: Taker, chance: Callable[[int], bytes]
    ) -> None:
        self._channels, self._taker, self._chance = channels, taker, chance
        self._clock = channels.parts.clock
        self._floors: OrderedDict[tuple[str, str, str, str], int] = OrderedDict()
        """By channel, reader and query: behind it nothing was looked at; before it, whatever
        matches is leased or taken.
        """

    async def take(
        self,
        name: str,
        request: Request,
        query: Query,
        *,
        identity: str,
        delivery: Delivery,
        closing: asyncio.Event | None,
    ) -> LeasedWork:
        """The next messages that nobody has, those that came back first; leased durably. Waits for
        the first one as long as the request says.
        """
        taken = await self._taker.taken(name)
        scanner = Scanner(
            self._channels.channel(name),
            self._clock,
            taken,
            closing=closing,
            delivery=delivery,
            is_leased=lambda position: position in taken.leases,
        )
        key = (name, identity, query.kind, query.text)
        asked = _Asked(name, request, query, scanner, key)
        deadline = self._clock.steady_ns() + min(request.wait_ms, LONGEST_WAIT_MS) * 1_000_000
        while True:
            returned = self._taker.returned(name)
            async with self._taker.alone(name):
                work, reached = await self._lease_next(asked)
            left_ms = (deadline - self._clock.steady_ns()) // 1_000_000
            is_closing = closing is not None and closing.is_set()
            if work.events or work.gaps or left_ms <= 0 or is_closing:
                return work
            await self._wait(asked, reached, left_ms, returned)

    async def settle(self, name: str, answers: Answers) -> Settled:
        """Carries out what a worker answered; durable when it returns. Acks, naks and renewals of a
        lease that ended count as long as nobody else has the message. Raises InvalidInput for ids
        that are none.
        """
        _check(answers)
        answers = msgspec.structs.replace(answers, lease_ms=min(answers.lease_ms, LONGEST_LEASE_MS))
        positions = positions_of(answers)
        async with self._taker.alone(name):
            settlement = await self._settled(name, answers, positions)
            exhausted = [at for at, lease in settlement.returned.items() if lease.is_exhausted]
            await self._bury(name, await self._taker.taken(name), exhausted)
        return Settled(
            acked=len(settlement.acked) + settlement.known,
            returned=len(settlement.returned),
            buried=len(exhausted),
            stale=settlement.stale,
            renewed=len(settlement.renewed),
        )

    # --- looking for work -------------------------------------------------------------------------

    async def _lease_next(self, asked: _Asked) -> tuple[LeasedWork, Chosen]:
        """Leases what is free now; says how far was looked."""
        while True:
            taken = await self._taker.taken_now(asked.name)
            now_ms = self._taker.now_ms()
            limits = request_limits(asked.request)
            again = await self._come_back(asked, taken, limits, now_ms)
            fresh = await self._look_on(asked, limits, again)
            events = (*again, *fresh.events)
            leases = taken.leases.granted(
                [stored.position for stored in events],
                self._chance(_LEASE_BYTES).hex(),
                until_ms=now_ms + min(asked.request.lease_ms, LONGEST_LEASE_MS),
                max_tries=asked.request.max_tries,
            )
            if await self._taker.lease(asked.name, leases):
                floor = self._floors.get(asked.floor_key, 0)
                self._move_floor(asked.floor_key, fresh.reach)
                gaps = asked.scanner.gaps(asked.query, floor, fresh.reach)
                return LeasedWork(events, leases, gaps), fresh

    async def _come_back(
        self, asked: _Asked, taken: Taken, limits: Limits, now_ms: int
    ) -> list[StoredEvent]:
        """Messages whose lease has ended and that the query wants, oldest first. Those that were
        tried too often are buried first, whatever the query wants.
        """
        due = taken.leases.due(now_ms)
        await self._bury(asked.name, taken, [at for at in due if _is_exhausted(taken, at)])
        query = asked.scanner.delivery.seen(asked.query)
        found: list[StoredEvent] = []
        size = 0
        for first, last in runs_of(at for at in due if at in taken.leases):
            at = first - 1
            while at < last and len(found) < limits.messages and size < MOST_BYTES:
                part = await self._kept(asked.name, at + 1, min(last, at + limits.messages))
                at = min(last, at + limits.messages)
                found += matching(query, part, None)
                size += sum(len(stored.event.data) for stored in part)
        return found[: limits.messages]

    async def _look_on(self, asked: _Asked, limits: Limits, again: Sequence[StoredEvent]) -> Chosen:
        """Matches behind what was looked at before; none when what came back is enough."""
        after = self._floors.get(asked.floor_key, 0)
        wanted = limits.messages - len(again)
        if wanted <= 0:
            return Chosen((), after, after, after, at_end=True)
        limits = Limits(wanted, data_bytes=limits.data_bytes)
        while True:
            chosen = await asked.scanner.choose(asked.query, limits, after, reads_ahead=False)
            if chosen.events or chosen.at_end:
                return chosen
            after = chosen.reach

    async def _wait(
        self, asked: _Asked, reached: Chosen, left_ms: int, returned: asyncio.Event
    ) -> None:
        """Until a message comes, one is given back, a lease ends, or the time is over."""
        leases = (await self._taker.taken(asked.name)).leases
        due_ms = leases.next_due_ms()
        if due_ms is not None:
            left_ms = min(left_ms, max(due_ms - self._taker.now_ms(), 1))
        if self._taker.is_shared(asked.name):
            left_ms = min(left_ms, _LOOK_AGAIN_MS)
        await first_of(asked.scanner.wait(asked.query, reached, left_ms), returned.wait())

    def _move_floor(self, key: tuple[str, str, str, str], reach: int) -> None:
        self._floors[key] = max(reach, self._floors.get(key, 0))
        self._floors.move_to_end(key)
        if len(self._floors) > _MOST_FLOORS:
            self._floors.popitem(last=False)

    async def _kept(self, name: str, first: int, last: int) -> list[StoredEvent]:
        """Messages between two positions; those that are no longer kept are done."""
        channel = self._channels.channel(name)
        found: list[StoredEvent] = []
        after = first - 1
        while after < last and (page := await channel.read_after(after, limit=last - after)):
            found += [stored for stored in page if stored.position <= last]
            after = page[-1].position
        there = {stored.position for stored in found}
        taken = await self._taker.taken(name)
        gone = [one for one in range(first, last + 1) if one not in there and one in taken.leases]
        await self._finish(name, gone)
        return [stored for stored in found if not taken.holds(stored.position)]

    # --- settling ---------------------------------------------------------------------------------

    async def _settled(self, name: str, answers: Answers, positions: Sequence[int]) -> Settlement:
        while True:
            taken = await self._taker.taken_now(name)
            done = {position: taken.holds(position) for position in positions}
            settlement = taken.leases.decide(answers, done, self._taker.now_ms())
            leases = settlement.returned | settlement.renewed
            if await self._taker.lease(name, leases, settlement.acked):
                return settlement

    async def _bury(self, name: str, taken: Taken, positions: Sequence[int]) -> None:
        """Messages that may not be tried again become dead letters, and then are done. A kill in
        between buries them once more, which changes nothing.
        """
        for position in sorted(positions):
            lease = taken.leases.get(position)
            if lease is None:
                continue
            for stored in await self._kept(name, position, position):
                await bury(self._channels, name, READER, stored, lease.failure(), lease.tries)
        await self._finish(name, positions)

    async def _finish(self, name: str, positions: Sequence[int]) -> None:
        while positions and not await self._taker.lease(name, {}, positions):
            taken = await self._taker.taken_now(name)
            positions = [one for one in positions if one in taken.leases]


def _is_exhausted(taken: Taken, position: int) -> bool:
    lease = taken.leases.get(position)
    return lease is not None and lease.is_exhausted


def _check(answers: Answers) -> None:
    if not 0 <= answers.delay_ms <= LONGEST_LEASE_MS:
        raise InvalidInput(
            f"delay_ms cannot be {answers.delay_ms}",
            code="request.bad_field",
            hint="a number from 0 to a day",
        )
    if answers.renew and answers.lease_ms < 1:
        raise InvalidInput(
            f"a lease cannot be renewed for {answers.lease_ms} ms",
            code="request.bad_field",
            hint="lease_ms is at least 1; more than a day counts as a day",
        )
    if len(answers.ack) + len(answers.nak) + len(answers.renew) > MOST_ANSWERS:
        raise InvalidInput(
            f"more than {MOST_ANSWERS} answers in one request",
            code="request.bad_field",
            hint="send them in several requests",
        )
