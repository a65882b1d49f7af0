"""What a site may say about its door of v0. [CX-2, CX-9]"""

from __future__ import annotations

import msgspec

from rapport.context.broker.settings import ReplicationSettings
from rapport.overlay.membership_steps import MembershipSettings
from rapport.transport.base import Address

LOOPBACK = ("127.0.0.0/8", "::1/128")
"""Addresses that nobody on another machine can forge: the kernel drops them."""


class V0Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Whom the door trusts, and how it walks. Hosts are addresses or networks (`10.1.0.0/16`).

    v0 proves nothing about a sender, and no message of it echoes anything that only the sender
    could know, so an address cannot prove itself either: the site says whom it trusts. Everybody
    else is never told more bytes than it sent, and changes nothing.
    """

    clients: tuple[str, ...] = LOOPBACK
    """Providers and consumers."""
    brokers: tuple[str, ...] = LOOPBACK
    """Who may become a neighbour."""
    controllers: tuple[str, ...] = LOOPBACK
    """Who may tell this broker to join, leave and monitor."""
    identity: str = "v0"
    """Whose rights everything that comes through this door has."""
    neighbours: tuple[Address, ...] = ()
    """Neighbours from the start; others come by joining."""
    at_most: int = 20
    """Neighbours."""
    hop_limit: int = 64
    """Pairs of addresses in a request; a walk ends when it has as many."""
    within_ms: int = 2_000
    """A consumer is told 202 when nothing was found within this time."""
    walk_ms: int = 1_000
    """As long a walk among v0 brokers may be silent before the search goes on in v1."""
    join_within_ms: int = 1_500
    """For the ACKs of brokers asked to be neighbours; they are asked three times meanwhile."""
    second_ack_to_consumers: bool = False
    """The literal reading of the appendix: a consumer gets 102 behind its response. Else the
    response stands for it.
    """
    replication: ReplicationSettings = msgspec.field(default_factory=ReplicationSettings)
    membership: MembershipSettings = msgspec.field(default_factory=MembershipSettings)
    """Only its pings count here: period, misses, repeats."""
    datagrams_per_second: float = 1_000.0
    """From one host; beyond they are dropped. Bursts may be twice as large."""
    strangers_per_second: float = 200.0
    """From all hosts together that the site does not name."""
    searches: int = 10_000
    """At once; beyond a consumer is told 201."""
    searches_per_consumer: int = 256
