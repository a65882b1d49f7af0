"""What the engine was given, for all that works in its transactions. [CO-7]

What cannot be handled becomes a dead letter, and whoever sent it hears of that. [CO-7, CO-12]

What the engine does inside its transactions: takes batches, outcomes, chores and what is due.
[CO-7, CO-10]

Blocking and without awaiting: the engine calls it in a thread, one call at a time, and `commit`
after each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from rapport.channel.channel import PackedStretch
from rapport.channel.checking import MAX_DATA_BYTES
from rapport.channel.dead.letters import DEAD_LETTERS, dead_letter
from rapport.channel.dead.replay import REPLAYS, STATES, Replay
from rapport.communication.actions import Action, OwnAction, Phrases
from rapport.communication.adapters.outgoing.outcomes import OUTCOME, OutcomeData, outcome_event
from rapport.communication.answers import (
    ANSWER,
    Declines,
    HistoryNeeded,
    MessageHistory,
    answer_secret,
)
from rapport.communication.contents.rules import ANY_CONTENT, Contents
from rapport.communication.dead_letter_replay import replay_note
from rapport.communication.decisions import DecisionCache
from rapport.communication.delivery_runner import DeliveryRunner, PrivacyCheck, ReceiverLookup
from rapport.communication.delivery_state import RetryPolicy
from rapport.communication.detection_actions import DetectionActions
from rapport.communication.fast_path import EventFastPath, FastPath, PackedFastPath
from rapport.communication.ledger_events import held_event
from rapport.communication.message_plan import Route, assume_listeners
from rapport.communication.messages import MessageHandler
from rapport.communication.outcomes import FastPathOutcomes, OutcomeHandler
from rapport.communication.peers import PeerDirectory
from rapport.communication.privacy import PrivacyFunctions
from rapport.communication.records import DeliveryRecords
from rapport.communication.schedule import (
    DeferredEvent,
    DeferredEvents,
    DueTimes,
    LookupCounts,
    MemberJob,
    MemberJobs,
    PartlyHandled,
    is_deferred,
    split_key,
)
from rapport.communication.sender_notifications import notify_sender
from rapport.communication.templates import Facts
from rapport.communication.transaction import TABLE, Outgoing, Transaction
from rapport.core.detection import ACT_WITHIN_MS, DETECTED, SKIPPED, STILL_LASTS
from rapport.core.errors import Corrupt, InvalidInput, RapportError, SourceUnavailable, Unavailable
from rapport.core.event import Event, StoredEvent
from rapport.core.message import CONTROL, MESSAGE, Message
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.store.base import RecordStore


class EngineParts(msgspec.Struct, kw_only=True):
    """What the engine was given."""

    directory: PeerDirectory
    actions: Mapping[str, Action]
    phrases: Phrases
    adapters: Collection[str]
    retry: RetryPolicy
    facts: Facts
    own_action: OwnAction
    route: Route
    functions: PrivacyFunctions
    plain_lane: bool
    decided: DecisionCache
    declines: Declines
    lookups: LookupCounts = msgspec.field(default_factory=LookupCounts)
    contents: Contents = ANY_CONTENT
    act_within_ms: int = ACT_WITHIN_MS
    is_heard: Callable[[], bool] = assume_listeners
    """Whether any notification callback is registered."""


READER = "communication"
_LARGEST_BURIED = 100_000
"""A dead letter holds the event itself up to this many bytes; a larger one stays in its channel."""


def dead_letter_and_notify(
    transaction: Transaction, channel: str, stored: StoredEvent, error: Exception, now_ms: int
) -> None:
    """Writes the dead letter of an event and, for a message, tells its sender."""
    whole = len(stored.event.data) <= _LARGEST_BURIED
    letter = dead_letter(channel, READER, stored, error, attempts=1, whole=whole)
    transaction.emit(DEAD_LETTERS, letter)
    if channel == "input" and stored.event.type == MESSAGE:
        _tell_failed(transaction, stored.event, error, now_ms)


def _tell_failed(transaction: Transaction, event: Event, error: Exception, now_ms: int) -> None:
    """Whoever sent a message hears that it was not handled, if it can be told who that was."""
    mark = transaction.mark()
    try:
        message = Message.from_event(event)
        if message.type != CONTROL:
            notify_sender(
                transaction,
                str(message.sender),
                message.id or event.id,
                "comerror",
                f"it could not be handled: {error_reason(error)}",
                now_ms=now_ms,
            )
        transaction.check(mark)
    except Exception:  # what is wrong with it may be its sender or its id
        transaction.roll_back(mark)


def error_reason(error: Exception) -> str:
    """The reason that people are told."""
    return error.message if isinstance(error, RapportError) else type(error).__name__


def send_through_control(
    transaction: Transaction, data: OutcomeData, error: Exception, now_ms: int
) -> None:
    """Sends an outcome that was handed over directly, and could not be taken, through `control`.

    A dead letter is sent back by the place of its event in a channel: there it gets one.
    """
    about = {"message": data.message, "peer": data.peer, "state": data.state}
    hint = error.hint if isinstance(error, RapportError) else ""
    try:
        transaction.emit("control", _fitting(data, now_ms))
        _log.warning("outcome not taken directly", **about, error=repr(error), hint=hint)
    except (InvalidInput, ValueError, OverflowError):
        # No channel keeps what it says: nothing but this line can tell of it.
        _log.error("outcome given up", **about, error=repr(error), hint=hint)


def _fitting(data: OutcomeData, now_ms: int) -> Event:
    """The outcome as an event that its channel takes; without the delivery where that is long."""
    event = outcome_event(data, now_ms=now_ms)
    if len(event.data) <= MAX_DATA_BYTES:
        return event
    return outcome_event(replace(data, delivery=None), now_ms=now_ms)


INPUTS = ("control", "input", "detections")
_DUE_AT_ONCE = 1_000
_LOOK_AGAIN_MS = 60_000

_log = get_logger(__name__)


class BatchTransaction:
    """One engine's transaction and all that works in it."""

    def __init__(self, records: RecordStore, clock: Clock, parts: EngineParts) -> None:
        self._clock, self._decided = clock, parts.decided
        self.transaction = Transaction(records)
        self._due, self._chores = DueTimes(self.transaction), MemberJobs(self.transaction)
        self._put_off = DeferredEvents(self.transaction, self._due)
        self._lookups = parts.lookups
        self._closing: list[str] = []
        self.told_before = MessageHistory()
        self.wanted: list[str] = []
        """Messages that are to be looked up before the next call."""
        members = ReceiverLookup(parts.directory, parts.adapters)
        self._cases = DeliveryRunner(
            self.transaction,
            DeliveryRecords(self.transaction, self._due),
            self._chores,
            PrivacyCheck(self.transaction, parts.directory, parts.functions),
            members,
            on_closed=self._closing.append,
        )
        self._lane = FastPath(members, parts.decided.plain, enabled=parts.plain_lane)
        self._receiving = MessageHandler(
            self.transaction,
            self._cases,
            members,
            self._lane,
            route=parts.route,
            retry=parts.retry,
            told_before=self.told_before,
            declines=parts.declines,
            is_heard=parts.is_heard,
        )
        self.transaction.is_heard = parts.is_heard
        plain = (self.transaction, self._lane, parts.route, parts.declines, parts.is_heard)
        self._plain_taking, self._packed_taking = EventFastPath(*plain), PackedFastPath(*plain)
        self._coming_back = OutcomeHandler(
            self.transaction,
            self._cases,
            FastPathOutcomes(self.transaction, self._cases, self._lane, parts.retry),
            self.told_before,
            parts.declines,
            answer_secret(records),
        )
        self._acting = DetectionActions(
            self.transaction,
            self._cases,
            members,
            actions=parts.actions,
            phrases=parts.phrases,
            retry=parts.retry,
            facts=parts.facts,
            own_action=parts.own_action,
            contents=parts.contents,
            act_within_ms=parts.act_within_ms,
        )
        self.positions = {name: _position(records, name) for name in INPUTS}
        self._due.look()

    # --- batches ---

    def take_batch(
        self, channel: str, batch: Sequence[StoredEvent], hops: Mapping[str, int]
    ) -> None:
        """Takes events of one channel, and the place up to which it was read: `wanted` names what
        has to be looked up before the next and those behind it. Otherwise all were taken, or as
        many as fit into one transaction.
        """
        now_ms, self.wanted = self._clock.now_ms(), []
        self._lane.begin_batch(now_ms)
        number = self._plain_taking.take_row(batch, 0, now_ms) if channel == "input" else 0
        try:
            while number < len(batch) and not self.transaction.is_full:
                self._take_one(channel, batch[number], now_ms, hops)
                number += 1
                if channel == "input":
                    number = self._plain_taking.take_row(batch, number, now_ms)
        except HistoryNeeded as needed:
            others = self._receiving.unknown_in(batch[number + 1 :])
            self.wanted = list(dict.fromkeys([needed.message, *others]))
            if not number:
                return
        self._take_place(channel, batch[number - 1].position)

    def take_packed(self, stretches: Sequence[PackedStretch]) -> int:
        """Takes stretches of `input`, see PackedTaking; returns how many."""
        now_ms, self.wanted = self._clock.now_ms(), []
        self._lane.begin_batch(now_ms)
        taken = self._packed_taking.take(stretches, now_ms)
        if taken:
            self._take_place("input", stretches[taken - 1].last)
        return taken

    def _take_place(self, channel: str, position: int) -> None:
        self.transaction.put(TABLE, f"position/{channel}", str(position).encode())
        self.positions[channel] = position

    def _mark(self) -> tuple[int, int]:
        """A place to come back to with `_roll_back`."""
        return self.transaction.mark(), len(self._closing)

    def _roll_back(self, mark: tuple[int, int]) -> None:
        """Forgets what was changed, emitted and decided since the mark."""
        self.transaction.roll_back(mark[0])
        del self._closing[mark[1] :]

    def _take_one(
        self,
        channel: str,
        stored: StoredEvent,
        now_ms: int,
        hops: Mapping[str, int],
        before: DeferredEvent | None = None,
    ) -> None:
        mark = self._mark()
        try:
            self._take(channel, stored.event, now_ms, hops, before.since if before else 0)
            self.transaction.check(mark[0])
        except SourceUnavailable as error:
            # Nobody can say now who is to be told; that is no reason to keep the others waiting.
            if not isinstance(error, PartlyHandled):
                self._roll_back(mark)
            tries, since = (before.tries + 1, before.since) if before else (1, now_ms)
            hops_to = hops.get(stored.event.id, 0)
            waiting = DeferredEvent(channel, stored, hops_to, tries, since)
            self._wait_for_directory(waiting, error, now_ms)
        except HistoryNeeded as needed:
            self._roll_back(mark)
            if before is None:
                raise
            self.wanted.append(needed.message)
            self._put_off.put(before, now_ms)
        except Unavailable:
            raise
        except Exception as error:
            # What cannot be handled is set aside with the error; the others go on.
            self._roll_back(mark)
            _log.error("event set aside", channel=channel, id=stored.event.id, error=repr(error))
            dead_letter_and_notify(self.transaction, channel, stored, error, now_ms)

    def _wait_for_directory(
        self, event: DeferredEvent, error: SourceUnavailable, now_ms: int
    ) -> None:
        """Puts an event off, a message up to its time to live; it is held, and that is said
        once.
        """
        told = event.stored.event
        is_message = event.channel == "input"
        ttl_ms = Message.from_event(told).ttl if is_message else 0
        due_ms = self._put_off.put(event, now_ms, told.time + ttl_ms if ttl_ms else 0)
        if event.tries > 1:
            self._lookups.tried_again += 1
            return
        self._lookups.put_off += 1
        _log.warning(
            "event put off",
            channel=event.channel,
            id=told.id,
            code=error.code,
            error=error.message,
            hint=error.hint,
        )
        if is_message:
            self.transaction.emit("log", held_event(told.id, error.code, due_ms, now_ms=now_ms))

    def take_outcomes(self, outcomes: Sequence[OutcomeData]) -> None:
        """Takes outcomes that did not go through `control`. One that cannot be taken stops no
        other: it goes through `control` after all, and is set aside there like any other event.
        """
        now_ms = self._clock.now_ms()
        for data in outcomes:
            mark = self._mark()
            try:
                self._coming_back.take_outcome(data, now_ms, data.id)
            except Exception as error:
                # A store that is not there is no fault of this one: then all are told again.
                if isinstance(error, Unavailable) and not isinstance(error, SourceUnavailable):
                    raise
                self._roll_back(mark)
                send_through_control(self.transaction, data, error, now_ms)

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
        """Acts on one event; other types are passed over. `any_age`: an operator asks for it, so it
        is never too old. Raises InvalidInput when its data cannot be read.
        """
        if channel == "input" and event.type == MESSAGE:
            self._receiving.take(event, now_ms, is_again=since_ms > 0)
        elif channel == "detections" and event.type == DETECTED:
            own = hops.get(event.id, 0)
            self._acting.take(event, now_ms, hops=own, since_ms=since_ms, any_age=any_age)
        elif channel == "detections" and event.type == STILL_LASTS:
            self._acting.take(event, now_ms, any_age=True)
        elif channel == "detections" and event.type == SKIPPED:
            self._acting.take_skipped(event, now_ms)
        elif channel == "control" and event.type == OUTCOME:
            data: OutcomeData = event.payload_as(OutcomeData)
            self._coming_back.take_outcome(data, now_ms, event.id)
        elif channel == "control" and event.type == ANSWER:
            self._coming_back.take_answer(event, now_ms)

    def take_again(
        self, replay: Replay, stored: StoredEvent | None, hops: Mapping[str, int]
    ) -> None:
        """Takes the event of a dead letter once more; not yet when something is `wanted`."""
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
                # One that nobody can say the receivers of stays a letter, as one that fails.
                if isinstance(failure, Unavailable) and not isinstance(failure, SourceUnavailable):
                    raise
                self._roll_back(mark)
                error = repr(failure)
        self.transaction.delete(REPLAYS, replay.key)
        if not error:
            self.transaction.put(STATES, replay.letter, b"replayed")
        self.transaction.emit(DEAD_LETTERS, replay_note(replay, error, now_ms))

    # --- chores and time ---

    def has_chores(self) -> bool:
        """Whether there may be something left to do on a large message."""
        return self._chores.any

    def take_chore(self) -> None:
        """Does one slice of the first chore."""
        chore = self._chores.first()
        if chore is None:
            return
        error = self._attempt(lambda: self._cases.work_on(chore, self._clock.now_ms()))
        if error is not None:
            _log.error("chore given up", case=chore.case, kind=chore.kind, error=repr(error))
            self._give_up(chore, error_reason(error))

    def _give_up(self, chore: MemberJob, reason: str) -> None:
        """Says what it means for the message that a chore cannot be done; one of which not even
        that can be written down rests.
        """
        error = self._attempt(lambda: self._cases.give_up(chore, reason, self._clock.now_ms()))
        if error is not None:
            _log.error("chore rests", case=chore.case, kind=chore.kind, error=repr(error))
            self._chores.rest(chore)

    def _attempt(self, work: Callable[[], None]) -> Exception | None:
        """Does work; returns what went wrong, and then nothing of it stands. A store that is not
        there is no fault of this work: raises Unavailable.
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

    def next_due_ms(self) -> int:
        """When the first is due, or earlier; 0 = nothing is."""
        return self._due.next_ms

    def is_due(self, now_ms: int) -> bool:
        """Whether something may be due."""
        return 0 < self._due.next_ms <= now_ms

    def take_due(self, now_ms: int) -> None:
        """Takes some of what is due; what was `wanted` for it is to be looked up then."""
        self.wanted = []
        for entry in self._due.take(now_ms, _DUE_AT_ONCE):
            if self.transaction.is_full:
                self._due.set(entry.key, entry.due_ms)
            elif is_deferred(entry.key):
                self._take_put_off(entry.key)
            else:
                self._pass_time(entry.key)

    def _take_put_off(self, key: str) -> None:
        try:
            event = self._put_off.take(key)
        except Corrupt as error:
            self._look_again(key, error)
            return
        if event is not None:
            hops = {event.stored.event.id: event.hops}
            now_ms = self._clock.now_ms()
            self._take_one(event.channel, event.stored, now_ms, hops, event)

    def _pass_time(self, key: str) -> None:
        """A case that cannot be handled is looked at again later; the others go on."""
        now_ms = self._clock.now_ms()
        error = self._attempt(lambda: self._cases.pass_time(*split_key(key), now_ms))
        if error is not None:
            self._look_again(key, error)

    def _look_again(self, key: str, error: Exception) -> None:
        _log.error("timer failed", key=key, error=repr(error))
        self._due.set(key, self._clock.now_ms() + _LOOK_AGAIN_MS)

    def commit(self) -> Outgoing:
        """Makes everything durable; returns what is to be appended now."""
        outgoing = self.transaction.commit()
        if self._due.next_ms and self._due.next_ms <= self._clock.now_ms():
            self._due.look()
        closing, self._closing[:] = list(self._closing), []
        for message in closing:
            self._decided.closed(message)
        return outgoing


def _position(records: RecordStore, name: str) -> int:
    kept = records.get(TABLE, f"position/{name}")
    return int(kept) if kept else 0
