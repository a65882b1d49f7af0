"""Messages between brokers and clients (protocol v1), and their encoding. [CX-2, CX-3, CX-9]

A datagram is a version byte followed by msgpack. Messages are structs with short tags. The order of
the fields is the order on the wire: new fields go to the end, with a default. The requester chooses
`id`, unique among its requests; a message repeated with the same id is the same message. `decode`
checks size, depth, names and validity, so that machines need not check again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

import msgspec

from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import InvalidInput
from rapport.core.event import MAX_NAME
from rapport.overlay.membership_steps import PARTING
from rapport.transport.base import Address

RECEIVED, PROCESSED = 101, 102
INTERNAL_ERROR, NOT_FOUND = 201, 202
BAD_REQUEST = 301
NOT_ALLOWED, TOO_BUSY = 401, 503
_OVERTAKEN = 100
"""Notices that one of them may be late by."""
MEANINGS = {
    RECEIVED: "received",
    PROCESSED: "processed",
    INTERNAL_ERROR: "internal error",
    NOT_FOUND: "no valid data found",
    BAD_REQUEST: "bad request",
    NOT_ALLOWED: "not allowed",
    TOO_BUSY: "too busy",
}


class _Message(msgspec.Struct, frozen=True, array_like=True, tag_field="t", gc=False):
    """A message; frozen, compared by value."""


class Question(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The entity and scope that a request is about."""

    entity: EntityRef
    scope: str


class Put(_Message, frozen=True, array_like=True, tag="put", gc=False):
    """Provider to broker: this is true. Answered by Status 101 and, when on disk, 102."""

    id: int
    record: ContextRecord
    advertises: bool = False


class Request(_Message, frozen=True, array_like=True, tag="req", gc=False):
    """Consumer to broker. Answered by Answer or Status."""

    id: int
    question: Question
    within_ms: int = 2_000
    fresh: bool = False
    """Only from the broker that the provider gives it to: no copy is an answer."""


class Answer(_Message, frozen=True, array_like=True, tag="ans", gc=False):
    """Broker to consumer: the record, and how many hops away it was found."""

    id: int
    record: ContextRecord
    hops: int = 0


class Status(_Message, frozen=True, array_like=True, tag="st", gc=False):
    """Broker to client: how the request `id` stands; `why` is for people."""

    id: int
    status: int
    why: str = ""


class Ask(_Message, frozen=True, array_like=True, tag="ask", gc=False):
    """Broker to broker: a walker, or a flood, looking for a record.

    `search` names the request in the whole network; `walker` counts its walkers; `hop` counts the
    steps it made and makes the acknowledged hop unique; `path` begins with the consumer and ends
    with who sent this on.
    """

    search: int
    walker: int
    hop: int
    question: Question
    path: tuple[Address, ...]
    left_ms: int
    """The remaining time until the deadline."""
    hops_left: int
    strategy: str = "walk"
    identity: str = ""
    """The identity of the consumer, as the entry broker knows it."""
    doubtful: bool = False
    """Whether some broker on the way did not answer, so that a refusal proves little."""
    without: tuple[Address, ...] = ()
    """Brokers that were asked and hold it no longer, or are silent: copies of what they held are no
    answer.
    """
    fresh: bool = False
    """As of the request: no copy is an answer."""


class Found(_Message, frozen=True, array_like=True, tag="fnd", gc=False):
    """Broker to broker, back along the path: the record; `marks` are the places on the path (from
    0) where it is to be replicated; `holder` is the broker its provider gives it to.
    """

    search: int
    walker: int
    hop: int
    record: ContextRecord
    path: tuple[Address, ...]
    marks: tuple[int, ...]
    holder: Address
    hops: int = 0


class Refused(_Message, frozen=True, array_like=True, tag="ref", gc=False):
    """Broker to broker, back along the path of the request: nothing found."""

    search: int
    walker: int
    hop: int
    path: tuple[Address, ...]
    status: int = NOT_FOUND
    why: str = ""
    doubtful: bool = False
    """Worth another try: not every broker could be reached."""


class Heard(_Message, frozen=True, array_like=True, tag="hrd", gc=False):
    """The acknowledgement of one hop of an Ask, Found or Refused."""

    search: int
    walker: int
    hop: int
    kind: str


