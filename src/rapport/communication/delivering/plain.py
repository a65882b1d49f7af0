"""The plain lane: a message that needs nothing remembered but itself. [CO-7, CO-8, CO-10]

One peer, one usable address, allowed now, done when the medium took it, no time to live and nobody
who is asked next: then the delivery in `output.X` is all the state there is, and the line that says
`handed` closes the message. What fails becomes a case like any other. The ledger says the same as
for a case, in fewer lines: the message's own event stands for the line of the queueing.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rapport.communication.adapters.base import DELIVERY, LONGEST_ID, Delivery
from rapport.communication.delivering.handling import FATE, Handled, fate_end
from rapport.communication.delivering.members import Members
from rapport.communication.ledger import SOURCE
from rapport.communication.peers import Peer, adapter_of, shown_address
from rapport.core.errors import SourceUnavailable
from rapport.core.event import CAUSE, Event, cause_text
from rapport.core.message import MESSAGE, MESSAGE_CACHE, Identifier, Message

_REMEMBERED = 100_000
_MOST_PEERS = 20_000
_ASKED_AGAIN_MS = 1_000


class PlainPeer(msgspec.Struct, frozen=True):
    """A peer whom one delivery reaches, with what is the same for all messages to them."""

    peer: Peer
    address: str
    channel: str
    said: bytes
    """The end of a message's event in `log`; its last part is `reached`."""
    reached: bytes
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

    def add_all(self, about: Mapping[str, str]) -> None:
        """As `add` for each."""
        self._newer.update(about)
        if len(self._newer) >= self._most:
            self._older, self._newer = self._newer, {}

    def discard(self, id: str) -> None:
        """Forgets an id now."""
        self._newer.pop(id, None)
        self._older.pop(id, None)

    def clear(self) -> None:
        """Forgets all of them."""
        self._newer.clear()
        self._older.clear()

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
        self._unreached: list[str] = []
        self._state: tuple[object, frozenset[str]] = (None, frozenset())
        """What the directory and the adapters were when peers were looked up."""
        self._asked_ms = 0
        self.revision = 0
        """Rises when somebody may be reached in another way than before."""
        self._known: dict[str, PlainPeer] = {}
        """As they were when last looked up: what is made of a peer is made once."""
        self._now, self._time, self._times = 0, 0, b',"queued":0,"time":0}'
        """How the data of a delivery end, of the last one: mostly the same for a batch."""
        self.recent = recent
        """Messages that went this way, each with its peer: nothing else is remembered of them, so
        nothing is to be looked up."""

    def begin_batch(self, now_ms: int) -> None:
        """Adapters and people may have changed since. A directory that says that they have not (its
        `revision`) is asked again after a second.
        """
        revision = getattr(self._members.directory, "revision", None)
        state = (revision, frozenset(self._members.adapters))
        is_young = 0 <= now_ms - self._asked_ms < _ASKED_AGAIN_MS
        if revision is None or state != self._state or not is_young:
            if state[1] != self._state[1]:
                self._known.clear()
            self._state, self._asked_ms = state, now_ms
            self._peers.clear()
            self.revision += 1
        for name in self._unreached:
            self._peers.pop(name, None)  # who was added just now is found
        self._unreached.clear()

    def reach(self, name: str, now_ms: int) -> PlainPeer | None:
        """How one delivery reaches the peer; None when it takes more to decide."""
        found = self._peers.get(name)
        if found is None and name not in self._peers:
            found = self._peers[name] = self._look_up(name, now_ms)
            if found is None:
                self._unreached.append(name)
        return found

    def _look_up(self, name: str, now_ms: int) -> PlainPeer | None:
        try:
            peer = self._members.directory.peer(name)
        except SourceUnavailable:
            return None  # a case waits until the directory can say
        known = self._known.get(name)
        if known is not None and known.peer is peer and len(peer.addresses) == 1:
            return known  # the same adapters, so the same address is usable
        if peer is None or peer.privacy or not self._enabled:
            return None
        usable = self._members.usable(peer, peer.delivery, now_ms)
        if len(usable) != 1:
            return None
        same = known is not None and (known.peer is peer or known.peer == peer)
        if known is not None and same and known.address == usable[0]:
            return known
        if len(self._known) >= _MOST_PEERS:
            self._known.clear()
        made = self._known[name] = self._made(name, peer, usable[0])
        return made

    def _made(self, name: str, peer: Peer, address: str) -> PlainPeer:
        adapter = adapter_of(address)
        how = {"peer": peer.name, "address": shown_address(address), "adapter": adapter}
        reached = b"," + msgspec.json.encode(how)[1:]
        ends = {
            policy: _delivery_end(peer, address, policy == "acknowledged")
            for policy in ("acknowledged", "unreliable")
        }
        named = _name_end(peer, address)
        return PlainPeer(
            peer,
            address,
            f"output.{adapter}",
            fate_end("queued", (Identifier("peer", name),))[:-1] + reached,
            reached,
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

    def told_event(
        self, plain: PlainPeer, message: Message, logged: Event, event: Event, handled: Handled
    ) -> Event:
        """The message's event in `log` when routing rules add receivers: it names all of them, and
        callbacks are told where components are among them. The delivery is the same.
        """
        said = fate_end(handled.fate, handled.receivers)[:-1]
        data = b"".join((event.data[:-1], said, plain.reached))
        if not handled.notify:
            return msgspec.structs.replace(logged, data=data)
        MESSAGE_CACHE.note(data, message)
        headers = event.headers | {FATE: handled.fate}
        return msgspec.structs.replace(logged, data=data, headers=headers)

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
        return plain_delivery(plain.peer.name, plain.address, message, id, now_ms, sent_ms, case)


def plain_delivery(
    peer: str, address: str, message: Message, id: str, now_ms: int, sent_ms: int, case: str = ""
) -> Delivery:
    """A delivery of which nothing else is kept; `case` of an additional receiver."""
    sender = message.sender
    return Delivery(
        message=id,
        peer=peer,
        address=address,
        attempt=1,
        text=message.content,
        time=sent_ms,
        queued=now_ms,
        urgent=message.urgent,
        type=message.type,
        subtype=message.subtype,
        sender=f"{sender.kind}:{sender.name}",
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


def with_rule_sender(delivery: Event, sender: str) -> Event:
    """A delivery's event that also says which sender privacy policies see."""
    data = delivery.data[:-1] + b',"rule_sender":' + msgspec.json.encode(sender) + b"}"
    return msgspec.structs.replace(delivery, data=data)
