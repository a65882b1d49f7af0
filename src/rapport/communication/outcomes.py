"""What media said of plain deliveries: a line of the ledger, or a case when it failed.
[CO-8, CO-10]

What comes back about messages: outcomes of media, answers that doors took. [CO-8, CO-10]
"""

from __future__ import annotations

from rapport.communication.adapters.base import Delivery
from rapport.communication.adapters.outgoing.outcomes import OutcomeData
from rapport.communication.answers import AnswerData, Declines, MessageHistory, is_answer_token
from rapport.communication.delivery_runner import DeliveryRunner
from rapport.communication.delivery_state import (
    LATEST_ATTEMPT,
    AddressState,
    Answer,
    DeliveryState,
    Member,
    RetryPolicy,
    Stage,
)
from rapport.communication.fast_path import FastPath
from rapport.communication.fast_path_ledger import came_back_line, outcome_line
from rapport.communication.ledger_events import refused_answer_event
from rapport.communication.messages import answered_line
from rapport.communication.records import DeliveryRecord, MessageBody
from rapport.communication.sender_notifications import PROOF, notify_sender
from rapport.communication.transaction import Transaction
from rapport.core.errors import InvalidInput
from rapport.core.event import MAX_NAME, Event
from rapport.core.message import CONTROL


class FastPathOutcomes:
    """Takes outcomes of which nothing is known but the delivery itself."""

    def __init__(
        self, transaction: Transaction, cases: DeliveryRunner, lane: FastPath, retry: RetryPolicy
    ) -> None:
        self._transaction, self._cases, self._lane, self._retry = transaction, cases, lane, retry

    def take(self, data: OutcomeData, delivery: Delivery, now_ms: int) -> bool:
        """Whether that was all; False when a case hears of it like of any other."""
        if data.state == "failed":
            self._adopt(delivery)
            return False
        self._transaction.emit_early("log", outcome_line(data, delivery, now_ms))
        if delivery.acknowledge and data.state in ("handed", "confirmed"):
            sender = "" if delivery.type == CONTROL else delivery.sender
            notify_sender(self._transaction, sender, data.message, "ack", "", now_ms=now_ms)
        return True

    def _adopt(self, delivery: Delivery) -> None:
        """Makes a case of it, as if it had been one all the time."""
        key = delivery.case or delivery.message
        if self._cases.records.case(key) is not None:
            return
        self._lane.recent.discard(delivery.message)
        entry = AddressState(address=delivery.address, state="queued", attempt=delivery.attempt)
        stage = Stage(f"peer:{delivery.peer}", "to-all-members", spreading=False, asked=1)
        tracking = DeliveryState(
            message=key,
            urgent=delivery.urgent,
            acknowledge=delivery.acknowledge,
            retry=self._retry,
            stages=[stage],
        )
        case = DeliveryRecord(
            tracking=tracking,
            message=delivery.message,
            sender="" if delivery.type == CONTROL else delivery.sender,
            routed=bool(delivery.case),
        )
        records = self._cases.records
        records.save_letter(key, _letter(delivery))
        records.save_case(None, case)
        records.save_member(key, None, Member(peer=delivery.peer, tries=[entry]))


def _letter(delivery: Delivery) -> MessageBody:
    return MessageBody(
        text=delivery.text,
        time=delivery.time,
        sent=delivery.time,
        sender=delivery.sender,
        rule_sender=delivery.rule_sender,
        type=delivery.type,
        subtype=delivery.subtype,
        conversation=delivery.conversation,
        refers_to=delivery.refers_to,
        language=delivery.language,
    )


class OutcomeHandler:
    """Passes it on to the case it is about; where there is none, says what can be said."""

    def __init__(
        self,
        transaction: Transaction,
        cases: DeliveryRunner,
        plain: FastPathOutcomes,
        told_before: MessageHistory,
        declines: Declines,
        secret: bytes,
    ) -> None:
        """`secret`: that of answer links."""
        self._transaction, self._cases, self._plain = transaction, cases, plain
        self._told_before, self._declines, self._secret = told_before, declines, secret

    def take_outcome(self, data: OutcomeData, now_ms: int, cause: str) -> None:
        """Raises InvalidInput for what no line could be about."""
        _check_name(data.message)
        if data.delivery is not None and self._plain.take(data, data.delivery, now_ms):
            return
        known = self._cases.hear_outcome(data, now_ms=now_ms, cause=cause)
        if not known and data.attempt == LATEST_ATTEMPT:
            sender, reason = self._told_before.sender(data.message), data.reason
            self._transaction.emit("log", came_back_line(data, cause, now_ms))
            notify_sender(self._transaction, sender, data.message, "error", reason, now_ms=now_ms)

    def take_answer(self, event: Event, now_ms: int) -> None:
        """Raises InvalidInput for an event that is no answer."""
        data: AnswerData = event.payload_as(AnswerData)
        message, peer = data.message, data.peer
        # The door checked the token and kept it out of the event; what has neither is forged.
        is_proven = event.headers.get(PROOF) == "answer"
        if not is_proven and not is_answer_token(self._secret, message, peer, data.token):
            line = refused_answer_event(
                message, peer, "the token is wrong", cause=event.id, now_ms=now_ms
            )
            self._transaction.emit("log", line)
            return
        answer = Answer(peer, data.text, data.declined or self._declines.says(data.text))
        if not self._cases.hear_answer(message, answer, now_ms=now_ms, cause=event.id):
            # The token proves that they were asked; nothing else is remembered of it.
            self._transaction.emit("log", answered_line(message, answer, event.id, now_ms))


def _check_name(message: str) -> None:
    """Raises InvalidInput for what cannot be the id of a message: no line could be about it."""
    if len(message) > MAX_NAME or not message.isprintable():
        raise InvalidInput(
            f"{message[:40]!r} cannot be the id of a message",
            code="event.bad_data",
            hint=f"at most {MAX_NAME} characters that can be printed",
        )
