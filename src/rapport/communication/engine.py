"""Messages become deliveries, detections become messages, outcomes and answers come back.
[CO-7, CO-8, CO-10, CO-12]

A thin shell: reads `control`, `detections` and `input`, appends to `output.<adapter>`, `log` and
the other channels of the room. Every input is taken exactly once (its position is kept in the same
transaction as what it changed); towards the medium that makes at least once, with the same
idempotency key for every attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from rapport.channel.channel import Channels, PackedStretch, Subscription
from rapport.channel.checking import MAX_DATA_BYTES
from rapport.channel.dead.replay import Replay
from rapport.communication.actions import (
    Action,
    OwnAction,
    Phrases,
    hops_before,
    nothing_said,
    phrases_by,
    same_phrase,
)
from rapport.communication.adapters.outgoing.outcomes import OutcomeData
from rapport.communication.answers import USUAL_DECLINES, Declines
from rapport.communication.batch_transaction import INPUTS, BatchTransaction, EngineParts
from rapport.communication.blocking import run_blocking
from rapport.communication.contents.rules import ANY_CONTENT, Contents
from rapport.communication.dead_letter_replay import DeadLetterReplays
from rapport.communication.decisions import DecisionCache
from rapport.communication.delivery_state import DEFAULT_RETRY, RetryPolicy
from rapport.communication.fast_path_ledger import direct_outcome_lines
from rapport.communication.message_plan import Route, no_routing
from rapport.communication.notifications import NotificationCallback, Notifications
from rapport.communication.payload_cache import (
    cache_messages,
    packed_after,
    release,
    unpacked_after,
)
from rapport.communication.peers import PeerDirectory
from rapport.communication.privacy import NO_FUNCTIONS, PrivacyFunctions
from rapport.communication.schedule import LookupCounts
from rapport.communication.templates import Facts, nothing_known
from rapport.communication.transaction import Early, append_early, append_outgoing
from rapport.core.detection import ACT_WITHIN_MS, DETECTED, Detection
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent
from rapport.core.usual_events import as_sound
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import first_of
from rapport.store.base import RecordStore

T = TypeVar("T")
READER = "communication"
_BATCH = 2_000
_BATCH_BYTES = 16_000_000
_FIRST_BATCH = _BATCH_BYTES // MAX_DATA_BYTES
"""Read while nobody knows how large they are: so many fit, however large."""
_COMMIT_EVERY = 20_000
_LONGEST_SLEEP_MS = 30_000
"""The wall clock is looked at this often: one that was set delays no deadline for long."""


class CommunicationEngine:
    """Holds the readers' places; everything else is in the record store."""

    def __init__(
        self,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        *,
        directory: PeerDirectory,
        actions: Mapping[str, Action],
        phrases: Phrases | Mapping[str, Sequence[str]],
        adapters: Collection[str],
        retry: RetryPolicy = DEFAULT_RETRY,
        facts: Facts = nothing_known,
        own_action: OwnAction = nothing_said,
        route: Route = no_routing,
        functions: PrivacyFunctions = NO_FUNCTIONS,
        plain_lane: bool = True,
        declines: Declines = USUAL_DECLINES,
        lookups: LookupCounts | None = None,
        contents: Contents = ANY_CONTENT,
        act_within_ms: int = ACT_WITHIN_MS,
        is_heard: Callable[[], bool] | None = None,
    ) -> None:
        """`phrases`: the action phrases of each version of a policy; `adapters`: those that have a
        dispatch, looked at anew for each batch; `facts`: what tables know of an alias, for texts;
        `own_action`: what a policy itself says about a phrase, which goes before what the site
        says; `route`: whom routing rules add to a message; `functions`: those that privacy rules
        name; `plain_lane`: whether messages may go without a record of their own; `declines`: which
        answers say no; `lookups` counts what waits because nobody can say who a receiver is;
        `contents`: what the messages of actions have to be like; `act_within_ms`: actions of
        detections that are older are recorded, not carried out; `is_heard`: whether notification
        callbacks are registered, None = as added here.
        """
        self._channels, self._records, self._clock = channels, records, clock
        self._actions = {same_phrase(phrase): action for phrase, action in actions.items()}
        self._phrases = phrases_by(phrases)
        self._decided = DecisionCache(records)
        self._notifications = Notifications(channels, records)
        self.is_heard = is_heard or self._notifications.is_heard
        self._parts = EngineParts(
            directory=directory,
            actions=self._actions,
            phrases=self._phrases,
            adapters=adapters,
            retry=retry,
            facts=facts,
            own_action=own_action,
            route=route,
            functions=functions,
            plain_lane=plain_lane,
            decided=self._decided,
            declines=declines,
            lookups=lookups or LookupCounts(),
            contents=contents,
            act_within_ms=act_within_ms,
            is_heard=self.is_heard,
        )
        self._subscriptions: dict[str, Subscription] = {}
        self._committed: dict[str, int] = {}
        self._limits: dict[str, int] = dict.fromkeys(INPUTS, _FIRST_BATCH)
        self._heard_ms: dict[str, int] = {}
        """Up to when everything that a channel received was taken."""
        self._returned = DeadLetterReplays(channels, records, READER, INPUTS)
        self._turn = asyncio.Lock()
        self.opened = asyncio.Event()
        """Set while what is in memory is what is kept: not before the first `open`, nor after a
        failure."""
        self._called = asyncio.Event()

    async def run(self) -> None:
        """Works until cancelled; started again after a failure it goes on where it stood. Callbacks
        are told beside it: one that takes its time holds up no message.
        """
        await self.open()
        await first_of(self._work(), self._notifications.run())

    async def _work(self) -> None:
        while True:
            if not await self._turn_once():
                await self._wait()

    async def open(self) -> None:
        """Loads the places and repeats what a crash or a failure may have left unsaid."""
        async with self._turn:
            await self._open()

    async def _open(self) -> None:
        for name in INPUTS:
            self._subscriptions[name] = await self._channels.subscribe(name, READER)
            self._committed[name] = self._subscriptions[name].position
        self._decided.forget()
        await run_blocking(self._notifications.load)
        self._taking = await run_blocking(
            lambda: BatchTransaction(self._records, self._clock, self._parts)
        )
        outgoing = await run_blocking(self._taking.transaction.last_outbox)
        await append_outgoing(self._channels, outgoing)
        await self._returned.open()
        self.opened.set()

    async def settle(self) -> int:
        """Steps until there is nothing to do now; returns how many. For tests and stopping."""
        steps = 0
        while await self.step():
            steps += 1
        return steps

    async def step(self) -> bool:
        """Takes one batch of everything that is there or due, and tells callbacks; False when there
        was nothing to do. For who does not `run`.
        """
        busy = await self._turn_once()
        return await self._notifications.tell() or busy

    async def _turn_once(self) -> bool:
        """Takes one batch of everything that is there or due; False when there was nothing to do.

        Timers wait for what was received before them: an answer that came in time counts.
        """
        async with self._turn:
            if not self.opened.is_set():
                await self._open()
            # Answers first, for the same reason.
            busy = [await self._read(name) for name in INPUTS]
            busy.append(await self._take_letters())
            busy.append(await self._take_due())
            if not any(busy):
                await self._commit_places()
        return any(busy)

    # --- what others call ---

    async def take_outcomes(self, outcomes: Sequence[OutcomeData]) -> None:
        """Takes outcomes straight from a dispatch of the same process, without `control`; durable
        when it returns.

        Nothing is lost by a kill: a dispatch forgets its mark of a delivery only after this has
        returned, and otherwise tells the outcome again. Nothing is doubled: an outcome that comes
        again is no news to its case, and the ledger line of a plain delivery has the same id. One
        that cannot be taken holds up no other: it goes through `control`, and is set aside there.
        """
        lines, others = direct_outcome_lines(outcomes, self._clock.now_ms())
        if lines:
            await self._channels.channel("log").append(as_sound(lines))
        if others:
            async with self._turn:
                if not self.opened.is_set():
                    await self._open()
                await self._do(partial(self._taking.take_outcomes, others))
            self._called.set()  # something may be due earlier than what is waited for

    def is_decided(self, message: str, peer: str = "") -> bool:
        """Whether nothing more is to be sent of a message (or of a delivery's `case`), to anybody
        or to this peer; asked by dispatches before sending.
        """
        return self._decided.has(message, peer)

    def recall_decision(self, message: str, peer: str = "") -> bool | None:
        """As `is_decided`, from memory; None when that takes a look into the records."""
        return self._decided.recall(message, peer)

    @asynccontextmanager
    async def between_batches(self) -> AsyncIterator[None]:
        """Nothing is taken while the block runs, and every detection that was there before has
        been: for who changes whom there is to reach, or what is done about a phrase.
        """
        async with self._turn:
            if not self.opened.is_set():
                await self._open()
            last = self._channels.channel("detections").last_position()
            while self._taking.positions["detections"] < last:
                if not await self._read("detections"):
                    break
            yield

    async def handle_accepted(self) -> None:
        """Returns when everything that stands in the channels read here now was taken; takes it
        itself where nobody runs the engine.
        """
        last = {name: self._channels.channel(name).last_position() for name in INPUTS}
        while not self.opened.is_set() or any(
            self._taking.positions[name] < position for name, position in last.items()
        ):
            if not await self._turn_once():
                return

    def use_actions(self, actions: Mapping[str, Action]) -> None:
        """What is done about phrases from now on; only within `between_batches`."""
        kept = {same_phrase(phrase): action for phrase, action in actions.items()}
        self._actions.clear()  # whoever looks phrases up holds this very mapping
        self._actions.update(kept)

    def add_notification(self, callback: NotificationCallback, name: str = "") -> str:
        """Calls this, too, with messages to components, messages without a receiver, and how the
        messages of components went; returns what `remove_notification` wants. See Notifications.
        """
        return self._notifications.add(callback, name)

    def remove_notification(self, id: str) -> bool:
        """Calls it no more; False when there is none of that id."""
        return self._notifications.remove(id)

    # --- one turn ---

    async def _read(self, name: str) -> bool:
        position, limit = self._taking.positions[name], self._limits[name]
        channel = self._channels.channel(name)
        stretches = packed_after(channel, position, limit=_BATCH) if name == "input" else ()
        if stretches and await self._take_stretches(stretches):
            return True
        if stretches:
            limit = len(stretches[0])
            cache_messages(stretches[0])
        else:
            limit = unpacked_after(channel, position, limit=limit)
        return await self._read_events(name, limit)

    async def _take_stretches(self, stretches: Sequence[PackedStretch]) -> bool:
        """Takes messages of `input` as they came; False when they are to be read as events."""
        now_ms, until = self._clock.now_ms(), self._channels.channel("input").last_position()
        taken = await self._do(partial(self._taking.take_packed, stretches))
        if taken:
            release(self._channels.channel("input"), stretches[:taken])
            last = stretches[taken - 1]
            self._heard_ms["input"] = now_ms if last.last >= until else last.received
            await self._commit_now_and_then("input")
        return taken > 0

    async def _read_events(self, name: str, limit: int) -> bool:
        now_ms = self._clock.now_ms()
        position = self._taking.positions[name]
        channel = self._channels.channel(name)
        until = channel.last_position()
        batch = await channel.read_after(position, limit=limit)
        # Fewer than the limit need not be all: large ones are read in small portions.
        is_all = not batch or batch[-1].position >= until
        if batch:
            hops = await self._hops(name, batch)
            await self._take_batch(name, batch, hops)
            self._limits[name] = _next_limit(batch)
            await self._commit_now_and_then(name)
            position = self._taking.positions[name]
            # A transaction may end before the batch does.
            last = next(stored for stored in reversed(batch) if stored.position <= position)
            is_all = is_all and last is batch[-1]
        self._heard_ms[name] = now_ms if is_all else last.received
        return bool(batch)

    async def _take_batch(
        self, name: str, batch: Sequence[StoredEvent], hops: Mapping[str, int]
    ) -> None:
        """One transaction; where replies refer to what is only in the log, one more after it was
        looked up.
        """
        await self._do(partial(self._taking.take_batch, name, batch, hops))
        while self._taking.wanted:
            await self._look_back()
            position = self._taking.positions[name]
            rest = [stored for stored in batch if stored.position > position]
            await self._do(partial(self._taking.take_batch, name, rest, hops))

    async def _look_back(self) -> None:
        await self._taking.told_before.look_up(self._channels, self._taking.wanted)

    async def _take_letters(self) -> bool:
        """Handles events of dead letters again: once, since a letter is struck off in the
        transaction of what it changed.
        """
        returned = await self._returned.waiting()
        for replay, stored in returned:
            await self._take_back(replay, stored)
        return bool(returned)

    async def _take_back(self, replay: Replay, stored: StoredEvent | None) -> None:
        hops = {} if stored is None else await self._hops(replay.channel, [stored])
        await self._do(partial(self._taking.take_again, replay, stored, hops))
        if self._taking.wanted:
            await self._look_back()
            await self._do(partial(self._taking.take_again, replay, stored, hops))

    async def _take_due(self) -> bool:
        """One slice of what is left to do on large messages, and what time has brought."""
        busy = False
        if self._taking.has_chores():
            await self._do(self._taking.take_chore)
            busy = True
        heard_ms = min(self._heard_ms["control"], self._heard_ms["input"], self._clock.now_ms())
        if self._taking.is_due(heard_ms):
            await self._do(partial(self._taking.take_due, heard_ms))
            if self._taking.wanted:
                await self._look_back()
            busy = True
        return busy

    async def _do(self, work: Callable[[], T]) -> T:
        """Does work in a thread, appends what follows from the input alone, then makes the rest
        durable, then appends that; returns what the work gave.

        After a failure everything is loaded anew: the outbox may not have been appended, and the
        next commit would forget it.
        """
        try:
            found, early = await run_blocking(partial(self._prepare, work))
            await append_early(self._channels, early)
            await append_outgoing(self._channels, await run_blocking(self._taking.commit))
            return found
        except BaseException:
            self.opened.clear()
            raise

    def _prepare(self, work: Callable[[], T]) -> tuple[T, Early]:
        found = work()
        return found, self._taking.transaction.take_early()

    async def _commit_places(self) -> None:
        for name in INPUTS:
            if self._taking.positions[name] > self._committed[name]:
                await self._commit_place(name)

    async def _commit_now_and_then(self, name: str) -> None:
        if self._taking.positions[name] - self._committed[name] >= _COMMIT_EVERY:
            await self._commit_place(name)

    async def _commit_place(self, name: str) -> None:
        """The places that count are the transaction's; these tell others how far we have read."""
        await self._subscriptions[name].commit(self._taking.positions[name])
        self._committed[name] = self._taking.positions[name]

    async def _hops(self, channel: str, batch: Sequence[StoredEvent]) -> dict[str, int]:
        """By id of a detection how many actions led to it; asked only where an action has an effect
        that could lead on.
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
            return False  # set aside when its turn comes
        phrases = self._phrases(detection.policy, detection.version)
        actions = [self._actions.get(same_phrase(phrase)) for phrase in phrases]
        return any(action is not None and action.effect is not None for action in actions)

    # --- waiting ---

    async def _wait(self) -> None:
        """Until there is something to read or something is due."""
        positions = self._taking.positions
        events = [self._channels.channel(name).wait_after(positions[name]) for name in INPUTS]
        self._called.clear()
        await first_of(*events, self._returned.wait(), self._called.wait(), self._until_due())

    async def _until_due(self) -> None:
        due_ms = self._taking.next_due_ms()
        left_ms = due_ms - self._clock.now_ms() if due_ms else _LONGEST_SLEEP_MS
        await self._clock.sleep(min(max(left_ms, 0), _LONGEST_SLEEP_MS))


def _next_limit(batch: Sequence[StoredEvent]) -> int:
    """How many to read next: fewer when they are large, so that a batch fits into memory."""
    largest = max([len(stored.event.data) for stored in batch])
    return max(min(_BATCH, _BATCH_BYTES // max(largest, 1)), 1)
