"""The plain lane: a message that needs nothing remembered but itself. [CO-7, CO-8, CO-10]

One peer, one usable address, allowed now, done when the medium took it, no time to live and nobody
who is asked next: then the delivery in `output.X` is all the state there is, and the line that says
`handed` closes the message. What fails becomes a case like any other. The ledger says the same as
for a case, in fewer lines: the message's own event stands for the line of the queueing.

Plain messages in a row, and answers to them, taken together. [CO-7, CO-8, CO-10]

What `Receiving` does with each of them, and nothing else, for less than half the cost: events are
gathered in lists and handed to the transaction once. Whatever needs more thought ends the row and
is left to `Receiving`.

Plain messages that are still as they came in: taken without an event of each being made.
[CO-7, CO-8, CO-10]

What `PlainTaking` does with each of them, and nothing else: a message's bytes go into `log` and
`output.X` as they are, between pieces that are the same for all messages to a peer. Stretches in
which one message needs more thought are left as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from rapport.channel.channel import PackedStretch
from rapport.communication.adapters.base import DELIVERY, LONGEST_ID, Delivery
from rapport.communication.answers import Declines
from rapport.communication.arrival_limits import LARGEST_EVENT
from rapport.communication.delivery_options import may_have_options
from rapport.communication.delivery_runner import ReceiverLookup
from rapport.communication.ledger_events import SOURCE
from rapport.communication.message_plan import (
    ANSWERING,
    FATE,
    FORWARDED,
    MessagePlan,
    Route,
    answered_end,
    assume_listeners,
    fate_end,
    leaves_room,
    names_proven_sender,
    plan_message,
    route_proven,
    rule_sender_text,
)
from rapport.communication.payload_cache import (
    CAUSED,
    Frame,
    InputMessages,
    NotifiedMessages,
    QueuedDeliveries,
    UnreadLines,
)
from rapport.communication.peers import Peer, adapter_of, shown_address
from rapport.communication.sender_notifications import PROOF
from rapport.communication.transaction import Transaction
from rapport.core.errors import SourceUnavailable
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text
from rapport.core.message import AUTH, MESSAGE, RECENT, Identifier, Message
from rapport.core.packed_events import (
    EVENT_HEAD,
    Carried,
    PackedEvents,
    octets_head,
    packed,
    text_head,
)
from rapport.kernel.telemetry import get_logger

_REMEMBERED = 100_000
_MOST_PEERS = 20_000
_ASKED_AGAIN_MS = 1_000


class DirectPeer(msgspec.Struct, frozen=True):
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


class RecentIds:
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


class FastPath:
    """Turns messages into deliveries and outcomes into ledger lines, without a record."""

    def __init__(self, members: ReceiverLookup, recent: RecentIds, *, enabled: bool = True) -> None:
        self._members, self._enabled = members, enabled
        self._peers: dict[str, DirectPeer | None] = {}
        self._unreached: list[str] = []
        self._state: tuple[object, frozenset[str]] = (None, frozenset())
        """What the directory and the adapters were when peers were looked up."""
        self._asked_ms = 0
        self.revision = 0
        """Rises when somebody may be reached in another way than before."""
        self._known: dict[str, DirectPeer] = {}
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

    def reach(self, name: str, now_ms: int) -> DirectPeer | None:
        """How one delivery reaches the peer; None when it takes more to decide."""
        found = self._peers.get(name)
        if found is None and name not in self._peers:
            found = self._peers[name] = self._look_up(name, now_ms)
            if found is None:
                self._unreached.append(name)
        return found

    def _look_up(self, name: str, now_ms: int) -> DirectPeer | None:
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

    def _made(self, name: str, peer: Peer, address: str) -> DirectPeer:
        adapter = adapter_of(address)
        how = {"peer": peer.name, "address": shown_address(address), "adapter": adapter}
        reached = b"," + msgspec.json.encode(how)[1:]
        ends = {
            policy: _delivery_end(peer, address, policy == "acknowledged")
            for policy in ("acknowledged", "unreliable")
        }
        named = _name_end(peer, address)
        return DirectPeer(
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
        self, plain: DirectPeer, message: Message, event: Event, now_ms: int
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

    def message_event(self, plain: DirectPeer, id: str, event: Event) -> Event:
        """The message's event in `log`, made of that in `input`."""
        data = event.data[:-1] + plain.said
        return Event(SOURCE, id, MESSAGE, event.subject, event.time, data, event.headers)

    def told_event(
        self, plain: DirectPeer, message: Message, logged: Event, event: Event, handled: MessagePlan
    ) -> Event:
        """The message's event in `log` when routing rules add receivers: it names all of them, and
        callbacks are told where components are among them. The delivery is the same.
        """
        said = fate_end(handled.fate, handled.receivers)[:-1]
        data = b"".join((event.data[:-1], said, plain.reached))
        if not handled.notify:
            return msgspec.structs.replace(logged, data=data)
        RECENT.note(data, message)
        headers = event.headers | {FATE: handled.fate}
        return msgspec.structs.replace(logged, data=data, headers=headers)

    def delivery_event(
        self, plain: DirectPeer, message: Message, id: str, event: Event, now_ms: int
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
        self, plain: DirectPeer, message: Message, id: str, *, now_ms: int, sent_ms: int, case: str
    ) -> Delivery:
        """The delivery, which carries all that is known; `case` of an additional receiver."""
        if not case:
            self.recent.add(id, plain.peer.name)
        return direct_delivery(plain.peer.name, plain.address, message, id, now_ms, sent_ms, case)


