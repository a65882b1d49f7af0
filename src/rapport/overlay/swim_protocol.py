"""What members of a network tell each other about who is there, and its bytes. [EN-10]

msgpack arrays that begin with a tag; the order of fields is the order on the wire.

How eagerly a network watches its members. [EN-10]
"""

from __future__ import annotations

import math
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


MemberUpdate = tuple[Claim, ...]


class Ping(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="P"):
    """Asks for an Ack of the same number."""

    number: int
    news: MemberUpdate = ()


class Ack(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="A"):
    """Alive, or who was asked for is."""

    number: int
    news: MemberUpdate = ()


class PingFor(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="I"):
    """Asks to ping another, and to say Ack or Nack."""

    number: int
    target: Address
    news: MemberUpdate = ()


class Nack(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="N"):
    """Who was asked for did not answer; yet whoever says so is there."""

    number: int


class Gossip(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="G"):
    """News only."""

    news: MemberUpdate


class Digest(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="D"):
    """All that the sender knows, in one number; who knows something else sends its Table."""

    value: int


class Table(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="T"):
    """What the sender knows of some members; all of it is in several. Also how one joins."""

    claims: MemberUpdate
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


class SwimSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes of a network should have the same; times in ms.

    A node sends about two messages per period while nothing happens, however many nodes there are.
    """

    period_ms: float = 1_000.0
    """Every so often one member is probed. Halving it halves detection time and doubles the load.
    """
    ack_ms: float = 250.0
    """How long to wait for an answer before the ping is repeated; longer than a round trip."""
    repeats: int = 1
    """Times an unanswered ping is repeated before others are asked; costs nothing without loss."""
    helpers: int = 3
    """Others that are asked to ping who did not answer."""
    suspicion: float = 1.75
    """A suspected member has at least `suspicion * log10(n)` periods to object, never below two. It
    is counted as dead at the end.
    """
    patience: float = 2.5
    """So many times that long while nobody else has confirmed the suspicion."""
    confirmations: int = 3
    """After so many others said the same, it has only the least time."""
    gossip_ms: float = 200.0
    """While there is news, it is told to `fan_out` others every so often, beside what is sent
    along with pings.
    """
    fan_out: int = 3
    retransmit: int = 4
    """Each news is told `retransmit * log10(n)` times by each who hears it."""
    news_bytes: int = 512
    """Most bytes of news that go with one message."""
    sync_periods: int = 15
    """Every so many periods two members compare all they know; that heals what gossip missed."""
    revisit_periods: int = 5
    """Every so many periods one of the dead is asked whether it is back; that heals partitions."""
    forget_periods: int = 60
    """The dead are remembered for so many periods, then only their addresses are."""
    most_health: int = 8
    """How many times slower a node that does not keep up gets before it accuses others."""
    most_members: int = 10_000
    """Others are not taken in beyond that, so that nobody can fill our memory."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not math.isfinite(getattr(self, name)):
                raise _bad_settings(f"{name} is {getattr(self, name)}", "a finite number")
        waiting = self.ack_ms * (self.repeats + 2)
        if self.period_ms <= 0 or self.ack_ms <= 0 or waiting > self.period_ms:
            raise _bad_settings(
                f"{self.repeats + 1} pings and the asking of others take {waiting:g} ms, "
                f"a period has {self.period_ms:g}",
                "ack_ms * (repeats + 2) must not be above period_ms",
            )
        least_one = (self.fan_out, self.retransmit, self.sync_periods, self.revisit_periods)
        if min(*least_one, self.most_members, self.forget_periods) < 1 or self.gossip_ms <= 0:
            raise _bad_settings(
                "fan_out, retransmit, most_members and all numbers of periods are 1 or more", ""
            )
        if min(self.repeats, self.helpers, self.confirmations, self.most_health) < 0:
            raise _bad_settings(
                "repeats, helpers, confirmations and most_health are not negative", ""
            )
        if self.suspicion <= 0 or self.patience < 1 or self.news_bytes < 128:
            raise _bad_settings(
                "suspicion is above 0, patience 1 or more, news_bytes 128 or more",
                "shorter messages have no room for the name of a node",
            )

    def least_suspicion_ms(self, nodes: int) -> float:
        """What a suspected one has when several say the same."""
        return max(2.0, self.suspicion * math.log10(max(nodes, 1))) * self.period_ms

    def suspicion_ms(self, nodes: int, confirmed: int) -> float:
        """How long a suspected one may object; falls with the logarithm of who confirmed it."""
        least_ms = self.least_suspicion_ms(nodes)
        if confirmed >= self.confirmations:
            return least_ms
        share = math.log(confirmed + 1) / math.log(self.confirmations + 1)
        return least_ms * (self.patience - (self.patience - 1) * share)

    def tellings(self, nodes: int) -> int:
        """How often one node tells a piece of news."""
        return self.retransmit * math.ceil(math.log10(max(nodes, 1) + 1))


def _bad_settings(message: str, hint: str) -> InvalidInput:
    return InvalidInput(message, code="overlay.bad_settings", hint=hint)