class Probe(_Message, frozen=True, array_like=True, tag="prb", gc=False):
    """Look-ahead: do you, or those up to `depth` further, have it? Answered directly to `asker`
    by who has.
    """

    search: int
    walker: int
    hop: int
    question: Question
    depth: int
    asker: Address
    without: tuple[Address, ...] = ()
    fresh: bool = False
    """Both as of the question."""


class Have(_Message, frozen=True, array_like=True, tag="hav", gc=False):
    """The answer to a probe, from a broker that has the record."""

    search: int
    walker: int
    hop: int
    record: ContextRecord
    holder: Address


class Ping(_Message, frozen=True, array_like=True, tag="png", gc=False):
    """Requests a Pong; any holder of a key may send it."""

    id: int


class Pong(_Message, frozen=True, array_like=True, tag="pon", gc=False):
    """I am; how loaded I am (0 idle, 1 full), and a filter of the questions that I can answer."""

    id: int
    load: float = 0.0
    filter: bytes = b""


class Join(_Message, frozen=True, array_like=True, tag="joi", gc=False):
    """Broker to broker: let us be neighbours. Answered by Welcome. `by_hand`: somebody drew the
    topology, so one that was only asked looks for no others.
    """

    id: int
    by_hand: bool = False


class Welcome(_Message, frozen=True, array_like=True, tag="wel", gc=False):
    """Yes, and others you may know; or no, I have enough."""

    id: int
    accepted: bool = True
    others: tuple[Address, ...] = ()


class Departed(_Message, frozen=True, array_like=True, tag="dep", gc=False):
    """Flooded with a small TTL: `broker` has left, by itself or (`abrupt`) found silent."""

    id: int
    broker: Address
    ttl: int
    abrupt: bool = False


class Command(_Message, frozen=True, array_like=True, tag="cmd", gc=False):
    """Controller to broker: `join` these, `leave`, or `monitor` your neighbours."""

    id: int
    what: str
    brokers: tuple[Address, ...] = ()


class Watch(_Message, frozen=True, array_like=True, tag="wat", gc=False):
    """Consumer to broker, and entry broker to holder: tell me about this while the lease lasts, on
    each change (`every_ms` 0) or every so often.
    """

    id: int
    question: Question
    lease_ms: int
    every_ms: int = 0
    identity: str = ""
    at_holder: bool = False
    """From a broker: about what you hold; do not look elsewhere."""


class Unwatch(_Message, frozen=True, array_like=True, tag="unw", gc=False):
    """No longer."""

    id: int


class Notice(_Message, frozen=True, array_like=True, tag="not", gc=False):
    """Notifies a subscriber; acknowledged by Noticed, repeated until then or superseded."""

    id: int
    number: int
    record: ContextRecord


def is_late(number: int, last: int) -> bool:
    """Whether a Notice with that number is a repetition, or was overtaken by the last one that was
    taken. One far below is neither: its broker began anew, with its clock set back.
    """
    return 0 <= last - number < _OVERTAKEN


class Noticed(_Message, frozen=True, array_like=True, tag="ntd", gc=False):
    """The acknowledgement of a Notice."""

    id: int
    number: int


class Outdated(_Message, frozen=True, array_like=True, tag="out", gc=False):
    """Replicas older than this are void. Flooded with a small TTL where the site wants it; and
    from who gave a replica to who got it, which is acknowledged by Heard of kind `out`.
    """

    id: int
    key: tuple[str, str, str, str]
    before: int
    ttl: int
    called: bool = False
    """Whether the sender gave the replica."""


Hop = Ask | Found | Refused
"""Messages that are acknowledged hop by hop."""

Message = (
    Put
    | Request
    | Answer
    | Status
    | Ask
    | Found
    | Refused
    | Heard
    | Probe
    | Have
    | Ping
    | Pong
    | Join
    | Welcome
    | Departed
    | Command
    | Watch
    | Unwatch
    | Notice
    | Noticed
    | Outdated
)


VERSION = 1
MAX_MESSAGE = 256 * 1024
"""Most bytes of a message: what a receiver may have to hold for a sender."""
MAX_DEPTH = 8
"""Most lists and maps inside each other in a value."""
MAX_PATH = 512
"""Most addresses in a path or a list of brokers."""
MAX_WHY = 1024
MAX_COUNT = 65_535
"""Most hops, walkers, depths: nothing real comes near."""
MAX_TIME = 2**63 - 1

