"""Messages between brokers and clients (protocol v1), and their encoding. [CX-2, CX-3, CX-9]

A datagram is a version byte followed by msgpack. Messages are structs with short tags. The order of
the fields is the order on the wire: new fields go to the end, with a default. The requester chooses
`id`, unique among its requests; a message repeated with the same id is the same message. `decode`
checks size, depth, names and validity, so that machines need not check again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import isfinite
from typing import Annotated, Any

import msgspec

from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import InvalidInput
from rapport.core.event import MAX_NAME
from rapport.overlay.membership_steps import PARTING

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

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
Duration = Annotated[int, msgspec.Meta(ge=0, le=MAX_TIME)]
Text = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
Why = Annotated[str, msgspec.Meta(max_length=MAX_WHY)]
HostAndPort = tuple[Name, Count]
"""An `Address`, checked when it is decoded."""
Path = Annotated[tuple[HostAndPort, ...], msgspec.Meta(max_length=MAX_PATH)]


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
    within_ms: Duration = 2_000
    fresh: bool = False
    """Only from the broker that the provider gives it to: no copy is an answer."""


class Answer(_Message, frozen=True, array_like=True, tag="ans", gc=False):
    """Broker to consumer: the record, and how many hops away it was found."""

    id: int
    record: ContextRecord
    hops: Count = 0


class Status(_Message, frozen=True, array_like=True, tag="st", gc=False):
    """Broker to client: how the request `id` stands; `why` is for people."""

    id: int
    status: Count
    why: Why = ""


class Ask(_Message, frozen=True, array_like=True, tag="ask", gc=False):
    """Broker to broker: a walker, or a flood, looking for a record.

    `search` names the request in the whole network; `walker` counts its walkers; `hop` counts the
    steps it made and makes the acknowledged hop unique; `path` begins with the consumer and ends
    with the broker that sent this on.
    """

    search: int
    walker: Count
    hop: Count
    question: Question
    path: Path
    left_ms: Duration
    """The remaining time until the deadline."""
    hops_left: Count
    strategy: Text = "walk"
    identity: Text = ""
    """The identity of the consumer, as the entry broker knows it."""
    doubtful: bool = False
    """Whether some broker on the way did not answer, so that a refusal proves little."""
    without: Path = ()
    """Brokers that were queried and hold it no longer, or are silent: copies of what they held are
    no answer.
    """
    fresh: bool = False
    """As of the request: no copy is an answer."""


class FoundRecord(_Message, frozen=True, array_like=True, tag="fnd", gc=False):
    """Broker to broker, back along the path: the record; `marks` are the places on the path (from
    0) where it is to be replicated; `holder` is the broker its provider gives it to.
    """

    search: int
    walker: Count
    hop: Count
    record: ContextRecord
    path: Path
    marks: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MAX_PATH)]
    holder: HostAndPort
    hops: Count = 0


class SearchRefusal(_Message, frozen=True, array_like=True, tag="ref", gc=False):
    """Broker to broker, back along the path of the request: nothing found."""

    search: int
    walker: Count
    hop: Count
    path: Path
    status: Count = NOT_FOUND
    why: Why = ""
    doubtful: bool = False
    """Worth another try: not every broker could be reached."""


class HopAck(_Message, frozen=True, array_like=True, tag="hrd", gc=False):
    """The acknowledgement of one hop of an Ask, FoundRecord or SearchRefusal."""

    search: int
    walker: Count
    hop: Count
    kind: Text


class Probe(_Message, frozen=True, array_like=True, tag="prb", gc=False):
    """Look-ahead: do you, or those up to `depth` further, have it? A broker that has it answers
    `asker` directly.
    """

    search: int
    walker: Count
    hop: Count
    question: Question
    depth: Count
    asker: HostAndPort
    without: Path = ()
    fresh: bool = False
    """Both as of the question."""


class Have(_Message, frozen=True, array_like=True, tag="hav", gc=False):
    """The answer to a probe, from a broker that has the record."""

    search: int
    walker: Count
    hop: Count
    record: ContextRecord
    holder: HostAndPort


class Ping(_Message, frozen=True, array_like=True, tag="png", gc=False):
    """Requests a Pong; any holder of a key may send it."""

    id: int


class Pong(_Message, frozen=True, array_like=True, tag="pon", gc=False):
    """I am; how loaded I am (0 idle, 1 full), and a filter of the questions that I can answer."""

    id: int
    load: Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)] = 0.0
    filter: bytes = b""


class Join(_Message, frozen=True, array_like=True, tag="joi", gc=False):
    """Broker to broker: let us be neighbours. Answered by Welcome. `by_hand`: the topology was
    drawn by hand, so a broker that was only contacted looks for no others.
    """

    id: int
    by_hand: bool = False


class Welcome(_Message, frozen=True, array_like=True, tag="wel", gc=False):
    """Yes, and others you may know; or no, I have enough."""

    id: int
    accepted: bool = True
    others: Path = ()


class Departure(_Message, frozen=True, array_like=True, tag="dep", gc=False):
    """Flooded with a small TTL: `broker` has left, by itself or (`abrupt`) found silent."""

    id: int
    broker: HostAndPort
    ttl: Annotated[int, msgspec.Meta(ge=PARTING, le=MAX_COUNT)]
    abrupt: bool = False


class Command(_Message, frozen=True, array_like=True, tag="cmd", gc=False):
    """Controller to broker: `join` these, `leave`, or `monitor` your neighbours."""

    id: int
    what: Text
    brokers: Path = ()


class Watch(_Message, frozen=True, array_like=True, tag="wat", gc=False):
    """Consumer to broker, and entry broker to holder: notify me of this while the lease lasts, on
    each change (`every_ms` 0) or every so often.
    """

    id: int
    question: Question
    lease_ms: Duration
    every_ms: Duration = 0
    identity: Text = ""
    at_holder: bool = False
    """From a broker: about what you hold; do not look elsewhere."""


class Unwatch(_Message, frozen=True, array_like=True, tag="unw", gc=False):
    """No longer."""

    id: int


class Notice(_Message, frozen=True, array_like=True, tag="not", gc=False):
    """Notifies a subscriber; acknowledged by NoticeAck, repeated until then or superseded."""

    id: int
    number: int
    record: ContextRecord


def is_late(number: int, last: int) -> bool:
    """Whether a Notice with that number is a repetition, or was overtaken by the last one that was
    taken. One far below is neither: its broker began anew, with its clock set back.
    """
    return 0 <= last - number < _OVERTAKEN


class NoticeAck(_Message, frozen=True, array_like=True, tag="ntd", gc=False):
    """The acknowledgement of a Notice."""

    id: int
    number: int


class Invalidation(_Message, frozen=True, array_like=True, tag="out", gc=False):
    """Replicas older than this are void. Flooded with a small TTL where the site wants it; and sent
    from the broker that gave a replica to the one that got it, acknowledged by HopAck of kind
    `out`.
    """

    id: int
    key: tuple[Name, Name, Name, Name]
    before: Duration
    ttl: Count
    called: bool = False
    """Whether the sender gave the replica."""


Hop = Ask | FoundRecord | SearchRefusal
"""Messages that are acknowledged hop by hop."""

Message = (
    Put
    | Request
    | Answer
    | Status
    | Ask
    | FoundRecord
    | SearchRefusal
    | HopAck
    | Probe
    | Have
    | Ping
    | Pong
    | Join
    | Welcome
    | Departure
    | Command
    | Watch
    | Unwatch
    | Notice
    | NoticeAck
    | Invalidation
)


VERSION = 1

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
    check = _CHECKS.get(type(message))
    if check is not None:
        check(message)
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


def _check_carried_record(message: Put | Answer | FoundRecord | Have | Notice) -> None:
    check_record(message.record)


def _check_carried_question(message: Request | Ask | Probe | Watch) -> None:
    check_question(message.question)


_CHECKS: dict[type, Callable[[Any], None]] = {
    **dict.fromkeys((Put, Answer, FoundRecord, Have, Notice), _check_carried_record),
    **dict.fromkeys((Request, Ask, Probe, Watch), _check_carried_question),
}
"""Checks that the types of the fields do not make."""
