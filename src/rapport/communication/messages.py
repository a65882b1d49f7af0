"""Handles messages of `input`: applies answers, starts deliveries, forwards requests to services,
and logs every message with its fate. [CO-7, CO-10, CO-12]

`message_plan.plan_message` decides; this module carries the plan out inside one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from rapport.communication.answers import MessageHistory
from rapport.communication.delivery_runner import DeliveryRunner, EngineParts
from rapport.communication.delivery_state import (
    DEFAULT_OPTIONS,
    Answer,
    DeliveryOptions,
    options_of,
)
from rapport.communication.fast_path import DirectPeer, FastPath, direct_log_event
from rapport.communication.ledger_events import (
    LARGEST_EVENT,
    LONGEST_ANSWER,
    PROOF,
    SOURCE,
    LedgerLine,
    MessageFate,
    answered_event,
    event_name,
    ledger_event,
    logged_data,
    logged_event,
    refused_answer_event,
)
from rapport.communication.message_plan import (
    ANSWERING,
    MessagePlan,
    leaves_room,
    plan_message,
    route_proven,
    rule_sender_text,
)
from rapport.communication.records import DeliveryRecord, PartlyHandled, routed_key
from rapport.communication.transaction import Transaction
from rapport.core.errors import InvalidInput, SourceUnavailable, TooLarge
from rapport.core.event import Event, StoredEvent
from rapport.core.message import AUTH, CONTROL, MESSAGE, Identifier, Message

_LOOKED_UP = ANSWERING - {"answer"}
"""Proofs of a sender that do not prove that it was sent the message."""
_LATEST_MS = 2**62
"""Later than any clock; a later time could not be stored."""


class _Incoming(msgspec.Struct, frozen=True, gc=False):
    """One message of `input` while it is handled."""

    message: Message
    id: str
    event: Event
    plan: MessagePlan
    options: DeliveryOptions
    now_ms: int

    def logged(self, fate: MessageFate, *, answered: int = 0, declined: bool = False) -> Event:
        """Its event in `log`."""
        data = logged_data(
            self.message,
            self.id,
            fate,
            self.plan.receiver_names,
            options=None if self.options is DEFAULT_OPTIONS else self.options,
            answered=answered,
            declined=declined,
        )
        notify_of = fate if self.plan.notify else ""
        return logged_event(self.event, self.id, self.message, data, notify_of)


class MessageHandler:
    """Handles messages one by one."""

    def __init__(
        self,
        transaction: Transaction,
        runner: DeliveryRunner,
        fast_path: FastPath,
        history: MessageHistory,
        parts: EngineParts,
    ) -> None:
        self._transaction, self._runner = transaction, runner
        self._fast_path, self._history, self._parts = fast_path, history, parts

    def handle(self, event: Event, now_ms: int, *, is_again: bool = False) -> None:
        """Handles one message; `is_again`: it was partly handled before, so that an answer in it
        counts no second time.

        Raises InvalidInput when the event is no message, HistoryNeeded when the message it refers
        to has to be looked up first, PartlyHandled when a receiver cannot be looked up now.
        """
        if len(event.data) > LARGEST_EVENT:
            raise _too_large()
        message = Message.from_event(event)
        proof = event.headers.get(PROOF, "none")
        answer: Answer | None = None
        if message.refers_to and message.sender.kind == "peer" and not is_again:
            answer = self._apply_answer(message, event.id, proof, now_ms)
        routed = route_proven(self._parts.route, message, event.headers)
        plan = plan_message(message, routed, has_listeners=self._parts.has_listeners())
        if not leaves_room(event, plan):
            raise _too_large()
        only_notifies = plan.tracked is None and not plan.routed and not plan.forward
        if answer is not None and not only_notifies:
            line = answered_event(message.refers_to, answer, event.id, now_ms)
            self._transaction.emit_early("log", line)
        options = options_of(event) if proof == "application" else DEFAULT_OPTIONS
        incoming = _Incoming(message, message.id or event.id, event, plan, options, now_ms)
        if options is DEFAULT_OPTIONS and self._send_directly(incoming):
            return
        if plan.forward:
            self._forward(incoming)
        elif only_notifies:
            answered = now_ms if answer is not None else 0
            declined = answer is not None and answer.declined
            logged = incoming.logged(plan.fate, answered=answered, declined=declined)
            self._transaction.emit_early("log", logged)
        elif plan.tracked is None or self._runner.records.get(incoming.id) is None:
            # A message that comes again changes nothing.
            mark = self._transaction.mark()
            try:
                self._begin(incoming)
            except SourceUnavailable as error:
                self._transaction.roll_back(mark)
                raise PartlyHandled(error.message, code=error.code, hint=error.hint) from error

    # --- without a record ---

    def _send_directly(self, incoming: _Incoming) -> bool:
        """Handles a message whose receivers, additional ones included, each need one delivery."""
        message, plan, now_ms = incoming.message, incoming.plan, incoming.now_ms
        receiver = plan.tracked
        if receiver is None or receiver.kind != "peer" or message.ttl or message.type == AUTH:
            return False
        peer = self._fast_path.reach(receiver.name, now_ms)
        others = [self._direct(to, now_ms) for to in plan.routed]
        if peer is None or None in others:
            return False
        id, event = incoming.id, incoming.event
        self._transaction.emit_early("log", direct_log_event(event, id, message, plan, peer))
        for to, other in zip(plan.routed, others, strict=True):
            if other is not None:
                for channel, routed_event in self._routed_events(incoming, to, other):
                    self._transaction.emit_early(channel, routed_event)
        delivery = self._fast_path.delivery(peer, message, id, event, now_ms)
        self._transaction.emit_early(peer.channel, delivery.to_event())
        return True

    def _direct(self, to: Identifier, now_ms: int) -> DirectPeer | None:
        return self._fast_path.reach(to.name, now_ms) if to.kind == "peer" else None

    def _routed_events(
        self, incoming: _Incoming, to: Identifier, peer: DirectPeer
    ) -> tuple[tuple[str, Event], tuple[str, Event]]:
        """The ledger line and the delivery for an additional receiver, each with its channel."""
        id, now_ms = incoming.id, incoming.now_ms
        delivery = self._fast_path.delivery(
            peer,
            incoming.message,
            id,
            incoming.event,
            now_ms,
            record=routed_key(id, str(to)),
        )
        line = LedgerLine(
            message=id,
            peer=peer.name,
            address=peer.shown,
            adapter=peer.adapter,
            attempt=1,
            receiver=f"peer:{peer.name}",
        )
        name = event_name(id, "routed", peer.name)
        queued = ledger_event(line, "queued", id=name, now_ms=now_ms, causes=(id,))
        return ("log", queued), (peer.channel, delivery.to_event())

    # --- with a record ---

    def _begin(self, incoming: _Incoming) -> None:
        id, plan = incoming.id, incoming.plan
        place = self._transaction.emit("log", incoming.logged(plan.fate))
        for receiver in plan.routed:
            self._begin_routed(incoming, receiver)
        if plan.tracked is None:
            return
        self._fast_path.recent.discard(id)  # the id may have taken the fast path before
        begun = self._begin_delivery(incoming, plan.tracked, id, incoming.options)
        if begun.tracking.closed and not plan.routed:
            self._transaction.amend("log", place, incoming.logged("failed"))

    def _begin_routed(self, incoming: _Incoming, to: Identifier) -> None:
        """Starts the delivery to an additional receiver; its record notifies the sender of nothing
        but a failure.
        """
        peer = self._direct(to, incoming.now_ms)
        if peer is not None and not incoming.message.ttl:
            # Emitted with the message's own event, which is not logged before the commit.
            for channel, event in self._routed_events(incoming, to, peer):
                self._transaction.emit(channel, event)
            return
        key = routed_key(incoming.id, str(to))
        if self._runner.records.get(key) is None:
            self._begin_delivery(incoming, to, key, DEFAULT_OPTIONS)

    def _begin_delivery(
        self, incoming: _Incoming, to: Identifier, key: str, options: DeliveryOptions
    ) -> DeliveryRecord:
        message, event = incoming.message, incoming.event
        return self._runner.begin(
            replace(message, id=incoming.id),
            to,
            options,
            key=key,
            # Nobody is notified of the fate of a CONTROL message, or notifications would never end.
            sender="" if message.type == CONTROL else str(message.sender),
            time=event.time,
            sent=event.time,
            expires=min(event.time + message.ttl, _LATEST_MS) if message.ttl else 0,
            now_ms=incoming.now_ms,
            cause=event.id,
            rule_sender=rule_sender_text(message.sender, event.headers),
            routed=key != incoming.id,
        )

    def _forward(self, incoming: _Incoming) -> None:
        """Passes the message to the service that answers it. The content of an AUTH message may
        hold a password, which no log keeps.
        """
        message, event = incoming.message, incoming.event
        shown = replace(message, content="") if message.type == AUTH else message
        passed = replace(shown, id=incoming.id).to_event(source=SOURCE, time=event.time)
        passed = replace(passed, headers=event.headers)
        logged = replace(incoming, message=shown).logged(incoming.plan.fate)
        self._transaction.emit("log", logged)
        self._transaction.emit(incoming.plan.forward, passed)

    # --- answers ---

    def _apply_answer(self, message: Message, cause: str, proof: str, now_ms: int) -> Answer | None:
        """Applies a peer's message that refers to one they were sent as their answer, if the sender
        is proven. Returns the answer where no record exists: the ledger line is still to be
        written. Raises HistoryNeeded.
        """
        sent, peer = message.refers_to, message.sender.name
        recipient = self._fast_path.recent.about(sent)
        is_recent = recipient is not None
        if proof not in ANSWERING:
            if not is_recent and self._runner.records.member(sent, peer) is not None:
                reason = "nothing proves who sent it"
                line = refused_answer_event(sent, peer, reason, cause=cause, now_ms=now_ms)
                self._transaction.emit("log", line)
            return None
        is_declined = self._parts.declines.says(message.content, message.subtype)
        answer = Answer(peer, message.content[:LONGEST_ANSWER], is_declined)
        if not is_recent and self._runner.apply_answer(sent, answer, now_ms=now_ms, cause=cause):
            return None
        # Without a record, an answer token, recent ids or the log prove the recipient.
        if recipient is None and proof != "answer":
            recipient = self._history.peer(sent)
        return answer if proof == "answer" or recipient == peer else None

    def unknown_in(self, batch: Sequence[StoredEvent]) -> list[str]:
        """Ids that replies in the batch refer to and that have to be looked up in the log, so that
        one look-up serves all.
        """
        found: list[str] = []
        for stored in batch:
            event = stored.event
            if event.type != MESSAGE or event.headers.get(PROOF) not in _LOOKED_UP:
                continue
            try:
                message = Message.from_event(event)
            except InvalidInput:
                continue  # dead-lettered when its turn comes
            sent = message.refers_to
            if not sent or message.sender.kind != "peer" or self._history.has(sent):
                continue
            is_recent = self._fast_path.recent.about(sent) is not None
            if not is_recent and self._runner.records.get(sent) is None:
                found.append(sent)
        return found


def _too_large() -> TooLarge:
    return TooLarge(
        "the message leaves no room for what the log says about it",
        code="message.too_long",
        hint="send a link to what is large",
    )
