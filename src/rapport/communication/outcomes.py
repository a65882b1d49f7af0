"""Outcomes applied: results of media, answers of people, bounces. [CO-8, CO-10]

The outcome of a fast-path delivery that was sent needs no transaction: it is written to the ledger
directly.
"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.communication.adapters.attempts import OutcomeData, SentOutcomes
from rapport.communication.adapters.base import Delivery
from rapport.communication.answers import AnswerData, CloseData, MessageHistory
from rapport.communication.delivery_runner import DeliveryRunner, EngineParts
from rapport.communication.delivery_state import (
    LATEST_ATTEMPT,
    SENT_STATES,
    AddressState,
    Answer,
    CloseMessage,
    DeliveryState,
    Member,
    OutcomeState,
    Stage,
)
from rapport.communication.fast_path import FastPath
from rapport.communication.ledger_events import (
    PROOF,
    LedgerLine,
    answered_event,
    event_name,
    ledger_address,
    ledger_event,
    refused_answer_event,
)
from rapport.communication.links import is_answer_token
from rapport.communication.notifications import notification_events, notify_sender
from rapport.communication.peers import adapter_of
from rapport.communication.records import DeliveryRecord, MessageBody
from rapport.communication.transaction import Outgoing, Transaction
from rapport.core.errors import InvalidInput
from rapport.core.event import MAX_NAME, Event
from rapport.core.message import CONTROL


class OutcomeHandler:
    """Applies outcomes and answers to their deliveries; a message without a record gets its ledger
    line only.
    """

    def __init__(
        self,
        transaction: Transaction,
        runner: DeliveryRunner,
        fast_path: FastPath,
        history: MessageHistory,
        parts: EngineParts,
        *,
        secret: bytes,
    ) -> None:
        """`secret`: that of answer links."""
        self._transaction, self._runner, self._fast_path = transaction, runner, fast_path
        self._history, self._parts, self._secret = history, parts, secret

    def apply_outcome(self, data: OutcomeData, now_ms: int, cause: str) -> None:
        """Applies the outcome of one attempt. Raises InvalidInput for an impossible message id."""
        _check_id(data.message)
        if data.delivery is not None:
            if data.state != "failed":
                self._close_direct(data, data.delivery, now_ms)
                return
            self._make_record(data.delivery)
        is_known = self._runner.apply_outcome(data, now_ms=now_ms, cause=cause)
        if not is_known and data.attempt == LATEST_ATTEMPT:
            sender = self._history.sender(data.message)
            self._transaction.emit("log", _bounce_line(data, cause, now_ms))
            notify_sender(
                self._transaction, sender, data.message, "error", data.reason, now_ms=now_ms
            )

    def take_answer(self, event: Event, now_ms: int) -> None:
        """Applies an answer given through a link; raises InvalidInput for any other event."""
        data: AnswerData = event.payload_as(AnswerData)
        message, peer = data.message, data.peer
        # The endpoint checks the token and keeps it out of the event.
        is_proven = event.headers.get(PROOF) == "answer"
        if not is_proven and not is_answer_token(self._secret, message, peer, data.token):
            line = refused_answer_event(
                message, peer, "the token is wrong", cause=event.id, now_ms=now_ms
            )
            self._transaction.emit("log", line)
            return
        answer = Answer(peer, data.text, data.declined or self._parts.declines.says(data.text))
        if not self._runner.apply_answer(message, answer, now_ms=now_ms, cause=event.id):
            # The token proves that they were asked; there is no record of it.
            self._transaction.emit("log", answered_event(message, answer, event.id, now_ms))

    def close_message(self, event: Event, now_ms: int) -> None:
        """Closes an open message for an operator; nothing happens to one that is over. Raises
        InvalidInput.
        """
        data: CloseData = event.payload_as(CloseData)
        close = CloseMessage("done", f"closed by {data.by}")
        self._runner.close(data.message, close, now_ms=now_ms, cause=event.id)

    # --- deliveries of the fast path ---

    def _close_direct(self, data: OutcomeData, delivery: Delivery, now_ms: int) -> None:
        line = outcome_line(delivery, data.state, now_ms, data.reason, data.id)
        self._transaction.emit_early("log", line)
        if delivery.acknowledge and data.state in SENT_STATES:
            sender = _notified_sender(delivery)
            notify_sender(self._transaction, sender, data.message, "ack", "", now_ms=now_ms)

    def _make_record(self, delivery: Delivery) -> None:
        """Creates the record of a failed delivery, as if it had had one from the beginning."""
        records, key = self._runner.records, delivery.case or delivery.message
        if records.get(key) is not None:
            return
        self._fast_path.recent.discard(delivery.message)
        entry = AddressState(address=delivery.address, state="queued", attempt=delivery.attempt)
        stage = Stage(f"peer:{delivery.peer}", "to-all-members", spreading=False, asked=1)
        state = DeliveryState(
            message=key,
            urgent=delivery.urgent,
            acknowledge=delivery.acknowledge,
            retry=self._parts.retry,
            stages=[stage],
        )
        record = DeliveryRecord(
            tracking=state,
            message=delivery.message,
            sender=_notified_sender(delivery),
            routed=bool(delivery.case),
        )
        records.save_body(key, _body_of(delivery))
        records.save(None, record)
        records.save_member(key, None, Member(peer=delivery.peer, tries=[entry]))


def _notified_sender(delivery: Delivery) -> str:
    return "" if delivery.type == CONTROL else delivery.sender


def _body_of(delivery: Delivery) -> MessageBody:
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


def _bounce_line(data: OutcomeData, cause: str, now_ms: int) -> Event:
    """The ledger line of a message that a medium took and gave back, without a record of it."""
    line = LedgerLine(
        message=data.message,
        peer=data.peer,
        address=data.address,
        adapter=adapter_of(data.address),
        reason=data.reason,
    )
    name = event_name(data.message, data.peer, "back", cause)
    return ledger_event(line, "failed", id=name, now_ms=now_ms, causes=(data.message, cause))


def _check_id(message: str) -> None:
    if len(message) > MAX_NAME or not message.isprintable():
        raise InvalidInput(
            f"{message[:40]!r} cannot be the id of a message",
            code="event.bad_data",
            hint=f"at most {MAX_NAME} characters that can be printed",
        )


def direct_outcome_events(
    outcomes: Sequence[OutcomeData], now_ms: int, *, has_listeners: bool
) -> tuple[Outgoing, list[OutcomeData]]:
    """The events of outcomes that need no transaction, by channel, and the other outcomes. Events
    of an outcome that comes again have the same ids.
    """
    events: Outgoing = {"log": []}
    if isinstance(outcomes, SentOutcomes):
        for delivery in outcomes.deliveries:
            _add_outcome(events, delivery, "handed", now_ms, has_listeners=has_listeners)
        return events, []
    others: list[OutcomeData] = []
    for data in outcomes:
        if data.delivery is None or data.state == "failed":
            others.append(data)
        else:
            about = (data.reason, data.id)
            _add_outcome(
                events, data.delivery, data.state, now_ms, *about, has_listeners=has_listeners
            )
    return events, others


def _add_outcome(
    events: Outgoing,
    delivery: Delivery,
    state: OutcomeState,
    now_ms: int,
    reason: str = "",
    outcome_id: str = "",
    *,
    has_listeners: bool,
) -> None:
    """Adds the ledger line of an outcome, and the ACK that its sender wants."""
    events["log"].append(outcome_line(delivery, state, now_ms, reason, outcome_id))
    if delivery.acknowledge and delivery.type != CONTROL and state in SENT_STATES:
        for channel, event in notification_events(
            delivery.sender, delivery.message, "ack", "", now_ms=now_ms, has_listeners=has_listeners
        ):
            events.setdefault(channel, []).append(event)


def outcome_line(
    delivery: Delivery, state: OutcomeState, now_ms: int, reason: str = "", outcome_id: str = ""
) -> Event:
    """The ledger line of an outcome other than a failure."""
    message, peer = delivery.message, delivery.peer
    is_sent = state in SENT_STATES
    line = LedgerLine(
        message=message,
        peer=peer,
        address=ledger_address(delivery.address),
        adapter=adapter_of(delivery.address),
        attempt=delivery.attempt,
        reason=reason,
        result="done" if is_sent and not delivery.case else "",
        receiver=f"peer:{peer}",
        stage=1,
        queued=delivery.queued,
    )
    name = event_name(message, peer, state if is_sent else outcome_id)
    return ledger_event(line, state, id=name, now_ms=now_ms, causes=(message,))
