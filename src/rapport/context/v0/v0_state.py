"""Settings, admission control and outbox of the v0 machine. [CX-2, CX-9]"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_network

import msgspec

from rapport.context.broker.broker_settings import ReplicationSettings
from rapport.context.broker.broker_state import AuditEffect
from rapport.context.protocol import (
    BAD_REQUEST,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    NOT_FOUND,
    TOO_BUSY,
    Question,
)
from rapport.context.v0.v0_protocol import V0Acknowledgement, V0Message, V0Refusal, write
from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Now
from rapport.overlay.membership_steps import MembershipSettings
from rapport.transport.addresses import ip_of
from rapport.transport.base import Address

LOOPBACK = ("127.0.0.0/8", "::1/128")
"""Addresses that no other machine can forge: the kernel drops them."""


class V0Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Trusted hosts and limits of the v0 endpoint. Hosts are addresses or networks (`10.1.0.0/16`).

    v0 proves nothing about a sender, and its messages echo nothing that only the sender could know,
    so not even an address is proven: the site names the hosts that it trusts. Other hosts never get
    more bytes than they sent, and change nothing.
    """

    clients: tuple[str, ...] = LOOPBACK
    """Providers and consumers."""
    brokers: tuple[str, ...] = LOOPBACK
    """Hosts that may become neighbours."""
    controllers: tuple[str, ...] = LOOPBACK
    """Hosts that may send commands to join, leave and monitor."""
    identity: str = "v0"
    """The identity whose rights requests at this endpoint have."""
    neighbours: tuple[Address, ...] = ()
    """Neighbours from the start; others come by joining."""
    at_most: int = 20
    """Neighbours."""
    hop_limit: int = 64
    """Pairs of addresses in a request; a walk ends when it has as many."""
    within_ms: int = 2_000
    """A consumer gets 202 when nothing was found within this time."""
    walk_ms: int = 1_000
    """As long a walk among v0 brokers may be silent before the search goes on in v1."""
    join_within_ms: int = 1_500
    """Time for the ACKs of brokers asked to be neighbours; they are asked three times meanwhile."""
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
    """Most pending searches; beyond it a consumer gets 201."""
    searches_per_consumer: int = 256


_MOST_HOSTS = 4_096


class V0Hosts:
    """Hosts and networks that a site names; asking costs one look-up for a host that was asked
    about before.
    """

    def __init__(self, named: Iterable[str]) -> None:
        self._names: set[str] = set()
        self._networks: list[IPv4Network | IPv6Network] = []
        for text in named:
            try:
                self._networks.append(ip_network(text, strict=False))
            except ValueError:
                if "/" in text or not text:
                    raise InvalidInput(
                        f"{text!r} is neither a host nor a network",
                        code="context.bad_hosts",
                        hint="write an address or a network, such as 10.0.0.7 or 10.1.0.0/16",
                    ) from None
                self._names.add(text)
        self._known: dict[str, bool] = {}

    def __contains__(self, host: str) -> bool:
        known = self._known.get(host)
        if known is None:
            if len(self._known) >= _MOST_HOSTS:
                self._known.clear()
            known = self._known[host] = self._look(host)
        return known

    def _look(self, host: str) -> bool:
        found = ip_of(host)
        if found is None:
            return host in self._names
        return any(found in network for network in self._networks)


class V0Caller:
    """The sender of a datagram. `room` is the number of bytes that may still be sent to it: no
    limit (none) for hosts that the site names, otherwise as many as it sent.
    """

    __slots__ = ("address", "room")

    def __init__(self, address: Address, room: int | None) -> None:
        self.address, self.room = address, room

    @property
    def is_named(self) -> bool:
        """Whether the site names its host."""
        return self.room is None

    def takes(self, size: int) -> bool:
        """Whether so many bytes may be sent; if so they are counted."""
        if self.room is None:
            return True
        if size > self.room:
            return False
        self.room -= size
        return True


class V0RateLimit:
    """So many a second for each host, twice as many at once. Remembers a bounded number of hosts;
    a forgotten one starts anew.
    """

    def __init__(self, per_second: float) -> None:
        self._per_ms = per_second / 1_000
        self._most = max(2 * per_second, 1.0)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def takes(self, host: str, now: Now) -> bool:
        """Whether one more datagram of this host is accepted."""
        left, at = self._left.pop(host, (self._most, now.steady_ms))
        left = min(left + (now.steady_ms - at) * self._per_ms, self._most)
        taken = left >= 1
        self._left[host] = (left - 1 if taken else left, now.steady_ms)
        if len(self._left) > _MOST_HOSTS:
            self._left.popitem(last=False)
        return taken


_IN_V0 = {NOT_ALLOWED: BAD_REQUEST, TOO_BUSY: INTERNAL_ERROR}
"""v0 knows five codes; ours become the nearest of them."""


class V0Counters(msgspec.Struct):
    """Counters of the endpoint; they only grow."""

    heard: int = 0
    bad: int = 0
    """Could not be read."""
    dropped: int = 0
    """Came faster than they may."""
    withheld: int = 0
    """Answers to hosts that the site does not name, larger than what they had sent."""
    astray: int = 0
    """Answers from, or with a way back over, an address that is no neighbour."""
    unsaid: int = 0
    """Requests and refusals whose path fitted no datagram."""
    late: int = 0
    """Answers without a pending request."""
    answered: int = 0
    refused: int = 0
    replicated: int = 0


class V0Outbox:
    """Datagrams to send, in order, and what is to be audited; the shell clears both."""

    def __init__(self, identity: str) -> None:
        self.outbox: list[tuple[bytes, Address]] = []
        self.effects: list[AuditEffect] = []
        self.counters = V0Counters()
        self._identity = identity

    def send(self, message: V0Message, to: Address) -> None:
        """To a broker; raises TooLarge."""
        self.outbox.append((write(message), to))

    def reply(self, message: V0Message, caller: V0Caller) -> None:
        """Sends to a caller, unless the datagram is larger than its limit; raises TooLarge."""
        datagram = write(message)
        if caller.takes(len(datagram)):
            self.outbox.append((datagram, caller.address))
        else:
            self.counters.withheld += 1

    def audit(self, what: str, caller: V0Caller, status: int, question: Question | None) -> None:
        """Audits an operation of a caller."""
        entity, scope = (question.entity, question.scope) if question else (None, "")
        self.effects.append(
            AuditEffect(what, self._identity, caller.address, status, entity, scope)
        )

    def acknowledge(self, caller: V0Caller, status: int, operation: str, now: Now) -> None:
        """An ACK."""
        host = caller.address[0]
        self.reply(V0Acknowledgement(now.wall_ms, status, operation, host), caller)

    def refuse(self, caller: V0Caller, status: int, operation: str, now: Now) -> None:
        """A NACK."""
        self.counters.refused += 1
        code = _IN_V0.get(status, status)
        if code not in (INTERNAL_ERROR, NOT_FOUND, BAD_REQUEST):
            code = INTERNAL_ERROR
        self.reply(V0Refusal(now.wall_ms, code, operation, caller.address[0]), caller)
