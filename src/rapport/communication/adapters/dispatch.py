"""Hands deliveries to an adapter within a deadline; whatever the adapter does, there is an outcome
for each. [CO-4]

Deliveries waiting for an adapter: one lane per peer, peers side by side. [CO-4]

Pure: what may be sent now is taken out, and given back when it has ended.

How much one adapter does at a time. [CO-4]

Circuit breakers of one adapter, one for each peer and address: whoever hangs is left alone for a
while. Pure; time is an argument. [CO-4]

Closed: calls go through. Open, after three failures in a row or two timeouts: calls are refused at
once. Half-open, when the pause is over: one call goes through as a probe; it closes the breaker or
opens it for twice as long. What a medium *knows* (`unavailable`, a refused address) is an answer,
not a failure: it costs no time, so there is nothing to protect.

Carries deliveries from `output.<adapter>` to the adapter and outcomes back to the engine.
[CO-4, CO-10, CO-12]

One dispatch per adapter, so a medium that is down leaves the others alone. Peers are served side
by side, one peer's messages in order. Retries are the engine's (durable timers): a failing address
never blocks the queue. A peer whose calls hang gets a circuit breaker (`breakers.py`), and a call
that takes long makes room for another.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec

from rapport.channel.channel import Channels, PackedStretch
from rapport.channel.dead.letters import DEAD_LETTERS, bury
from rapport.channel.dead.replay import settled
from rapport.communication.adapters.base import (
    BatchAdapter,
    Confirmed,
    Delivery,
    Failed,
    Outcome,
    OutputAdapter,
    SendInterrupted,
    Sent,
    is_repeatable,
)
from rapport.communication.adapters.delivery_marks import (
    DeliveryMark,
    DispatchProgress,
    MarkBatch,
    MarkRecords,
    StartMark,
)
from rapport.communication.adapters.isolation import IsolatedCall, StepMonitor, end_isolated
from rapport.communication.adapters.outcome_events import (
    OutcomeData,
    Report,
    deferred_data,
    dropped_data,
    outcome_data,
    outcomes_data,
    recorded_data,
    report_to_control,
    unknown_data,
)
from rapport.communication.aside import run_aside
from rapport.communication.carried import let_go, packed_after, queued_in, unpacked_after
from rapport.communication.delivering.returned import Returned, told
from rapport.communication.peers import shown_address
from rapport.core.errors import InvalidInput
from rapport.core.event import StoredEvent
from rapport.core.times import format_duration
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import end_firmly, first_of
from rapport.kernel.telemetry import get_logger
from rapport.store.base import RecordStore

T = TypeVar("T")
LONGEST_REASON = 1_000
"""Of what an adapter says about a delivery this many characters are kept."""
SLOW_MS = 500
"""A call that takes longer is reported as slow."""
_log = get_logger(__name__)

_FAILURES_IN_A_ROW = 2


class SendTimeout(Failed, frozen=True, tag="failed"):
    """The adapter did not answer within the deadline."""


def ignore_slow() -> None:
    """Slow calls are nobody's concern."""


