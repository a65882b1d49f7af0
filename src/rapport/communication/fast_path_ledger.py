"""The ledger lines of plain deliveries: what came of them, written without a record. [CO-8, CO-10]

Most are written many at a time, of bytes: all but a message's id and a time is the same for a peer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from rapport.communication.adapters.base import Delivery, Sent
from rapport.communication.adapters.outgoing.outcomes import (
    HandedOutcomes,
    OutcomeData,
    outcome_data,
)
from rapport.communication.ledger_events import (
    DELIVERY_PREFIX,
    SOURCE,
    LedgerLine,
    event_name,
    ledger_event,
)
from rapport.communication.payload_cache import CAUSED, UnreadLines, are_uniform
from rapport.communication.peers import adapter_of, shown_address
from rapport.core.event import CAUSE, MAX_NAME, Event, cause_text
from rapport.core.packed_events import (
    EVENT_HEAD,
    PackedEvents,
    octets_head,
    packed,
    text_head,
)

_ENCODER = msgspec.json.Encoder()


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


def direct_outcome_lines(
    outcomes: Sequence[OutcomeData], now_ms: int
) -> tuple[Sequence[Event], Sequence[OutcomeData]]:
    """The ledger lines of outcomes after which nothing more is to be done, and the others."""
    if isinstance(outcomes, HandedOutcomes):
        deliveries = outcomes.deliveries
        silent = [delivery for delivery in deliveries if not delivery.acknowledge]
        if len(silent) == len(deliveries):
            return sent_lines(silent, now_ms), ()
    lines: list[Event] = []
    others: list[OutcomeData] = []
    for data in outcomes:
        delivery = data.delivery
        if delivery is None or delivery.acknowledge or data.state == "failed":
            others.append(data)
        else:
            lines.append(outcome_line(data, delivery, now_ms))
    return lines, others


def outcome_line(data: OutcomeData, delivery: Delivery, now_ms: int) -> Event:
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


def sent_lines(deliveries: Sequence[Delivery], now_ms: int) -> Sequence[Event]:
    """The ledger lines of plain deliveries that the medium just took: those that `plain_line`
    writes, packed where nothing about a message's id needs care.
    """
    messages = [delivery.message for delivery in deliveries]
    if are_uniform(messages):
        found = _packed_lines(deliveries, messages, now_ms)
        if found is not None:
            return found
    return [_handed_line(delivery, now_ms) for delivery in deliveries]


def _packed_lines(
    deliveries: Sequence[Delivery], messages: Sequence[str], now_ms: int
) -> PackedEvents | None:
    """None when one of them is unusual."""
    parts: list[bytes] = []
    ids: list[str] = []
    sizes: list[int] = []
    size, when = len(messages[0]), packed(now_ms)
    ends: dict[int, tuple[bytes, int]] = {}
    for delivery, message in zip(deliveries, messages, strict=True):
        queued = delivery.queued
        end, digits = ends.get(queued) or ends.setdefault(queued, _queued_end(queued, size))
        line = _handed_parts(delivery.peer, delivery.address, delivery.attempt, size, digits)
        if size > line.longest or queued <= 0 or delivery.case:
            return None
        name = message.encode()
        ids.append(message + line.named)
        sizes.append(line.size)
        parts += (
            line.head, name, line.named_as, name, when, line.start, name, line.said, end, name
        )  # fmt: skip
    carried = (UnreadLines(len(ids)),)
    return PackedEvents(
        SOURCE, ids, parts, data_bytes=sum(sizes), largest=max(sizes), carried=carried
    )


class _HandedParts(msgspec.Struct, frozen=True, gc=False):
    """What is the same in all lines about one peer."""

    longest: int
    """How long a message's id may be."""
    named: str
    """How the line's id ends."""
    size: int
    """Of its data."""
    head: bytes
    named_as: bytes
    start: bytes
    said: bytes


@lru_cache(maxsize=16_384)
def _handed_parts(peer: str, address: str, attempt: int, size: int, digits: int) -> _HandedParts:
    """`size`: of a message's id; `digits`: of the time when it was queued."""
    name_end, end, longest = _handed_ends(peer, address, attempt)
    named, said = name_end.encode(), f'"{end}'.encode()
    data = len(_MESSAGE) + 1 + size + len(said) + digits + 1
    return _HandedParts(
        longest,
        name_end,
        data,
        EVENT_HEAD + packed(SOURCE) + text_head(size + len(named)),
        named + packed(_HANDED) + text_head(size),
        octets_head(data) + _MESSAGE + b'"',
        said,
    )


def _queued_end(queued: int, size: int) -> tuple[bytes, int]:
    """The end of the data and what follows them, up to the message's id; and how many digits."""
    text = b"%d" % queued
    return text + b"}" + CAUSED + text_head(size), len(text)


def _handed_line(delivery: Delivery, now_ms: int) -> Event:
    return outcome_line(outcome_data(delivery, Sent()), delivery, now_ms)


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
