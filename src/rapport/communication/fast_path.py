"""Fast path: messages with one receiver, handled in batches without a delivery record.
[CO-7, CO-8, CO-10]

A message to a peer takes it when one delivery to one address is enough: no privacy rules, no time
to live, no delivery options. The delivery in `output.<adapter>` is then the only state, and the
ledger line `handed` closes the message; a delivery that fails becomes an ordinary delivery record.
The ledger shows the same as for a record in fewer lines: the message's own event stands for the
line `queued`. Messages to components, and answers to messages that took this path, need no record
either.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.communication.adapters.base import Delivery
from rapport.communication.delivery_runner import EngineParts, ReceiverLookup
from rapport.communication.delivery_state import may_have_options
from rapport.communication.ledger_events import (
    LARGEST_EVENT,
    PROOF,
    ledger_address,
    logged_data,
    logged_event,
)
from rapport.communication.message_plan import (
    ANSWERING,
    FORWARDED,
    MessagePlan,
    leaves_room,
    plan_message,
    route_proven,
    rule_sender_text,
)
from rapport.communication.peers import adapter_of
from rapport.communication.records import RecentIds
from rapport.communication.transaction import Transaction
from rapport.core.errors import SourceUnavailable
from rapport.core.event import Event, StoredEvent
from rapport.core.message import AUTH, MESSAGE, Identifier, Message
from rapport.kernel.telemetry import get_logger

_LOOKUP_LIFETIME_MS = 1_000
_log = get_logger(__name__)


class DirectPeer(msgspec.Struct, frozen=True):
    """A peer that one delivery reaches, and the address it goes to."""

    name: str
    address: str
    shown: str
    """The address as the ledger shows it."""
    adapter: str
    channel: str


class _Row(msgspec.Struct):
    """The events that consecutive messages lead to, by channel."""

    now_ms: int
    log: list[Event] = []
    outputs: dict[str, list[Event]] = {}


class FastPath:
    """Handles messages of `input` as long as each needs no record."""

    def __init__(
        self,
        transaction: Transaction,
        lookup: ReceiverLookup,
        recent: RecentIds,
        parts: EngineParts,
    ) -> None:
        """`recent`: ids of messages that took this path, each with its peer; nothing else is kept
        of them.
        """
        self._transaction, self._lookup, self.recent = transaction, lookup, recent
        self._parts = parts
        self._peers: dict[str, DirectPeer | None] = {}
        self._state: tuple[object, frozenset[str]] = (None, frozenset())
        """Revision of the directory and adapters for which `_peers` is valid."""
        self._looked_up_ms = 0

    # --- peers ---

    def begin_batch(self, now_ms: int) -> None:
        """Drops cached peers where the directory or the adapters may have changed. A directory with
        an unchanged `revision` is read again after a second.
        """
        revision = getattr(self._lookup.directory, "revision", None)
        state = (revision, frozenset(self._lookup.adapters))
        is_young = 0 <= now_ms - self._looked_up_ms < _LOOKUP_LIFETIME_MS
        if revision is None or state != self._state or not is_young:
            self._state, self._looked_up_ms = state, now_ms
            self._peers.clear()
            return
        # Peers without a direct way may have been added since.
        for name in [name for name, peer in self._peers.items() if peer is None]:
            del self._peers[name]

    def reach(self, name: str, now_ms: int) -> DirectPeer | None:
        """The peer if one delivery reaches it; None when a record is needed to decide."""
        try:
            return self._peers[name]
        except KeyError:
            found = self._peers[name] = self._look_up(name, now_ms)
            return found

    def _look_up(self, name: str, now_ms: int) -> DirectPeer | None:
        if not self._parts.fast_path:
            return None
        try:
            peer = self._lookup.directory.peer(name)
        except SourceUnavailable:
            return None  # a delivery record waits until the directory answers
        if peer is None or peer.privacy:
            return None
        usable = self._lookup.usable(peer, peer.delivery, now_ms)
        if len(usable) != 1:
            return None
        (address,) = usable
        adapter = adapter_of(address)
        shown = ledger_address(address)
        return DirectPeer(peer.name, address, shown, adapter, f"output.{adapter}")

    def delivery(
        self,
        peer: DirectPeer,
        message: Message,
        id: str,
        event: Event,
        now_ms: int,
        *,
        record: str = "",
    ) -> Delivery:
        """The delivery of a message to a peer. `record`: key of the delivery record that a failure
        creates for an additional receiver.
        """
        if not record:
            self.recent.add(id, peer.name)
        sender = message.sender
        return Delivery(
            message=id,
            peer=peer.name,
            address=peer.address,
            attempt=1,
            text=message.content,
            time=event.time,
            queued=now_ms,
            urgent=message.urgent,
            type=message.type,
            subtype=message.subtype,
            sender=f"{sender.kind}:{sender.name}",
            rule_sender=rule_sender_text(sender, event.headers),
            conversation=message.conversation,
            language=message.language,
            refers_to=message.refers_to,
            plain=True,
            acknowledge=message.delivery_policy == "acknowledged" and not record,
            case=record,
        )

    # --- batches ---

    def handle_row(self, batch: Sequence[StoredEvent], start: int, now_ms: int) -> int:
        """Handles events of `input` from index `start` on; returns the index of the first one that
        needs a record. An event that fails leaves nothing behind.
        """
        row, index, end = _Row(now_ms), start, len(batch)
        try:
            while index < end and self._handle(batch[index].event, row):
                index += 1
        except Exception as error:  # reported when the event is handled alone, which follows
            _log.debug("handled alone", position=batch[index].position, error=repr(error))
        self._transaction.emit_all_early("log", row.log)
        for channel, events in row.outputs.items():
            self._transaction.emit_all_early(channel, events)
        return index

    def _handle(self, event: Event, row: _Row) -> bool:
        if event.type != MESSAGE or len(event.data) > LARGEST_EVENT:
            return False
        message = Message.from_event(event)
        receiver = message.receiver
        if receiver is None or message.type == AUTH:
            return False
        if (message.type, message.subtype) in FORWARDED:
            return False
        if receiver.kind == "component":
            return self._notify_component(message, event, row)
        is_answer = message.refers_to and message.sender.kind == "peer"
        if receiver.kind != "peer" or is_answer or message.ttl or may_have_options(event.data):
            return False
        return self._send_to_peer(message, receiver, event, row)

    def _send_to_peer(
        self, message: Message, receiver: Identifier, event: Event, row: _Row
    ) -> bool:
        peer = self.reach(receiver.name, row.now_ms)
        routed = route_proven(self._parts.route, message, event.headers)
        if peer is None:
            return False
        plan = plan_message(message, routed)
        if routed and not (plan.is_simple and leaves_room(event, plan)):
            return False
        id = message.id or event.id
        delivery = self.delivery(peer, message, id, event, row.now_ms).to_event()
        row.log.append(direct_log_event(event, id, message, plan, peer))
        row.outputs.setdefault(peer.channel, []).append(delivery)
        return True

    def _notify_component(self, message: Message, event: Event, row: _Row) -> bool:
        """A message for notification callbacks; it may answer a message of this path."""
        if not self._parts.has_listeners() or route_proven(
            self._parts.route, message, event.headers
        ):
            return False
        declined: bool | None = None
        if message.refers_to and message.sender.kind == "peer":
            recipient = self.recent.about(message.refers_to)
            if recipient is None:
                return False  # a delivery record may wait for the answer
            if _is_proven_answer(message, recipient, event):
                declined = self._parts.declines.says(message.content, message.subtype)
        id = message.id or event.id
        data = logged_data(
            message,
            id,
            "notified",
            (str(message.receiver),),
            answered=0 if declined is None else row.now_ms,
            declined=bool(declined),
        )
        row.log.append(logged_event(event, id, message, data, "notified"))
        return True


def direct_log_event(
    event: Event, id: str, message: Message, plan: MessagePlan, peer: DirectPeer
) -> Event:
    """The message's event in `log`, which stands for the ledger line `queued` as well."""
    data = logged_data(
        message,
        id,
        plan.fate,
        plan.receiver_names,
        peer=peer.name,
        address=peer.shown,
        adapter=peer.adapter,
    )
    return logged_event(event, id, message, data, plan.fate if plan.notify else "")


def _is_proven_answer(message: Message, recipient: str, event: Event) -> bool:
    """Whether the sender is proven and was sent the message that this one refers to."""
    proof = event.headers.get(PROOF, "none")
    return proof in ANSWERING and (proof == "answer" or recipient == message.sender.name)