class AdapterCaller:
    """One adapter with its deadline. A fault of the adapter is a failure like any other."""

    def __init__(self, adapter: OutputAdapter, clock: Clock, *, deadline_ms: int) -> None:
        self._adapter, self._clock, self._deadline_ms = adapter, clock, deadline_ms
        self._failures = 0
        self.trouble = ""
        """Why the latest calls failed; empty while calls succeed."""
        self.steps = StepMonitor(f"output {adapter.name}", clock)
        self._batch = adapter if isinstance(adapter, BatchAdapter) else None

    @property
    def takes_many(self) -> bool:
        """Whether one call takes many deliveries."""
        return self._batch is not None

    @property
    def one_each(self) -> bool:
        """Whether one call may hold no more than one delivery of a peer."""
        return self._batch is None or not self._batch.keeps_order

    async def send(
        self, deliveries: Sequence[Delivery], on_slow: Callable[[], None] = ignore_slow
    ) -> list[Outcome]:
        """One outcome for each, in their order; takes no longer than the deadline. Raises
        BrokenOff. `on_slow` is called once when a call takes long.
        """
        if self._batch is not None:
            outcomes = await self._send_many(self._batch, deliveries, on_slow)
        else:
            outcomes = [await self._send_one(delivery, on_slow) for delivery in deliveries]
        if outcomes:
            self._note(outcomes[-1])
        return outcomes

    def _note(self, outcome: Outcome) -> None:
        """The medium is in trouble when calls in a row failed that are worth a retry; a refused
        address, or one that cannot be reached now, is the peer's trouble.
        """
        if isinstance(outcome, Failed) and outcome.retry and not outcome.unavailable:
            self._failures += 1
            self.trouble = outcome.reason if self._failures >= _FAILURES_IN_A_ROW else ""
        else:
            self._failures, self.trouble = 0, ""

    async def _send_one(self, delivery: Delivery, on_slow: Callable[[], None]) -> Outcome:
        answer = await self._within(lambda: self._adapter.send(delivery), on_slow)
        return checked_outcome(answer, self._adapter.name)

    async def _send_many(
        self, adapter: BatchAdapter, deliveries: Sequence[Delivery], on_slow: Callable[[], None]
    ) -> list[Outcome]:
        answer = await self._within(partial(adapter.send_many, deliveries), on_slow)
        if answer is None or isinstance(answer, Failed):
            return [checked_outcome(answer, self._adapter.name)] * len(deliveries)
        if not isinstance(answer, Sequence):
            return [_nonsense(answer, self._adapter.name)] * len(deliveries)
        outcomes = [
            # What most media say needs no second look.
            outcome
            if type(outcome) is Sent and outcome.reference == ""
            else checked_outcome(outcome, self._adapter.name)
            for outcome in answer
        ]
        if len(outcomes) == len(deliveries):
            return outcomes
        _log.error("adapter miscounted", adapter=self._adapter.name, outcomes=len(outcomes))
        fault = f"the adapter told {len(outcomes)} outcomes of {len(deliveries)}"
        return [Failed(fault, retry=True)] * len(deliveries)

    async def _within(
        self, work: Callable[[], Awaitable[T]], on_slow: Callable[[], None]
    ) -> T | Failed:
        """What the work gives; a failure when it raises or takes too long, then it is cancelled."""
        held = IsolatedCall(work, self.steps)
        sending = asyncio.ensure_future(held)
        try:
            # Much is done at once: what need not wait needs no deadline either.
            await self._clock.sleep(0)
            if sending.done() or await self._ends_in_time(sending, on_slow):
                if sending.cancelled():
                    return Failed("the adapter gave up", retry=True)
                return sending.result()
        except asyncio.CancelledError:
            await end_isolated(sending, held)
            raise
        except SendInterrupted:
            raise
        except Exception as error:
            _log.error("adapter failed", adapter=self._adapter.name, error=repr(error))
            return Failed(f"the adapter failed: {type(error).__name__}", retry=True)
        await end_isolated(sending, held)
        return SendTimeout(f"no answer within {format_duration(self._deadline_ms)}", retry=True)

    async def _ends_in_time(
        self, sending: asyncio.Future[Any], on_slow: Callable[[], None]
    ) -> bool:
        began_ns = self._clock.steady_ns()
        if await self._ends_within(sending, min(SLOW_MS, self._deadline_ms)):
            return True
        on_slow()
        passed_ms = (self._clock.steady_ns() - began_ns) // 1_000_000
        left_ms = self._deadline_ms - passed_ms
        return left_ms > 0 and await self._ends_within(sending, left_ms)

    async def _ends_within(self, sending: asyncio.Future[Any], duration_ms: int) -> bool:
        deadline: asyncio.Future[Any] = asyncio.ensure_future(self._clock.sleep(duration_ms))
        try:
            await asyncio.wait({sending, deadline}, return_when=asyncio.FIRST_COMPLETED)
            return sending.done()
        finally:
            await end_firmly(deadline)


def checked_outcome(outcome: object, adapter: str) -> Outcome:
    """The outcome as it can be written down and read again; nothing is `Sent`, anything else a
    failure that names the adapter.
    """
    match outcome:
        case None:
            return Sent()
        case Sent(reference):
            return outcome if _is_text(reference) else Sent(_text(reference))
        case Confirmed(reference):
            return outcome if _is_text(reference) else Confirmed(_text(reference))
        case Failed(reason, retry, unavailable):
            fits = _is_text(reason) and isinstance(retry, bool) and isinstance(unavailable, bool)
            return outcome if fits else Failed(_text(reason), bool(retry), bool(unavailable))
    return _nonsense(outcome, adapter)


def _nonsense(answer: object, adapter: str) -> Failed:
    wanted = "Sent, Confirmed, Failed or None"
    reason = f"the adapter {adapter!r} returned {type(answer).__name__} instead of {wanted}"
    _log.error("adapter returned no outcome", adapter=adapter, returned=type(answer).__name__)
    return Failed(reason, retry=True)


def _is_text(said: object) -> bool:
    return isinstance(said, str) and len(said) <= LONGEST_REASON and said.isprintable()


