"""Carries deliveries from `output.<adapter>` to the adapter and outcomes back to the engine.
[CO-4, CO-10, CO-12]

One dispatch per adapter, so a medium that is down leaves the others alone. Peers are served side
by side, one peer's messages in order. Retries are the engine's (durable timers): a failing address
never blocks the queue. A peer whose calls hang gets a circuit breaker (`breakers.py`), and a call
that takes long makes room for another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.dead.letters import DEAD_LETTERS, bury
from rapport.channel.dead.replay import settled
from rapport.communication.adapters.base import (
    Delivery,
    Failed,
    Outcome,
    OutputAdapter,
    is_repeatable,
)
from rapport.communication.adapters.outgoing.bookkeeping import Bookkeeping
from rapport.communication.adapters.outgoing.breakers import Breakers
from rapport.communication.adapters.outgoing.dispatch_settings import (
    DEFAULT_SETTINGS,
    DispatchSettings,
)
from rapport.communication.adapters.outgoing.lanes import Lanes, Waiting
from rapport.communication.adapters.outgoing.marks import Begun, Mark, Marks, Noted
from rapport.communication.adapters.outgoing.outcomes import (
    OutcomeData,
    Report,
    dropped_data,
    kept_data,
    outcome_data,
    outcomes_data,
    put_off_data,
    report_to_control,
    unknown_data,
)
from rapport.communication.adapters.outgoing.sending import Sending, TimedOut, ignore_slow
from rapport.communication.adapters.steps_watched import StepsWatched
from rapport.communication.blocking import run_blocking
from rapport.communication.dead_letter_replay import DeadLetterReplays, replay_note
from rapport.core.errors import InvalidInput
from rapport.core.event import StoredEvent
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import first_of
from rapport.store.base import RecordStore

_MOST_STARTS = 10
"""A delivery during which the process ended this often is taken for the reason and given up."""
_READ_AT_ONCE_BYTES = 8_000_000
"""About as much is read at a time, judged by the largest of the last ones."""
_READ_AHEAD = 8
"""So many times as much may be under way."""
_FIRST_READ = 100
_MOST_SLOW = 16
"""So many times as many calls as there are workers may be slow, in addition to them."""


_ASKED_AGAIN_MS = 10_000
"""What was queued longer ago is not sent before its receiver's wishes are looked at again."""
Gate = Callable[[], Awaitable[None]]
"""Returns when a call may begin."""
MayGo = Callable[[Delivery, int], bool]
"""Whether a delivery may be sent at this time, by the receiver's privacy policies of now; may
block.
"""


def never_decided(_message: str, _peer: str) -> bool:
    """Everything that waits is still to be sent."""
    return False


def cannot_recall(_message: str, _peer: str) -> bool | None:
    """Nothing is in memory."""
    return None


def always(_delivery: Delivery, _now_ms: int) -> bool:
    """Everything may be sent at any time."""
    return True


async def at_once() -> None:
    """Calls may begin at any time."""


class _Call(msgspec.Struct):
    """One call of the adapter."""

    peer: str
    """Of the first delivery; there is no other where calls may be slow."""
    is_suspect: bool
    """It is to a peer whose last call failed."""
    is_slow: bool = False


