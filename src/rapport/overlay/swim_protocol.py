"""Messages and settings of SWIM. [EN-10]

Messages are msgpack arrays that begin with a tag; the order of fields is the order on the wire.
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
"""Maximum size of the claims in a Table, so that it fits one sealed datagram."""
_MAX_HOST = 64
_MAX_CLAIMS = 1_024
_MAX_NUMBER = 2**53
MOST_INCARNATION = _MAX_NUMBER - 1
"""Claims with a greater one are rejected."""


class State(IntEnum):
    """The state of a member; of two claims with the same incarnation the greater state holds."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3

    @property
    def is_gone(self) -> bool:
        return self >= State.DEAD


class Claim(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A claim that a member is in a state, with the incarnation it refers to."""

    state: State
    address: Address
    incarnation: int
    name: str = ""
    by: Address | None = None
    """The accuser of a suspected member."""
    role: str = ""
    """The member's own description of its role."""


MemberUpdate = tuple[Claim, ...]


class Ping(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="P"):
    """Requests an Ack with the same number."""

    number: int
    news: MemberUpdate = ()


class Ack(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="A"):
    """The answer to a Ping or a PingFor."""

    number: int
    news: MemberUpdate = ()


class PingFor(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="I"):
    """Requests a ping of another member, answered with Ack or Nack."""

    number: int
    target: Address
    news: MemberUpdate = ()


class Nack(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="N"):
    """The target of a PingFor did not answer, but the helper is alive."""

    number: int


class Gossip(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="G"):
    """Updates without a probe."""

    news: MemberUpdate


class Digest(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="D"):
    """A hash of the sender's view; a receiver with another one sends its Table."""

    value: int


class Table(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="T"):
    """The sender's claims, possibly in several tables; also the join request."""

    claims: MemberUpdate
    wants_back: bool = False
    """Whether the receiver should send its own."""


SwimMessage = Ping | Ack | PingFor | Nack | Gossip | Digest | Table

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[SwimMessage] = msgspec.msgpack.Decoder(SwimMessage)


def encode(message: SwimMessage | Claim) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes) -> SwimMessage:
    """Decodes and checks a message; raises only InvalidInput (`overlay.bad_message`)."""
    try:
        message = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(str(error)) from None
    _check(message)
    return message


def tables_of(claims: Iterable[Claim], *, wants_back: bool) -> list[Table]:
    """Splits claims into tables of one datagram each; the last one has `wants_back`."""
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
    """Settings, which should be the same on all nodes of a network; times in ms.

    Without changes a node sends about two messages per period, independent of the number of nodes.
    """

    period_ms: float = 1_000.0
    """Between probes. Halving it halves the detection time and doubles the load."""
    ack_ms: float = 250.0
    """Time-out of an answer before the ping is repeated; longer than a round trip."""
    repeats: int = 1
    """Repetitions of an unanswered ping before indirect pings."""
    helpers: int = 3
    """Members that send indirect pings."""
    suspicion: float = 1.75
    """A suspected member has at least `suspicion * log10(n)` periods, and at least two, to refute
    the suspicion before it is declared dead.
    """
    patience: float = 2.5
    """The factor of this time while no other member has confirmed the suspicion."""
    confirmations: int = 3
    """Confirmations after which only the minimum time remains."""
    gossip_ms: float = 200.0
    """Between gossip messages to `fan_out` members while there are updates."""
    fan_out: int = 3
    retransmit: int = 4
    """Each member sends an update `retransmit * log10(n)` times."""
    news_bytes: int = 512
    """Maximum bytes of updates on one message."""
    sync_periods: int = 15
    """Periods between comparisons with another member; repairs what gossip missed."""
    revisit_periods: int = 5
    """Periods between contacts to a dead member; heals partitions."""
    forget_periods: int = 60
    """Periods until a dead member is forgotten except for its address."""
    most_health: int = 8
    """Maximum of the local health score."""
    most_members: int = 10_000
    """Maximum of members, which bounds memory."""

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
        """The minimum time to refute a suspicion."""
        return max(2.0, self.suspicion * math.log10(max(nodes, 1))) * self.period_ms

    def suspicion_ms(self, nodes: int, confirmed: int) -> float:
        """The time to refute a suspicion; falls with the logarithm of the confirmations."""
        least_ms = self.least_suspicion_ms(nodes)
        if confirmed >= self.confirmations:
            return least_ms
        share = math.log(confirmed + 1) / math.log(self.confirmations + 1)
        return least_ms * (self.patience - (self.patience - 1) * share)

    def transmissions(self, nodes: int) -> int:
        """How often one node sends an update."""
        return self.retransmit * math.ceil(math.log10(max(nodes, 1) + 1))


def _bad_settings(message: str, hint: str) -> InvalidInput:
    return InvalidInput(message, code="overlay.bad_settings", hint=hint)
