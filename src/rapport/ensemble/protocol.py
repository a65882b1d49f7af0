"""Messages between nodes and their encoding. [EN-4, EN-5, EN-8, EN-9]

The encoding is a version byte followed by msgpack. The order of the fields of a message is their
order on the wire: new fields go to the end, with a default. Everything that is received is checked
against limits before the machines see it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.event import MAX_NAME
from rapport.transport.base import Address


class PublishedKnowledge(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="KN"):
    """The knowledge of a component in one version; passed on as it is."""

    component: str
    version: int
    created_ms: int
    node: str
    """The node that the component lives on."""
    roles: tuple[str, ...]
    body: Any
    """The values: in msgpack on real media; in simulations whatever is cheapest, never changed."""
    address: Address | None = None
    """Of that node on IP; none on media without addresses."""
    groups: tuple[str, ...] = ()
    """What the component's ensembles partition it into (`Ensemble.group`); groupers go by it."""


class Header(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A component, and when its knowledge was last received."""

    component: str
    global_ms: int
    """The latest known reception by any node."""
    address: Address | None = None
    """Where to pull it straight from, on IP."""


class Headers(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="HD"):
    """What was received lately; never passed on."""

    headers: tuple[Header, ...]
    node: str = ""
    """The sender; empty where no strategy needs to know its neighbours."""
    head: str = ""
    """Of the cluster that node is in (`gossip/clusters.py`)."""


class Pull(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="PL"):
    """Asks for newer versions than the asker has; never passed on."""

    wanted: tuple[tuple[str, int], ...]
    """Component and the version that the asker has, 0 for none."""
    reply_to: Address | None = None
    """Where to answer straight, on IP."""


class Part(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="PT"):
    """One part of a Published that is larger than the medium takes."""

    component: str
    version: int
    index: int
    count: int
    checksum: int
    data: bytes


class PullParts(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="PP"):
    """Asks the neighbours for the parts of a version that did not arrive."""

    component: str
    version: int
    missing: tuple[int, ...]
    reply_to: Address | None = None


Message = PublishedKnowledge | Headers | Pull | Part | PullParts


class OutgoingMessage(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a machine wants sent: to one address on IP, or to all in range of the radio."""

    message: Message
    to: Address | None = None


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
    _CHECKS[type(message)](message)
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


def bad_message(why: str, *, hint: str = "") -> InvalidInput:
    """What is raised for a message that is none."""
    return InvalidInput(f"not an ensemble message: {why}", code="ensemble.bad_message", hint=hint)


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


def _check_name(text: str, what: str) -> None:
    if not 0 < len(text) <= MAX_NAME:
        raise bad_message(f"{what} has {len(text)} characters, 1 to {MAX_NAME} are allowed")


def _check_words(words: tuple[str, ...], what: str) -> None:
    if len(words) > MAX_WORDS:
        raise bad_message(f"it has {len(words)} {what}, at most {MAX_WORDS} are allowed")
    for word in words:
        if len(word) > MAX_NAME:
            raise bad_message(f"one of its {what} has more than {MAX_NAME} characters")


def _check_times(*times: int) -> None:
    for time in times:
        if not 0 <= time <= MAX_TIME:
            raise bad_message(f"{time} is neither a time nor a version")


def _check_address(address: Address | None) -> None:
    if address is not None and not (0 < len(address[0]) <= MAX_NAME and 0 <= address[1] <= 65_535):
        raise bad_message("an address is not a host and a port")


def _check_entries(entries: tuple[Any, ...], what: str) -> None:
    if len(entries) > MAX_ENTRIES:
        raise bad_message(f"it has {len(entries)} {what}, at most {MAX_ENTRIES} are allowed")


def _published(message: PublishedKnowledge) -> None:
    _check_name(message.component, "the component")
    _check_name(message.node, "the node")
    _check_times(message.version - 1, message.created_ms)
    _check_words(message.roles, "roles")
    _check_words(message.groups, "groups")
    _check_address(message.address)
    if type(message.body) is not bytes:
        raise bad_message("its knowledge is not bytes")


def _headers(message: Headers) -> None:
    _check_entries(message.headers, "headers")
    for header in message.headers:
        _check_name(header.component, "a component")
        _check_times(header.global_ms)
        _check_address(header.address)
    if len(message.node) > MAX_NAME or len(message.head) > MAX_NAME:
        raise bad_message(f"the name of a node has more than {MAX_NAME} characters")


def _pull(message: Pull) -> None:
    _check_entries(message.wanted, "wishes")
    _check_address(message.reply_to)
    for component, version in message.wanted:
        _check_name(component, "a component")
        _check_times(version)


def _part(message: Part) -> None:
    _check_name(message.component, "the component")
    _check_times(message.version - 1)
    if not 0 <= message.index < message.count <= MAX_PARTS:
        raise bad_message(f"part {message.index} of {message.count}")
    if not 0 <= message.checksum < 2**32:
        raise bad_message("the checksum does not have 32 bits")
    if not message.data:
        raise bad_message("a part is empty")


def _pull_parts(message: PullParts) -> None:
    _check_name(message.component, "the component")
    _check_times(message.version - 1)
    _check_entries(message.missing, "parts")
    _check_address(message.reply_to)
    for index in message.missing:
        if not 0 <= index < MAX_PARTS:
            raise bad_message(f"there is no part {index}")


_CHECKS: dict[type, Callable[[Any], None]] = {
    PublishedKnowledge: _published,
    Headers: _headers,
    Pull: _pull,
    Part: _part,
    PullParts: _pull_parts,
}
