"""The plain lane: a message that needs nothing remembered but itself. [CO-7, CO-8, CO-10]

One peer, one usable address, allowed now, done when the medium took it, no time to live and nobody
who is asked next: then the delivery in `output.X` is all the state there is, and the line that says
`handed` closes the message. What fails becomes a case like any other. The ledger says the same as
for a case, in fewer lines: the message's own event stands for the line of the queueing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from rapport.communication.adapters.base import DELIVERY, LONGEST_ID, Delivery, Sent
from rapport.communication.adapters.outgoing.outcomes import (
    HandedOutcomes,
    OutcomeData,
    outcome_data,
)
from rapport.communication.delivering.members import Members
from rapport.communication.ledger import (
    DELIVERY_PREFIX,
    SOURCE,
    LedgerLine,
    event_name,
    ledger_event,
)
from rapport.communication.peers import Peer, adapter_of, shown_address
from rapport.core.errors import SourceUnavailable
from rapport.core.event import CAUSE, MAX_NAME, Event, cause_text
from rapport.core.message import MESSAGE, Message

_REMEMBERED = 100_000
_MOST_PEERS = 20_000
_ENCODER = msgspec.json.Encoder()


class PlainPeer(msgspec.Struct, frozen=True):
    """A peer whom one delivery reaches, with what is the same for all messages to them."""

    peer: Peer
    address: str
    channel: str
    said: bytes
    """The end of a message's event in `log`."""
    named: str
    """The end of a delivery's id; empty when it is no readable one."""
    longest: int
    """How many letters a message's id may have so that its delivery's id is a readable one."""
    queued: dict[str, bytes]
    """By the message's policy all but the times at the end of a delivery's data."""


class Recent:
    """Ids seen lately, each with a word about it: at least the last `most`, at most twice as
    many.
    """

    def __init__(self, most: int = _REMEMBERED) -> None:
        self._most = most
        self._newer: dict[str, str] = {}
        self._older: dict[str, str] = {}

    def add(self, id: str, about: str = "") -> None:
        """Remembers an id for a while."""
        self._newer[id] = about
        if len(self._newer) >= self._most:
            self._older, self._newer = self._newer, {}

    def discard(self, id: str) -> None:
        """Forgets an id now."""
        self._newer.pop(id, None)
        self._older.pop(id, None)

    def about(self, id: str) -> str | None:
        """What was said about an id; None when it is not remembered."""
        found = self._newer.get(id)
        return self._older.get(id) if found is None else found

    def __contains__(self, id: str) -> bool:
        return id in self._newer or id in self._older


