"""Plain messages in a row, and answers to them, taken together. [CO-7, CO-8, CO-10]

What `Receiving` does with each of them, and nothing else, for less than half the cost: events are
gathered in lists and handed to the transaction once. Whatever needs more thought ends the row and
is left to `Receiving`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from rapport.communication.arriving.limits import LARGEST_EVENT
from rapport.communication.delivering.declining import Declines
from rapport.communication.delivering.handling import (
    ANSWERING,
    FATE,
    FORWARDED,
    Route,
    always_heard,
    fate_end,
    handle,
    route_proven,
    rule_sender_text,
)
from rapport.communication.delivering.plain import PlainLane, with_rule_sender
from rapport.communication.delivering.receiving import answered_end, leaves_room
from rapport.communication.delivering.telling import PROOF
from rapport.communication.delivering.transaction import Transaction
from rapport.communication.delivering.wishes import may_have_wishes
from rapport.communication.ledger import SOURCE
from rapport.core.event import Event, StoredEvent
from rapport.core.message import AUTH, MESSAGE, MESSAGE_CACHE, Identifier, Message
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)


class _Row(msgspec.Struct):
    """The events that one row of messages leads to."""

    now_ms: int
    log: list[Event]
    outputs: dict[str, list[Event]]
    ends: dict[tuple[Identifier, bool | None], bytes] = {}
    told: list[Message] = []
    """Of `bodies` each: what callbacks are told of."""
    bodies: list[bytes] = []

    def end(self, receiver: Identifier, declined: bool | None) -> bytes:
        """How the event of a message to a component ends in `log`; `declined` is None for one that
        answers nothing.
        """
        found = self.ends.get((receiver, declined))
        if found is None:
            if declined is None:
                found = fate_end("notified", (receiver,))
            else:
                found = answered_end("notified", (receiver,), declined, self.now_ms)
            self.ends[receiver, declined] = found
        return found


class PlainTaking:
    """Takes messages as long as they are plain. Holds the headers of the last answer, which are
    mostly those of the next.
    """

    def __init__(
        self,
        transaction: Transaction,
        lane: PlainLane,
        route: Route,
        declines: Declines,
        is_heard: Callable[[], bool] = always_heard,
    ) -> None:
        self._is_heard = is_heard
        self._transaction, self._lane = transaction, lane
        self._route, self._declines = route, declines
        self._headers: dict[str, str] = {}
        self._told_headers: dict[str, str] = {}

    def take_row(self, batch: Sequence[StoredEvent], start: int, now_ms: int) -> int:
        """Takes events of `input` from `start` on; returns the place of the first that it leaves.

        One that cannot be taken leaves nothing behind.
        """
        row, number, end = _Row(now_ms, [], {}), start, len(batch)
        try:
            while number < end and self._take(batch[number].event, row):
                number += 1
        except Exception as error:  # reported when the event is handled alone, which follows
            _log.debug("handled alone", position=batch[number].position, error=repr(error))
        MESSAGE_CACHE.note_all(row.bodies, row.told)
        self._transaction.emit_all_early("log", row.log)
        for channel, events in row.outputs.items():
            self._transaction.emit_all_early(channel, events)
        return number

    def _take(self, event: Event, row: _Row) -> bool:
        if event.type != MESSAGE:
            return False
        data = event.data
        if len(data) > LARGEST_EVENT:
            return False
        message = MESSAGE_CACHE.get(data) or Message.from_stored(data)
        receiver = message.receiver
        if receiver is None or message.type == AUTH:
            return False
        if receiver.kind == "component":
            return self._take_told(message, receiver, event, row)
        is_answer = message.refers_to and message.sender.kind == "peer"
        if receiver.kind != "peer" or is_answer or message.ttl or may_have_wishes(data):
            return False
        return self._take_sent(message, receiver.name, event, row)

    # --- messages to peers ---

    def _take_sent(self, message: Message, name: str, event: Event, row: _Row) -> bool:
        plain = self._lane.reach(name, row.now_ms)
        routed = route_proven(self._route, message, event.headers)
        if plain is None or (message.type, message.subtype) in FORWARDED:
            return False
        handled = handle(message, routed) if routed else None
        if handled is not None and not (handled.is_simple and leaves_room(event, handled)):
            return False
        logged, delivery = self._lane.events(plain, message, event, row.now_ms)
        if text := rule_sender_text(message.sender, event.headers):
            delivery = with_rule_sender(delivery, text)
        if handled is not None and handled.notify:
            logged = self._lane.told_event(plain, message, logged, event, handled)
        row.log.append(logged)
        queued = row.outputs.get(plain.channel)
        if queued is None:
            queued = row.outputs[plain.channel] = []
        queued.append(delivery)
        return True

    # --- messages to applications ---

    def _take_told(self, message: Message, receiver: Identifier, event: Event, row: _Row) -> bool:
        """A message that callbacks are told of; perhaps it answers a plain one."""
        is_forwarded = (message.type, message.subtype) in FORWARDED
        if (
            not self._is_heard()
            or is_forwarded
            or route_proven(self._route, message, event.headers)
        ):
            return False
        declined: bool | None = None
        if message.refers_to and message.sender.kind == "peer":
            asked = self._lane.recent.about(message.refers_to)
            if asked is None:
                return False  # there may be a case that waits for it
            if _is_proven(message, asked, event):
                declined = self._declines.says(message.content, message.subtype)
        headers = event.headers
        if headers is not self._headers:
            self._headers, self._told_headers = headers, headers | {FATE: "notified"}
        data = event.data[:-1] + (row.ends.get((receiver, declined)) or row.end(receiver, declined))
        if len(data) <= MESSAGE_CACHE.longest:
            row.bodies.append(data)
            row.told.append(message)
        id = message.id or event.id
        row.log.append(
            Event(SOURCE, id, MESSAGE, event.subject, event.time, data, self._told_headers)
        )
        return True


def _is_proven(message: Message, asked: str, event: Event) -> bool:
    """Whether it is proven who answers, and that they were asked."""
    proof = event.headers.get(PROOF, "none")
    return proof in ANSWERING and (proof == "answer" or asked == message.sender.name)
