"""Messages between nodes and their encoding. [EN-4, EN-5, EN-8, EN-9]

The encoding is a version byte followed by msgpack. The order of the fields of a message is their
order on the wire: new fields go to the end, with a default. Everything that is received is checked
against limits before the machines see it.
"""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Any

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.event import MAX_NAME
from rapport.transport.base import Address

VERSION = 1
MAX_MESSAGE = 1024 * 1024
"""Most bytes of a message, and of all the parts of one."""
MAX_ENTRIES = 4_096
"""Most headers, wishes or numbers of parts in a packet."""
MAX_PARTS = 65_535
MAX_WORDS = 64
"""Most roles and most groups of a component."""
MAX_DEPTH = 32
"""Most lists and maps inside each other in knowledge."""
MAX_TIME = 2**53
"""Of times and versions: what every language can count to."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]
Text = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
Words = Annotated[tuple[Text, ...], msgspec.Meta(max_length=MAX_WORDS)]
Time = Annotated[int, msgspec.Meta(ge=0, le=MAX_TIME)]
Version = Annotated[int, msgspec.Meta(ge=1, le=MAX_TIME)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=MAX_PARTS)]
HostAndPort = tuple[Name, Annotated[int, msgspec.Meta(ge=0, le=65_535)]]
"""An `Address`, checked when it is decoded."""


class PublishedKnowledge(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="KN"):
    """The knowledge of a component in one version; passed on as it is."""

    component: Name
    version: Version
    created_ms: Time
    node: Name
    """The node that the component lives on."""
    roles: Words
    body: Any
    """The values: in msgpack on real media; in simulations whatever is cheapest, never changed."""
    address: HostAndPort | None = None
    """Of that node on IP; none on media without addresses."""
    groups: Words = ()
    """What the component's ensembles partition it into (`Ensemble.group`); groupers go by it."""


class Header(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A component, and when its knowledge was last received."""

    component: Name
    global_ms: Time
    """The latest known reception by any node."""
    address: HostAndPort | None = None
    """Where to pull it straight from, on IP."""


class Headers(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="HD"):
    """What was received lately; never passed on."""

    headers: Annotated[tuple[Header, ...], msgspec.Meta(max_length=MAX_ENTRIES)]
    node: Text = ""
    """The sender; empty where no strategy needs to know its neighbours."""
    head: Text = ""
    """Of the cluster that node is in (`gossip/clusters.py`)."""


class Pull(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="PL"):
    """Asks for newer versions than the asker has; never passed on."""

    wanted: Annotated[tuple[tuple[Name, Time], ...], msgspec.Meta(max_length=MAX_ENTRIES)]
    """Component and the version that the asker has, 0 for none."""
    reply_to: HostAndPort | None = None
    """Where to answer straight, on IP."""


class Part(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="PT"):
    """One part of a Published that is larger than the medium takes."""

    component: Name
    version: Version
    index: Index
    count: Annotated[int, msgspec.Meta(le=MAX_PARTS)]
    checksum: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    data: Annotated[bytes, msgspec.Meta(min_length=1)]


class PullParts(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="PP"):
    """Asks the neighbours for the parts of a version that did not arrive."""

    component: Name
    version: Version
    missing: Annotated[tuple[Index, ...], msgspec.Meta(max_length=MAX_ENTRIES)]
    reply_to: HostAndPort | None = None


Message = PublishedKnowledge | Headers | Pull | Part | PullParts


class OutgoingMessage(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a machine wants sent: to one address on IP, or to all in range of the radio."""

    message: Message
    to: Address | None = None


_VERSION_BYTE = bytes([VERSION])
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_values_decoder = msgspec.msgpack.Decoder(dict[str, Any])
_PLAIN = frozenset({str, int, bool, type(None), bytes})


def encode(message: Message) -> bytes:
    """The message as bytes; raises InvalidInput when it cannot be one (too large, a number beyond
    64 bits, text that is no Unicode).
    """
    try:
        written = _VERSION_BYTE + _encoder.encode(message)
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        raise bad_message(f"it cannot be written: {error}") from None
    if len(written) > MAX_MESSAGE:
        raise bad_message(f"it has {len(written)} bytes, at most {MAX_MESSAGE} are allowed")
    return written


def decode(data: bytes) -> Message:
    """The message in the bytes; raises InvalidInput (`ensemble.bad_message`), nothing else."""
    if len(data) > MAX_MESSAGE:
        raise bad_message(f"it has {len(data)} bytes, at most {MAX_MESSAGE} are allowed")
    if not data or data[0] != VERSION:
        raise bad_message(f"it is not of version {VERSION} of the protocol")
    try:
        message = _decoder.decode(memoryview(data)[1:])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise bad_message(str(error)) from None
    if type(message) is PublishedKnowledge and type(message.body) is not bytes:
        raise bad_message("its knowledge is not bytes")
    if type(message) is Part and message.index >= message.count:
        raise bad_message(f"part {message.index} of {message.count}")
    return message


def values_of(body: Any) -> dict[str, Any]:
    """The values in the body of published knowledge: the dictionary that simulations hand over, or
    that in the bytes; raises InvalidInput unless they are plain and not too deep.
    """
    if isinstance(body, dict):
        return body
    try:
        values = _values_decoder.decode(body)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise bad_message(f"its knowledge cannot be read: {error}") from None
    for value in values.values():
        _check_value(value, MAX_DEPTH)
    return values


def bad_message(why: str) -> InvalidInput:
    """What is raised for a message that is none."""
    return InvalidInput(f"not an ensemble message: {why}", code="ensemble.bad_message")


def _check_value(value: Any, depth: int) -> None:
    kind = type(value)
    if kind in _PLAIN:
        return
    if kind is float:
        if not isfinite(value):
            raise bad_message("its knowledge has a number that is not finite")
    elif kind not in (list, dict):
        raise bad_message(f"its knowledge has a value of kind {kind.__name__}")
    elif depth == 0:
        raise bad_message(f"its knowledge has more than {MAX_DEPTH} levels")
    else:
        _check_inner(value, depth - 1)


def _check_inner(value: Any, depth: int) -> None:
    if type(value) is dict:
        for name in value:
            if type(name) is not str:
                raise bad_message("its knowledge has a name that is no text")
        value = value.values()
    for inner in value:
        _check_value(inner, depth)
