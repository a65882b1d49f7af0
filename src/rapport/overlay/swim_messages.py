"""What members of a network tell each other about who is there, and its bytes. [EN-10]

msgpack arrays that begin with a tag; the order of fields is the order on the wire.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import msgspec

from rapport.core.errors import InvalidInput
from rapport.transport.base import Address

MAX_NAME = 255
MAX_ROLE = 32
TABLE_BYTES = 1_100
"""Of the claims in a Table, so that it is one sealed datagram."""
_MAX_HOST = 64
_MAX_CLAIMS = 1_024
_MAX_NUMBER = 2**53
MOST_INCARNATION = _MAX_NUMBER - 1
"""No claim with a greater one is read."""


class State(IntEnum):
    """How a member is; of two claims with the same incarnation the greater state holds."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3

    @property
    def is_gone(self) -> bool:
        """Whether it is no member any more."""
        return self >= State.DEAD


class Claim(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """That a member is in a state, as of its own count of objections."""

    state: State
    address: Address
    incarnation: int
    name: str = ""
    by: Address | None = None
    """Who suspects it."""
    role: str = ""
    """What the member is to the others beside a member, by its own account."""


News = tuple[Claim, ...]


class Ping(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="P"):
    """Asks for an Ack of the same number."""

    number: int
    news: News = ()


class Ack(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="A"):
    """Alive, or who was asked for is."""

    number: int
    news: News = ()


class PingFor(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="I"):
    """Asks to ping another, and to say Ack or Nack."""

    number: int
    target: Address
    news: News = ()


class Nack(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="N"):
    """Who was asked for did not answer; yet whoever says so is there."""

    number: int


class Gossip(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="G"):
    """News only."""

    news: News


class Digest(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="D"):
    """All that the sender knows, in one number; who knows something else sends its Table."""

    value: int


class Table(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="T"):
    """What the sender knows of some members; all of it is in several. Also how one joins."""

    claims: News
    wants_back: bool = False
    """Whether the receiver is to send its own."""


SwimMessage = Ping | Ack | PingFor | Nack | Gossip | Digest | Table

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[SwimMessage] = msgspec.msgpack.Decoder(SwimMessage)


def encode(message: SwimMessage | Claim) -> bytes:
    """The message as bytes; about a microsecond."""
    return _encoder.encode(message)


def decode(data: bytes) -> SwimMessage:
    """The message in the bytes, checked; raises InvalidInput (`overlay.bad_message`), nothing
    else.
    """
    try:
        message = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(str(error)) from None
    _check(message)
    return message


def tables_of(claims: Iterable[Claim], *, wants_back: bool) -> list[Table]:
    """All claims in as many tables as are needed, each one datagram; the last asks back."""
    slices: list[list[Claim]] = [[]]
    room = TABLE_BYTES
    for claim in claims:
        size = len(encode(claim))
        if size > room:
            slices.append([])
            room = TABLE_BYTES
        room -= size
        slices[-1].append(claim)
    last = len(slices) - 1
    return [
        Table(tuple(slice), wants_back and number == last) for number, slice in enumerate(slices)
    ]


def _check(message: SwimMessage) -> None:
    if isinstance(message, PingFor):
        _check_address(message.target)
    number = getattr(message, "number", 0)
    if not 0 <= number < _MAX_NUMBER:
        raise _bad(f"no message has the number {number}")
    claims = message.claims if isinstance(message, Table) else getattr(message, "news", ())
    if len(claims) > _MAX_CLAIMS:
        raise _bad(f"{len(claims)} claims, at most {_MAX_CLAIMS} are taken")
    for claim in claims:
        _check_claim(claim)


def _check_claim(claim: Claim) -> None:
    _check_address(claim.address)
    if claim.by is not None:
        _check_address(claim.by)
    if not 0 <= claim.incarnation < _MAX_NUMBER or len(claim.name) > MAX_NAME:
        raise _bad("a claim with a name or incarnation that nobody has")
    if len(claim.role) > MAX_ROLE:
        raise _bad(f"a role of {len(claim.role)} characters, at most {MAX_ROLE} are taken")


def _check_address(address: Address) -> None:
    host, port = address
    if not 0 < len(host) <= _MAX_HOST or not 0 < port <= 65_535:
        raise _bad("an address that nobody has")


def _bad(why: str) -> InvalidInput:
    return InvalidInput(f"this is no message of a member: {why}", code="overlay.bad_message")
