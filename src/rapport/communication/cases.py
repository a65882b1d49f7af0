"""Every message's case: loads it, lets `delivery.next_step` decide, and writes what follows.
[CO-7, CO-8, PO-10]

Synchronous and without a clock: called by the engine inside one transaction, with the time as an
argument.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from rapport.communication.actions import (
    SENDER,
    Action,
    OwnAction,
    Phrases,
    message_for,
    nothing_said,
    same_phrase,
)
from rapport.communication.adapters.base import Delivery
from rapport.communication.adapters.outcomes import OUTCOME, OutcomeData
from rapport.communication.answers import ANSWER, AnswerData, is_answer_token
from rapport.communication.delivery import next_step
from rapport.communication.effects import Effect, effect_of
from rapport.communication.ledger import (
    SOURCE,
    Case,
    line_event,
    refused_answer_event,
    told_event,
    unmapped_event,
)
from rapport.communication.peers import PeerDirectory, adapter_of, resolve, shown_address
from rapport.communication.steps import (
    Answer,
    Ask,
    Escalate,
    Input,
    Note,
    Outcome,
    Queue,
    Step,
    Tell,
    Tick,
)
from rapport.communication.templates import Facts, nothing_known
from rapport.communication.tracking import Member, Retry, Tracking, Try
from rapport.communication.transaction import Transaction
from rapport.core.detection import DETECTED, Detection
from rapport.core.event import Event
from rapport.core.message import Identifier, Message
from rapport.core.release import LATE
from rapport.kernel.timers import Timers

TABLE = "communication.messages"
KEEP_CLOSED_MS = 30 * 86_400_000
"""How long a closed message can still be answered for the record; its ledger lines stay."""


class Cases:
    """The cases of all messages, one record each; cost of an input is one read and one write."""

    def __init__(
        self,
        transaction: Transaction,
        timers: Timers,
        *,
        directory: PeerDirectory,
        actions: Mapping[str, Action],
        phrases: Phrases,
        adapters: Collection[str],
        retry: Retry,
        secret: bytes,
        facts: Facts = nothing_known,
        own_action: OwnAction = nothing_said,
    ) -> None:
        self._transaction, self._timers = transaction, timers
        self._directory, self._adapters, self._retry = directory, adapters, retry
        self._actions, self._phrases = actions, phrases
        self._secret, self._facts, self._own_action = secret, facts, own_action

    def take(self, channel: str, event: Event, now_ms: int, *, hops: int = 0) -> None:
        """Acts on one event of `detections` or `control`; other types are passed over. `hops`: how
        many actions led to it.

        Raises InvalidInput when the event's data cannot be read.
        """
        if channel == "detections" and event.type == DETECTED:
            self._take_detection(event, now_ms, hops)
        elif channel == "control" and event.type == OUTCOME:
            self._take_outcome(event, now_ms)
        elif channel == "control" and event.type == ANSWER:
            self._take_answer(event, now_ms)

    def pass_time(self, message: str, now_ms: int) -> None:
        """A message's timer is due."""
        case = self._load(message)
        if case is not None and not case.tracking.closed:
            self._move(case, Tick(), now_ms, cause="")
        elif case is None or case.forget_at <= now_ms:
            self._transaction.delete(TABLE, message)
            self._timers.done(message)

    # --- inputs ---

    def _take_detection(self, event: Event, now_ms: int, hops: int) -> None:
        detection = Detection.from_event(event)
        for phrase in self._phrases(detection.policy, detection.version):
            action = self._own_action(detection.policy, detection.version, phrase)
            action = action or self._actions.get(same_phrase(phrase))
            if action is None:
                line = unmapped_event(event.id, detection.policy, phrase, now_ms=now_ms)
                self._transaction.emit("log", line)
            else:
                effect = self._effect(action, detection, now_ms, hops)
                self._begin(action, detection, event, now_ms, effect)

    def _effect(
        self, action: Action, detection: Detection, now_ms: int, hops: int
    ) -> Effect | None:
        if action.effect is None:
            return None
        return effect_of(
            action.effect, action.phrase, detection, self._facts, now_ms=now_ms, hops=hops
        )

    def _begin(
        self,
        action: Action,
        detection: Detection,
        event: Event,
        now_ms: int,
        effect: Effect | None,
    ) -> None:
        event_id, is_late = event.id, LATE in event.headers
        message = message_for(action, detection, self._facts, is_late=is_late, effect=effect)
        if self._load(message.id) is not None:
            return
        case = self._new_case(action, detection, message, event_id, now_ms)
        case.effect = effect
        told = message.to_event(
            source=SOURCE,
            time=now_ms,
            causes=(event_id,),
            policy=detection.policy,
            detection=event_id,
            happened=detection.time,
        )
        self._transaction.emit("log", told)
        self._move(case, self._ask(action), now_ms, cause=event_id)

    def _ask(self, action: Action) -> Ask:
        """Whom to tell now; an effect has one address and nobody behind it."""
        receiver = str(action.send_to)
        if action.effect is not None:
            return Ask(receiver, [Member(peer=receiver, tries=[Try(action.effect.address)])])
        ask = resolve(action.send_to, self._directory, self._adapters)
        if action.reach is None or action.send_to.kind != "collective":
            return ask
        return msgspec.structs.replace(ask, delivery=action.reach)

    def _new_case(
        self, action: Action, detection: Detection, message: Message, event_id: str, now_ms: int
    ) -> Case:
        tracking = Tracking(
            message=message.id,
            done_when=action.done_when,
            urgent=action.urgent,
            acknowledge=message.delivery_policy == "acknowledged",
            answer_within=action.answer_within_ms,
            escalate_to=[str(receiver) for receiver in action.escalate_to],
            expires=now_ms + action.ttl_ms if action.ttl_ms else 0,
            retry=self._retry,
        )
        return Case(
            tracking=tracking,
            text=message.content,
            policy=detection.policy,
            detection=event_id,
            sender=str(SENDER),
            time=detection.time,
        )

    def _take_outcome(self, event: Event, now_ms: int) -> None:
        data: OutcomeData = event.payload_as(OutcomeData)
        case = self._load(data.message)
        member = case.tracking.member(data.peer) if case else None
        entries = member.tries if member else []
        # Outcomes carry the shown form, since `control` is read by people too.
        address = next((e.address for e in entries if shown_address(e.address) == data.address), "")
        if case is None or not address:
            return
        outcome = Outcome(
            data.peer, address, data.attempt, data.state, reason=data.reason, retry=data.retry
        )
        self._move(case, outcome, now_ms, cause=event.id)

    def _take_answer(self, event: Event, now_ms: int) -> None:
        data: AnswerData = event.payload_as(AnswerData)
        case = self._load(data.message)
        if not is_answer_token(self._secret, data.message, data.peer, data.token):
            reason = "the token is wrong"
        elif case is None or case.tracking.member(data.peer) is None:
            reason = "nothing was sent to this peer"
        else:
            self._move(case, Answer(data.peer, data.text), now_ms, cause=event.id)
            return
        self._transaction.emit(
            "log",
            refused_answer_event(data.message, data.peer, reason, cause=event.id, now_ms=now_ms),
        )

    # --- what follows ---

    def _move(self, case: Case, input: Input, now_ms: int, *, cause: str) -> None:
        inputs: list[Input] = [input]
        while inputs:
            case.tracking, steps = next_step(case.tracking, inputs.pop(0), now_ms)
            for step in steps:
                if isinstance(step, Escalate):
                    receiver = Identifier.parse(step.receiver)
                    inputs.append(resolve(receiver, self._directory, self._adapters))
                else:
                    self._take_step(case, step, now_ms, cause)
        self._save(case, now_ms)

    def _take_step(self, case: Case, step: Step, now_ms: int, cause: str) -> None:
        match step:
            case Note():
                event = line_event(case, step, now_ms=now_ms, cause=cause)
                self._transaction.emit("log", event)
            case Queue():
                event = _delivery(case, step, now_ms).to_event()
                self._transaction.emit(f"output.{adapter_of(step.address)}", event)
            case Tell():
                self._transaction.emit("control", told_event(case, step, now_ms=now_ms))

    def _load(self, message: str) -> Case | None:
        kept = self._transaction.get(TABLE, message)
        return msgspec.msgpack.decode(kept, type=Case) if kept else None

    def _save(self, case: Case, now_ms: int) -> None:
        message = case.tracking.message
        if case.tracking.closed and not case.forget_at:
            case.forget_at = now_ms + KEEP_CLOSED_MS
        self._transaction.put(TABLE, message, msgspec.msgpack.encode(case))
        due_ms = case.forget_at or case.tracking.next_due_ms()
        if due_ms is None:
            self._timers.cancel(message)
        else:
            self._timers.set(message, due_ms)


def _delivery(case: Case, step: Queue, now_ms: int) -> Delivery:
    return Delivery(
        message=case.tracking.message,
        peer=step.peer,
        address=step.address,
        attempt=step.attempt,
        text=case.text,
        policy=case.policy,
        detection=case.detection,
        time=case.time,
        queued=now_ms,
        expires=case.tracking.expires,
        urgent=case.tracking.urgent,
        wants_answer=case.tracking.done_when == "answered",
        effect=case.effect,
    )