_VERSION_BYTE = bytes([VERSION])
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_PLAIN = frozenset({str, int, bool, type(None)})


def encode(message: Message) -> bytes:
    """The message as bytes; raises InvalidInput when it cannot be one (too large, a number beyond
    64 bits, text that is no Unicode).

    Contents are not checked again: a record that comes from outside goes through `check_record`.
    """
    try:
        written = _VERSION_BYTE + _encoder.encode(message)
    except (TypeError, OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise bad_message(f"it cannot be written: {error}") from None
    if len(written) > MAX_MESSAGE:
        raise bad_message(f"it has {len(written)} bytes, at most {MAX_MESSAGE} are allowed")
    return written


def decode(data: bytes) -> Message:
    """The message in the bytes; raises InvalidInput (`context.bad_message`), nothing else."""
    if len(data) > MAX_MESSAGE:
        raise bad_message(f"it has {len(data)} bytes, at most {MAX_MESSAGE} are allowed")
    if not data or data[0] != VERSION:
        raise bad_message("it is not of version 1 of the protocol")
    try:
        message = _decoder.decode(data[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_message(str(error)) from None
    _CHECKS[type(message)](message)
    return message


def check_record(record: ContextRecord) -> None:
    """Raises InvalidInput unless the record is one that brokers take: names of 1 to 256 characters,
    an order in its validity, values of plain kinds.
    """
    _check_name(record.provider, "the provider")
    _check_entity(record.entity)
    _check_name(record.scope, "the scope")
    if not 0 <= record.valid_from < record.valid_until <= MAX_TIME:
        raise bad_message(
            f"it is valid from {record.valid_from} until {record.valid_until}",
            hint="times are milliseconds since 1970 and the end lies after the start",
        )
    if record.values:
        _check_values(record.values)


def bad_message(why: str, *, hint: str = "") -> InvalidInput:
    """The error for bytes that are not a valid message."""
    return InvalidInput(f"not a context message: {why}", code="context.bad_message", hint=hint)


def _check_values(values: dict[str, Any]) -> None:
    for value in values.values():
        if value.__class__ not in _PLAIN and not (value.__class__ is float and isfinite(value)):
            _check_value(value, MAX_DEPTH)
    try:
        # All names together are mostly shorter than one may be: then none is looked at alone.
        fits = len("".join(values)) <= MAX_NAME or max(map(len, values)) <= MAX_NAME
    except TypeError:
        fits = False
    if not fits:
        raise bad_message(f"a name of a value is longer than {MAX_NAME} characters or no text")


def _check_value(value: Any, depth: int) -> None:
    """Text, numbers that JSON knows, booleans, nothing, lists and maps of them."""
    kind = type(value)
    if kind is float:
        if not isfinite(value):
            raise bad_message("a value is not a finite number")
    elif kind in _PLAIN:
        return
    elif kind not in (list, tuple, dict):
        raise bad_message(f"a value is of kind {kind.__name__}")
    elif depth == 0:
        raise bad_message(f"a value has more than {MAX_DEPTH} levels")
    elif kind is dict:
        for name, inner in value.items():
            _check_text(name, "a name in a value")
            _check_value(inner, depth - 1)
    else:
        for inner in value:
            _check_value(inner, depth - 1)


def _check_text(text: Any, what: str) -> None:
    if type(text) is not str or len(text) > MAX_NAME:
        raise bad_message(f"{what} is longer than {MAX_NAME} characters or no text")


def _check_name(text: str, what: str) -> None:
    if not 0 < len(text) <= MAX_NAME:
        raise bad_message(f"{what} has {len(text)} characters, 1 to {MAX_NAME} are allowed")


def _check_entity(entity: EntityRef) -> None:
    kind, name = entity.type, entity.id
    if not (kind and name) or len(kind) + len(name) >= MAX_NAME or "/" in kind:
        raise bad_message(
            "it names no entity",
            hint=f"type/id has at most {MAX_NAME} characters; the type has no slash",
        )


def check_question(question: Question) -> None:
    """Raises InvalidInput unless it names an entity and a scope."""
    _check_entity(question.entity)
    _check_name(question.scope, "the scope")


def _check_count(*counts: int) -> None:
    for count in counts:
        if not 0 <= count <= MAX_COUNT:
            raise bad_message(f"a count of {count} is not between 0 and {MAX_COUNT}")


def _check_duration(*durations_ms: int) -> None:
    for duration_ms in durations_ms:
        if not 0 <= duration_ms <= MAX_TIME:
            raise bad_message(f"a duration of {duration_ms} ms")


def _check_addresses(addresses: Sequence[Address]) -> None:
    if len(addresses) > MAX_PATH:
        raise bad_message(f"it has {len(addresses)} addresses, at most {MAX_PATH} are allowed")
    for host, port in addresses:
        if not (0 < len(host) <= MAX_NAME and 0 <= port <= 65_535):
            raise bad_message("an address is not a host and a port")


def _check_why(status: int, why: str) -> None:
    if len(why) > MAX_WHY:
        raise bad_message(f"a reason has more than {MAX_WHY} characters")
    _check_count(status)


def _carries_record(message: Put | Answer | Notice) -> None:
    check_record(message.record)


def _answer(message: Answer) -> None:
    check_record(message.record)
    _check_count(message.hops)


def _request(message: Request) -> None:
    check_question(message.question)
    _check_duration(message.within_ms)


def _status(message: Status) -> None:
    _check_why(message.status, message.why)


def _ask(message: Ask) -> None:
    check_question(message.question)
    _check_addresses(message.path)
    _check_count(message.walker, message.hop, message.hops_left)
    _check_duration(message.left_ms)
    _check_addresses(message.without)
    _check_text(message.strategy, "the strategy")
    _check_text(message.identity, "the identity")


def _found(message: Found) -> None:
    check_record(message.record)
    _check_addresses(message.path)
    _check_addresses((message.holder,))
    _check_count(message.walker, message.hop, message.hops)
    if len(message.marks) > MAX_PATH:  # of the whole path, of which the way back has less and less
        raise bad_message(f"it marks more than {MAX_PATH} places")
    _check_count(*message.marks)


def _refused(message: Refused) -> None:
    _check_addresses(message.path)
    _check_count(message.walker, message.hop)
    _check_why(message.status, message.why)


def _heard(message: Heard) -> None:
    _check_count(message.walker, message.hop)
    _check_text(message.kind, "the kind")


def _probe(message: Probe) -> None:
    check_question(message.question)
    _check_count(message.walker, message.hop, message.depth)
    _check_addresses((message.asker, *message.without))


def _have(message: Have) -> None:
    check_record(message.record)
    _check_count(message.walker, message.hop)
    _check_addresses((message.holder,))


def _pong(message: Pong) -> None:
    if not (isfinite(message.load) and message.load >= 0):
        raise bad_message("a load is not a number from 0 on")


def _welcome(message: Welcome) -> None:
    _check_addresses(message.others)


def _departed(message: Departed) -> None:
    _check_addresses((message.broker,))
    if message.ttl != PARTING:
        _check_count(message.ttl)


def _command(message: Command) -> None:
    _check_text(message.what, "the command")
    _check_addresses(message.brokers)


def _watch(message: Watch) -> None:
    check_question(message.question)
    _check_duration(message.lease_ms, message.every_ms)
    _check_text(message.identity, "the identity")


def _outdated(message: Outdated) -> None:
    for text in message.key:
        _check_name(text, "a part of the key")
    _check_duration(message.before)
    _check_count(message.ttl)


def _nothing(_message: Message) -> None:
    """A message of numbers only."""


_CHECKS: dict[type, Callable[[Any], None]] = {
    Put: _carries_record,
    Request: _request,
    Answer: _answer,
    Status: _status,
    Ask: _ask,
    Found: _found,
    Refused: _refused,
    Heard: _heard,
    Probe: _probe,
    Have: _have,
    Ping: _nothing,
    Pong: _pong,
    Join: _nothing,
    Welcome: _welcome,
    Departed: _departed,
    Command: _command,
    Watch: _watch,
    Unwatch: _nothing,
    Notice: _carries_record,
    Noticed: _nothing,
    Outdated: _outdated,
}
