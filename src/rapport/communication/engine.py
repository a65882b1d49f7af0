"""Detections become messages, messages become deliveries, outcomes and answers come back.
[CO-7, CO-8, CO-10]

A thin shell around `delivery.next_step`: reads `detections` and `control`, appends to
`output.<adapter>` and `log`. Every input is taken exactly once (its position is kept in the same
transaction as what it changed); towards the medium that makes at least once, with the same
idempotency key for every attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from rapport.channel.channel import Channels, Subscription
from rapport.channel.dead_letter_replay import REPLAYS, STATES, Replay
from rapport.channel.dead_letters import DEAD_LETTERS, dead_letter
from rapport.communication.actions import (
    Action,
    OwnAction,
    Phrases,
    nothing_said,
    phrases_by,
    same_phrase,
)
from rapport.communication.answers import answer_secret
from rapport.communication.aside import run_aside
from rapport.communication.cases import Cases
from rapport.communication.hops import hops_before
from rapport.communication.peers import PeerDirectory
from rapport.communication.returned import Returned, told
from rapport.communication.templates import Facts, nothing_known
from rapport.communication.tracking import DEFAULT_RETRY, Retry
from rapport.communication.transaction import TABLE, Outgoing, Transaction, append_outgoing
from rapport.core.detection import DETECTED, Detection
from rapport.core.errors import InvalidInput, Unavailable
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import first_of
from rapport.kernel.telemetry import get_logger
from rapport.kernel.timers import Timers
from rapport.store.base import RecordStore

READER = "communication"
_INPUTS = ("control", "detections")
"""Answers first: one that came before its deadline counts, even when both are seen late."""
_BATCH = 200
_LARGEST_BURIED = 100_000
"""A dead letter holds the event itself up to this many bytes; a larger one stays in its channel."""
_LOOK_AGAIN_MS = 60_000
_LONGEST_SLEEP_MS = 30_000
"""The wall clock is looked at this often: one that was set delays no deadline for long."""

_log = get_logger(__name__)


class CommunicationEngine:
    """Holds the readers' places and the timers; everything else is in the record store."""

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
        retry: Retry = DEFAULT_RETRY,
        facts: Facts = nothing_known,
        own_action: OwnAction = nothing_said,
    ) -> None:
        """`phrases`: the action phrases of each version of a policy; `adapters`: those that have a
        dispatch; `facts`: what tables know of an alias, for texts; `own_action`: what a policy
        itself says about a phrase, which goes before what the site says.
        """
        self._channels, self._records, self._clock = channels, records, clock
        self._directory, self._adapters, self._retry = directory, frozenset(adapters), retry
        self._actions = {same_phrase(phrase): action for phrase, action in actions.items()}
        self._phrases = phrases_by(phrases)
        self._facts, self._own_action = facts, own_action
        self._subscriptions: dict[str, Subscription] = {}
        self._positions: dict[str, int] = {}
        self._returned = Returned(channels, records, READER, _INPUTS)

    async def run(self) -> None:
        """Works until cancelled; started again after a failure it goes on where it stood."""
        await self.open()
        while True:
            if not await self.step():
                await self._wait()

    async def open(self) -> None:
        """Loads places and timers and repeats what a crash may have left unsaid."""
        for name in _INPUTS:
            self._subscriptions[name] = await self._channels.subscribe(name, READER)
        outgoing = await run_aside(self._load)
        await append_outgoing(self._channels, outgoing)
        await self._returned.open()

    async def step(self) -> bool:
        """Takes one batch of what is there, or what is due; False when there was nothing to do."""
        for name in _INPUTS:
            batch = await self._channels.channel(name).read_after(
                self._positions[name], limit=_BATCH
            )
            if batch:
                hops = await self._hops(name, batch)
                outgoing = await run_aside(partial(self._take_batch, name, batch, hops))
                await append_outgoing(self._channels, outgoing)
                await self._subscriptions[name].commit(self._positions[name])
                return True
        if returned := await self._returned.waiting():
            for replay, stored in returned:
                await self._take_back(replay, stored)
            return True
        if not self._timers.due(self._clock.now_ms()):
            return False
        await append_outgoing(self._channels, await run_aside(self._take_timers))
        return True

    async def _take_back(self, replay: Replay, stored: StoredEvent | None) -> None:
        """Handles the event of a dead letter again: once, since the letter is struck off in the
        transaction of what it changed.
        """
        hops = {} if stored is None else await self._hops(replay.channel, [stored])
        await append_outgoing(
            self._channels, await run_aside(partial(self._take_again, replay, stored, hops))
        )

    async def settle(self) -> int:
        """Steps until there is nothing to do now; returns how many. For tests and stopping."""
        steps = 0
        while await self.step():
            steps += 1
        return steps

    async def _hops(self, channel: str, batch: Sequence[StoredEvent]) -> dict[str, int]:
        """By id of a detection how many actions led to it; asked only where an action has an effect
        that could lead on.
        """
        if channel != "detections":
            return {}
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

    # --- in a worker thread ---

    def _load(self) -> list[Outgoing]:
        self._transaction = Transaction(self._records)
        self._timers = Timers(READER, self._transaction)
        self._cases = Cases(
            self._transaction,
            self._timers,
            directory=self._directory,
            actions=self._actions,
            phrases=self._phrases,
            adapters=self._adapters,
            retry=self._retry,
            secret=answer_secret(self._records),
            facts=self._facts,
            own_action=self._own_action,
        )
        for name in _INPUTS:
            kept = self._records.get(TABLE, f"position/{name}")
            self._positions[name] = int(kept) if kept else 0
        return self._transaction.last_outbox()

    def _take_batch(
        self, channel: str, batch: Sequence[StoredEvent], hops: Mapping[str, int]
    ) -> list[Outgoing]:
        for stored in batch:
            self._take_one(channel, stored, hops.get(stored.event.id, 0))
        position = batch[-1].position
        self._transaction.put(TABLE, f"position/{channel}", str(position).encode())
        outgoing = self._transaction.commit()
        self._positions[channel] = position
        return outgoing

    def _take_one(self, channel: str, stored: StoredEvent, hops: int) -> None:
        """An event that cannot be handled is set aside with the error; the others go on."""
        mark = self._transaction.mark()
        try:
            self._cases.take(channel, stored.event, self._clock.now_ms(), hops=hops)
        except Unavailable:
            raise
        except Exception as error:
            self._transaction.roll_back(mark)
            _log.error("event set aside", channel=channel, id=stored.event.id, error=repr(error))
            self._set_aside(channel, stored, error)

    def _take_again(
        self, replay: Replay, stored: StoredEvent | None, hops: Mapping[str, int]
    ) -> list[Outgoing]:
        mark, now_ms = self._transaction.mark(), self._clock.now_ms()
        error = "" if stored is not None else "the event is in no log any more"
        if stored is not None:
            try:
                steps = hops.get(stored.event.id, 0)
                self._cases.take(replay.channel, stored.event, now_ms, hops=steps)
            except Unavailable:
                raise
            except Exception as failure:
                self._transaction.roll_back(mark)
                error = repr(failure)
        self._transaction.delete(REPLAYS, replay.key)
        if not error:
            self._transaction.put(STATES, replay.letter, b"replayed")
        self._transaction.emit(DEAD_LETTERS, told(replay, error, now_ms))
        return self._transaction.commit()

    def _take_timers(self) -> list[Outgoing]:
        now_ms = self._clock.now_ms()
        for timer in self._timers.due(now_ms):
            self._take_timer(timer.key, now_ms)
        return self._transaction.commit()

    def _take_timer(self, message: str, now_ms: int) -> None:
        """A case that cannot be handled is looked at again later; the others go on."""
        mark = self._transaction.mark()
        try:
            self._cases.pass_time(message, now_ms)
        except Unavailable:
            raise
        except Exception as error:
            self._transaction.roll_back(mark)
            _log.error("timer failed", message=message, error=repr(error))
            self._timers.set(message, now_ms + _LOOK_AGAIN_MS)

    def _set_aside(self, channel: str, stored: StoredEvent, error: Exception) -> None:
        whole = len(stored.event.data) <= _LARGEST_BURIED
        letter = dead_letter(channel, READER, stored, error, attempts=1, whole=whole)
        self._transaction.emit(DEAD_LETTERS, letter)

    # --- waiting ---

    async def _wait(self) -> None:
        """Until there is something to read or a timer is due."""
        events = [
            self._channels.channel(name).wait_after(self._positions[name]) for name in _INPUTS
        ]
        await first_of(*events, self._returned.wait(), self._sleep_until_due())

    async def _sleep_until_due(self) -> None:
        due_ms = self._timers.next_due_ms()
        left_ms = _LONGEST_SLEEP_MS if due_ms is None else due_ms - self._clock.now_ms()
        await self._clock.sleep(min(max(left_ms, 0), _LONGEST_SLEEP_MS))