class PlainLane:
    """Turns messages into deliveries and outcomes into ledger lines, without a record."""

    def __init__(self, members: Members, recent: Recent, *, enabled: bool = True) -> None:
        self._members, self._enabled = members, enabled
        self._peers: dict[str, PlainPeer | None] = {}
        self._known: dict[str, PlainPeer] = {}
        """As they were when last looked up: what is made of a peer is made once."""
        self._now, self._time, self._times = 0, 0, b',"queued":0,"time":0}'
        """How the data of a delivery end, of the last one: mostly the same for a batch."""
        self.recent = recent
        """Messages that went this way, each with its peer: nothing else is remembered of them, so
        nothing is to be looked up."""

    def begin_batch(self) -> None:
        """Adapters and people may have changed since."""
        self._peers.clear()

    def reach(self, name: str, now_ms: int) -> PlainPeer | None:
        """How one delivery reaches the peer; None when it takes more to decide."""
        found = self._peers.get(name)
        if found is None and name not in self._peers:
            found = self._peers[name] = self._look_up(name, now_ms)
        return found

    def _look_up(self, name: str, now_ms: int) -> PlainPeer | None:
        try:
            peer = self._members.directory.peer(name)
        except SourceUnavailable:
            return None  # a case waits until the directory can say
        if peer is None or peer.privacy or not self._enabled:
            return None
        usable = self._members.usable(peer, peer.delivery, now_ms)
        if len(usable) != 1:
            return None
        known = self._known.get(name)
        same = known is not None and (known.peer is peer or known.peer == peer)
        if known is not None and same and known.address == usable[0]:
            return known
        if len(self._known) >= _MOST_PEERS:
            self._known.clear()
        made = self._known[name] = self._made(name, peer, usable[0])
        return made

    def _made(self, name: str, peer: Peer, address: str) -> PlainPeer:
        adapter = adapter_of(address)
        said = {
            "fate": "queued",
            "receivers": [f"peer:{name}"],
            "peer": peer.name,
            "address": shown_address(address),
            "adapter": adapter,
        }
        ends = {
            policy: _delivery_end(peer, address, policy == "acknowledged")
            for policy in ("acknowledged", "unreliable")
        }
        named = _name_end(peer, address)
        return PlainPeer(
            peer,
            address,
            f"output.{adapter}",
            b"," + msgspec.json.encode(said)[1:],
            named,
            LONGEST_ID - len(named) if named and named.isprintable() else -1,
            ends,
        )

    def events(
        self, plain: PlainPeer, message: Message, event: Event, now_ms: int
    ) -> tuple[Event, Event]:
        """`message_event` and `delivery_event` of a message; for a usual one at half the cost."""
        id = event.id
        # What is left at its default is left out of a message, but not of a delivery.
        if message.id != id or not message.content or len(id) > plain.longest:
            id = message.id or id
            delivery = self.delivery_event(plain, message, id, event, now_ms)
            return self.message_event(plain, id, event), delivery
        self.recent.add(id, plain.peer.name)
        time = event.time
        if time != self._time or now_ms != self._now:
            self._time, self._now = time, now_ms
            self._times = b',"queued":%d,"time":%d}' % (now_ms, time)
        said = event.data[:-1]
        logged = Event(SOURCE, id, MESSAGE, event.subject, time, said + plain.said, event.headers)
        data = b"".join((said, plain.queued[message.delivery_policy], self._times))
        headers = {CAUSE: cause_text(id) if "%" in id or " " in id else id}
        return logged, Event(SOURCE, id + plain.named, DELIVERY, id, now_ms, data, headers)

    def message_event(self, plain: PlainPeer, id: str, event: Event) -> Event:
        """The message's event in `log`, made of that in `input`."""
        data = event.data[:-1] + plain.said
        return Event(SOURCE, id, MESSAGE, event.subject, event.time, data, event.headers)

    def delivery_event(
        self, plain: PlainPeer, message: Message, id: str, event: Event, now_ms: int
    ) -> Event:
        """The delivery's event, made of that in `input`: the same as `delivery(...).to_event()`
        for a fraction of the cost.
        """
        name = id + plain.named
        # What is left at its default is left out of a message, but not of a delivery.
        is_whole = message.id and message.content and plain.named
        if not is_whole or len(name) > LONGEST_ID or not name.isprintable():
            made = self.delivery(plain, message, id, now_ms=now_ms, sent_ms=event.time, case="")
            return made.to_event()
        self.recent.add(id, plain.peer.name)
        end = plain.queued[message.delivery_policy]
        data = b'%b%b,"queued":%d,"time":%d}' % (event.data[:-1], end, now_ms, event.time)
        return Event(SOURCE, name, DELIVERY, id, now_ms, data, {CAUSE: cause_text(id)})

    def delivery(
        self, plain: PlainPeer, message: Message, id: str, *, now_ms: int, sent_ms: int, case: str
    ) -> Delivery:
        """The delivery, which carries all that is known; `case` of an additional receiver."""
        if not case:
            self.recent.add(id, plain.peer.name)
        return Delivery(
            message=id,
            peer=plain.peer.name,
            address=plain.address,
            attempt=1,
            text=message.content,
            time=sent_ms,
            queued=now_ms,
            urgent=message.urgent,
            type=message.type,
            subtype=message.subtype,
            sender=str(message.sender),
            conversation=message.conversation,
            language=message.language,
            refers_to=message.refers_to,
            plain=True,
            acknowledge=message.delivery_policy == "acknowledged" and not case,
            case=case,
        )


def _name_end(peer: Peer, address: str) -> str:
    name = Delivery(message="", peer=peer.name, address=address, attempt=1, text="").id
    return name if name.startswith(f".{peer.name}.") else ""


def _delivery_end(peer: Peer, address: str, acknowledge: bool) -> bytes:
    """What a delivery says beside its message and its times."""
    said = {"peer": peer.name, "address": address, "attempt": 1, "plain": True}
    if acknowledge:
        said["acknowledge"] = True
    return b"," + msgspec.json.encode(said)[1:-1]


def came_back_line(data: OutcomeData, cause: str, now_ms: int) -> Event:
    """The ledger line of what a medium took and gave back, when nothing else is known of it."""
    line = LedgerLine(
        message=data.message,
        peer=data.peer,
        address=data.address,
        adapter=adapter_of(data.address),
        reason=data.reason,
    )
    name = event_name(data.message, data.peer, "back", cause)
    return ledger_event(line, "failed", id=name, now_ms=now_ms, causes=(data.message, cause))


