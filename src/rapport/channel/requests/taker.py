"""Taking messages of a node's channels: for good by a token, or leased to workers. [CH-2, CH-14]

`Taker` serialises takes per channel and makes them durable before messages are delivered: a kill
before the write leaves the messages to the next taker, a kill after it leaves them to the token
that took them. `LeasedTakes` adds leases, acks, redelivery and dead letters on top: neither a
killed worker nor a killed node loses a message, and an acked one is never redelivered.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from rapport.channel.dead_letters import append_dead_letter
from rapport.channel.interceptors.reader_view import DeliveringChannels, ReaderDelivery
from rapport.channel.query.query_kinds import Query
from rapport.channel.requests.leases import (
    Answers,
    MessageLease,
    Settlement,
    SettlementResult,
    positions_of,
)
from rapport.channel.requests.request import (
    LONGEST_LEASE_MS,
    LONGEST_WAIT_MS,
    MOST_BYTES,
    BatchLimits,
    Request,
    request_limits,
)
from rapport.channel.requests.scanner import MessageSet, Scanner, matching
from rapport.channel.requests.takes import (
    AnyRecord,
    LeaseRecord,
    SharedTakes,
    Take,
    TakenMessages,
    TookRecord,
    load_taken,
    rows_before,
    runs_of,
    summary_of,
)
from rapport.channel.requests.tokens import token_digest
from rapport.core.errors import ChannelUnavailable, InvalidInput
from rapport.core.event import Gap, StoredEvent
from rapport.kernel.clock import Clock, ClockJumpGuard
from rapport.kernel.tasks import first_of
from rapport.store.base import AppendConflict, Change, LogStore, RecordStore, shared_log_of

_MINUTE_MS = 60_000
_ROWS_AT_ONCE = 100
T = TypeVar("T")
READER = "take"
"""Reader name in dead letters of messages whose tries are used up."""
MOST_ANSWERS = 10_000
"""Acks, naks and renewals in one request."""
_MOST_FLOORS = 1_000
_LOOK_AGAIN_MS = 1_000
"""How often a waiting worker checks for messages that workers at other nodes returned."""
_LEASE_BYTES = 8


class SourceChannels(DeliveringChannels, Protocol):
    clock: Clock
    log: LogStore
    records: RecordStore
    side_reach: dict[str, int]
    """Last known positions of side logs."""

    async def off_loop(self, work: Callable[[], T]) -> T:
        """Runs work that may wait for a disk; raises ChannelUnavailable when the disk refuses."""

    def ttl_of(self, name: str) -> int:
        """The channel's time to live; -1 when it sets none."""


