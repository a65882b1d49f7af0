"""Sends deliveries from `output.<adapter>` through the adapter and reports the outcomes to the
engine. [CO-4, CO-10, CO-12]

There is one dispatch per adapter, so a medium that is down leaves the others alone. Peers are
served side by side, one peer's messages in order. Retries are the engine's (durable timers): a
failing address never blocks the queue. A call that takes long makes room for another.

A circuit breaker belongs to one peer and address. Closed: calls go through. Open, after three
failures in a row (a timeout counts as two): calls are refused at once. Half-open, when the pause is
over: one call goes through as a probe; it closes the breaker, or opens it for twice as long. A
medium that *knows* the answer (`unavailable`, a refused address) opens no breaker.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from rapport.channel.channel import Channels
from rapport.channel.dead_letters import append_dead_letter
from rapport.communication.adapters.attempts import (
    DeliveryMark,
    DispatchProgress,
    MarkBatch,
    MarkRecords,
    OutcomeData,
    Report,
    StartMark,
    attempt_data,
    outcome_data,
    outcomes_data,
    report_to_control,
)
from rapport.communication.adapters.base import (
    Delivery,
    Failed,
    Outcome,
    OutputAdapter,
    is_repeatable,
)
from rapport.communication.adapters.isolation import (
    AdapterCaller,
    SendTimeout,
    StepMonitor,
    ignore_slow,
)
from rapport.communication.dead_letter_replay import DeadLetterReplays
from rapport.communication.peers import shown_address
from rapport.core.errors import InvalidInput
from rapport.core.event import StoredEvent
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import first_of, run_blocking
from rapport.store.base import RecordStore

CircuitState = Literal["closed", "open", "half-open"]
OPEN_AFTER, TIMEOUT_COUNTS = 3, 2
"""Failures in a row, and for how many of them a timeout counts."""
FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 2_000, 60_000
_MOST_BREAKERS = 20_000
"""Peers and addresses with failures that are remembered; the oldest is forgotten first."""


class PendingDelivery(msgspec.Struct, frozen=True, gc=False):
    """A delivery with its position in the adapter's channel."""

    position: int
    delivery: Delivery
    starts: int = 0
    """How often earlier processes began it and died."""


class PeerQueues:
    """Deliveries that wait, one queue per peer. A peer is busy while one of its deliveries is being
    sent; nothing more of it is given out meanwhile, so its deliveries stay in order. Peers are
    served in turn, suspects after the others.
    """

    def __init__(self, suspects: Collection[str] = ()) -> None:
        """`suspects`: a view of the peers whose last call failed."""
        self._suspects = suspects
        self._queues: dict[str, deque[PendingDelivery]] = {}
        """Of peers that wait or are busy."""
        self._ready: deque[str] = deque()
        self._ready_suspects: deque[str] = deque()

    def put(self, entries: Iterable[PendingDelivery]) -> None:
        """Queues each behind others for the same peer."""
        queues, ready, suspects = self._queues, self._ready, self._suspects
        for entry in entries:
            peer = entry.delivery.peer
            queue = queues.get(peer)
            if queue is None:
                queue = queues[peer] = deque()
                (self._ready_suspects if peer in suspects else ready).append(peer)
            queue.append(entry)

    def take(
        self, most: int, *, one_each: bool = True, with_suspects: bool = True
    ) -> list[PendingDelivery]:
        """Up to `most` deliveries that may be sent now; of each peer one, or as many as wait in a
        row. A suspect is taken alone.
        """
        taken: list[PendingDelivery] = []
        if not self._ready and with_suspects and self._ready_suspects:
            return [self._queues[self._ready_suspects.popleft()].popleft()]
        while self._ready and len(taken) < most:
            queue = self._queues[self._ready.popleft()]
            count = 1 if one_each else min(len(queue), most - len(taken))
            if count == len(queue):
                taken.extend(queue)
                queue.clear()
            else:
                taken.extend(queue.popleft() for _ in range(count))
        return taken

    def done(self, entries: Sequence[PendingDelivery]) -> None:
        """The taken ones have ended: their peers' next deliveries may be taken."""
        queues, ready, suspects = self._queues, self._ready, self._suspects
        for peer in dict.fromkeys([entry.delivery.peer for entry in entries]):
            if queues[peer]:
                (self._ready_suspects if peer in suspects else ready).append(peer)
            else:
                del queues[peer]

    def waiting(self, peer: str) -> int:
        """Deliveries that wait for a peer, without those being sent."""
        return len(self._queues.get(peer, ()))

    @property
    def ready(self) -> int:
        """Peers with a delivery that may be sent now, without suspects."""
        return len(self._ready)

    @property
    def ready_suspects(self) -> int:
        """Suspects with a delivery that may be sent now."""
        return len(self._ready_suspects)

    def __bool__(self) -> bool:
        return bool(self._queues)


class CircuitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A breaker that is not closed, for people."""

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
    """The breakers of peers with a failure since their last success; other peers cost nothing."""

    def __init__(self) -> None:
        self._breakers: dict[tuple[str, str], _Breaker] = {}
        self._peers: Counter[str] = Counter()

    @property
    def suspects(self) -> Collection[str]:
        """Peers whose last call failed: a view that follows every change."""
        return self._peers.keys()

    def refusal(self, delivery: Delivery, now_ms: int) -> Failed | None:
        """Why a delivery is not to be sent now, or None. The first that is let through to a
        half-open breaker is its probe: until its outcome, or for a pause, no other is.
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
        """Open and half-open breakers, by peer and address."""
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
        if len(self._breakers) >= _MOST_BREAKERS:
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


# --- the dispatch ---


class DispatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How much one adapter does at a time."""

    workers: Annotated[int, Meta(ge=1, le=1_000)] = 16
    """Most calls of the adapter at once. Workers start when a delivery may be sent and end when
    none may; more of them help while a call mostly waits for the medium. A call that takes longer
    than half a second counts no more, so that peers that hang hold up no others: then there may be
    up to 16 times as many calls. With 1 there is never a second call.
    """
    batch: Annotated[int, Meta(ge=1, le=100_000)] = 1_000
    """Most deliveries in one call, for adapters that take many."""
    deadline_ms: Annotated[int, Meta(ge=1)] = 15_000
    """A call that takes longer is cancelled and counts as failed, worth a retry."""
    in_flight: Annotated[int, Meta(ge=1, le=100_000)] = 4_000
    """Most deliveries read ahead; bounds memory together with their size."""


DEFAULT_SETTINGS = DispatchSettings()
_DECIDED = "decided meanwhile: nobody needs it any more"
_INTERRUPTED = "broken off while it was being sent; sending again"
_MOST_STARTS = 10
"""A delivery during which the process ended this often is taken for the cause and given up."""
_READ_BYTES = 8_000_000
"""Bytes read at a time, estimated by the largest of the last deliveries."""
_READ_AHEAD = 8
"""How many times as much may be pending."""
_FIRST_READ = 100
_MOST_SLOW = 16
"""How many slow calls there may be for each worker, in addition to it."""
_RECHECK_AFTER_MS = 10_000
"""The receiver's privacy policies are checked again for deliveries queued longer ago."""
Gate = Callable[[], Awaitable[None]]
"""Returns when a call may begin."""
MaySend = Callable[[Delivery, int], bool]
"""Whether the receiver's present privacy policies allow a delivery at this time; may block."""


def never_decided(_message: str, _peer: str) -> bool:
    """Every pending delivery is still to be sent."""
    return False


def cannot_recall(_message: str, _peer: str) -> bool | None:
    """Nothing is known from memory."""
    return None


def may_always_send(_delivery: Delivery, _now_ms: int) -> bool:
    """Every delivery may be sent at any time."""
    return True


async def no_gate() -> None:
    """Calls may begin at any time."""


class _Call(msgspec.Struct):
    """One call of the adapter."""

    peer: str
    """Of the first delivery; there is no other where calls may be slow."""
    is_suspect: bool
    """Its peer's last call failed."""
    is_slow: bool = False


