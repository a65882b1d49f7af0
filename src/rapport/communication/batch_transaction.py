"""The work of the engine inside its transactions: batches of events, outcomes, jobs, due times.
[CO-7, CO-10]

Blocking, without awaiting: the engine calls it in a thread, one call at a time, and `commit` after
each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from rapport.channel.dead_letters import DEAD_LETTERS, REPLAYS, STATES, Replay, dead_letter_event
from rapport.channel.validation import MAX_DATA_BYTES
from rapport.communication.adapters.outcome_events import OUTCOME, OutcomeData, outcome_event
from rapport.communication.answers import (
    ANSWER,
    HistoryNeeded,
    MessageHistory,
    answer_secret,
)
from rapport.communication.dead_letter_replay import replay_note
from rapport.communication.decisions import DecisionCache
from rapport.communication.delivery_runner import DeliveryRunner, PrivacyCheck, ReceiverLookup
from rapport.communication.detection_actions import DetectionActions
from rapport.communication.engine_parts import EngineParts
from rapport.communication.fast_path import FastPath
from rapport.communication.ledger_events import held_event
from rapport.communication.messages import MessageHandler
from rapport.communication.outcomes import OutcomeHandler
from rapport.communication.records import PendingRetry
from rapport.communication.schedule import (
    DeferredEvent,
    DueEntry,
    MemberJob,
    PartlyHandled,
    Schedule,
    split_key,
)
from rapport.communication.sender_notifications import notify_sender
from rapport.communication.transaction import TABLE, Outgoing, Transaction
from rapport.core.detection import DETECTED, SKIPPED, STILL_LASTS
from rapport.core.errors import (
    Corrupt,
    InvalidInput,
    RapportError,
    SourceUnavailable,
    Unavailable,
)
from rapport.core.event import Event, StoredEvent
from rapport.core.message import CONTROL, MESSAGE, Message
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.store.base import RecordStore

INPUTS = ("control", "input", "detections")
READER = "communication"
_DUE_AT_ONCE = 1_000
_LOOK_AGAIN_MS = 60_000
_LARGEST_BURIED = 100_000
"""Largest event, in bytes, that a dead letter contains; a larger one stays in its channel."""
_log = get_logger(__name__)


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
        privacy = PrivacyCheck(transaction, parts.directory, parts.functions)
        self._runner = DeliveryRunner(
            transaction, self.schedule, privacy, lookup, on_closed=self._closing.append
        )
        self._fast_path = FastPath(transaction, lookup, decisions.direct, parts)
        self._messages = MessageHandler(
            transaction, self._runner, lookup, self._fast_path, self.history, parts
        )
        self._outcomes = OutcomeHandler(
            transaction,
            self._runner,
            self._fast_path,
            self.history,
            parts,
            secret=answer_secret(records),
        )
        self._actions = DetectionActions(transaction, self._runner, lookup, parts)
        self.positions = {name: _position(records, name) for name in INPUTS}
        self.schedule.refresh()

    # --- batches ---

    def take_batch(
        self, channel: str, batch: Sequence[StoredEvent], hops: Mapping[str, int]
    ) -> None:
        """Handles events of one channel and moves the position of its reader. `wanted` names the
        messages to look up before the next event can be handled; otherwise all events were
        handled, or as many as fit into one transaction.
        """
        now_ms, self.wanted = self._clock.now_ms(), []
        self._fast_path.begin_batch(now_ms)
        is_input, index = channel == "input", 0
        try:
            while True:
                if is_input:
                    index = self._fast_path.take_row(batch, index, now_ms)
                if index == len(batch) or self.transaction.is_full:
                    break
                self._take_one(channel, batch[index], now_ms, hops)
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
        """Undoes what was changed, emitted and closed since the mark."""
        self.transaction.roll_back(mark[0])
        del self._closing[mark[1] :]

    def _take_one(
        self,
        channel: str,
        stored: StoredEvent,
        now_ms: int,
        hops: Mapping[str, int],
        deferred: DeferredEvent | None = None,
    ) -> None:
        mark = self._mark()
        try:
            self._take(channel, stored.event, now_ms, hops, deferred.since if deferred else 0)
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

    def _take(
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
            self._messages.take(event, now_ms, is_again=since_ms > 0)
        elif kind == ("detections", DETECTED):
            own = hops.get(event.id, 0)
            self._actions.take(event, now_ms, hops=own, since_ms=since_ms, any_age=any_age)
        elif kind == ("detections", STILL_LASTS):
            self._actions.take(event, now_ms, any_age=True)
        elif kind == ("detections", SKIPPED):
            self._actions.take_skipped(event, now_ms)
        elif kind == ("control", OUTCOME):
            data: OutcomeData = event.payload_as(OutcomeData)
            self._outcomes.take_outcome(data, now_ms, event.id)
        elif kind == ("control", ANSWER):
            self._outcomes.take_answer(event, now_ms)

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

    # --- what cannot be handled ---

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

    def take_outcomes(self, outcomes: Sequence[OutcomeData]) -> None:
        """Applies outcomes that did not go through `control`. One that fails stops no other: it is
        sent through `control`, and is dead-lettered there like any other event.
        """
        now_ms = self._clock.now_ms()
        for data in outcomes:
            mark = self._mark()
            try:
                self._outcomes.take_outcome(data, now_ms, data.id)
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

    def take_again(
        self, replay: Replay, stored: StoredEvent | None, hops: Mapping[str, int]
    ) -> None:
        """Handles the event of a dead letter once more; not yet when something is `wanted`."""
        self.wanted = []
        mark, now_ms = self._mark(), self._clock.now_ms()
        error = "" if stored is not None else "the event is in no log any more"
        if stored is not None:
            try:
                self._take(replay.channel, stored.event, now_ms, hops, any_age=True)
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

    def take_job(self) -> None:
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

    def take_due(self, now_ms: int) -> None:
        """Handles entries that are due; `wanted` names what has to be looked up for them."""
        self.wanted = []
        for entry in self.schedule.take_due(now_ms, _DUE_AT_ONCE):
            if self.transaction.is_full:
                self.schedule.set(entry.key, entry.due_ms)
            elif entry.is_deferred:
                self._take_deferred(entry)
            else:
                self._pass_time(entry.key)

    def _take_deferred(self, entry: DueEntry) -> None:
        try:
            event = self.schedule.take_deferred(entry)
        except Corrupt as error:
            self._look_again(entry.key, error)
            return
        if event is not None:
            hops = {event.stored.event.id: event.hops}
            self._take_one(event.channel, event.stored, self._clock.now_ms(), hops, event)

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