class Taker:
    """The taken messages of every channel of a node. All calls belong to one event loop.

    Where several nodes write a log, takes are records in a side log that all of them read;
    elsewhere they are in the node's records.
    """

    def __init__(self, channels: SourceChannels) -> None:
        self._channels = channels
        self._time = ClockJumpGuard(channels.clock)
        self._taken: dict[str, TakenMessages] = {}
        self._shared: dict[str, SharedTakes] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._returned: dict[str, asyncio.Event] = {}

    def exclusive(self, channel: str) -> asyncio.Lock:
        """While held, no other request of this node takes from the channel."""
        return self._locks.setdefault(channel, asyncio.Lock())

    async def taken(self, channel: str) -> TakenMessages:
        """The taken messages of a channel. The records are read once; takes of other nodes are
        known a moment later.
        """
        if channel not in self._taken:
            loaded = await self._channels.off_loop(
                lambda: load_taken(self._channels.records, channel)
            )
            self._taken.setdefault(channel, loaded)
            log = shared_log_of(self._channels.log, channel)
            if log is not None and channel not in self._shared:
                self._shared[channel] = SharedTakes(log, channel)
                await self._read_on(channel)
                await self._bring_along(channel)
        shared = self._shared.get(channel)
        if shared is not None and self._channels.side_reach.get(shared.name, 0) > shared.known:
            await self._read_on(channel)
        return self._taken[channel]

    async def taken_latest(self, channel: str) -> TakenMessages:
        """The same, with the side log read to its end; for a caller that is about to take."""
        taken = await self.taken(channel)
        await self._read_on(channel)
        return taken

    async def positions_of(self, channel: str, token: str) -> tuple[int, ...] | None:
        take = (await self.taken(channel)).take_of(token_digest(token))
        return None if take is None else tuple(take.positions())

    async def take(
        self, channel: str, events: Sequence[StoredEvent], token: str, minutes: int
    ) -> bool:
        """Takes messages for a token; durable when it returns. False when another node took
        something meanwhile: then nothing is taken, and the caller chooses again. The caller holds
        `exclusive`.

        The lock is kept until the store has answered, even when the caller is cancelled.
        """
        taken = self._taken[channel]
        positions, digest = [stored.position for stored in events], token_digest(token)
        now_ms = self._time.now_ms()
        take = Take(now_ms + minutes * _MINUTE_MS, runs_of(positions))
        return await self._make_durable(
            channel,
            TookRecord(digest, take),
            partial(taken.changes, positions, digest, take, now_ms),
            partial(taken.confirm, positions, digest, take),
        )

    async def lease(
        self, channel: str, leases: Mapping[int, MessageLease], done: Sequence[int] = ()
    ) -> bool:
        """Leases messages or returns them, and consumes those that are done; durable when it
        returns. False as in `take`. The caller holds `exclusive`.
        """
        if not leases and not done:
            return True
        taken = self._taken[channel]
        written = await self._make_durable(
            channel,
            LeaseRecord(dict(leases), tuple(done)),
            partial(taken.lease_changes, leases, done),
            partial(taken.confirm_leases, leases, done),
        )
        if written and any(not lease.lease for lease in leases.values()):
            self._returned.pop(channel, asyncio.Event()).set()
        return written

    def returned(self, channel: str) -> asyncio.Event:
        """Set when a worker at this node returns a message of the channel next."""
        return self._returned.setdefault(channel, asyncio.Event())

    def now_ms(self) -> int:
        return self._time.now_ms()

    def is_shared(self, channel: str) -> bool:
        return channel in self._shared

    async def _make_durable(
        self,
        channel: str,
        record: TookRecord | LeaseRecord,
        changes: Callable[[], Sequence[Change]],
        confirm: Callable[[], None],
    ) -> bool:
        """Writes a take where takes are kept, to the end even when the caller is cancelled; False
        when another node was faster.
        """
        shared = self._shared.get(channel)
        if shared is not None:
            writing = asyncio.ensure_future(self._append(channel, record, self._time.now_ms()))
        else:
            writing = asyncio.ensure_future(self._write(changes()))
        cancelled = await _outlast(writing)
        if not writing.cancelled() and writing.exception() is None and shared is None:
            confirm()
        if cancelled:
            raise asyncio.CancelledError
        if writing.result():
            await self._sum_up(channel)
        return writing.result()

    # --- shared with other nodes ------------------------------------------------------------------

    async def _read_on(self, channel: str) -> None:
        shared = self._shared.get(channel)
        if shared is not None:
            shared.take_in(self._taken[channel], await self._channels.off_loop(shared.read))
            self._taken[channel].expire(self._time.now_ms())

    async def _append(self, channel: str, record: AnyRecord, now_ms: int) -> bool:
        """Appends a record to the side log; False when another node was faster."""
        shared = self._shared[channel]
        try:
            blocks = await self._channels.off_loop(lambda: shared.append(record, now_ms))
        except ChannelUnavailable as error:
            if error.code != AppendConflict.code:
                raise
            return False
        shared.take_in(self._taken[channel], blocks)
        return True

    async def _sum_up(self, channel: str) -> None:
        """Shortens a long log of takes; another node that was faster has done so, or will."""
        shared = self._shared.get(channel)
        if shared is None or not shared.is_long:
            return
        now_ms = self._time.now_ms()
        if await self._append(channel, summary_of(self._taken[channel], now_ms), now_ms):
            await self._channels.off_loop(shared.trim)

    async def _bring_along(self, channel: str) -> None:
        """Publishes the takes of a moved channel's former node to the others, once."""
        own, shared = self._taken[channel], self._shared[channel]
        if own.is_untouched():
            return
        published, anew = TakenMessages(channel), SharedTakes(shared.log, channel)
        anew.take_in(published, await self._channels.off_loop(anew.read))
        await self._read_on(channel)
        if not published.covers(own):
            now_ms = self._time.now_ms()
            if not await self._append(channel, summary_of(own, now_ms), now_ms):
                await self._bring_along(channel)

    async def forget_before(self, channel: str, position: int) -> None:
        """Drops takes of messages that are no longer stored, a bounded number at a time."""
        if channel in self._taken:
            self._taken[channel].forget_before(position)
        records = self._channels.records
        while changes := await self._channels.off_loop(
            lambda: rows_before(records, channel, position, _ROWS_AT_ONCE)
        ):
            await self._write(changes)

    async def _write(self, changes: Sequence[Change]) -> bool:
        await self._channels.off_loop(lambda: self._channels.records.apply(changes))
        return True


