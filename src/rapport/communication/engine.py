"""The communication engine: messages become deliveries, detections become messages, outcomes and
answers are applied. [CO-7, CO-8, CO-10, CO-12]

Reads `control`, `detections` and `input` in batches, one transaction each; appends to
`output.<adapter>`, `log` and the other channels of communication. Every input is handled exactly
once, since its position is kept in the transaction of what it changed. Towards a medium that makes
at least once, with the same idempotency key for every attempt. `BatchTransaction` does the work
inside the transactions: it blocks and is called in a thread, one call at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from msgspec.structs import replace

from rapport.channel.channel import Channels, Subscription
from rapport.channel.dead_letters import DEAD_LETTERS, REPLAYS, STATES, Replay, dead_letter_event
from rapport.channel.validation import MAX_DATA_BYTES
from rapport.communication.actions import Action
from rapport.communication.adapters.attempts import OUTCOME, OutcomeData, outcome_event
from rapport.communication.answers import ANSWER, CLOSE, HistoryNeeded, MessageHistory
from rapport.communication.dead_letter_replay import DeadLetterReplays, replay_note
from rapport.communication.delivery_runner import (
    DeliveryRunner,
    EngineParts,
    PrivacyCheck,
    ReceiverLookup,
)
from rapport.communication.detection_actions import DetectionActions, hops_before
from rapport.communication.fast_path import FastPath
from rapport.communication.ledger_events import held_event
from rapport.communication.links import answer_secret
from rapport.communication.messages import MessageHandler
from rapport.communication.notifications import NotificationCallback, Notifications, notify_sender
from rapport.communication.outcomes import OutcomeHandler, direct_outcome_events
from rapport.communication.records import (
    DecisionCache,
    DeferredEvent,
    DueEntry,
    MemberJob,
    PartlyHandled,
    PendingRetry,
    Schedule,
    pending_retries,
    split_key,
)
from rapport.communication.texts import same_phrase
from rapport.communication.transaction import (
    TABLE,
    Outgoing,
    Transaction,
    append_early,
    append_outgoing,
)
from rapport.core.detection import (
    ACKNOWLEDGED,
    DETECTED,
    ENDED,
    SKIPPED,
    STILL_LASTS,
    Detection,
)
from rapport.core.errors import Corrupt, InvalidInput, RapportError, SourceUnavailable, Unavailable
from rapport.core.event import Event, StoredEvent
from rapport.core.message import CONTROL, MESSAGE, Message
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import first_of, run_blocking
from rapport.kernel.telemetry import get_logger
from rapport.store.base import RecordStore

INPUTS = ("control", "input", "detections")
READER = "communication"
_HAS_ACTIONS = (DETECTED, ENDED)
_DUE_AT_ONCE = 1_000
_LOOK_AGAIN_MS = 60_000
_LARGEST_BURIED = 100_000
"""Largest event, in bytes, that a dead letter contains; a larger one stays in its channel."""
_log = get_logger(__name__)
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

        Due times wait for the events received before them: an answer that came in time counts.
        """
        async with self._turn:
            await self._ensure_open()
            # Answers first, for the same reason.
            busy = [await self._read(name) for name in INPUTS]
            busy.append(await self._replay_letters())
            busy.append(await self._run_due())
            if not any(busy):
                for name in INPUTS:
                    await self._commit_position(name, 1)
        return any(busy)

    # --- called by others ---

    async def apply_outcomes(self, outcomes: Sequence[OutcomeData]) -> None:
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
                await self._do(partial(self._batches.apply_outcomes, others))
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

    async def run_due(self) -> None:
        """Handles due entries now; for callers that cannot wait for `run`."""
        await self._turn_once()

    async def retry_now(self, adapter: str) -> None:
        """Retries failed deliveries of this adapter at once: when it is gone, that ends each such
        attempt and the next address is tried, or the sender is notified.
        """
        waiting = await run_blocking(partial(pending_retries, self._records, adapter))
        for first in range(0, len(waiting), _BATCH):
            async with self._turn:
                await self._ensure_open()
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
        await self._handle_batch(name, batch, hops)
        self._limits[name] = _next_limit(batch)
        await self._commit_position(name, _COMMIT_EVERY)
        position = self._batches.positions[name]
        # A transaction may end before the batch does, and a batch before the channel.
        last = next(stored for stored in reversed(batch) if stored.position <= position)
        self._complete_ms[name] = now_ms if last.position >= until else last.received
        return True

    async def _handle_batch(
        self, name: str, batch: Sequence[StoredEvent], hops: Mapping[str, int]
    ) -> None:
        """One transaction, and one more after each look-up of messages in the log."""
        await self._do(partial(self._batches.handle_batch, name, batch, hops))
        while self._batches.wanted:
            await self._look_up_history()
            position = self._batches.positions[name]
            rest = [stored for stored in batch if stored.position > position]
            await self._do(partial(self._batches.handle_batch, name, rest, hops))

    async def _look_up_history(self) -> None:
        await self._batches.history.look_up(self._channels, self._batches.wanted)

    async def _replay_letters(self) -> bool:
        """Handles the events of dead letters again: once, since the request is deleted in the
        transaction of what it changed.
        """
        waiting = await self._replays.waiting()
        for replay, stored in waiting:
            hops = {} if stored is None else await self._hops(replay.channel, [stored])
            work = partial(self._batches.replay, replay, stored, hops)
            await self._do(work)
            if self._batches.wanted:
                await self._look_up_history()
                await self._do(work)
        return bool(waiting)

    async def _run_due(self) -> bool:
        """One slice of a job on a large message, and the due entries."""
        busy = self._batches.schedule.has_jobs
        if busy:
            await self._do(self._batches.run_job)
        complete = self._complete_ms
        until_ms = min(complete["control"], complete["input"], self._clock.now_ms())
        if self._batches.is_due(until_ms):
            await self._do(partial(self._batches.run_due, until_ms))
            if self._batches.wanted:
                await self._look_up_history()
            busy = True
        return busy

    async def _do(self, work: Callable[[], None]) -> None:
        """Does work in a thread, appends the events that follow from the input alone, commits, and
        appends the other events.

        After a failure everything is loaded anew: the outbox may not have been appended, and the
        next commit would overwrite it.
        """
        try:
            await run_blocking(work)
            await append_early(self._channels, self._batches.transaction.pop_early())
            await append_outgoing(self._channels, await run_blocking(self._batches.commit))
        except BaseException:
            self.opened.clear()
            raise

    async def _commit_position(self, name: str, least: int) -> None:
        """Publishes the position of a reader once it has moved by `least`. The transaction's own
        position counts; this one shows others how far the engine has read.
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
        found = [stored.event for stored in batch if stored.event.type in _HAS_ACTIONS]
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
        phrases = self._parts.phrases_for(detection)
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


class BatchTransaction:
    """One engine's transaction and all that works in it."""

    def __init__(
        self, records: RecordStore, clock: Clock, parts: EngineParts, decisions: DecisionCache
    ) -> None:
        self._clock, self._decisions, self._lookups = clock, decisions, parts.lookups
        transaction = self.transaction = Transaction(records)
        transaction.has_listeners = parts.has_listeners
        self.schedule = Schedule(transaction)
        self._closing: list[str] = []
        self.history = MessageHistory()
        self.wanted: list[str] = []
        """Messages that have to be looked up before the next call."""
        lookup = ReceiverLookup(parts.directory, parts.adapters)
        privacy = PrivacyCheck(transaction, parts.directory, parts.functions, parts.reader)
        self._runner = DeliveryRunner(
            transaction,
            self.schedule,
            privacy,
            lookup,
            retry=parts.retry,
            on_closed=self._closing.append,
        )
        self._fast_path = FastPath(transaction, lookup, decisions.direct, parts)
        self._messages = MessageHandler(
            transaction, self._runner, self._fast_path, self.history, parts
        )
        self._outcomes = OutcomeHandler(
            transaction,
            self._runner,
            self._fast_path,
            self.history,
            parts,
            secret=answer_secret(records),
        )
        self._actions = DetectionActions(transaction, self._runner, parts)
        self._runner.on_late_notice = self._actions.notify_late
        self.positions = {name: _position(records, name) for name in INPUTS}
        self.schedule.refresh()

    # --- batches ---

    def handle_batch(
        self, channel: str, batch: Sequence[StoredEvent], hops: Mapping[str, int]
    ) -> None:
        """Handles events of one channel and moves the position of its reader. `wanted` names the
        messages to look up before the next event can be handled; otherwise all events were
        handled, or as many as fit into one transaction.
        """
        now_ms, self.wanted = self._clock.now_ms(), []
        is_input, index = channel == "input", 0
        if is_input:
            self._fast_path.begin_batch(now_ms)
        try:
            while True:
                if is_input:
                    index = self._fast_path.handle_row(batch, index, now_ms)
                if index == len(batch) or self.transaction.is_full:
                    break
                self._handle_one(channel, batch[index], now_ms, hops)
                index += 1
        except HistoryNeeded as needed:
            others = self._messages.unknown_in(batch[index + 1 :])
            self.wanted = list(dict.fromkeys([needed.message, *others]))
        if index:
            position = batch[index - 1].position
            self.transaction.put(TABLE, f"position/{channel}", str(position).encode())
            self.positions[channel] = position

    def _mark(self) -> tuple[int, int]:
        return self.transaction.mark(), len(self._closing)

    def _roll_back(self, mark: tuple[int, int]) -> None:
        """Undoes all changes, events and closings since the mark."""
        self.transaction.roll_back(mark[0])
        del self._closing[mark[1] :]

    def _handle_one(
        self,
        channel: str,
        stored: StoredEvent,
        now_ms: int,
        hops: Mapping[str, int],
        deferred: DeferredEvent | None = None,
    ) -> None:
        mark = self._mark()
        try:
            self._handle(channel, stored.event, now_ms, hops, deferred.since if deferred else 0)
            self.transaction.check(mark[0])
        except SourceUnavailable as error:
            # The directory fails for this event; the others go on.
            if not isinstance(error, PartlyHandled):
                self._roll_back(mark)
            tries, since = (deferred.tries + 1, deferred.since) if deferred else (1, now_ms)
            hops_to = hops.get(stored.event.id, 0)
            self._defer(DeferredEvent(channel, stored, hops_to, tries, since), error, now_ms)
        except HistoryNeeded as needed:
            self._roll_back(mark)
            if deferred is None:
                raise
            self.wanted.append(needed.message)
            self.schedule.defer(deferred, now_ms)
        except Unavailable:
            raise
        except Exception as error:
            self._roll_back(mark)
            _log.error(
                "event dead-lettered", channel=channel, id=stored.event.id, error=repr(error)
            )
            self._dead_letter(channel, stored, error, now_ms)

    def _handle(
        self,
        channel: str,
        event: Event,
        now_ms: int,
        hops: Mapping[str, int],
        since_ms: int = 0,
        *,
        any_age: bool = False,
    ) -> None:
        """Handles one event; other types are skipped. `any_age`: an operator asks for it, so that
        it is never too old. Raises InvalidInput when its data cannot be read.
        """
        kind = (channel, event.type)
        if kind == ("input", MESSAGE):
            self._messages.handle(event, now_ms, is_again=since_ms > 0)
        elif kind == ("detections", DETECTED):
            own = hops.get(event.id, 0)
            self._actions.handle(event, now_ms, hops=own, since_ms=since_ms, any_age=any_age)
        elif kind == ("detections", ENDED):
            own = hops.get(event.id, 0)
            self._actions.end(event, now_ms, hops=own, since_ms=since_ms)
        elif kind == ("detections", ACKNOWLEDGED):
            self._actions.acknowledge(event, now_ms)
        elif kind == ("detections", STILL_LASTS):
            self._actions.handle(event, now_ms, any_age=True)
        elif kind == ("detections", SKIPPED):
            self._actions.record_skipped(event, now_ms)
        elif kind == ("control", OUTCOME):
            data: OutcomeData = event.payload_as(OutcomeData)
            self._outcomes.apply_outcome(data, now_ms, event.id)
        elif kind == ("control", ANSWER):
            self._outcomes.take_answer(event, now_ms)
        elif kind == ("control", CLOSE):
            self._outcomes.close_message(event, now_ms)

    def _defer(self, event: DeferredEvent, error: SourceUnavailable, now_ms: int) -> None:
        """Defers an event, a message up to its time to live; the ledger shows it as held."""
        stored = event.stored.event
        is_message = event.channel == "input"
        ttl_ms = Message.from_event(stored).ttl if is_message else 0
        due_ms = self.schedule.defer(event, now_ms, stored.time + ttl_ms if ttl_ms else 0)
        if event.tries > 1:
            self._lookups.tried_again += 1
            return
        self._lookups.put_off += 1
        _log.warning(
            "event deferred",
            channel=event.channel,
            id=stored.id,
            code=error.code,
            error=error.message,
            hint=error.hint,
        )
        if is_message:
            self.transaction.emit("log", held_event(stored.id, error.code, due_ms, now_ms=now_ms))

    # --- failures ---

    def _dead_letter(
        self, channel: str, stored: StoredEvent, error: Exception, now_ms: int
    ) -> None:
        """Writes the dead letter of an event and notifies the sender of a message."""
        whole = len(stored.event.data) <= _LARGEST_BURIED
        letter = dead_letter_event(channel, READER, stored, error, attempts=1, whole=whole)
        self.transaction.emit(DEAD_LETTERS, letter)
        if channel == "input" and stored.event.type == MESSAGE:
            self._notify_of_failure(stored.event, error, now_ms)

    def _notify_of_failure(self, event: Event, error: Exception, now_ms: int) -> None:
        mark = self.transaction.mark()
        try:
            message = Message.from_event(event)
            if message.type != CONTROL:
                notify_sender(
                    self.transaction,
                    str(message.sender),
                    message.id or event.id,
                    "comerror",
                    f"it could not be handled: {_reason(error)}",
                    now_ms=now_ms,
                )
            self.transaction.check(mark)
        except Exception:  # the fault may be the sender or the id
            self.transaction.roll_back(mark)

    def apply_outcomes(self, outcomes: Sequence[OutcomeData]) -> None:
        """Applies outcomes that did not go through `control`. One that fails stops no other: it is
        sent through `control`, and is dead-lettered there like any other event.
        """
        now_ms = self._clock.now_ms()
        for data in outcomes:
            mark = self._mark()
            try:
                self._outcomes.apply_outcome(data, now_ms, data.id)
            except Exception as error:
                # If the store fails, all outcomes are reported again.
                if isinstance(error, Unavailable) and not isinstance(error, SourceUnavailable):
                    raise
                self._roll_back(mark)
                self._send_through_control(data, error, now_ms)

    def _send_through_control(self, data: OutcomeData, error: Exception, now_ms: int) -> None:
        about = {"message": data.message, "peer": data.peer, "state": data.state}
        hint = error.hint if isinstance(error, RapportError) else ""
        try:
            self.transaction.emit("control", _fitting_event(data, now_ms))
            _log.warning("outcome not applied directly", **about, error=repr(error), hint=hint)
        except (InvalidInput, ValueError, OverflowError):
            # No channel keeps such an outcome: this log line is its only trace.
            _log.error("outcome dropped", **about, error=repr(error), hint=hint)

    def replay(self, replay: Replay, stored: StoredEvent | None, hops: Mapping[str, int]) -> None:
        """Handles the event of a dead letter once more; not yet when something is `wanted`."""
        self.wanted = []
        mark, now_ms = self._mark(), self._clock.now_ms()
        self._fast_path.begin_batch(now_ms)
        error = "" if stored is not None else "the event is in no log any more"
        if stored is not None:
            try:
                self._handle(replay.channel, stored.event, now_ms, hops, any_age=True)
                self.transaction.check(mark[0])
            except HistoryNeeded as needed:
                self._roll_back(mark)
                self.wanted.append(needed.message)
                return
            except Exception as failure:
                # A receiver that cannot be looked up leaves the letter open, like any failure.
                if isinstance(failure, Unavailable) and not isinstance(failure, SourceUnavailable):
                    raise
                self._roll_back(mark)
                error = repr(failure)
        self.transaction.delete(REPLAYS, replay.key)
        if not error:
            self.transaction.put(STATES, replay.letter, b"replayed")
        self.transaction.emit(DEAD_LETTERS, replay_note(replay, error, now_ms))

    # --- jobs and due times ---

    def run_job(self) -> None:
        """Does one slice of the first job."""
        job = self.schedule.first_job()
        if job is None:
            return
        error = self._attempt(lambda: self._runner.work_on(job, self._clock.now_ms()))
        if error is not None:
            _log.error("job given up", message=job.case, kind=job.kind, error=repr(error))
            self._give_up(job, _reason(error))

    def _give_up(self, job: MemberJob, reason: str) -> None:
        error = self._attempt(lambda: self._runner.give_up(job, reason, self._clock.now_ms()))
        if error is not None:
            _log.error("job suspended", message=job.case, kind=job.kind, error=repr(error))
            self.schedule.suspend_job(job)

    def _attempt(self, work: Callable[[], None]) -> Exception | None:
        """Does work; returns its error and then undoes it. Raises Unavailable: a store that fails
        is no fault of this work.
        """
        mark = self._mark()
        try:
            work()
            self.transaction.check(mark[0])
        except Unavailable:
            raise
        except Exception as error:
            self._roll_back(mark)
            return error
        return None

    def is_due(self, now_ms: int) -> bool:
        """Whether something may be due."""
        return 0 < self.schedule.next_ms <= now_ms

    def retry_now(self, retries: Sequence[PendingRetry], adapter: str) -> None:
        """Makes attempts by an adapter due that would be made later."""
        now_ms = self._clock.now_ms()
        for retry in retries:
            self._runner.records.retry_now(retry, adapter, now_ms)

    def run_due(self, now_ms: int) -> None:
        """Handles entries that are due; `wanted` names what has to be looked up for them."""
        self.wanted = []
        for entry in self.schedule.pop_due(now_ms, _DUE_AT_ONCE):
            if self.transaction.is_full:
                self.schedule.set(entry.key, entry.due_ms)
            elif entry.is_deferred:
                self._retry_deferred(entry)
            else:
                self._pass_time(entry.key)

    def _retry_deferred(self, entry: DueEntry) -> None:
        try:
            event = self.schedule.pop_deferred(entry)
        except Corrupt as error:
            self._look_again(entry.key, error)
            return
        if event is not None:
            now_ms, hops = self._clock.now_ms(), {event.stored.event.id: event.hops}
            self._fast_path.begin_batch(now_ms)
            self._handle_one(event.channel, event.stored, now_ms, hops, event)

    def _pass_time(self, key: str) -> None:
        """A delivery that fails is looked at again later; the others go on."""
        now_ms = self._clock.now_ms()
        error = self._attempt(lambda: self._runner.pass_time(*split_key(key), now_ms))
        if error is not None:
            self._look_again(key, error)

    def _look_again(self, key: str, error: Exception) -> None:
        _log.error("timer failed", key=key, error=repr(error))
        self.schedule.set(key, self._clock.now_ms() + _LOOK_AGAIN_MS)

    def commit(self) -> Outgoing:
        """Makes everything durable; returns the events to append now."""
        outgoing = self.transaction.commit()
        if self.is_due(self._clock.now_ms()):
            self.schedule.refresh()
        closing, self._closing[:] = list(self._closing), []
        for key in closing:
            self._decisions.close(key)
        return outgoing


def _reason(error: Exception) -> str:
    """The error as senders are shown it."""
    return error.message if isinstance(error, RapportError) else type(error).__name__


def _fitting_event(data: OutcomeData, now_ms: int) -> Event:
    """The outcome as an event, without the delivery where that makes it too large."""
    event = outcome_event(data, now_ms=now_ms)
    if len(event.data) <= MAX_DATA_BYTES:
        return event
    return outcome_event(replace(data, delivery=None), now_ms=now_ms)


def _position(records: RecordStore, name: str) -> int:
    kept = records.get(TABLE, f"position/{name}")
    return int(kept) if kept else 0


def _by_phrase(actions: Mapping[str, Action]) -> dict[str, Action]:
    return {same_phrase(phrase): action for phrase, action in actions.items()}


def _next_limit(batch: Sequence[StoredEvent]) -> int:
    """The size of the next batch: smaller for large events, so that a batch fits into memory."""
    largest = max([len(stored.event.data) for stored in batch])
    return max(min(_BATCH, _BATCH_BYTES // max(largest, 1)), 1)
