"""The communication engine: messages become deliveries, detections become messages, outcomes and
answers are applied. [CO-7, CO-8, CO-10, CO-12]

Reads `control`, `detections` and `input` in batches, one transaction each; appends to
`output.<adapter>`, `log` and the other channels of communication. Every input is handled exactly
once, since its position is kept in the transaction of what it changed. Towards a medium that makes
at least once, with the same idempotency key for every attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from rapport.channel.channel import Channels, Subscription
from rapport.channel.dead_letters import Replay
from rapport.channel.validation import MAX_DATA_BYTES
from rapport.communication.actions import (
    Action,
    hops_before,
    same_phrase,
)
from rapport.communication.adapters.outcome_events import OutcomeData
from rapport.communication.batch_transaction import INPUTS, READER, BatchTransaction
from rapport.communication.blocking import run_blocking
from rapport.communication.dead_letter_replay import DeadLetterReplays
from rapport.communication.decisions import DecisionCache
from rapport.communication.engine_parts import EngineParts
from rapport.communication.fast_path import direct_outcome_events
from rapport.communication.notifications import NotificationCallback, Notifications
from rapport.communication.records import pending_retries
from rapport.communication.transaction import Outgoing, append_early, append_outgoing
from rapport.core.detection import DETECTED, Detection
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import first_of
from rapport.store.base import RecordStore

T = TypeVar("T")
_BATCH = 2_000
_BATCH_BYTES = 16_000_000
_FIRST_BATCH = _BATCH_BYTES // MAX_DATA_BYTES
"""Size of the first batch: so many events fit, however large they are."""
_COMMIT_EVERY = 20_000
_LONGEST_SLEEP_MS = 30_000
"""The wall clock is read this often: setting it delays no deadline for long."""


class CommunicationEngine:
    """Holds the positions of its readers; everything else is in the record store."""

    def __init__(
        self, channels: Channels, records: RecordStore, clock: Clock, parts: EngineParts
    ) -> None:
        self._channels, self._records, self._clock = channels, records, clock
        self._notifications = Notifications(channels, records)
        self.has_listeners = parts.listening or self._notifications.has_listeners
        self._parts = replace(
            parts, actions=_by_phrase(parts.actions), listening=self.has_listeners
        )
        self._decisions = DecisionCache(records)
        self._subscriptions: dict[str, Subscription] = {}
        self._committed: dict[str, int] = {}
        self._limits: dict[str, int] = dict.fromkeys(INPUTS, _FIRST_BATCH)
        self._complete_ms: dict[str, int] = {}
        """Up to when everything that a channel received was handled."""
        self._replays = DeadLetterReplays(channels, records, READER, INPUTS)
        self._turn = asyncio.Lock()
        self.opened = asyncio.Event()
        """Set while memory agrees with the records: not before the first `open`, nor after a
        failure."""
        self._called = asyncio.Event()

    async def run(self) -> None:
        """Works until cancelled; started again after a failure it continues where it stood.
        Callbacks are called by a second task: a slow one delays no message.
        """
        await self.open()
        await first_of(self._work(), self._notifications.run())

    async def _work(self) -> None:
        while True:
            if not await self._turn_once():
                await self._wait()

    async def open(self) -> None:
        """Loads the positions and repeats the appends that a crash or a failure may have lost."""
        async with self._turn:
            await self._open()

    async def _open(self) -> None:
        for name in INPUTS:
            self._subscriptions[name] = await self._channels.subscribe(name, READER)
            self._committed[name] = self._subscriptions[name].position
        self._decisions.forget()
        await run_blocking(self._notifications.load)
        self._batches = await run_blocking(
            lambda: BatchTransaction(self._records, self._clock, self._parts, self._decisions)
        )
        outgoing = await run_blocking(self._batches.transaction.last_outbox)
        await append_outgoing(self._channels, outgoing)
        await self._replays.open()
        self.opened.set()

    async def _ensure_open(self) -> None:
        if not self.opened.is_set():
            await self._open()

    async def settle(self) -> int:
        """Steps until there is nothing to do now; returns how many. For tests and stopping."""
        steps = 0
        while await self.step():
            steps += 1
        return steps

    async def step(self) -> bool:
        """Handles one batch of everything that is there or due, and calls callbacks; False when
        there was nothing to do. For callers that do not `run`.
        """
        busy = await self._turn_once()
        return await self._notifications.step() or busy

    async def _turn_once(self) -> bool:
        """Handles one batch of everything that is there or due; False when there was nothing.

        Due times wait for what was received before them: an answer that came in time counts.
        """
        async with self._turn:
            await self._ensure_open()
            # Answers first, for the same reason.
            busy = [await self._read(name) for name in INPUTS]
            busy.append(await self._replay_letters())
            busy.append(await self._take_due())
            if not any(busy):
                for name in INPUTS:
                    await self._commit_position(name, 1)
        return any(busy)

    # --- called by others ---

    async def take_outcomes(self, outcomes: Sequence[OutcomeData]) -> None:
        """Applies outcomes of a dispatch in the same process, without `control`; durable when it
        returns.

        A kill loses nothing: a dispatch deletes its mark of a delivery only after this has
        returned, and reports the outcome again otherwise. Nothing is doubled: a repeated outcome
        changes nothing, and the ledger line of a direct delivery has the same id. An outcome that
        fails goes through `control` and is dead-lettered there.
        """
        events, others = direct_outcome_events(
            outcomes, self._clock.now_ms(), has_listeners=self.has_listeners()
        )
        await append_early(self._channels, {name: one for name, one in events.items() if one})
        if others:
            async with self._turn:
                await self._ensure_open()
                await self._do(partial(self._batches.take_outcomes, others))
            self._called.set()  # something may be due earlier now

    def is_decided(self, message: str, peer: str = "") -> bool:
        """Whether nothing more is to be sent of a message (or of a delivery's `case`), to anybody
        or to this peer; dispatches ask before sending.
        """
        return self._decisions.is_decided(message, peer)

    def recall_decision(self, message: str, peer: str = "") -> bool | None:
        """As `is_decided`, from memory; None when the records have to be read."""
        return self._decisions.recall(message, peer)

    @asynccontextmanager
    async def between_batches(self) -> AsyncIterator[None]:
        """Nothing is handled while the block runs, and every earlier detection has been: for
        changes of the directory or of actions.
        """
        async with self._turn:
            await self._ensure_open()
            last = self._channels.channel("detections").last_position()
            while self._batches.positions["detections"] < last:
                if not await self._read("detections"):
                    break
            yield

    async def handle_accepted(self) -> None:
        """Returns when everything that stands in the input channels now was handled; handles it
        itself where nobody runs the engine.
        """
        last = {name: self._channels.channel(name).last_position() for name in INPUTS}
        while not self.opened.is_set() or any(
            self._batches.positions[name] < position for name, position in last.items()
        ):
            if not await self._turn_once():
                return

    async def next_retry_ms(self, adapter: str) -> int:
        """When the next delivery by this adapter that failed is tried again, ms UTC; 0 = none
        waits for that.
        """
        waiting = await run_blocking(partial(pending_retries, self._records, adapter))
        return waiting[0].retry_at if waiting else 0

    async def take_due(self) -> None:
        """Does what is due now; for callers that cannot wait for `run`."""
        await self._turn_once()

    async def retry_now(self, adapter: str) -> None:
        """Tries again at once what failed by this adapter: when it is gone, that ends each such
        attempt and the next address is tried, or the sender is notified.
        """
        waiting = await run_blocking(partial(pending_retries, self._records, adapter))
        for first in range(0, len(waiting), _BATCH):
            async with self._turn:
                if not self.opened.is_set():
                    await self._open()
                some = waiting[first : first + _BATCH]
                await self._do(partial(self._batches.retry_now, some, adapter))
        self._called.set()

    def use_actions(self, actions: Mapping[str, Action]) -> None:
        """Replaces the actions of the site; only within `between_batches`."""
        known = self._parts.actions  # shared with the transaction
        known.clear()
        known.update(_by_phrase(actions))

    def add_notification(self, callback: NotificationCallback, name: str = "") -> str:
        """Adds a callback for messages to components, messages without a receiver, and the fate of
        the messages of components; returns its id. See Notifications.
        """
        return self._notifications.add(callback, name)

    def remove_notification(self, id: str) -> bool:
        """Removes a callback; False when there is none of that id."""
        return self._notifications.remove(id)

    # --- one turn ---

    async def _read(self, name: str) -> bool:
        now_ms, channel = self._clock.now_ms(), self._channels.channel(name)
        position, until = self._batches.positions[name], channel.last_position()
        batch = await channel.read_after(position, limit=self._limits[name])
        if not batch:
            self._complete_ms[name] = now_ms
            return False
        hops = await self._hops(name, batch)
        await self._take_batch(name, batch, hops)
        self._limits[name] = _next_limit(batch)
        await self._commit_position(name, _COMMIT_EVERY)
        position = self._batches.positions[name]
        # A transaction may end before the batch does, and a batch before the channel.
        last = next(stored for stored in reversed(batch) if stored.position <= position)
        self._complete_ms[name] = now_ms if last.position >= until else last.received
        return True

    async def _take_batch(
        self, name: str, batch: Sequence[StoredEvent], hops: Mapping[str, int]
    ) -> None:
        """One transaction, and one more after each look-up of messages in the log."""
        await self._do(partial(self._batches.take_batch, name, batch, hops))
        while self._batches.wanted:
            await self._look_up_wanted()
            position = self._batches.positions[name]
            rest = [stored for stored in batch if stored.position > position]
            await self._do(partial(self._batches.take_batch, name, rest, hops))

    async def _look_up_wanted(self) -> None:
        await self._batches.history.look_up(self._channels, self._batches.wanted)

    async def _replay_letters(self) -> bool:
        """Handles the events of dead letters again: once, since the request is deleted in the
        transaction of what it changed.
        """
        waiting = await self._replays.waiting()
        for replay, stored in waiting:
            await self._replay(replay, stored)
        return bool(waiting)

    async def _replay(self, replay: Replay, stored: StoredEvent | None) -> None:
        hops = {} if stored is None else await self._hops(replay.channel, [stored])
        await self._do(partial(self._batches.take_again, replay, stored, hops))
        if self._batches.wanted:
            await self._look_up_wanted()
            await self._do(partial(self._batches.take_again, replay, stored, hops))

    async def _take_due(self) -> bool:
        """One slice of a job on a large message, and what is due."""
        busy = self._batches.schedule.has_jobs
        if busy:
            await self._do(self._batches.take_job)
        complete = self._complete_ms
        until_ms = min(complete["control"], complete["input"], self._clock.now_ms())
        if self._batches.is_due(until_ms):
            await self._do(partial(self._batches.take_due, until_ms))
            if self._batches.wanted:
                await self._look_up_wanted()
            busy = True
        return busy

    async def _do(self, work: Callable[[], T]) -> T:
        """Does work in a thread, appends the events that follow from the input alone, commits, and
        appends the other events.

        After a failure everything is loaded anew: the outbox may not have been appended, and the
        next commit would overwrite it.
        """
        try:
            found, early = await run_blocking(partial(self._prepare, work))
            await append_early(self._channels, early)
            await append_outgoing(self._channels, await run_blocking(self._batches.commit))
            return found
        except BaseException:
            self.opened.clear()
            raise

    def _prepare(self, work: Callable[[], T]) -> tuple[T, Outgoing]:
        found = work()
        return found, self._batches.transaction.take_early()

    async def _commit_position(self, name: str, least: int) -> None:
        """Publishes the position of a reader once it has moved by `least`. The transaction's own
        position counts; this one tells others how far the engine has read.
        """
        position = self._batches.positions[name]
        if position - self._committed[name] >= least:
            await self._subscriptions[name].commit(position)
            self._committed[name] = position

    async def _hops(self, channel: str, batch: Sequence[StoredEvent]) -> dict[str, int]:
        """How many actions led to each detection, by id; looked up only for detections whose
        actions have an effect.
        """
        if channel != "detections":
            return {}
        await self._parts.contents.refresh()
        found = [stored.event for stored in batch if stored.event.type == DETECTED]
        return {
            event.id: await hops_before(self._channels, event)
            for event in found
            if self._has_effect(event)
        }

    def _has_effect(self, event: Event) -> bool:
        try:
            detection = Detection.from_event(event)
        except InvalidInput:
            return False  # dead-lettered when its turn comes
        phrases = self._parts.phrases_of(detection.policy, detection.version)
        actions = [self._parts.actions.get(same_phrase(phrase)) for phrase in phrases]
        return any(action is not None and action.effect is not None for action in actions)

    # --- waiting ---

    async def _wait(self) -> None:
        """Until there is something to read or something is due."""
        positions = self._batches.positions
        events = [self._channels.channel(name).wait_after(positions[name]) for name in INPUTS]
        self._called.clear()
        await first_of(*events, self._replays.wait(), self._called.wait(), self._until_due())

    async def _until_due(self) -> None:
        due_ms = self._batches.schedule.next_ms
        left_ms = due_ms - self._clock.now_ms() if due_ms else _LONGEST_SLEEP_MS
        await self._clock.sleep(min(max(left_ms, 0), _LONGEST_SLEEP_MS))


def _by_phrase(actions: Mapping[str, Action]) -> dict[str, Action]:
    return {same_phrase(phrase): action for phrase, action in actions.items()}


def _next_limit(batch: Sequence[StoredEvent]) -> int:
    """The size of the next batch: smaller for large events, so that a batch fits into memory."""
    largest = max([len(stored.event.data) for stored in batch])
    return max(min(_BATCH, _BATCH_BYTES // max(largest, 1)), 1)