class Dispatch:
    """Holds one adapter's place in its channel and what it has read ahead."""

    def __init__(
        self,
        adapter: OutputAdapter,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        *,
        settings: DispatchSettings = DEFAULT_SETTINGS,
        report: Report | None = None,
        is_decided: Callable[[str, str], bool] = never_decided,
        recall: Callable[[str, str], bool | None] = cannot_recall,
        may_go: MayGo = always,
        gate: Gate = at_once,
    ) -> None:
        """`report` takes outcomes; None = append them to `control`. `is_decided(message, peer)`
        says that nothing more is to be sent of it to the peer; asked right before sending, in a
        thread unless `recall` knows it from memory. `may_go` is asked of what had to wait, behind a
        slow medium or while nothing ran. `gate` is passed before every call, and before it is
        marked as begun.
        """
        self.adapter = adapter
        self.channel, self.reader = f"output.{adapter.name}", f"adapter.{adapter.name}"
        self._channels, self._records, self._clock = channels, records, clock
        self._settings, self._is_decided, self._may_go = settings, is_decided, may_go
        # Without anything that decides nothing has to be looked up.
        self._recall = never_decided if is_decided is never_decided else recall
        self._gate = gate
        self._report = report or report_to_control(channels, clock)
        self._sending = Sending(adapter, clock, deadline_ms=settings.deadline_ms)
        self._returned = DeadLetterReplays(channels, records, self.reader, (self.channel,))
        self._turn = asyncio.Lock()
        self._leaving = asyncio.Event()
        self._is_open = False
        self.breakers = Breakers()
        self._suspect_calls = 0
        """Calls to suspects under way that do not take long."""
        self._slow_peers: set[str] = set()
        """Of calls under way that take long; never two of one peer."""
        self.workers = 0
        """Calls of the adapter under way."""

    @property
    def trouble(self) -> str:
        """Why the medium cannot deliver now; empty when it can, as far as is known."""
        return self._sending.trouble

    @property
    def steps(self) -> StepsWatched:
        """How often the adapter kept the event loop from turning."""
        return self._sending.steps

    async def run(self) -> None:
        """Works until cancelled or drained; started again it goes on where the last commit
        stood. Raises BrokenOff, in a group, when it is to be started again at once.
        """
        async with self._turn:
            await self.open()
            async with self._working() as group:
                letters = group.create_task(self._take_letters_back())
                while await self._read(group) or await self._wait(group):
                    continue
                letters.cancel()

    async def drain(self) -> None:
        """Sends all that is there, then ends `run`; returns when nothing is left. Works also when
        `run` does not.
        """
        self._leaving.set()
        await self.run()

    async def open(self) -> None:
        """Takes up the durable place; deliveries after it are looked at again."""
        subscription = await self._channels.subscribe(self.channel, self.reader)
        marks = None if is_repeatable(self.adapter) else Marks(self.adapter.name, self._records)
        self._book = Bookkeeping(subscription, self._report, marks)
        self._left: dict[int, Mark] = await self._book.load()
        self._read_until = subscription.position
        self._lanes = Lanes(self.breakers.suspects)
        self._largest = _READ_AT_ONCE_BYTES // _FIRST_READ
        self.workers = self._suspect_calls = 0
        self._slow_peers.clear()
        await self._returned.open()
        self._is_open = True

    def waiting(self) -> int:
        """How many wait or are under way; 0 before `open`."""
        last = self._channels.channel(self.channel).last_position()
        return last - self._book.committed if self._is_open else 0

    async def settle(self) -> int:
        """Sends all that is there now and waits for it; returns how many. For tests, stopping."""
        count = 0
        async with self._turn, self._working() as group:
            while read := await self._read(group):
                count += read
            await self._book.wait_below(1)
        return count

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[asyncio.TaskGroup]:
        async with asyncio.TaskGroup() as group:
            books = group.create_task(self._book.run())
            yield group
            books.cancel()

    # --- reading ---

    async def _read(self, group: asyncio.TaskGroup) -> int:
        """Reads on as far as there is room, waiting for it; how many it read."""
        fitting = max(_READ_AT_ONCE_BYTES // self._largest, 1)
        limit = min(self._settings.in_flight, _READ_AHEAD * fitting)
        if self._book.under_way - self._stuck() >= limit:
            # Some more than one place, so that reading does not trickle.
            await self._book.wait_for_room(limit * 3 // 4 + 1, self._stuck)
        await self._book.wait_for_room(limit, self._stuck)
        room = limit - self._book.under_way + self._stuck()
        most = min(room, fitting, self._settings.batch)
        source = self._channels.channel(self.channel)
        batch = await source.read_after(self._read_until, limit=most)
        if batch:
            await self._spread(batch, group)
        return len(batch)

    def _stuck(self) -> int:
        """How many wait behind a call that takes long."""
        return sum(map(self._lanes.waiting, self._slow_peers)) if self._slow_peers else 0

    async def _wait(self, group: asyncio.TaskGroup) -> bool:
        """Until there is more; False when there is none and we are to leave."""
        if self._leaving.is_set():
            await self._book.wait_below(1)
            return bool(await self._read(group))
        source = self._channels.channel(self.channel)
        await first_of(source.wait_after(self._read_until), self._leaving.wait())
        return True

    async def _spread(self, batch: Sequence[StoredEvent], group: asyncio.TaskGroup) -> None:
        self._read_until = batch[-1].position
        self._largest = max([len(stored.event.data) for stored in batch]) or 1
        self._book.open([stored.position for stored in batch])
        fresh: list[Waiting] = []
        for stored in batch:
            try:
                fresh.append(Waiting(stored.position, Delivery.from_event(stored.event)))
            except InvalidInput as error:
                # Only the engine writes here; what is not a delivery has no sender to tell.
                await bury(self._channels, self.channel, self.reader, stored, error, attempts=1)
                await self._book.tell([], [stored.position])
        self._lanes.put(self._unmarked(fresh) if self._left else fresh)
        self._staff(group)

    def _unmarked(self, fresh: Sequence[Waiting]) -> list[Waiting]:
        """Those that are to be sent, each with what the last process left; outcomes that it noted
        are told, perhaps again.
        """
        found = []
        for entry in fresh:
            mark = self._left.pop(entry.position, Mark(0))
            if mark.outcome is None:
                found.append(Waiting(entry.position, entry.delivery, mark.starts))
                continue
            data = kept_data(entry.delivery, mark.outcome)
            self._book.end([data], [entry.position])
        return found

    # --- workers ---

    def _staff(self, group: asyncio.TaskGroup) -> None:
        """Adds workers while something may be sent that none of them takes."""
        each = self._settings.batch if self._sending.takes_many else 1
        free = self._settings.workers - (self.workers - len(self._slow_peers))
        wanted = min(-(-self._lanes.ready // each), free)
        if self._lanes.ready_suspects:
            room = min(free - wanted, self._most_suspects - self._suspect_calls)
            wanted += max(min(self._lanes.ready_suspects, room), 0)
        for _ in range(wanted):
            self.workers += 1
            group.create_task(self._work(group))

    @property
    def _most_suspects(self) -> int:
        """Calls to suspects that may be under way: the other workers are for everybody else."""
        return max(self._settings.workers // 2, 1)

    async def _work(self, group: asyncio.TaskGroup) -> None:
        """Carries what may be sent until there is nothing, or until others do who came while a call
        was slow.
        """
        most = self._settings.batch if self._sending.takes_many else 1
        suspects = self.breakers.suspects
        try:
            while self.workers - len(self._slow_peers) <= self._settings.workers:
                taken = self._lanes.take(
                    most,
                    one_each=self._sending.one_each,
                    with_suspects=self._suspect_calls < self._most_suspects,
                )
                if not taken:
                    return
                peer = taken[0].delivery.peer
                call = _Call(peer, bool(suspects) and peer in suspects)
                self._suspect_calls += call.is_suspect
                try:
                    await self._carry(taken, partial(self._pass_by, call, group))
                finally:
                    if call.is_slow:
                        self._slow_peers.discard(call.peer)
                    self._suspect_calls -= call.is_suspect and not call.is_slow
                self._lanes.done(taken)
        finally:
            self.workers -= 1

    def _pass_by(self, call: _Call, group: asyncio.TaskGroup) -> None:
        """A call is slow: from now on others may be made beside it."""
        workers = self._settings.workers
        is_full = len(self._slow_peers) >= _MOST_SLOW * workers
        if workers == 1 or self._sending.takes_many or is_full:
            return
        call.is_slow = True
        self._slow_peers.add(call.peer)
        self._book.look_again()
        self._suspect_calls -= call.is_suspect
        self._staff(group)

    async def _carry(self, taken: Sequence[Waiting], on_slow: Callable[[], None]) -> None:
        """Sends what is still wanted and passes on what became of it; the outcomes are marked and
        told while the next ones are sent.
        """
        await self._gate()
        await self._say_unknown(taken)
        decided = await self._decided(taken)
        wanted, unwanted = self._sort_out(taken, await self._put_off(taken), decided)
        if unwanted:
            self._book.end(list(unwanted.values()), list(unwanted))
        if not wanted:
            return
        await self._book.begin(_begun(wanted))
        deliveries, positions = [e.delivery for e in wanted], [e.position for e in wanted]
        outcomes = await self._send(deliveries, on_slow)
        self._book.end(outcomes_data(deliveries, outcomes, positions), positions)

    async def _send(
        self, deliveries: Sequence[Delivery], on_slow: Callable[[], None] = ignore_slow
    ) -> list[Outcome]:
        """The outcomes, after the breakers took them; a call for many is the fault of none."""
        outcomes = await self._sending.send(deliveries, on_slow)
        if not self._sending.takes_many:
            now_ms = self._clock.now_ms()
            for delivery, outcome in zip(deliveries, outcomes, strict=True):
                timed_out = isinstance(outcome, TimedOut)
                self.breakers.note(delivery, outcome, now_ms, timed_out=timed_out)
        return outcomes

    async def _put_off(self, taken: Sequence[Waiting]) -> Collection[int]:
        """The positions of what has waited so long that quiet hours began meanwhile. A plain one is
        of somebody without any, and an action is done at any hour.
        """
        now_ms = self._clock.now_ms()
        waited = [
            entry
            for entry in taken
            if abs(now_ms - entry.delivery.queued) >= _ASKED_AGAIN_MS
            and not entry.delivery.plain
            and entry.delivery.effect is None
        ]
        if not waited or self._may_go is always:
            return ()

        def ask() -> set[int]:
            return {one.position for one in waited if not self._may_go(one.delivery, now_ms)}

        return await run_blocking(ask)

    async def _decided(self, taken: Sequence[Waiting]) -> Collection[int]:
        """The positions of what needs no sending any more. Answered from memory where that knows
        it; records are read in a thread.
        """
        found: set[int] = set()
        unknown: list[tuple[int, str, str]] = []
        for entry in taken:
            delivery = entry.delivery
            if delivery.plain:
                continue  # decided by nothing but itself
            # One to an additional receiver is decided by its own case.
            case = delivery.case or delivery.message
            known = self._recall(case, delivery.peer)
            if known:
                found.add(entry.position)
            elif known is None:
                unknown.append((entry.position, case, delivery.peer))
        if unknown:

            def look_up() -> list[int]:
                return [at for at, case, peer in unknown if self._is_decided(case, peer)]

            found.update(await run_blocking(look_up))
        return found

    def _sort_out(
        self, taken: Sequence[Waiting], put_off: Collection[int], decided: Collection[int]
    ) -> tuple[list[Waiting], dict[int, OutcomeData]]:
        """What is to be sent, and by position what became of that which is not."""
        now_ms = self._clock.now_ms()
        suspects = self.breakers.suspects
        wanted: list[Waiting] = []
        unwanted: dict[int, OutcomeData] = {}
        for entry in taken:
            delivery = entry.delivery
            if entry.position in decided:
                unwanted[entry.position] = dropped_data(delivery, entry.position)
            elif fault := _fault(entry, now_ms):
                unwanted[entry.position] = outcome_data(delivery, fault, entry.position)
            elif entry.position in put_off:
                unwanted[entry.position] = put_off_data(delivery, entry.position)
            elif suspects and (refusal := self.breakers.refusal(delivery, now_ms)):
                unwanted[entry.position] = outcome_data(delivery, refusal, entry.position)
            else:
                wanted.append(entry)
        return wanted, unwanted

    async def _say_unknown(self, taken: Sequence[Waiting]) -> None:
        """Tells of those that a process before was sending when it died: first of all, since they
        may have gone, whatever becomes of them now.
        """
        begun = [entry for entry in taken if entry.starts]
        if begun:
            await self._book.tell(
                [unknown_data(entry.delivery, entry.position, entry.starts) for entry in begun]
            )

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
            note = replay_note(replay, error, self._clock.now_ms())
            await self._channels.channel(DEAD_LETTERS).append([note])
            changes = settled(replay, "" if error else "replayed")
            await run_blocking(partial(self._records.apply, changes))
        return len(returned)

    async def _carry_again(self, stored: StoredEvent | None) -> str:
        """What went wrong; empty when it was carried."""
        if stored is None:
            return "the event is in no log any more"
        try:
            entry = Waiting(stored.position, Delivery.from_event(stored.event))
        except InvalidInput as error:
            return error.message
        await self._gate()
        decided = await self._decided([entry])
        _, unwanted = self._sort_out([entry], await self._put_off([entry]), decided)
        data = list(unwanted.values())
        if not unwanted:
            (outcome,) = await self._send([entry.delivery])
            data = [outcome_data(entry.delivery, outcome, entry.position)]
        await self._report(data)
        return ""


def _begun(wanted: Sequence[Waiting]) -> Noted:
    """What is written down before these are sent."""
    again = [Begun(entry.position, entry.starts + 1) for entry in wanted if entry.starts]
    return Noted(again, first=[entry.position for entry in wanted if not entry.starts])


def _fault(entry: Waiting, now_ms: int) -> Failed | None:
    """Why a delivery is not to be sent, or None."""
    if entry.delivery.expires and entry.delivery.expires <= now_ms:
        return Failed("too late: its time to live is over", retry=False)
    if entry.starts >= _MOST_STARTS:
        return Failed(f"the node stopped {entry.starts} times while sending it", retry=False)
    return None
