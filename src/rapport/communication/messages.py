"""Takes messages of `input`: answers are heard, receivers told, services and callbacks handed
theirs, and every message is logged with its fate. [CO-7, CO-10, CO-12]

The shell of `handling.handle`; called by the engine inside one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from rapport.communication.answers import USUAL_DECLINES, Declines, MessageHistory
from rapport.communication.arrival_limits import LARGEST_EVENT
from rapport.communication.delivery_options import DEFAULT_OPTIONS, DeliveryOptions, options_of
from rapport.communication.delivery_runner import DeliveryRunner, ReceiverLookup
from rapport.communication.delivery_state import AddReceiver, Answer, DeliveryState, RetryPolicy
from rapport.communication.fast_path import DirectPeer, FastPath, with_rule_sender
from rapport.communication.ledger_events import (
    LONGEST_ANSWER,
    SOURCE,
    LedgerLine,
    MessageFate,
    event_name,
    ledger_event,
    refused_answer_event,
)
from rapport.communication.message_plan import (
    ANSWERING,
    FATE,
    MessagePlan,
    Route,
    answered_end,
    assume_listeners,
    fate_end,
    leaves_room,
    plan_message,
    route_proven,
    rule_sender_text,
)
from rapport.communication.peers import shown_address
from rapport.communication.records import DeliveryRecord, MessageBody, routed_key
from rapport.communication.schedule import PartlyHandled
from rapport.communication.sender_notifications import PROOF
from rapport.communication.transaction import Transaction
from rapport.core.errors import InvalidInput, SourceUnavailable, TooLarge
from rapport.core.event import Event, StoredEvent
from rapport.core.message import AUTH, CONTROL, MESSAGE, RECENT, Identifier, Message

_LOOKED_UP = ANSWERING - {"answer"}
"""Proofs of who sent an answer that do not prove that they were asked."""

_NEVER = 2**62
"""Later than any clock: what is later still could not be kept."""


class MessageHandler:
    """Handles messages one by one; those of the plain lane cost some microseconds each."""

    def __init__(
        self,
        transaction: Transaction,
        cases: DeliveryRunner,
        members: ReceiverLookup,
        lane: FastPath,
        *,
        route: Route,
        retry: RetryPolicy,
        told_before: MessageHistory,
        declines: Declines = USUAL_DECLINES,
        is_heard: Callable[[], bool] = assume_listeners,
    ) -> None:
        self._is_heard = is_heard
        self._transaction, self._cases, self._members = transaction, cases, members
        self._lane, self._route, self._retry = lane, route, retry
        self._declines, self._told_before = declines, told_before

    def take(self, event: Event, now_ms: int, *, is_again: bool = False) -> None:
        """Handles one message; raises InvalidInput when it is none, and HistoryNeeded when what it
        refers to is to be looked up first. Raises TakenInPart when somebody whom it goes to is not
        known now: if it is an answer it was heard, and is not heard twice when it is taken
        `is_again`.
        """
        if len(event.data) > LARGEST_EVENT:
            raise _no_room()
        message = Message.from_event(event)
        id = message.id or event.id
        proof = event.headers.get(PROOF, "none")
        answer: Answer | None = None
        if message.refers_to and message.sender.kind == "peer" and not is_again:
            answer = self._hear_answer(message, event.id, proof, now_ms)
        routed = route_proven(self._route, message, event.headers)
        handled = plan_message(message, routed, is_heard=self._is_heard())
        if not leaves_room(event, handled):
            raise _no_room()
        is_told_only = handled.tracked is None and not handled.routed and not handled.forward
        if answer is not None and not is_told_only:
            line = answered_line(message.refers_to, answer, event.id, now_ms)
            self._transaction.emit_early("log", line)
        options = options_of(event) if proof == "application" else DEFAULT_OPTIONS
        if options is DEFAULT_OPTIONS and self._take_plainly(message, id, event, handled, now_ms):
            return
        if handled.forward:
            self._forward(message, id, event, handled)
        elif is_told_only:
            logged = self._logged(id, event, handled, handled.fate, message)
            if answer is not None:
                logged = _with_answer(logged, message, handled, answer, now_ms)
            self._transaction.emit_early("log", logged)
        elif handled.tracked is None or self._cases.records.case(id) is None:
            # The same message again says nothing new.
            mark = self._transaction.mark()
            try:
                self._begin(message, id, event, handled, options, now_ms)
            except SourceUnavailable as error:
                self._transaction.roll_back(mark)
                raise PartlyHandled(error.message, code=error.code, hint=error.hint) from error

    # --- the plain lane ---

    def _take_plainly(
        self, message: Message, id: str, event: Event, handled: MessagePlan, now_ms: int
    ) -> bool:
        receiver = message.receiver
        if receiver is None or receiver.kind != "peer" or message.ttl or message.type == AUTH:
            return False
        plain = self._lane.reach(receiver.name, now_ms) if handled.tracked is not None else None
        others = self._plain_others(handled, now_ms)
        if plain is None or others is None:
            return False
        delivery = self._lane.delivery_event(plain, message, id, event, now_ms)
        if text := rule_sender_text(message.sender, event.headers):
            delivery = with_rule_sender(delivery, text)
        logged = self._lane.message_event(plain, id, event)
        if handled.notify or others:
            logged = self._lane.told_event(plain, message, logged, event, handled)
        self._transaction.emit_early("log", logged)
        for key, other in others:
            for channel, said in self._routed(
                other, message, id, event, routed_key(id, key), now_ms
            ):
                self._transaction.emit_early(channel, said)
        self._transaction.emit_early(plain.channel, delivery)
        return True

    def _plain_others(
        self, handled: MessagePlan, now_ms: int
    ) -> list[tuple[str, DirectPeer]] | None:
        """Additional receivers, each by name, that a delivery alone reaches; None when it takes
        more for one of them.
        """
        found: list[tuple[str, DirectPeer]] = []
        for to in handled.routed:
            plain = self._lane.reach(to.name, now_ms) if to.kind == "peer" else None
            if plain is None:
                return None
            found.append((str(to), plain))
        return found

    def _tell_routed(
        self, message: Message, id: str, event: Event, to: Identifier, now_ms: int
    ) -> None:
        """Tells an additional receiver: by a delivery alone where that is enough, else by a case
        of its own, which tells the sender of nothing but its failure.
        """
        key = routed_key(id, str(to))
        plain = self._lane.reach(to.name, now_ms) if to.kind == "peer" else None
        if plain is not None and not message.ttl:
            # With the message's own event, which is not in the log before the transaction is done.
            for channel, said in self._routed(plain, message, id, event, key, now_ms):
                self._transaction.emit(channel, said)
            return
        case = self._case(key, id, message, event, DEFAULT_OPTIONS)
        case.routed, case.tracking.acknowledge = True, False
        if self._cases.records.case(key) is None:
            self._start(case, message, event, self._ask(case, to, now_ms), DEFAULT_OPTIONS, now_ms)

    def _routed(
        self,
        plain: DirectPeer,
        message: Message,
        id: str,
        event: Event,
        key: str,
        now_ms: int,
    ) -> tuple[tuple[str, Event], tuple[str, Event]]:
        """The line and the delivery for an additional receiver, each with its channel."""
        delivery = self._lane.delivery(
            plain, message, id, now_ms=now_ms, sent_ms=event.time, case=key
        )
        if text := rule_sender_text(message.sender, event.headers):
            delivery = msgspec.structs.replace(delivery, rule_sender=text)
        line = LedgerLine(
            message=id,
            peer=delivery.peer,
            address=shown_address(delivery.address),
            adapter=plain.channel.partition(".")[2],
            attempt=1,
            receiver=f"peer:{delivery.peer}",
        )
        name = event_name(id, "routed", delivery.peer)
        queued = ledger_event(line, "queued", id=name, now_ms=now_ms, causes=(id,))
        return ("log", queued), (plain.channel, delivery.to_event())

    # --- everything else ---

    def _begin(
        self,
        message: Message,
        id: str,
        event: Event,
        handled: MessagePlan,
        options: DeliveryOptions,
        now_ms: int,
    ) -> None:
        place = self._transaction.emit("log", self._logged(id, event, handled, handled.fate))
        for receiver in handled.routed:
            self._tell_routed(message, id, event, receiver, now_ms)
        if handled.tracked is None:
            return
        self._lane.recent.discard(id)  # the same id may have been of a plain one
        case = self._case(id, id, message, event, options)
        ask = self._ask(case, handled.tracked, now_ms, options.answer_within)
        ask = _with_options(ask, options)
        begun = self._start(case, message, event, ask, options, now_ms)
        if begun.tracking.closed and not handled.routed:
            failed = self._logged(id, event, handled, "failed")
            self._transaction.amend("log", place, failed)

    def _ask(
        self, case: DeliveryRecord, to: Identifier, now_ms: int, answer_within: int = 0
    ) -> AddReceiver:
        """How many have to be reached; what is past its time to live asks nobody who that is, who
        may be unable to say.
        """
        if 0 < case.tracking.expires <= now_ms:
            return AddReceiver(str(to))
        return self._members.ask(to, answer_within)

    def _case(
        self, key: str, id: str, message: Message, event: Event, options: DeliveryOptions
    ) -> DeliveryRecord:
        tracking = DeliveryState(
            message=key,
            done_when=options.counts(),
            urgent=message.urgent,
            acknowledge=message.delivery_policy == "acknowledged",
            escalate=list(options.escalate),
            repeat_every=options.repeat_every,
            repeat_most=options.repeat_most,
            expires=min(event.time + message.ttl, _NEVER) if message.ttl else 0,
            retry=self._retry,
        )
        # What becomes of a message of type CONTROL is told to nobody, or it would never end.
        sender = "" if message.type == CONTROL else str(message.sender)
        return DeliveryRecord(tracking=tracking, message=id, sender=sender)

    def _start(
        self,
        case: DeliveryRecord,
        message: Message,
        event: Event,
        ask: AddReceiver,
        options: DeliveryOptions,
        now_ms: int,
    ) -> DeliveryRecord:
        letter = MessageBody(
            text=message.content,
            time=event.time,
            sent=event.time,
            sender=str(message.sender),
            rule_sender=rule_sender_text(message.sender, event.headers),
            type=message.type,
            subtype=message.subtype,
            conversation=message.conversation,
            refers_to=message.refers_to,
            language=message.language,
            peer_delivery=options.peer_delivery,
        )
        return self._cases.begin(case, letter, ask, now_ms=now_ms, cause=event.id, only=None)

    def _logged(
        self,
        id: str,
        event: Event,
        handled: MessagePlan,
        fate: MessageFate,
        message: Message | None = None,
    ) -> Event:
        data = event.data[:-1] + fate_end(fate, handled.receivers)
        if handled.notify and message is not None:
            RECENT.note(data, message)  # callbacks are told of it
        headers = event.headers | {FATE: fate} if handled.notify else event.headers
        return Event(SOURCE, id, MESSAGE, event.subject, event.time, data, headers)

    def _forward(self, message: Message, id: str, event: Event, handled: MessagePlan) -> None:
        """To the service that answers; what is asked of authentication may hold a password, which
        no log keeps.
        """
        shown = message if message.type != AUTH else msgspec.structs.replace(message, content="")
        passed = msgspec.structs.replace(
            msgspec.structs.replace(shown, id=id).to_event(source=SOURCE, time=event.time),
            headers=event.headers,
        )
        self._transaction.emit("log", self._logged(id, passed, handled, handled.fate))
        self._transaction.emit(handled.forward, passed)

    # --- answers ---

    def _hear_answer(self, message: Message, cause: str, proof: str, now_ms: int) -> Answer | None:
        """A peer's message that refers to one they were sent is their answer, if it is proven.

        Returns the answer to a message of which nothing is kept: the ledger has still to be told.
        Raises HistoryNeeded.
        """
        sent, peer = message.refers_to, message.sender.name
        told = self._lane.recent.about(sent)
        is_plain = told is not None
        if proof not in ANSWERING:
            asked = not is_plain and self._cases.records.member(sent, peer) is not None
            if asked:
                reason = "nothing proves who sent it"
                line = refused_answer_event(sent, peer, reason, cause=cause, now_ms=now_ms)
                self._transaction.emit("log", line)
            return None
        is_declined = self._declines.says(message.content, message.subtype)
        answer = Answer(peer, message.content[:LONGEST_ANSWER], is_declined)
        if not is_plain and self._cases.hear_answer(sent, answer, now_ms=now_ms, cause=cause):
            return None
        # Nothing is kept of what it answers. That they were asked is proven by an answer token, by
        # our memory of messages of late, or by the log.
        if told is None and proof != "answer":
            told = self._told_before.peer(sent)
        return answer if proof == "answer" or told == peer else None

    def unknown_in(self, batch: Sequence[StoredEvent]) -> list[str]:
        """What replies among these refer to and has to be looked up, so that it is all at once."""
        found: list[str] = []
        for stored in batch:
            event = stored.event
            if event.type != MESSAGE or event.headers.get(PROOF) not in _LOOKED_UP:
                continue
            try:
                message = Message.from_event(event)
            except InvalidInput:
                continue  # set aside when its turn comes
            sent = message.refers_to
            if not sent or message.sender.kind != "peer" or self._told_before.has(sent):
                continue
            if self._lane.recent.about(sent) is None and self._cases.records.case(sent) is None:
                found.append(sent)
        return found


def _no_room() -> TooLarge:
    return TooLarge(
        "the message leaves no room for what the log says about it",
        code="message.too_long",
        hint="send a link to what is large",
    )


def _with_answer(
    logged: Event, message: Message, handled: MessagePlan, answer: Answer, now_ms: int
) -> Event:
    plain_end = fate_end(handled.fate, handled.receivers)
    end = answered_end(handled.fate, handled.receivers, answer.declined, now_ms)
    data = logged.data[: -len(plain_end)] + end
    if handled.notify:
        RECENT.note(data, message)
    return msgspec.structs.replace(logged, data=data)


def answered_line(message: str, answer: Answer, cause: str, now_ms: int) -> Event:
    """The ledger line of an answer to a message of which nothing else is remembered."""
    line = LedgerLine(
        message=message, peer=answer.peer, answer=answer.text, declined=answer.declined
    )
    name = event_name(cause, "answers")
    return ledger_event(line, "answered", id=name, now_ms=now_ms, causes=(message, cause))


def _with_options(ask: AddReceiver, options: DeliveryOptions) -> AddReceiver:
    is_collective = ask.receiver.startswith("collective:")
    if not is_collective or not (options.reach or options.least):
        return ask
    delivery, least = options.reach or "at-least", max(options.least, 1)
    return msgspec.structs.replace(ask, delivery=delivery, least=least)
