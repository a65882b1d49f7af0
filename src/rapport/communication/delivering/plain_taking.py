"""Plain messages in a row, and answers to them, taken together. [CO-7, CO-8, CO-10]

What `Receiving` does with each of them, and nothing else, for less than half the cost: events are
gathered in lists and handed to the transaction once. Whatever needs more thought ends the row and
is left to `Receiving`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.communication.delivering.declining import Declines
from rapport.communication.delivering.handling import ANSWERING, FORWARDED, Route
from rapport.communication.delivering.plain import PlainLane
from rapport.communication.delivering.receiving import FATE, answered_end, fate_end
from rapport.communication.delivering.telling import PROOF
from rapport.communication.delivering.transaction import Transaction
from rapport.communication.delivering.wishes import may_have_wishes
from rapport.communication.ledger import SOURCE
from rapport.core.event import Event, StoredEvent
from rapport.core.message import AUTH, MESSAGE, RECENT, Identifier, Message


class _Row(msgspec.Struct):
    """The events that one row of messages leads to."""

    now_ms: int
    log: list[Event]
    outputs: dict[str, list[Event]]
    ends: dict[tuple[Identifier, bool | None], bytes] = {}

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
        self, transaction: Transaction, lane: PlainLane, route: Route, declines: Declines
    ) -> None:
        self._transaction, self._lane = transaction, lane
        self._route, self._declines = route, declines
        self._headers: dict[str, str] = {}
        self._told_headers: dict[str, str] = {}

    def take_row(self, batch: Sequence[StoredEvent], start: int, now_ms: int) -> int:
        """Takes events of `input` from `start` on; returns the place of the first that it leaves.

        One that cannot be taken leaves nothing behind.
        """
        row, number = _Row(now_ms, [], {}), start
        while number < len(batch) and self._takes(batch[number].event, row):
            number += 1
        self._transaction.emit_all_early("log", row.log)
        for channel, events in row.outputs.items():
            self._transaction.emit_all_early(channel, events)
        return number

    def _takes(self, event: Event, row: _Row) -> bool:
        try:
            return event.type == MESSAGE and self._take(event, row)
        except Exception:
            return False  # what is wrong with it is said when it is taken alone

    def _take(self, event: Event, row: _Row) -> bool:
        message = Message.from_event(event)
        receiver = message.receiver
        if receiver is None or message.type == AUTH:
            return False
        if receiver.kind == "component":
            return self._take_told(message, receiver, event, row)
        is_answer = message.refers_to and message.sender.kind == "peer"
        if receiver.kind != "peer" or is_answer or message.ttl or may_have_wishes(event):
            return False
        return self._take_sent(message, receiver.name, event, row)

    # --- messages to peers ---

    def _take_sent(self, message: Message, name: str, event: Event, row: _Row) -> bool:
        plain = self._lane.reach(name, row.now_ms)
        if plain is None or self._route(message):
            return False
        id = message.id or event.id
        delivery = self._lane.delivery_event(plain, message, id, event, row.now_ms)
        row.log.append(self._lane.message_event(plain, id, event))
        queued = row.outputs.get(plain.channel)
        if queued is None:
            queued = row.outputs[plain.channel] = []
        queued.append(delivery)
        return True

    # --- messages to applications ---

    def _take_told(self, message: Message, receiver: Identifier, event: Event, row: _Row) -> bool:
        """A message that callbacks are told of; perhaps it answers a plain one."""
        if (message.type, message.subtype) in FORWARDED or self._route(message):
            return False
        declined: bool | None = None
        if message.refers_to and message.sender.kind == "peer":
            asked = self._lane.recent.about(message.refers_to)
            if asked is None:
                return False  # there may be a case that waits for it
            if _is_proven(message, asked, event):
                declined = self._declines.says(message.content, message.subtype)
        row.log.append(self._told(message, event, row.end(receiver, declined)))
        return True

    def _told(self, message: Message, event: Event, end: bytes) -> Event:
        if event.headers is not self._headers:
            self._headers, self._told_headers = event.headers, event.headers | {FATE: "notified"}
        data = event.data[:-1] + end
        RECENT.note(data, message)
        id = message.id or event.id
        return Event(SOURCE, id, MESSAGE, event.subject, event.time, data, self._told_headers)


def _is_proven(message: Message, asked: str, event: Event) -> bool:
    """Whether it is proven who answers, and that they were asked."""
    proof = event.headers.get(PROOF, "none")
    return proof in ANSWERING and (proof == "answer" or asked == message.sender.name)
