"""Carries deliveries from `output.<adapter>` to the adapter and outcomes back to `control`.
[CO-4, CO-10]

One dispatch per adapter, so a medium that is down leaves the others alone. Peers are served side
by side, one peer's messages in order. Retries are the engine's (durable timers): a failing address
never blocks the queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial

import msgspec

from rapport.channel.channel import Channels, Subscription
from rapport.channel.dead_letter_replay import settled
from rapport.channel.dead_letters import DEAD_LETTERS, bury
from rapport.communication.adapters.base import Delivery, Failed, Outcome, OutputAdapter
from rapport.communication.adapters.marks import Marks
from rapport.communication.adapters.outcomes import (
    OutcomeData,
    outcome_data,
    outcome_event,
    unknown_data,
)
from rapport.communication.aside import run_aside
from rapport.communication.returned import Returned, told
from rapport.core.errors import InvalidInput
from rapport.core.event import StoredEvent
from rapport.core.times import format_duration
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import end_firmly
from rapport.kernel.telemetry import get_logger
from rapport.store.base import RecordStore

_BATCH = 100
_COMMIT_EVERY = 50
_MOST_STARTS = 10
"""A delivery during which the process ended this often is taken for the reason and given up."""

_log = get_logger(__name__)


class Dispatch:
    """Holds one adapter's place in its channel and a lane of waiting deliveries per peer."""

    def __init__(
        self,
        adapter: OutputAdapter,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        *,
        concurrency: int = 16,
        deadline_ms: int = 15_000,
        in_flight: int = 1_000,
    ) -> None:
        """`concurrency` peers are served at once, `in_flight` deliveries are read ahead at most."""
        self.channel, self.reader = f"output.{adapter.name}", f"adapter.{adapter.name}"
        self._adapter, self._channels, self._clock = adapter, channels, clock
        self._marks = Marks(adapter.name, records)
        self._slots = asyncio.Semaphore(concurrency)
        self._deadline_ms, self._limit = deadline_ms, in_flight
        self._subscription: Subscription | None = None
        self._committing = asyncio.Lock()
        self._records = records
        self._returned = Returned(channels, records, self.reader, (self.channel,))

    async def run(self) -> None:
        """Works until cancelled; started again it goes on where the last commit stood."""
        await self.open()
        source = self._channels.channel(self.channel)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._take_letters_back())
            while True:
                if not await self._read(group, min(_BATCH, await self._room())):
                    await source.wait_after(self._read_until)

    async def open(self) -> None:
        """Takes up the durable place; deliveries after it are looked at again."""
        self._subscription = await self._channels.subscribe(self.channel, self.reader)
        self._read_until = self._committed = self._subscription.position
        self._lanes: dict[str, deque[StoredEvent]] = {}
        self._open: dict[int, bool] = {}
        self._freed = asyncio.Event()
        await run_aside(partial(self._marks.forget_until, self._committed))
        await self._returned.open()

    async def settle(self) -> int:
        """Sends all that is there now and waits for it; returns how many. For tests, stopping."""
        count = 0
        async with asyncio.TaskGroup() as group:
            while read := await self._read(group, _BATCH):
                count += read
        return count

    # --- lanes ---

    async def _read(self, group: asyncio.TaskGroup, limit: int) -> int:
        source = self._channels.channel(self.channel)
        batch = await source.read_after(self._read_until, limit=limit)
        self._spread(batch, group)
        return len(batch)

    def _spread(self, batch: Sequence[StoredEvent], group: asyncio.TaskGroup) -> None:
        for stored in batch:
            self._read_until = stored.position
            self._open[stored.position] = False
            peer = _peer_of(stored)
            if peer in self._lanes:
                self._lanes[peer].append(stored)
            else:
                self._lanes[peer] = deque([stored])
                group.create_task(self._serve(peer))

    async def _serve(self, peer: str) -> None:
        lane = self._lanes[peer]
        while lane:
            async with self._slots:
                await self._carry(lane.popleft())
        del self._lanes[peer]

    async def _room(self) -> int:
        """How many more may be read ahead; waits until it is at least one."""
        while len(self._open) >= self._limit:
            self._freed.clear()
            await self._freed.wait()
        return self._limit - len(self._open)

    # --- dead letters that come back ---

    async def _take_letters_back(self) -> None:
        while True:
            while await self.take_back():
                continue
            await self._returned.wait()

    async def take_back(self) -> int:
        """Carries what was buried and is on its way back, at least once; returns how many."""
        returned = await self._returned.waiting()
        for replay, stored in returned:
            error = await self._carry_again(stored)
            note = told(replay, error, self._clock.now_ms())
            await self._channels.channel(DEAD_LETTERS).append([note])
            changes = settled(replay, "" if error else "replayed")
            await run_aside(partial(self._records.apply, changes))
        return len(returned)

    async def _carry_again(self, stored: StoredEvent | None) -> str:
        """What went wrong; empty when it was carried."""
        if stored is None:
            return "the event is in no log any more"
        try:
            delivery = Delivery.from_event(stored.event)
        except InvalidInput as error:
            return error.message
        await self._carry_delivery(stored.position, delivery)
        return ""

    # --- one delivery ---

    async def _carry(self, stored: StoredEvent) -> None:
        try:
            delivery = Delivery.from_event(stored.event)
        except InvalidInput as error:
            # Only the engine writes here; what is not a delivery has no sender to tell.
            await bury(self._channels, self.channel, self.reader, stored, error, attempts=1)
        else:
            await self._carry_delivery(stored.position, delivery)
        await self._finish(stored.position)

    async def _carry_delivery(self, position: int, delivery: Delivery) -> None:
        before = await run_aside(partial(self._marks.begin, position))
        data = before.outcome
        if data is None:
            if before.starts:
                await self._report(delivery, unknown_data(delivery), before.starts)
            data = outcome_data(delivery, await self._try(delivery, before.starts))
            await run_aside(partial(self._marks.end, position, data))
        await self._report(delivery, data)

    async def _try(self, delivery: Delivery, starts: int) -> Outcome:
        if delivery.expires and delivery.expires <= self._clock.now_ms():
            return Failed("too late: its time to live is over", retry=False)
        if starts >= _MOST_STARTS:
            return Failed(f"the node stopped {starts} times while sending it", retry=False)
        return await self._send(delivery)

    async def _send(self, delivery: Delivery) -> Outcome:
        """Sends within the deadline; a fault of the adapter is a failure like any other."""
        sending = asyncio.ensure_future(self._adapter.send(delivery))
        deadline = asyncio.ensure_future(self._clock.sleep(self._deadline_ms))
        try:
            await asyncio.wait({sending, deadline}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                return sending.result()
            return Failed(f"no answer within {format_duration(self._deadline_ms)}", retry=True)
        except Exception as error:
            _log.error("adapter failed", adapter=self._adapter.name, error=repr(error))
            return Failed(f"the adapter failed: {type(error).__name__}", retry=True)
        finally:
            await end_firmly(sending, deadline)

    async def _report(self, delivery: Delivery, data: OutcomeData, starts: int = 0) -> None:
        event = outcome_event(delivery, data, now_ms=self._clock.now_ms(), starts=starts)
        await self._channels.channel("control").append([event])

    async def _finish(self, position: int) -> None:
        """Commits as far as everything before is done, too: when nothing is left, or now and then.

        The cursor may lag, because the marks tell a restart what has ended already.
        """
        self._open[position] = True
        while (first := next(iter(self._open), None)) is not None and self._open[first]:
            del self._open[first]
        self._freed.set()
        async with self._committing:
            done_until = next(iter(self._open), self._read_until + 1) - 1
            ahead = done_until - self._committed
            if ahead >= _COMMIT_EVERY or (ahead > 0 and not self._open):
                await self._commit(done_until)

    async def _commit(self, done_until: int) -> None:
        assert self._subscription is not None, "open() comes first"
        await self._subscription.commit(done_until)
        self._committed = done_until
        await run_aside(partial(self._marks.forget_until, done_until))


class _Lane(msgspec.Struct):
    """The one field that says which lane a delivery belongs to."""

    peer: str = ""


def _peer_of(stored: StoredEvent) -> str:
    try:
        lane: _Lane = stored.event.payload_as(_Lane)
    except InvalidInput:
        return ""  # `_carry` says what is wrong with it
    return lane.peer