async def _outlast(work: asyncio.Future[bool]) -> bool:
    """Returns when the work has ended, however often the caller is cancelled; whether it was."""
    cancelled = False
    while not work.done():
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError:
            cancelled = True
    return cancelled


class LeasedMessages(msgspec.Struct, frozen=True):
    events: tuple[StoredEvent, ...]
    leases: dict[int, MessageLease]
    gaps: tuple[Gap, ...] = ()
    """Unreadable positions since the last scan."""


class _LeaseRequest(msgspec.Struct, frozen=True):
    name: str
    request: Request
    query: Query
    scanner: Scanner
    floor_key: tuple[str, str, str, str]


class LeasedTakes:
    """Leases messages and settles workers' answers. All calls belong to one event loop.

    A message is found once by its query; from then on it is known by its lease. So the scan for
    work starts behind the last scan, however many messages are leased.
    """

    def __init__(self, channels: SourceChannels, taker: Taker) -> None:
        self._channels, self._taker = channels, taker
        self._clock = channels.clock
        self._floors: OrderedDict[tuple[str, str, str, str], int] = OrderedDict()
        """By channel, reader and query: nothing behind this position was scanned; every match
        before it is leased or taken.
        """

    async def take(
        self,
        name: str,
        request: Request,
        query: Query,
        *,
        identity: str,
        delivery: ReaderDelivery,
        closing: asyncio.Event | None,
    ) -> LeasedMessages:
        """The next available messages, returned ones first; leased durably. Waits for the first one
        as long as the request says.
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
        lease_request = _LeaseRequest(name, request, query, scanner, key)
        deadline = self._clock.steady_ns() + min(request.wait_ms, LONGEST_WAIT_MS) * 1_000_000
        while True:
            returned = self._taker.returned(name)
            async with self._taker.exclusive(name):
                work, reached = await self._lease_next(lease_request)
            left_ms = (deadline - self._clock.steady_ns()) // 1_000_000
            is_closing = closing is not None and closing.is_set()
            if work.events or work.gaps or left_ms <= 0 or is_closing:
                return work
            await self._wait(lease_request, reached, left_ms, returned)

    async def settle(self, name: str, answers: Answers) -> SettlementResult:
        """Applies a worker's answers; durable when it returns. Acks, naks and renewals of a lease
        that ended count while no other worker has the message. Raises InvalidInput for malformed
        ids.
        """
        _check(answers)
        answers = msgspec.structs.replace(answers, lease_ms=min(answers.lease_ms, LONGEST_LEASE_MS))
        positions = positions_of(answers)
        async with self._taker.exclusive(name):
            settlement = await self._settled(name, answers, positions)
            exhausted = [at for at, lease in settlement.returned.items() if lease.is_exhausted]
            await self._dead_letter(name, await self._taker.taken(name), exhausted)
        return SettlementResult(
            acked=len(settlement.acked) + settlement.known,
            returned=len(settlement.returned),
            buried=len(exhausted),
            stale=settlement.stale,
            renewed=len(settlement.renewed),
        )

    # --- looking for work -------------------------------------------------------------------------

    async def _lease_next(self, lease_request: _LeaseRequest) -> tuple[LeasedMessages, MessageSet]:
        while True:
            taken = await self._taker.taken_latest(lease_request.name)
            now_ms = self._taker.now_ms()
            limits = request_limits(lease_request.request)
            again = await self._take_returned(lease_request, taken, limits, now_ms)
            fresh = await self._scan_on(lease_request, limits, again)
            events = (*again, *fresh.events)
            leases = taken.leases.granted(
                [stored.position for stored in events],
                secrets.token_hex(_LEASE_BYTES),
                until_ms=now_ms + min(lease_request.request.lease_ms, LONGEST_LEASE_MS),
                max_tries=lease_request.request.max_tries,
            )
            if await self._taker.lease(lease_request.name, leases):
                floor = self._floors.get(lease_request.floor_key, 0)
                self._move_floor(lease_request.floor_key, fresh.reach)
                gaps = lease_request.scanner.gaps(lease_request.query, floor, fresh.reach)
                return LeasedMessages(events, leases, gaps), fresh

    async def _take_returned(
        self, lease_request: _LeaseRequest, taken: TakenMessages, limits: BatchLimits, now_ms: int
    ) -> list[StoredEvent]:
        """Matching messages whose lease has ended, oldest first. Those whose tries are used up are
        dead-lettered first, matching or not.
        """
        due = taken.leases.due(now_ms)
        await self._dead_letter(
            lease_request.name, taken, [at for at in due if _is_exhausted(taken, at)]
        )
        query = lease_request.scanner.delivery.seen(lease_request.query)
        found: list[StoredEvent] = []
        size = 0
        for first, last in runs_of(at for at in due if at in taken.leases):
            at = first - 1
            while at < last and len(found) < limits.messages and size < MOST_BYTES:
                part = await self._kept(lease_request.name, at + 1, min(last, at + limits.messages))
                at = min(last, at + limits.messages)
                found += matching(query, part, None)
                size += sum(len(stored.event.data) for stored in part)
        return found[: limits.messages]

    async def _scan_on(
        self, lease_request: _LeaseRequest, limits: BatchLimits, again: Sequence[StoredEvent]
    ) -> MessageSet:
        """Matches behind the last scan; none when enough messages were returned."""
        after = self._floors.get(lease_request.floor_key, 0)
        wanted = limits.messages - len(again)
        if wanted <= 0:
            return MessageSet((), after, after, after, at_end=True)
        limits = BatchLimits(wanted, data_bytes=limits.data_bytes)
        while True:
            chosen = await lease_request.scanner.choose(
                lease_request.query, limits, after, reads_ahead=False
            )
            if chosen.events or chosen.at_end:
                return chosen
            after = chosen.reach

    async def _wait(
        self,
        lease_request: _LeaseRequest,
        reached: MessageSet,
        left_ms: int,
        returned: asyncio.Event,
    ) -> None:
        leases = (await self._taker.taken(lease_request.name)).leases
        due_ms = leases.next_due_ms()
        if due_ms is not None:
            left_ms = min(left_ms, max(due_ms - self._taker.now_ms(), 1))
        if self._taker.is_shared(lease_request.name):
            left_ms = min(left_ms, _LOOK_AGAIN_MS)
        await first_of(
            lease_request.scanner.wait(lease_request.query, reached, left_ms), returned.wait()
        )

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
            taken = await self._taker.taken_latest(name)
            done = {position: taken.holds(position) for position in positions}
            settlement = taken.leases.decide(answers, done, self._taker.now_ms())
            leases = settlement.returned | settlement.renewed
            if await self._taker.lease(name, leases, settlement.acked):
                return settlement

    async def _dead_letter(self, name: str, taken: TakenMessages, positions: Sequence[int]) -> None:
        """Dead-letters messages whose tries are used up, and then consumes them. A kill in between
        repeats the dead letter, which is deduplicated.
        """
        for position in sorted(positions):
            lease = taken.leases.get(position)
            if lease is None:
                continue
            for stored in await self._kept(name, position, position):
                await append_dead_letter(
                    self._channels, name, READER, stored, lease.failure(), lease.tries
                )
        await self._finish(name, positions)

    async def _finish(self, name: str, positions: Sequence[int]) -> None:
        while positions and not await self._taker.lease(name, {}, positions):
            taken = await self._taker.taken_latest(name)
            positions = [one for one in positions if one in taken.leases]


def _is_exhausted(taken: TakenMessages, position: int) -> bool:
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