def lines_of_plain(
    outcomes: Sequence[OutcomeData], now_ms: int
) -> tuple[list[Event], Sequence[OutcomeData]]:
    """The ledger lines of outcomes after which nothing more is to be done, and the others."""
    if isinstance(outcomes, HandedOutcomes):
        deliveries = outcomes.deliveries
        silent = [delivery for delivery in deliveries if not delivery.acknowledge]
        if len(silent) == len(deliveries):
            return handed_lines(silent, now_ms), ()
    lines: list[Event] = []
    others: list[OutcomeData] = []
    for data in outcomes:
        delivery = data.delivery
        if delivery is None or delivery.acknowledge or data.state == "failed":
            others.append(data)
        else:
            lines.append(plain_line(data, delivery, now_ms))
    return lines, others


def plain_line(data: OutcomeData, delivery: Delivery, now_ms: int) -> Event:
    """The ledger line of an outcome other than a failure."""
    state = data.state
    is_taken = state in _TAKEN
    if is_taken and not data.reason and delivery.queued > 0:
        return _taken_line(data, delivery, now_ms)
    message, peer = data.message, data.peer
    line = LedgerLine(
        message=message,
        peer=peer,
        address=data.address,
        adapter=adapter_of(data.address),
        attempt=data.attempt,
        reason=data.reason,
        result="done" if is_taken and not delivery.case else "",
        receiver=f"peer:{peer}",
        stage=1,
        queued=delivery.queued,
    )
    name = event_name(message, peer, state if is_taken else data.id)
    return ledger_event(line, state, id=name, now_ms=now_ms, causes=(message,))


def handed_lines(deliveries: Sequence[Delivery], now_ms: int) -> list[Event]:
    """The ledger lines of plain deliveries that the medium just took: those that `plain_line`
    writes, at a third of the cost where nothing about a message's id needs care.
    """
    names = "".join([delivery.message for delivery in deliveries])
    if not (names.isascii() and names.isprintable()) or any(odd in names for odd in '"\\% '):
        return [_handed_line(delivery, now_ms) for delivery in deliveries]
    lines: list[Event] = []
    ends: dict[tuple[str, str, int], tuple[str, str, int]] = {}
    for delivery in deliveries:
        message, to = delivery.message, (delivery.peer, delivery.address, delivery.attempt)
        name_end, end, longest = ends.get(to) or ends.setdefault(to, _handed_ends(*to))
        if len(message) > longest or delivery.queued <= 0 or delivery.case:
            lines.append(_handed_line(delivery, now_ms))
            continue
        body = f'{{"message":"{message}"{end}{delivery.queued}}}'.encode()
        lines.append(
            Event(SOURCE, message + name_end, _HANDED, message, now_ms, body, {CAUSE: message})
        )
    return lines


def _handed_line(delivery: Delivery, now_ms: int) -> Event:
    return plain_line(outcome_data(delivery, Sent()), delivery, now_ms)


def _handed_ends(peer: str, address: str, attempt: int) -> tuple[str, str, int]:
    """How the line's id and its data end, and how long a message's id may be for that."""
    name_end, end = _taken_ends(peer, shown_address(address), attempt, "handed", False)
    longest = MAX_NAME - 1 - len(name_end) if name_end.isprintable() else -1
    return name_end, end.decode(), longest


def _taken_line(data: OutcomeData, delivery: Delivery, now_ms: int) -> Event:
    """The usual line, made of bytes: all but the message and a time is the same for a peer."""
    message, state = data.message, data.state
    name_end, end = _taken_ends(data.peer, data.address, data.attempt, state, bool(delivery.case))
    body = b"".join((_MESSAGE, _ENCODER.encode(message), end, b"%d}" % delivery.queued))
    name = message + name_end
    if len(name) >= MAX_NAME or not name.isprintable():
        name = event_name(message, data.peer, state)
    headers = {CAUSE: cause_text(message) if "%" in message or " " in message else message}
    return Event(SOURCE, name, _TAKEN[state], message, now_ms, body, headers)


_MESSAGE = b'{"message":'


_TAKEN = {state: DELIVERY_PREFIX + state for state in ("handed", "confirmed")}
_HANDED = _TAKEN["handed"]


@lru_cache(maxsize=16_384)
def _taken_ends(
    peer: str, address: str, attempt: int, state: str, is_routed: bool
) -> tuple[str, bytes]:
    """How the line's id and its data end."""
    line = LedgerLine(
        message="",
        peer=peer,
        address=address,
        adapter=adapter_of(address),
        attempt=attempt,
        result="" if is_routed else "done",
        receiver=f"peer:{peer}",
        stage=1,
    )
    said = _ENCODER.encode(line).removeprefix(b'{"message":""')
    return f".{peer}.{state}", said[:-1] + b',"queued":'
