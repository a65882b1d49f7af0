"""Plain messages that are still as they came in: taken without an event of each being made.
[CO-7, CO-8, CO-10]

What `PlainTaking` does with each of them, and nothing else: a message's bytes go into `log` and
`output.X` as they are, between pieces that are the same for all messages to a peer. Stretches in
which one message needs more thought are left as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.channel.channel import PackedStretch
from rapport.communication.adapters.base import DELIVERY, Delivery
from rapport.communication.carried import (
    CAUSED,
    NothingTold,
    QueuedDeliveries,
    SaidMessages,
    ToldMessages,
)
from rapport.communication.delivering.declining import Declines
from rapport.communication.delivering.handling import ANSWERING, FATE, Route, fate_end
from rapport.communication.delivering.plain import PlainLane, PlainPeer, plain_delivery
from rapport.communication.delivering.receiving import answered_end
from rapport.communication.delivering.telling import PROOF
from rapport.communication.delivering.transaction import Transaction
from rapport.communication.ledger import SOURCE
from rapport.core.message import Identifier, Message
from rapport.core.packed_events import (
    EVENT_HEAD,
    Carried,
    PackedEvents,
    octets_head,
    packed,
    text_head,
)

_START = EVENT_HEAD + packed(SOURCE)
_DELIVERY = packed(DELIVERY)
_MOST_PEERS = 20_000


class _Row(msgspec.Struct, gc=False):
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


class _Sent(msgspec.Struct, frozen=True, gc=False):
    """What is the same for all messages to one peer, of one policy."""

    revision: int
    """Of the lane: while it is the same, so is this."""
    peer: str
    address: str
    channel: str
    named: str
    """How the id of a delivery ends."""
    id_size: int
    head: bytes
    middle: bytes
    """Between the message's id in the delivery's id, and as its subject."""
    logged: bytes
    """What follows a message's data in its event in `log`."""
    queued: bytes
    """What follows a message's data in a delivery, up to the times."""


class PackedTaking:
    """Takes stretches as long as all in them is plain."""

    def __init__(
        self, transaction: Transaction, lane: PlainLane, route: Route, declines: Declines
    ) -> None:
        self._transaction, self._lane = transaction, lane
        self._route, self._declines = route, declines
        self._known: dict[tuple[str, str], _Sent] = {}

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

    def _rows(self, pieces: Sequence[Carried], now_ms: int) -> dict[str, _Row] | None:
        """What all messages of a stretch lead to, by channel; None when one needs more thought."""
        rows, asked = {"log": _Row()}, dict[str, str]()
        try:
            for said in pieces:
                assert isinstance(said, SaidMessages), "in `input` nothing else is carried"
                receiver = said.messages[0].receiver
                if receiver is None:
                    return None
                if receiver.kind == "component":
                    is_taken = self._take_told(said, rows["log"], now_ms)
                else:
                    is_taken = self._take_sent(said, rows, asked, now_ms)
                if not is_taken:
                    return None
        except Exception:
            return None  # what is wrong with it is said when it is taken alone
        self._lane.recent.add_all(asked)
        return rows

    # --- messages to peers ---

    def _take_sent(
        self, said: SaidMessages, rows: dict[str, _Row], asked: dict[str, str], now_ms: int
    ) -> bool:
        route, log, headers = self._route, rows["log"], packed(said.headers)
        id_size = len(said.names[0])
        start, sent_at, when = _START + text_head(id_size), packed(said.time), packed(now_ms)
        times = b',"queued":%d,"time":%d}' % (now_ms, said.time)
        caused = CAUSED + text_head(id_size)
        queued: dict[str, list[Delivery]] = {}
        known: dict[tuple[str, str], tuple[_Sent, _Row, list[Delivery]]] = {}
        for message, id, name, text, subject in zip(
            said.messages, said.ids, said.names, said.said, said.subjects, strict=True
        ):
            receiver = message.receiver
            if receiver is None or receiver.kind != "peer" or not message.content or route(message):
                return False
            if message.refers_to and message.sender.kind == "peer":
                return False  # it may be an answer
            key = (receiver.name, message.delivery_policy)
            found = known.get(key)
            if found is None:
                reached = self._sent(*key, id_size, now_ms)
                if reached is None:
                    return False
                to = rows.setdefault(reached.channel, _Row())
                found = known[key] = (reached, to, queued.setdefault(reached.channel, []))
            sent, row, deliveries = found
            asked[id] = sent.peer
            size = len(text) + len(sent.logged)
            log.sizes.append(size)
            log.parts += (
                start, name, subject, sent_at, octets_head(size), text, sent.logged, headers
            )  # fmt: skip
            size = len(text) + len(sent.queued) + len(times)
            row.sizes.append(size)
            row.ids.append(id + sent.named)
            row.parts += (
                sent.head, name, sent.middle, name, when, octets_head(size),
                text, sent.queued, times, caused, name,
            )  # fmt: skip
            deliveries.append(
                plain_delivery(sent.peer, sent.address, message, id, now_ms, said.time)
            )
        log.ids += said.ids
        log.carried.append(NothingTold(len(said)))
        for channel, deliveries in queued.items():
            rows[channel].carried.append(QueuedDeliveries(deliveries))
        return True

    def _sent(self, name: str, policy: str, id_size: int, now_ms: int) -> _Sent | None:
        """How the peer is reached; None when it takes more to decide."""
        sent = self._known.get((name, policy))
        if sent is not None and sent.revision == self._lane.revision and sent.id_size == id_size:
            return sent
        plain = self._lane.reach(name, now_ms)
        if plain is None or id_size > plain.longest:
            return None
        if len(self._known) >= _MOST_PEERS:
            self._known.clear()
        made = _made(plain, policy, id_size, self._lane.revision)
        self._known[name, policy] = made
        return made

    # --- messages to applications ---

    def _take_told(self, said: SaidMessages, log: _Row, now_ms: int) -> bool:
        """Messages that callbacks are told of; perhaps they answer plain ones."""
        route, about = self._route, self._lane.recent.about
        proof = said.headers.get(PROOF, "none")
        headers = packed(said.headers | {FATE: "notified"})
        start, sent_at = _START + text_head(len(said.names[0])), packed(said.time)
        told: list[Message] = []
        ends: dict[tuple[str, bool | None], bytes] = {}
        for message, id, name, text, subject in zip(
            said.messages, said.ids, said.names, said.said, said.subjects, strict=True
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
            log.parts += (start, name, subject, sent_at, octets_head(size), text, end, headers)
            told.append(msgspec.structs.replace(message, id=id))
        log.ids += said.ids
        log.carried.append(ToldMessages(told))
        return True


def _told_end(receiver: Identifier, declined: bool | None, now_ms: int) -> bytes:
    """`declined` is None for a message that answers nothing."""
    if declined is None:
        return fate_end("notified", (receiver,))
    return answered_end("notified", (receiver,), declined, now_ms)


def _made(plain: PlainPeer, policy: str, id_size: int, revision: int) -> _Sent:
    named = plain.named.encode()
    return _Sent(
        revision,
        plain.peer.name,
        plain.address,
        plain.channel,
        plain.named,
        id_size,
        _START + text_head(id_size + len(named)),
        named + _DELIVERY + text_head(id_size),
        plain.said,
        plain.queued[policy],
    )