def _text(said: object) -> str:
    """Text without what no log can hold; of what is not text only its kind, which has no secrets.

    >>> _text("a\\nb"), _text(None), _text(ValueError("secret"))
    ('a b', '', 'ValueError')
    """
    if not isinstance(said, str):
        return "" if said is None else type(said).__name__
    kept = said[:LONGEST_REASON]
    return "".join(letter if letter.isprintable() else " " for letter in kept)


_MOST_SPARE = 1_000


class PendingDelivery(msgspec.Struct, frozen=True, gc=False):
    """A delivery with its place in the adapter's channel."""

    position: int
    delivery: Delivery
    starts: int = 0
    """How often processes before this one began it, and died."""


class PeerQueues:
    """Holds what waits. A peer is busy while something of theirs is taken; then nothing more of it
    is given out, so one peer's deliveries stay in order. Peers are served in turn, suspects after
    the others.
    """

    def __init__(self, suspects: Collection[str] = ()) -> None:
        """`suspects`: a view of the peers whose last call failed."""
        self._suspects = suspects
        self._lanes: dict[str, deque[PendingDelivery]] = {}
        """The peers with something waiting or under way."""
        self._ready: deque[str] = deque()
        self._ready_suspects: deque[str] = deque()
        self._spare: list[deque[PendingDelivery]] = []
        """Empty ones: peers come and go with every batch, and a deque costs more than an entry."""

    def put(self, entries: Iterable[PendingDelivery]) -> None:
        """Queues behind what waits for the same peer."""
        lanes, ready, spare = self._lanes, self._ready, self._spare
        suspects = self._suspects
        for entry in entries:
            peer = entry.delivery.peer
            lane = lanes.get(peer)
            if lane is None:
                lane = lanes[peer] = spare.pop() if spare else deque()
                (self._ready_suspects if peer in suspects else ready).append(peer)
            lane.append(entry)

    def take(
        self, most: int, *, one_each: bool = True, with_suspects: bool = True
    ) -> list[PendingDelivery]:
        """Up to `most` of what may be sent now; of each peer one, or as many as wait in a row. With
        a suspect nothing else is taken.
        """
        taken: list[PendingDelivery] = []
        if not self._ready and with_suspects and self._ready_suspects:
            return [self._lanes[self._ready_suspects.popleft()].popleft()]
        while self._ready and len(taken) < most:
            lane = self._lanes[self._ready.popleft()]
            count = 1 if one_each else min(len(lane), most - len(taken))
            if count == len(lane):
                taken.extend(lane)
                lane.clear()
            else:
                taken.extend(lane.popleft() for _ in range(count))
        return taken

    def done(self, entries: Sequence[PendingDelivery]) -> None:
        """What was taken has ended: the next of each of its peers may go."""
        lanes, ready, spare = self._lanes, self._ready, self._spare
        suspects = self._suspects
        for peer in dict.fromkeys([entry.delivery.peer for entry in entries]):
            if lanes[peer]:
                (self._ready_suspects if peer in suspects else ready).append(peer)
            else:
                spare.append(lanes.pop(peer))
        del spare[_MOST_SPARE:]

    def waiting(self, peer: str) -> int:
        """How many wait for a peer, those that were taken left out."""
        return len(self._lanes.get(peer, ()))

    @property
    def ready(self) -> int:
        """How many peers have something that may be sent now, suspects left out."""
        return len(self._ready)

    @property
    def ready_suspects(self) -> int:
        """How many suspects have something that may be sent now."""
        return len(self._ready_suspects)

    def __bool__(self) -> bool:
        return bool(self._lanes)


class DispatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much one adapter does at a time."""

    workers: int = 16
    """Most calls of the adapter at once. A worker comes when something may be sent and goes when
    nothing may; more of them help while a call mostly waits for the medium. A call that takes
    longer than half a second counts no more, so that peers who hang hold up nobody else: then
    there may be up to 16 times as many. With 1 there is never a second call.
    """
    batch: int = 1_000
    """Most deliveries in one call, for adapters that take many."""
    deadline_ms: int = 15_000
    """A call that takes longer is cancelled and counts as failed, worth a retry."""
    in_flight: int = 4_000
    """Most deliveries read ahead; bounds memory together with their size."""


DEFAULT_SETTINGS = DispatchSettings()


CircuitState = Literal["closed", "open", "half-open"]
OPEN_AFTER, TIMEOUT_COUNTS = 3, 2
"""Failures in a row, and for how many of them a timeout counts."""
FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 2_000, 60_000
_MOST = 20_000
"""Peers and addresses with failures that are remembered; the oldest is forgotten first."""


class CircuitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A breaker that is not closed, as people see it."""

    peer: str
    address: str
    """In its shown form."""
    state: CircuitState
    failures: int
    """In a row; a timeout counts as two."""
    reason: str
    """Of the last failure."""
    probe_at: int
    """From then on one call goes through, ms UTC."""


