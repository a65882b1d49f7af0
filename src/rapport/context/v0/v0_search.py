"""Requests, responses and refusals of protocol v0, and the requests that wait for an answer.
[CX-2, CX-5, CX-6]

The way back needs no state: it is in the message. The broker that a consumer asked still remembers
the request, so that a consumer without an answer is refused in time, late answers do no harm, and
no message can make this broker send to an address of its choice. v0 has no request ids: pending
requests are found by address, question or next broker, the oldest first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rapport.context.broker.broker_state import TimerQueue
from rapport.context.broker.walks import choose_marks, worth_a_copy
from rapport.context.protocol import (
    BAD_REQUEST,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    NOT_FOUND,
    PROCESSED,
    RECEIVED,
    Question,
)
from rapport.context.records import Outcome, RecordTable, key_of
from rapport.context.rights import is_genuine
from rapport.context.v0 import v0_protocol as m
from rapport.context.v0.v0_neighbourhood import V0Neighbourhood
from rapport.context.v0.v0_state import V0Caller, V0Hosts, V0Outbox, V0Settings
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import TooLarge
from rapport.kernel.clock import Chance, Now
from rapport.overlay.routing import next_hop, way_back
from rapport.transport.base import Address


class V0PendingRequest:
    """A request of a consumer; compared by identity."""

    __slots__ = ("caller", "deadline_ms", "is_in_v1", "is_over", "question", "sent_to")

    def __init__(self, caller: V0Caller, question: Question, deadline_ms: float) -> None:
        self.caller, self.question, self.deadline_ms = caller, question, deadline_ms
        self.sent_to: Address | None = None
        """The neighbour that walks for it now."""
        self.is_in_v1 = self.is_over = False


_ByAddress = dict[Address, dict[V0PendingRequest, None]]


class V0PendingRequests:
    """Who waits; entering, leaving and finding cost the same however many there are."""

    def __init__(self) -> None:
        self._of: _ByAddress = {}
        self._sent_to: _ByAddress = {}

    def count_of(self, consumer: Address) -> int:
        """How many requests of this consumer wait."""
        return len(self._of.get(consumer, ()))

    def enter(self, waiting: V0PendingRequest) -> None:
        """It waits from now on."""
        self._of.setdefault(waiting.caller.address, {})[waiting] = None

    def sent(self, waiting: V0PendingRequest, to: Address) -> None:
        """It was sent to a neighbour."""
        waiting.sent_to = to
        self._sent_to.setdefault(to, {})[waiting] = None

    def walked(self, waiting: V0PendingRequest) -> None:
        """The walk in v0 ended: the search goes on in v1."""
        waiting.is_in_v1 = True
        if waiting.sent_to is not None:
            _remove(self._sent_to, waiting.sent_to, waiting)
            waiting.sent_to = None

    def leave(self, waiting: V0PendingRequest) -> None:
        """It waits no longer."""
        waiting.is_over = True
        _remove(self._of, waiting.caller.address, waiting)
        if waiting.sent_to is not None:
            _remove(self._sent_to, waiting.sent_to, waiting)

    def oldest_of(
        self, consumer: Address, question: Question | None, *, walked_for: bool
    ) -> V0PendingRequest | None:
        """The oldest request of a consumer with this question (none: any), of those that are walked
        for where asked.
        """
        for waiting in self._of.get(consumer, ()):
            if question in (None, waiting.question) and not (walked_for and waiting.is_in_v1):
                return waiting
        return None

    def oldest_sent_to(self, neighbour: Address) -> V0PendingRequest | None:
        """The oldest request that this neighbour walks for."""
        return next(iter(self._sent_to.get(neighbour, ())), None)


def _remove(places: _ByAddress, address: Address, waiting: V0PendingRequest) -> None:
    there = places.get(address, {})
    there.pop(waiting, None)
    if not there:
        places.pop(address, None)


V0FoundCallback = Callable[[ContextRecord | None, Now], None]
V0SearchFunction = Callable[[Question, int, V0FoundCallback], None]
"""Looks in the v1 network for so many ms, then calls back once: with the record or none."""
V0Allows = Callable[[str, str, EntityRef, str], bool]

_REQUEST = m.OPERATIONS[m.REQUEST]


class V0Search:
    """Walks of protocol v0; holds pending requests, all other state is in the messages."""

    def __init__(
        self,
        address: Address,
        settings: V0Settings,
        chance: Chance,
        outgoing: V0Outbox,
        agenda: TimerQueue,
        neighbourhood: V0Neighbourhood,
        *,
        records: RecordTable,
        search: V0SearchFunction | None,
        allows: V0Allows,
        holder: Address,
    ) -> None:
        self._address, self._settings, self._chance = address, settings, chance
        self._outgoing, self._agenda, self._neighbourhood = outgoing, agenda, neighbourhood
        self._records, self._search, self._allows = records, search, allows
        self._holder = holder
        self._clients = V0Hosts(settings.clients)
        self._room = V0PendingRequests()
        self.under_way = 0

    def request(self, message: m.V0Request, caller: V0Caller, now: Now) -> None:
        """3: of a consumer without a path, else of a broker."""
        if not message.path:
            self._of_consumer(message.question, caller, now)
        elif self._neighbourhood.is_broker(caller.address):
            trail = (*message.path, caller.address)
            may = self._may("read", message.question)
            record = self._here(message.question, now) if may else None
            if record is not None:
                self._send_found(record, trail, now)
            else:
                self._walk_on(message.question, trail, now)
        else:
            self._outgoing.refuse(caller, BAD_REQUEST, _REQUEST, now)

    def response(self, message: m.V0Response, caller: V0Caller, now: Now) -> None:
        """4: replicated where marked, and handed to the last address of its path."""
        if not message.path or not self._neighbourhood.is_broker(caller.address):
            self._outgoing.counters.astray += 1
            return
        record = message.record
        question = Question(record.entity, record.scope)
        if len(message.path) - 1 in message.marks and self._may("write", question):
            self._replicate(record, now)
        still = record if record.is_valid_at(now.wall_ms) else None
        self._hand_back(still, question, message.path, message.marks, now)

    def refusal(self, message: m.V0Refusal, caller: V0Caller, now: Now) -> None:
        """6 of another broker: handed back along its path. A foreign broker may leave the path
        out; then it is about the oldest request that was sent there.
        """
        if not self._neighbourhood.is_broker(caller.address):
            self._outgoing.counters.astray += 1
        elif message.path:
            self._hand_back(None, None, message.path, (), now, status=message.status)
        else:
            self._nothing_for(self._room.oldest_sent_to(caller.address), now)

    def _of_consumer(self, question: Question, caller: V0Caller, now: Now) -> None:
        if not self._may("read", question):
            self._outgoing.audit("request", caller, NOT_ALLOWED, question)
            self._outgoing.refuse(caller, NOT_ALLOWED, _REQUEST, now)
            return
        self._outgoing.acknowledge(caller, RECEIVED, _REQUEST, now)
        record = self._here(question, now)
        if record is not None:
            self._answer(caller, record, now)
        elif caller.address[0] not in self._clients:
            # A search costs many messages: not for a sender that may write any address.
            self._outgoing.refuse(caller, NOT_FOUND, _REQUEST, now)
        elif not self._may_wait(caller):
            self._outgoing.refuse(caller, INTERNAL_ERROR, _REQUEST, now)
        else:
            self._begin(question, caller, now)

    def _may(self, right: str, question: Question) -> bool:
        return self._allows(self._settings.identity, right, question.entity, question.scope)

    def _here(self, question: Question, now: Now) -> ContextRecord | None:
        held = self._records.answer(key_of(question), now.wall_ms)
        return None if held is None else held.record

    def _may_wait(self, caller: V0Caller) -> bool:
        of_it = self._room.count_of(caller.address)
        return not self._is_full() and of_it < self._settings.searches_per_consumer

    def _begin(self, question: Question, caller: V0Caller, now: Now) -> None:
        waiting = V0PendingRequest(caller, question, now.steady_ms + self._settings.within_ms)
        self._room.enter(waiting)
        self.under_way += 1
        self._agenda.at(waiting.deadline_ms, self._end, waiting, None)
        trail = (caller.address,)
        step = next_hop(self._neighbourhood.addresses, trail, self._chance, own=self._address)
        if step.to is None:
            self._go_on_in_v1(waiting, now)
            return
        self._room.sent(waiting, step.to)
        self._outgoing.send(m.V0Request(now.wall_ms, question, trail), step.to)
        if self._search is not None:
            silent_ms = now.steady_ms + self._settings.walk_ms
            self._agenda.at(silent_ms, self._go_on_in_v1, waiting)

    def _go_on_in_v1(self, waiting: V0PendingRequest, now: Now) -> None:
        if waiting.is_over or waiting.is_in_v1:
            return
        self._room.walked(waiting)
        left_ms = int(waiting.deadline_ms - now.steady_ms)
        if self._search is None or left_ms <= 0:
            self._end(waiting, None, now)
        else:
            self._search(waiting.question, left_ms, partial(self._end, waiting))

    def _end(self, waiting: V0PendingRequest, record: ContextRecord | None, now: Now) -> None:
        """The one end of waiting: with the record, or refused."""
        if waiting.is_over:
            return
        waiting.is_over = True
        self.under_way -= 1
        self._room.leave(waiting)
        if record is not None and record.is_valid_at(now.wall_ms):
            self._answer(waiting.caller, record, now)
        else:
            self._outgoing.refuse(waiting.caller, NOT_FOUND, _REQUEST, now)

    def _answer(self, caller: V0Caller, record: ContextRecord, now: Now) -> None:
        try:
            self._outgoing.reply(m.V0Response(now.wall_ms, record), caller)
        except TooLarge:
            self._outgoing.refuse(caller, INTERNAL_ERROR, _REQUEST, now)
            return
        self._outgoing.counters.answered += 1
        question = Question(record.entity, record.scope)
        self._outgoing.audit("request", caller, PROCESSED, question)
        if self._settings.second_ack_to_consumers:
            self._outgoing.acknowledge(caller, PROCESSED, _REQUEST, now)

    def _walk_on(self, question: Question, trail: tuple[Address, ...], now: Now) -> None:
        neighbours = self._neighbourhood.addresses
        step = next_hop(neighbours, trail, self._chance, own=self._address)
        if step.to is not None and len(trail) <= self._settings.hop_limit:
            self._say(m.V0Request(now.wall_ms, question, trail), step.to)
        elif self._search is None or self._is_entry(trail) or self._is_full():
            self._send_nothing(question, trail, now)
        else:
            self.under_way += 1
            found = partial(self._found_for_another, question, trail)
            self._search(question, self._settings.walk_ms, found)

    def _found_for_another(
        self,
        question: Question,
        trail: tuple[Address, ...],
        record: ContextRecord | None,
        now: Now,
    ) -> None:
        self.under_way -= 1
        if record is not None and record.is_valid_at(now.wall_ms):
            self._send_found(record, trail, now)
        else:
            self._send_nothing(question, trail, now)

    def _send_found(self, record: ContextRecord, trail: tuple[Address, ...], now: Now) -> None:
        """Towards the consumer, with asterisks: the mark for a broker stands behind the pair
        before its own, which is the last one when the response arrives there.
        """
        settings = self._settings.replication
        way = self._way_back(trail)
        marks: tuple[int, ...] = ()
        if worth_a_copy(record, settings, now.wall_ms):
            chosen = choose_marks(range(1, len(way)), settings, self._chance)
            marks = tuple(sorted(place - 1 for place in chosen))
        self._hand_back(record, Question(record.entity, record.scope), way, marks, now)

    def _send_nothing(self, question: Question, trail: tuple[Address, ...], now: Now) -> None:
        self._hand_back(None, question, self._way_back(trail), (), now)

    def _is_entry(self, trail: tuple[Address, ...]) -> bool:
        """Whether the walk began here; then its own request knows how to go on."""
        return len(self._way_back(trail)) == 1

    def _is_full(self) -> bool:
        return self.under_way >= self._settings.searches

    def _way_back(self, trail: tuple[Address, ...]) -> tuple[Address, ...]:
        """The trail without its detours, those that came back here among them."""
        return way_back((*trail, self._address))[:-1]

    def _hand_back(
        self,
        record: ContextRecord | None,
        question: Question | None,
        way: tuple[Address, ...],
        marks: tuple[int, ...],
        now: Now,
        *,
        status: int = NOT_FOUND,
    ) -> None:
        """To the last broker on the way that is still there; the first on the way is the consumer.

        Without a record: a refusal.
        """
        is_entry = len(way) == 1
        while len(way) > 1:
            to, way = way[-1], way[:-1]
            if self._neighbourhood.passes_on(to):
                self._pass_on(record, to, way, marks, now, status)
                return
            self._outgoing.counters.astray += 1
        if way and is_entry:
            self._reached_consumer(record, question, way[0], now)
        elif way and way[0][0] in self._clients:
            self._reply_directly(record, V0Caller(way[0], None), now)

    def _pass_on(
        self,
        record: ContextRecord | None,
        to: Address,
        way: tuple[Address, ...],
        marks: tuple[int, ...],
        now: Now,
        status: int,
    ) -> None:
        if record is not None:
            left = tuple(place for place in marks if place < len(way))
            try:
                self._outgoing.send(m.V0Response(now.wall_ms, record, way, left), to)
                return
            except TooLarge:
                status = INTERNAL_ERROR
        self._say(m.V0Refusal(now.wall_ms, status, _REQUEST, way[0][0], way), to)

    def _say(self, message: m.V0Message, to: Address) -> None:
        """Sends to a broker. A path that fits no datagram any more goes nowhere: the broker that
        was queried first refuses in time.
        """
        try:
            self._outgoing.send(message, to)
        except TooLarge:
            self._outgoing.counters.unsaid += 1

    def _reached_consumer(
        self,
        record: ContextRecord | None,
        question: Question | None,
        consumer: Address,
        now: Now,
    ) -> None:
        """Passes an answer to the pending request, once."""
        waiting = self._room.oldest_of(consumer, question, walked_for=record is None)
        if waiting is None or record is None:
            self._nothing_for(waiting, now)
        else:
            self._end(waiting, record, now)

    def _nothing_for(self, waiting: V0PendingRequest | None, now: Now) -> None:
        """No v0 broker has it."""
        if waiting is None:
            self._outgoing.counters.late += 1
        else:
            self._go_on_in_v1(waiting, now)

    def _reply_directly(self, record: ContextRecord | None, consumer: V0Caller, now: Now) -> None:
        """Every broker between here and the consumer is gone."""
        if record is not None:
            self._answer(consumer, record, now)
        else:
            self._outgoing.refuse(consumer, NOT_FOUND, _REQUEST, now)

    def _replicate(self, record: ContextRecord, now: Now) -> None:
        if not worth_a_copy(record, self._settings.replication, now.wall_ms):
            return
        if not is_genuine(record):  # v0 carries no signatures
            return
        if self._records.put(record, now.wall_ms, holder=self._holder) is Outcome.TAKEN:
            self._outgoing.counters.replicated += 1
