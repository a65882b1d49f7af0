"""Plain messages that are still as they came in: taken without an event of each being made.
[CO-7, CO-8, CO-10]

What `PlainTaking` does with each of them, and nothing else: a message's bytes go into `log` and
`output.X` as they are, between pieces that are the same for all messages to a peer. Stretches in
which one message needs more thought are left as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from rapport.channel.channel import PackedRange
from rapport.communication.adapters.base import DELIVERY, Delivery
from rapport.communication.carried import (
    CAUSED,
    Frame,
    NothingTold,
    QueuedDeliveries,
    SaidMessages,
    ToldMessages,
)
from rapport.communication.delivering.declining import Declines
from rapport.communication.delivering.handling import (
    ANSWERING,
    FATE,
    Route,
    always_heard,
    fate_end,
    names_proven_sender,
    route_proven,
)
from rapport.communication.delivering.plain import PlainLane, PlainPeer, plain_delivery
from rapport.communication.delivering.receiving import answered_end
from rapport.communication.delivering.telling import PROOF
from rapport.communication.delivering.transaction import Transaction
from rapport.communication.ledger import SOURCE
from rapport.core.encoded_batch import (
    EVENT_HEADER,
    BatchPayload,
    EncodedBatch,
    bytes_header,
    encode_value,
    text_header,
)
from rapport.core.message import Identifier, Message

_START = EVENT_HEADER + encode_value(SOURCE)
_DELIVERY = encode_value(DELIVERY)
_MOST_FRAMES = 20_000


class _Row(msgspec.Struct, gc=False):
    """Events of one channel that are being made."""

    parts: list[bytes] = []
    ids: list[str] = []
    sizes: list[int] = []
    carried: list[BatchPayload] = []

    def events(self) -> EncodedBatch:
        return EncodedBatch(
            SOURCE,
            self.ids,
            self.parts,
            data_bytes=sum(self.sizes),
            largest=max(self.sizes),
            carried=self.carried,
        )


class _Sent(msgspec.Struct, frozen=True, gc=False):
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


class PackedTaking:
    """Takes stretches as long as all in them is plain."""

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
        self._known: dict[Frame, _Sent] = {}
        """True for one state of the lane, and ids of one size."""
        self._known_for = (-1, -1)

    def take(self, stretches: Sequence[PackedRange], now_ms: int) -> int:
        """Takes stretches of which SaidMessages are carried, up to one that is to be taken as
        events; returns how many. That one leaves nothing behind.
        """
        taken, made = 0, dict[str, list[EncodedBatch]]()
        for stretch in stretches:
            rows = self._rows(stretch.carried, now_ms)
            if rows is None:
                break
            taken += 1
            for channel, row in rows.items():
                made.setdefault(channel, []).append(row.events())
        for channel, packs in made.items():
            self._transaction.emit_all_early(channel, EncodedBatch.joined(packs))
        return taken

    def _rows(self, pieces: Sequence[BatchPayload], now_ms: int) -> dict[str, _Row] | None:
        """What all messages of a stretch lead to, by channel; None when one needs more thought."""
        rows, asked = {"log": _Row()}, dict[str, str]()
        try:
            for said in pieces:
                assert isinstance(said, SaidMessages), "in `input` nothing else is carried"
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
        self, said: SaidMessages, rows: dict[str, _Row], asked: dict[str, str], now_ms: int
    ) -> bool:
        route, log, headers = self._route, rows["log"], encode_value(said.headers)
        replace = msgspec.structs.replace
        id_size = len(said.names[0])
        start, sent_at, when = (
            _START + text_header(id_size),
            encode_value(said.time),
            encode_value(now_ms),
        )
        times = b',"queued":%d,"time":%d}' % (now_ms, said.time)
        caused = CAUSED + text_header(id_size)
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
                row = rows.get(channel) or rows.setdefault(channel, _Row())
                deliveries = queued.setdefault(channel, [])
            delivery = sent.delivery
            asked[id] = delivery.peer
            size = len(text) + len(sent.logged)
            log.sizes.append(size)
            log.parts += (
                start, name, frame.subject, sent_at, bytes_header(size), text, sent.logged, headers
            )  # fmt: skip
            size = len(text) + len(sent.queued) + len(times)
            row.sizes.append(size)
            row.ids.append(id + sent.named)
            row.parts += (
                sent.head, name, sent.middle, name, when, bytes_header(size),
                text, sent.queued, times, caused, name,
            )  # fmt: skip
            deliveries.append(
                replace(
                    delivery, message=id, text=content, time=said.time, queued=now_ms,
                    conversation=message.conversation, refers_to=refers_to,
                )
            )  # fmt: skip
        log.ids += said.ids
        log.carried.append(NothingTold(len(said)))
        for channel, deliveries in queued.items():
            rows[channel].carried.append(QueuedDeliveries(deliveries))
        return True

    def _known_by(self, id_size: int) -> dict[Frame, _Sent]:
        """What is known of frames that were met before."""
        state = (self._lane.revision, id_size)
        if state != self._known_for or len(self._known) >= _MOST_FRAMES:
            self._known.clear()
            self._known_for = state
        return self._known

    def _reached(self, frame: Frame, message: Message, id_size: int, now_ms: int) -> _Sent | None:
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

    def _take_told(self, said: SaidMessages, log: _Row, now_ms: int) -> bool:
        """Messages that callbacks are told of; perhaps they answer plain ones."""
        headers, about = said.headers, self._lane.recent.about
        is_proven = names_proven_sender(headers)
        route = self._route if is_proven else partial(_route_unpacked, self._route, headers)
        proof = said.headers.get(PROOF, "none")
        told_headers = encode_value(headers | {FATE: "notified"})
        start, sent_at = _START + text_header(len(said.names[0])), encode_value(said.time)
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
                start, name, frame.subject, sent_at, bytes_header(size), text, end, told_headers
            )  # fmt: skip
            told.append(msgspec.structs.replace(message, id=id))
        log.ids += said.ids
        log.carried.append(ToldMessages(told))
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


def _made(plain: PlainPeer, message: Message, id_size: int) -> _Sent:
    named = plain.named.encode()
    blank = msgspec.structs.replace(message, content="", conversation="", refers_to="")
    return _Sent(
        plain_delivery(plain.peer.name, plain.address, blank, "", 0, 0),
        message.sender.kind == "peer",
        plain.channel,
        plain.named,
        _START + text_header(id_size + len(named)),
        named + _DELIVERY + text_header(id_size),
        plain.said,
        plain.queued[message.delivery_policy],
    )