class _Breaker(msgspec.Struct):
    failures: int = 0
    pause_ms: int = 0
    """0 while it is closed."""
    probe_at: int = 0
    reason: str = ""


class Breakers:
    """Holds the peers with a failure since their last success; the others cost nothing."""

    def __init__(self) -> None:
        self._breakers: dict[tuple[str, str], _Breaker] = {}
        self._peers: Counter[str] = Counter()

    @property
    def suspects(self) -> Collection[str]:
        """Peers whose last call failed: a view that follows every change."""
        return self._peers.keys()

    def refusal(self, delivery: Delivery, now_ms: int) -> Failed | None:
        """Why a delivery is not to be sent now, or None. The first that is let through to a
        half-open one is its probe: until its outcome, or for a pause, no other is.
        """
        found = self._breakers.get((delivery.peer, delivery.address))
        if found is None or not found.pause_ms:
            return None
        # A clock that was set back opens nothing for longer than a pause.
        if found.probe_at <= now_ms or found.probe_at > now_ms + LONGEST_PAUSE_MS:
            found.probe_at = now_ms + found.pause_ms
            return None
        reason = f"circuit open, not tried: the last calls failed ({found.reason})"
        return Failed(reason, retry=True, unavailable=True)

    def note(self, delivery: Delivery, outcome: Outcome, now_ms: int, *, timed_out: bool) -> None:
        """Takes the outcome of a call."""
        key = delivery.peer, delivery.address
        if not isinstance(outcome, Failed):
            if self._breakers:
                self._close(key)
            return
        if outcome.unavailable or not outcome.retry:
            return
        found = self._breakers.get(key)
        if found is None:
            found = self._add(key)
        found.failures += TIMEOUT_COUNTS if timed_out else 1
        found.reason = outcome.reason
        if found.failures >= OPEN_AFTER:
            found.pause_ms = min(found.pause_ms * 2 or FIRST_PAUSE_MS, LONGEST_PAUSE_MS)
            found.probe_at = now_ms + found.pause_ms

    def status(self, now_ms: int) -> list[CircuitStatus]:
        """Those that are open or half-open, by peer and address."""
        return [
            CircuitStatus(
                peer=peer,
                address=shown_address(address),
                state="open" if now_ms < found.probe_at else "half-open",
                failures=found.failures,
                reason=found.reason,
                probe_at=found.probe_at,
            )
            for (peer, address), found in sorted(self._breakers.items())
            if found.pause_ms
        ]

    def _add(self, key: tuple[str, str]) -> _Breaker:
        if len(self._breakers) >= _MOST:
            self._close(next(iter(self._breakers)))
        self._peers[key[0]] += 1
        made = self._breakers[key] = _Breaker()
        return made

    def _close(self, key: tuple[str, str]) -> None:
        if self._breakers.pop(key, None) is None:
            return
        self._peers[key[0]] -= 1
        if not self._peers[key[0]]:
            del self._peers[key[0]]


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
MaySend = Callable[[Delivery, int], bool]
"""Whether a delivery may be sent at this time, by the receiver's privacy policies of now; may
block.
"""


def never_decided(_message: str, _peer: str) -> bool:
    """Everything that waits is still to be sent."""
    return False


def cannot_recall(_message: str, _peer: str) -> bool | None:
    """Nothing is in memory."""
    return None


def may_always_send(_delivery: Delivery, _now_ms: int) -> bool:
    """Everything may be sent at any time."""
    return True