def direct_delivery(
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


_log = get_logger(__name__)


class _EventRow(msgspec.Struct):
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


class EventFastPath:
    """Takes messages as long as they are plain. Holds the headers of the last answer, which are
    mostly those of the next.
    """

    def __init__(
        self,
        transaction: Transaction,
        lane: FastPath,
        route: Route,
        declines: Declines,
        is_heard: Callable[[], bool] = assume_listeners,
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
        row, number, end = _EventRow(now_ms, [], {}), start, len(batch)
        try:
            while number < end and self._take(batch[number].event, row):
                number += 1
        except Exception as error:  # reported when the event is handled alone, which follows
            _log.debug("handled alone", position=batch[number].position, error=repr(error))
        RECENT.note_all(row.bodies, row.told)
        self._transaction.emit_all_early("log", row.log)
        for channel, events in row.outputs.items():
            self._transaction.emit_all_early(channel, events)
        return number

    def _take(self, event: Event, row: _EventRow) -> bool:
        if event.type != MESSAGE:
            return False
        data = event.data
        if len(data) > LARGEST_EVENT:
            return False
        message = RECENT.get(data) or Message.from_stored(data)
        receiver = message.receiver
        if receiver is None or message.type == AUTH:
            return False
        if receiver.kind == "component":
            return self._take_told(message, receiver, event, row)
        is_answer = message.refers_to and message.sender.kind == "peer"
        if receiver.kind != "peer" or is_answer or message.ttl or may_have_options(data):
            return False
        return self._take_sent(message, receiver.name, event, row)

    # --- messages to peers ---

    def _take_sent(self, message: Message, name: str, event: Event, row: _EventRow) -> bool:
        plain = self._lane.reach(name, row.now_ms)
        routed = route_proven(self._route, message, event.headers)
        if plain is None or (message.type, message.subtype) in FORWARDED:
            return False
        handled = plan_message(message, routed) if routed else None
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

    def _take_told(
        self, message: Message, receiver: Identifier, event: Event, row: _EventRow
    ) -> bool:
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
        if len(data) <= RECENT.longest:
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


_START = EVENT_HEAD + packed(SOURCE)
_DELIVERY = packed(DELIVERY)
_MOST_FRAMES = 20_000


class _PackedRow(msgspec.Struct, gc=False):
    """Events of one channel that are being made."""

    parts: list[bytes] = []
    ids: list[str] = []
    sizes: list[int] = []
    carried: list[Carried] = []

    def events(self) -> PackedEvents:
        return PackedEvents(
            SOURCE,
            self.ids,
            self.parts,
            data_bytes=sum(self.sizes),
            largest=max(self.sizes),
            carried=self.carried,
        )


class _PeerFrame(msgspec.Struct, frozen=True, gc=False):
    """What is the same for all messages of one frame, which are to one peer."""

    delivery: Delivery
    """Of none of them: without id, content, conversation and times."""
    may_answer: bool
    """Whether one that refers to another may be an answer to it."""
    channel: str
    named: str
    """How the id of a delivery ends."""
    head: bytes
    middle: bytes
    """Between the message's id in the delivery's id, and as its subject."""
    logged: bytes
    """What follows a message's data in its event in `log`."""
    queued: bytes
    """What follows a message's data in a delivery, up to the times."""


class PackedFastPath:
    """Takes stretches as long as all in them is plain."""

    def __init__(
        self,
        transaction: Transaction,
        lane: FastPath,
        route: Route,
        declines: Declines,
        is_heard: Callable[[], bool] = assume_listeners,
    ) -> None:
        self._is_heard = is_heard
        self._transaction, self._lane = transaction, lane
        self._route, self._declines = route, declines
        self._known: dict[Frame, _PeerFrame] = {}
        """True for one state of the lane, and ids of one size."""
        self._known_for = (-1, -1)

    def take(self, stretches: Sequence[PackedStretch], now_ms: int) -> int:
        """Takes stretches of which SaidMessages are carried, up to one that is to be taken as
        events; returns how many. That one leaves nothing behind.
        """
        taken, made = 0, dict[str, list[PackedEvents]]()
        for stretch in stretches:
            rows = self._rows(stretch.carried, now_ms)
            if rows is None:
                break
            taken += 1
            for channel, row in rows.items():
                made.setdefault(channel, []).append(row.events())
        for channel, packs in made.items():
            self._transaction.emit_all_early(channel, PackedEvents.joined(packs))
        return taken

    def _rows(self, pieces: Sequence[Carried], now_ms: int) -> dict[str, _PackedRow] | None:
        """What all messages of a stretch lead to, by channel; None when one needs more thought."""
        rows, asked = {"log": _PackedRow()}, dict[str, str]()
        try:
            for said in pieces:
                assert isinstance(said, InputMessages), "in `input` nothing else is carried"
                receiver = said.messages[0].receiver
                if receiver is None:
                    return None
                if receiver.kind == "component":
                    is_taken = self._is_heard() and self._take_told(said, rows["log"], now_ms)
                else:
                    # What privacy policies are to see instead of the name is not packed.
                    is_proven = names_proven_sender(said.headers)
                    is_taken = is_proven and self._take_sent(said, rows, asked, now_ms)
                if not is_taken:
                    return None
        except Exception:
            return None  # what is wrong with it is said when it is taken alone
        self._lane.recent.add_all(asked)
        return rows

    # --- messages to peers ---

    def _take_sent(
        self, said: InputMessages, rows: dict[str, _PackedRow], asked: dict[str, str], now_ms: int
    ) -> bool:
        route, log, headers = self._route, rows["log"], packed(said.headers)
        replace = msgspec.structs.replace
        id_size = len(said.names[0])
        start, sent_at, when = _START + text_head(id_size), packed(said.time), packed(now_ms)
        times = b',"queued":%d,"time":%d}' % (now_ms, said.time)
        caused = CAUSED + text_head(id_size)
        known = self._known_by(id_size)
        queued: dict[str, list[Delivery]] = {}
        row, deliveries, channel = log, list[Delivery](), ""
        for message, id, name, text, frame in zip(
            said.messages, said.ids, said.names, said.said, said.frames, strict=True
        ):
            content, refers_to = message.content, message.refers_to
            if not content or route(message):
                return False
            sent = known.get(frame) or self._reached(frame, message, id_size, now_ms)
            if sent is None or (refers_to and sent.may_answer):
                return False
            if sent.channel != channel:
                channel = sent.channel
                row = rows.get(channel) or rows.setdefault(channel, _PackedRow())
                deliveries = queued.setdefault(channel, [])
            delivery = sent.delivery
            asked[id] = delivery.peer
            size = len(text) + len(sent.logged)
            log.sizes.append(size)
            log.parts += (
                start, name, frame.subject, sent_at, octets_head(size), text, sent.logged, headers
            )  # fmt: skip
            size = len(text) + len(sent.queued) + len(times)
            row.sizes.append(size)
            row.ids.append(id + sent.named)
            row.parts += (
                sent.head, name, sent.middle, name, when, octets_head(size),
                text, sent.queued, times, caused, name,
            )  # fmt: skip
            deliveries.append(
                replace(
                    delivery, message=id, text=content, time=said.time, queued=now_ms,
                    conversation=message.conversation, refers_to=refers_to,
                )
            )  # fmt: skip
        log.ids += said.ids
        log.carried.append(UnreadLines(len(said)))
        for channel, deliveries in queued.items():
            rows[channel].carried.append(QueuedDeliveries(deliveries))
        return True

    def _known_by(self, id_size: int) -> dict[Frame, _PeerFrame]:
        """What is known of frames that were met before."""
        state = (self._lane.revision, id_size)
        if state != self._known_for or len(self._known) >= _MOST_FRAMES:
            self._known.clear()
            self._known_for = state
        return self._known

    def _reached(
        self, frame: Frame, message: Message, id_size: int, now_ms: int
    ) -> _PeerFrame | None:
        """How messages like this one reach their peer; None when it takes more to decide."""
        receiver = message.receiver
        if receiver is None or receiver.kind != "peer":
            return None
        plain = self._lane.reach(receiver.name, now_ms)
        if plain is None or id_size > plain.longest:
            return None
        made = self._known[frame] = _made(plain, message, id_size)
        return made

    # --- messages to applications ---

    def _take_told(self, said: InputMessages, log: _PackedRow, now_ms: int) -> bool:
        """Messages that callbacks are told of; perhaps they answer plain ones."""
        headers, about = said.headers, self._lane.recent.about
        is_proven = names_proven_sender(headers)
        route = self._route if is_proven else partial(_route_unpacked, self._route, headers)
        proof = said.headers.get(PROOF, "none")
        told_headers = packed(headers | {FATE: "notified"})
        start, sent_at = _START + text_head(len(said.names[0])), packed(said.time)
        told: list[Message] = []
        ends: dict[tuple[str, bool | None], bytes] = {}
        for message, id, name, text, frame in zip(
            said.messages, said.ids, said.names, said.said, said.frames, strict=True
        ):
            receiver = message.receiver
            if receiver is None or receiver.kind != "component" or route(message):
                return False
            declined: bool | None = None
            if message.refers_to and message.sender.kind == "peer":
                peer = about(message.refers_to)
                if peer is None:
                    return False  # there may be a case that waits for it
                if proof in ANSWERING and (proof == "answer" or peer == message.sender.name):
                    declined = self._declines.says(message.content, message.subtype)
            end = ends.get((receiver.name, declined))
            if end is None:
                end = ends[receiver.name, declined] = _told_end(receiver, declined, now_ms)
            size = len(text) + len(end)
            log.sizes.append(size)
            log.parts += (
                start, name, frame.subject, sent_at, octets_head(size), text, end, told_headers
            )  # fmt: skip
            told.append(msgspec.structs.replace(message, id=id))
        log.ids += said.ids
        log.carried.append(NotifiedMessages(told))
        return True


def _route_unpacked(
    route: Route, headers: Mapping[str, str], message: Message
) -> Sequence[Identifier]:
    return route_proven(route, message, headers)


def _told_end(receiver: Identifier, declined: bool | None, now_ms: int) -> bytes:
    """`declined` is None for a message that answers nothing."""
    if declined is None:
        return fate_end("notified", (receiver,))
    return answered_end("notified", (receiver,), declined, now_ms)


def _made(plain: DirectPeer, message: Message, id_size: int) -> _PeerFrame:
    named = plain.named.encode()
    blank = msgspec.structs.replace(message, content="", conversation="", refers_to="")
    return _PeerFrame(
        direct_delivery(plain.peer.name, plain.address, blank, "", 0, 0),
        message.sender.kind == "peer",
        plain.channel,
        plain.named,
        _START + text_head(id_size + len(named)),
        named + _DELIVERY + text_head(id_size),
        plain.said,
        plain.queued[message.delivery_policy],
    )