class Dispatch:
    """One adapter's position in its channel and the deliveries it has read ahead."""

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
        returns whether nothing more of the message is to be sent to the peer; called right before
        sending, in a thread unless `recall` knows the answer from memory. `may_go` is called for
        deliveries that had to wait. `gate` is awaited before every call and its start mark.
        """
        self.adapter = adapter
        self.channel, self.reader = f"output.{adapter.name}", f"adapter.{adapter.name}"
        self._channels, self._records, self._clock = channels, records, clock
        self._settings, self._is_decided, self._may_send = settings, is_decided, may_go

        self._recall = never_decided if is_decided is never_decided else recall
        self._gate = gate
        self._report = report or report_to_control(channels, clock)
        self._caller = AdapterCaller(adapter, clock, deadline_ms=settings.deadline_ms)
        self._returned = DeadLetterReplays(channels, records, self.reader, (self.channel,))
        self._turn = asyncio.Lock()
        self._leaving = asyncio.Event()
        self._is_open = False
        self.breakers = Breakers()
        self._suspect_calls = 0
        """Running calls to suspects that are not slow."""
        self._slow_peers: set[str] = set()
        """Peers of running calls that are slow; never two calls of one peer."""
        self.workers = 0
        """Running calls of the adapter."""

    @property
    def trouble(self) -> str:
        """Why the medium cannot deliver now; empty when no failure is known."""
        return self._caller.trouble

    @property
    def steps(self) -> StepMonitor:
        """Steps of the adapter that blocked the event loop."""
        return self._caller.steps

    async def run(self) -> None:
        """Works until cancelled or drained; started again it goes on where the last commit
        stood. Raises SendInterrupted, in a group, when it is to be started again at once.
        """
        async with self._turn:
            await self.open()
            async with self._working() as group:
                letters = group.create_task(self._run_replays())
                while await self._read(group) or await self._wait(group):
                    continue
                letters.cancel()

    async def drain(self) -> None:
        """Sends all pending deliveries, then ends `run`; works also when `run` does not."""
        self._leaving.set()
        await self.run()

    async def open(self) -> None:
        """Loads the durable position; deliveries after it are read again."""
        subscription = await self._channels.subscribe(self.channel, self.reader)
        marks = (
            None if is_repeatable(self.adapter) else MarkRecords(self.adapter.name, self._records)
        )
        self._progress = DispatchProgress(subscription, self._report, marks)
        self._earlier_marks: dict[int, DeliveryMark] = await self._progress.load()
        self._read_until = subscription.position
        self._queues = PeerQueues(self.breakers.suspects)
        self._largest = _READ_BYTES // _FIRST_READ
        self.workers = self._suspect_calls = 0
        self._slow_peers.clear()
        await self._returned.open()
        self._is_open = True

    def waiting(self) -> int:
        """Deliveries without an outcome; 0 before `open`."""
        last = self._channels.channel(self.channel).last_position()
        return last - self._progress.committed if self._is_open else 0

    async def settle(self) -> int:
        """Sends all pending deliveries and returns their number; for tests and stopping."""
        count = 0
        async with self._turn, self._working() as group:
            while read := await self._read(group):
                count += read
            await self._progress.wait_below(1)
        return count

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[asyncio.TaskGroup]:
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(self._progress.run())
            yield group
            writing.cancel()

    # --- reading ---

    async def _read(self, group: asyncio.TaskGroup) -> int:
        """Reads the next deliveries once there is room; returns their number."""
        fitting = max(_READ_BYTES // self._largest, 1)
        limit = min(self._settings.in_flight, _READ_AHEAD * fitting)
        if self._progress.pending - self._blocked() >= limit:
            # Waits for room for several, so that reading does not trickle.
            await self._progress.wait_for_room(limit * 3 // 4 + 1, self._blocked)
        await self._progress.wait_for_room(limit, self._blocked)
        room = limit - self._progress.pending + self._blocked()
        most = min(room, fitting, self._settings.batch)
        source = self._channels.channel(self.channel)
        batch = await source.read_after(self._read_until, limit=most)
        if batch:
            await self._queue_events(batch, group)
        return len(batch)

    def _blocked(self) -> int:
        """Deliveries that wait behind a slow call."""
        return sum(map(self._queues.waiting, self._slow_peers)) if self._slow_peers else 0

    async def _wait(self, group: asyncio.TaskGroup) -> bool:
        """Waits for more deliveries; False when there are none and `drain` was called."""
        if self._leaving.is_set():
            await self._progress.wait_below(1)
            return bool(await self._read(group))
        source = self._channels.channel(self.channel)
        await first_of(source.wait_after(self._read_until), self._leaving.wait())
        return True

    async def _queue_events(self, batch: Sequence[StoredEvent], group: asyncio.TaskGroup) -> None:
        self._read_until = batch[-1].position
        self._largest = max([len(stored.event.data) for stored in batch]) or 1
        self._progress.open([stored.position for stored in batch])
        fresh: list[PendingDelivery] = []
        for stored in batch:
            try:
                fresh.append(PendingDelivery(stored.position, Delivery.from_event(stored.event)))
            except InvalidInput as error:
                # Only the engine writes here; an event that is no delivery has no sender.
                await append_dead_letter(
                    self._channels, self.channel, self.reader, stored, error, attempts=1
                )
                await self._progress.report([], [stored.position])
        self._queues.put(self._with_marks(fresh) if self._earlier_marks else fresh)
        self._start_workers(group)

    def _with_marks(self, fresh: Sequence[PendingDelivery]) -> list[PendingDelivery]:
        """Deliveries to send, with the start marks of the last process; outcomes that it marked
        are reported, perhaps again.
        """
        found = []
        for entry in fresh:
            mark = self._earlier_marks.pop(entry.position, DeliveryMark(0))
            if mark.outcome is None:
                found.append(PendingDelivery(entry.position, entry.delivery, mark.starts))
                continue
            data = attempt_data(
                entry.delivery,
                mark.outcome.state,
                mark.outcome.reason,
                retry=mark.outcome.retry,
                unavailable=mark.outcome.unavailable,
                position=entry.position,
            )
            self._progress.end([data], [entry.position])
        return found

    # --- workers ---

    def _start_workers(self, group: asyncio.TaskGroup) -> None:
        """Starts workers for deliveries that may be sent."""
        each = self._settings.batch if self._caller.takes_many else 1
        free = self._settings.workers - (self.workers - len(self._slow_peers))
        count = min(-(-self._queues.ready // each), free)
        if self._queues.ready_suspects:
            room = min(free - count, self._most_suspects - self._suspect_calls)
            count += max(min(self._queues.ready_suspects, room), 0)
        for _ in range(count):
            self.workers += 1
            group.create_task(self._work(group))

    @property
    def _most_suspects(self) -> int:
        """Most calls to suspects at once; the other workers serve the other peers."""
        return max(self._settings.workers // 2, 1)

    async def _work(self, group: asyncio.TaskGroup) -> None:
        """Sends until nothing may be sent, or until workers started for slow calls suffice."""
        most = self._settings.batch if self._caller.takes_many else 1
        suspects = self.breakers.suspects
        try:
            while self.workers - len(self._slow_peers) <= self._settings.workers:
                batch = self._queues.take(
                    most,
                    one_each=self._caller.one_each,
                    with_suspects=self._suspect_calls < self._most_suspects,
                )
                if not batch:
                    return
                peer = batch[0].delivery.peer
                call = _Call(peer, bool(suspects) and peer in suspects)
                self._suspect_calls += call.is_suspect
                try:
                    await self._send_batch(batch, partial(self._make_room, call, group))
                finally:
                    if call.is_slow:
                        self._slow_peers.discard(call.peer)
                    self._suspect_calls -= call.is_suspect and not call.is_slow
                self._queues.done(batch)
        finally:
            self.workers -= 1

    def _make_room(self, call: _Call, group: asyncio.TaskGroup) -> None:
        """Lets other calls run beside a slow one."""
        workers = self._settings.workers
        is_full = len(self._slow_peers) >= _MOST_SLOW * workers
        if workers == 1 or self._caller.takes_many or is_full:
            return
        call.is_slow = True
        self._slow_peers.add(call.peer)
        self._progress.wake()
        self._suspect_calls -= call.is_suspect
        self._start_workers(group)

    async def _send_batch(
        self, batch: Sequence[PendingDelivery], on_slow: Callable[[], None]
    ) -> None:
        """Sends deliveries that are still needed; their outcomes are marked and reported while the
        next ones are sent.
        """
        await self._gate()
        await self._report_unknown(batch)
        decided = await self._decided(batch)
        to_send, refused = self._select(batch, await self._not_allowed_now(batch), decided)
        if refused:
            self._progress.end(list(refused.values()), list(refused))
        if not to_send:
            return
        await self._progress.begin(_start_marks(to_send))
        deliveries, positions = [e.delivery for e in to_send], [e.position for e in to_send]
        outcomes = await self._send(deliveries, on_slow)
        self._progress.end(outcomes_data(deliveries, outcomes, positions), positions)

    async def _send(
        self, deliveries: Sequence[Delivery], on_slow: Callable[[], None] = ignore_slow
    ) -> list[Outcome]:
        """The outcomes, counted by the breakers; a batch call is the fault of no peer."""
        outcomes = await self._caller.send(deliveries, on_slow)
        if not self._caller.takes_many:
            now_ms = self._clock.now_ms()
            for delivery, outcome in zip(deliveries, outcomes, strict=True):
                timed_out = isinstance(outcome, SendTimeout)
                self.breakers.note(delivery, outcome, now_ms, timed_out=timed_out)
        return outcomes

    async def _not_allowed_now(self, batch: Sequence[PendingDelivery]) -> Collection[int]:
        """Positions of deliveries that waited into hours in which they may not be sent. A fast-path
        delivery is for a peer without privacy policies, and an action is done at any hour.
        """
        now_ms = self._clock.now_ms()
        waited = [
            entry
            for entry in batch
            if abs(now_ms - entry.delivery.queued) >= _RECHECK_AFTER_MS
            and not entry.delivery.plain
            and entry.delivery.effect is None
        ]
        if not waited or self._may_send is may_always_send:
            return ()

        def refused() -> set[int]:
            return {one.position for one in waited if not self._may_send(one.delivery, now_ms)}

        return await run_blocking(refused)

    async def _decided(self, batch: Sequence[PendingDelivery]) -> Collection[int]:
        """Positions of deliveries that need no sending any more; records are read in a thread."""
        found: set[int] = set()
        unknown: list[tuple[int, str, str]] = []
        for entry in batch:
            delivery = entry.delivery
            if delivery.plain:
                continue  # has no record that could be decided
            # A delivery to an additional receiver is decided by its own case.
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

    def _select(
        self, batch: Sequence[PendingDelivery], deferred: Collection[int], decided: Collection[int]
    ) -> tuple[list[PendingDelivery], dict[int, OutcomeData]]:
        """Deliveries to send, and the outcomes of the others by position."""
        now_ms = self._clock.now_ms()
        suspects = self.breakers.suspects
        to_send: list[PendingDelivery] = []
        refused: dict[int, OutcomeData] = {}
        for entry in batch:
            delivery, at = entry.delivery, entry.position
            if at in decided:
                refused[at] = attempt_data(delivery, "dropped", _DECIDED, position=at)
            elif fault := _refusal(entry, now_ms):
                refused[at] = outcome_data(delivery, fault, at)
            elif at in deferred:
                refused[at] = attempt_data(delivery, "put_off", position=at)
            elif suspects and (refusal := self.breakers.refusal(delivery, now_ms)):
                refused[at] = outcome_data(delivery, refusal, at)
            else:
                to_send.append(entry)
        return to_send, refused

    async def _report_unknown(self, batch: Sequence[PendingDelivery]) -> None:
        """Reports deliveries that an earlier process was sending when it died: they may have gone,
        whatever becomes of them now.
        """
        begun = [entry for entry in batch if entry.starts]
        if begun:
            await self._progress.report(
                [
                    attempt_data(
                        entry.delivery,
                        "unknown",
                        _INTERRUPTED,
                        position=entry.position,
                        starts=entry.starts,
                    )
                    for entry in begun
                ]
            )

    # --- replayed dead letters ---

    async def _run_replays(self) -> None:
        while True:
            while await self.take_back():
                continue
            await self._returned.wait()

    async def take_back(self) -> int:
        """Sends replayed dead letters, each at least once; returns their number."""
        returned = await self._returned.waiting()
        for replay, stored in returned:
            error = await self._send_again(stored)
            await self._returned.finish(replay, error, self._clock.now_ms())
        return len(returned)

    async def _send_again(self, stored: StoredEvent | None) -> str:
        """Sends the event of a dead letter; returns what went wrong, empty if nothing."""
        if stored is None:
            return "the event is in no log any more"
        try:
            entry = PendingDelivery(stored.position, Delivery.from_event(stored.event))
        except InvalidInput as error:
            return error.message
        await self._gate()
        decided = await self._decided([entry])
        _, refused = self._select([entry], await self._not_allowed_now([entry]), decided)
        data = list(refused.values())
        if not refused:
            (outcome,) = await self._send([entry.delivery])
            data = [outcome_data(entry.delivery, outcome, entry.position)]
        await self._report(data)
        return ""


def _start_marks(to_send: Sequence[PendingDelivery]) -> MarkBatch:
    again = [StartMark(entry.position, entry.starts + 1) for entry in to_send if entry.starts]
    return MarkBatch(again, first=[entry.position for entry in to_send if not entry.starts])


def _refusal(entry: PendingDelivery, now_ms: int) -> Failed | None:
    if entry.delivery.expires and entry.delivery.expires <= now_ms:
        return Failed("too late: its time to live is over", retry=False)
    if entry.starts >= _MOST_STARTS:
        return Failed(f"the node stopped {entry.starts} times while sending it", retry=False)
    return None