async def no_gate() -> None:
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
        may_go: MaySend = may_always_send,
        gate: Gate = no_gate,
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
        self._sending = AdapterCaller(adapter, clock, deadline_ms=settings.deadline_ms)
        self._returned = Returned(channels, records, self.reader, (self.channel,))
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
    def steps(self) -> StepMonitor:
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
        marks = (
            None if is_repeatable(self.adapter) else MarkRecords(self.adapter.name, self._records)
        )
        self._book = DispatchProgress(subscription, self._report, marks)
        self._left: dict[int, DeliveryMark] = await self._book.load()
        self._read_until = subscription.position
        self._lanes = PeerQueues(self.breakers.suspects)
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
        stretches = packed_after(source, self._read_until, limit=most)
        if stretches:
            let_go(source, stretches)
            return self._spread_packed(stretches, group)
        most = unpacked_after(source, self._read_until, limit=most)
        batch = await source.read_after(self._read_until, limit=most)
        if batch:
            await self._spread(batch, group)
        return len(batch)

    def _stuck(self) -> int:
        """How many wait behind a call that takes long."""
        return sum(map(self._lanes.waiting, self._slow_peers)) if self._slow_peers else 0

    def _spread_packed(self, stretches: Sequence[PackedStretch], group: asyncio.TaskGroup) -> int:
        """Deliveries that this process made need not be decoded; how many there are."""
        first, last = stretches[0].first, stretches[-1].last
        carried = [piece for stretch in stretches for piece in stretch.carried]
        deliveries = [one for piece in carried for one in queued_in(piece)]
        self._read_until, self._largest = last, max([each.largest for each in stretches])
        self._book.open(range(first, last + 1))
        fresh = list(map(PendingDelivery, range(first, last + 1), deliveries))
        self._lanes.put(self._unmarked(fresh) if self._left else fresh)
        self._staff(group)
        return len(fresh)

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
        fresh: list[PendingDelivery] = []
        for stored in batch:
            try:
                fresh.append(PendingDelivery(stored.position, Delivery.from_event(stored.event)))
            except InvalidInput as error:
                # Only the engine writes here; what is not a delivery has no sender to tell.
                await bury(self._channels, self.channel, self.reader, stored, error, attempts=1)
                await self._book.tell([], [stored.position])
        self._lanes.put(self._unmarked(fresh) if self._left else fresh)
        self._staff(group)

    def _unmarked(self, fresh: Sequence[PendingDelivery]) -> list[PendingDelivery]:
        """Those that are to be sent, each with what the last process left; outcomes that it noted
        are told, perhaps again.
        """
        found = []
        for entry in fresh:
            mark = self._left.pop(entry.position, DeliveryMark(0))
            if mark.outcome is None:
                found.append(PendingDelivery(entry.position, entry.delivery, mark.starts))
                continue
            data = recorded_data(entry.delivery, mark.outcome)
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

    async def _carry(self, taken: Sequence[PendingDelivery], on_slow: Callable[[], None]) -> None:
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
        await self._book.begin(_start_marks(wanted))
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
                timed_out = isinstance(outcome, SendTimeout)
                self.breakers.note(delivery, outcome, now_ms, timed_out=timed_out)
        return outcomes

    async def _put_off(self, taken: Sequence[PendingDelivery]) -> Collection[int]:
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
        if not waited or self._may_go is may_always_send:
            return ()

        def ask() -> set[int]:
            return {one.position for one in waited if not self._may_go(one.delivery, now_ms)}

        return await run_aside(ask)

    async def _decided(self, taken: Sequence[PendingDelivery]) -> Collection[int]:
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

            found.update(await run_aside(look_up))
        return found

    def _sort_out(
        self, taken: Sequence[PendingDelivery], put_off: Collection[int], decided: Collection[int]
    ) -> tuple[list[PendingDelivery], dict[int, OutcomeData]]:
        """What is to be sent, and by position what became of that which is not."""
        now_ms = self._clock.now_ms()
        suspects = self.breakers.suspects
        wanted: list[PendingDelivery] = []
        unwanted: dict[int, OutcomeData] = {}
        for entry in taken:
            delivery = entry.delivery
            if entry.position in decided:
                unwanted[entry.position] = dropped_data(delivery, entry.position)
            elif fault := _refusal(entry, now_ms):
                unwanted[entry.position] = outcome_data(delivery, fault, entry.position)
            elif entry.position in put_off:
                unwanted[entry.position] = deferred_data(delivery, entry.position)
            elif suspects and (refusal := self.breakers.refusal(delivery, now_ms)):
                unwanted[entry.position] = outcome_data(delivery, refusal, entry.position)
            else:
                wanted.append(entry)
        return wanted, unwanted

    async def _say_unknown(self, taken: Sequence[PendingDelivery]) -> None:
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
            entry = PendingDelivery(stored.position, Delivery.from_event(stored.event))
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


def _start_marks(wanted: Sequence[PendingDelivery]) -> MarkBatch:
    """What is written down before these are sent."""
    again = [StartMark(entry.position, entry.starts + 1) for entry in wanted if entry.starts]
    return MarkBatch(again, first=[entry.position for entry in wanted if not entry.starts])


def _refusal(entry: PendingDelivery, now_ms: int) -> Failed | None:
    """Why a delivery is not to be sent, or None."""
    if entry.delivery.expires and entry.delivery.expires <= now_ms:
        return Failed("too late: its time to live is over", retry=False)
    if entry.starts >= _MOST_STARTS:
        return Failed(f"the node stopped {entry.starts} times while sending it", retry=False)
    return None
