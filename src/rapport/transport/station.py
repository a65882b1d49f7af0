"""Messages over an endpoint: split into fragments, each of them sealed, and reassembled.
[CX-2, CX-9, EN-4, EN-10]
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from rapport.core.errors import InvalidInput, Unavailable
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.transport.addresses import format_address, ip_of, is_loopback
from rapport.transport.base import Address, Endpoint, Sender, check_size
from rapport.transport.fragments import WHOLE, Reassembler, ReassemblyLimits, split_message
from rapport.transport.keys import DatagramKey, DatagramKeys
from rapport.transport.sealed_datagrams import (
    OVERHEAD_BYTES,
    RUN_BYTES,
    DatagramOrigin,
    Sealer,
    Unsealer,
    receiver_name,
)
from rapport.transport.udp import MulticastGroup, UdpEndpoint

MessageHandler = Callable[[bytes, Sender], None]

_log = get_logger(__name__)
_MOST_SENDERS = 65_536
_LOG_PERIOD_MS = 60_000


@dataclass(slots=True)
class StationCounters:
    """Monotonic counters of a station; endpoint, unseal and assembly have their own."""

    sent: int = 0
    received: int = 0
    keyless: int = 0
    """Not sent: no key is valid."""


class _Peer(NamedTuple):
    """The last sender at an address, and the key to answer with, if not our own."""

    sender: Sender
    origin: DatagramOrigin
    answer_with: DatagramKey | None


class Station:
    """Sends and receives messages up to `limits.message_bytes`; best effort, as its endpoint.

    A member answers a client with the client's last key from that address, so that a client needs
    only its own key. This does not apply to addresses of members. Bound to one loop.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        clock: Clock,
        seal: Sealer | None = None,
        unseal: Unsealer | None = None,
        limits: ReassemblyLimits | None = None,
    ) -> None:
        """Without `seal` and `unseal` all datagrams are accepted, with an empty identity."""
        self.endpoint, self.address = endpoint, endpoint.address
        self.counters = StationCounters()
        self.assembly = Reassembler(limits)
        self.unseal = unseal
        self._clock, self._seal = clock, seal
        self._fragment_bytes = endpoint.max_datagram - (OVERHEAD_BYTES if seal else 0)
        self._whole_bytes = min(self._fragment_bytes - 1, self.assembly.limits.message_bytes)
        self._number = secrets.randbits(32)
        self._heard: dict[Address, _Peer] = {}
        self._names: dict[Address, bytes] = {}
        """Receiver names of members."""
        self._own_name = receiver_name(self.address) if seal and seal.keys.is_member else None
        self._handler: MessageHandler | None = None
        self._stale = 0
        self._logged_ms: float | None = None

    @staticmethod
    def sealed(
        endpoint: Endpoint,
        keys: DatagramKeys,
        *,
        clock: Clock,
        limits: ReassemblyLimits | None = None,
    ) -> Station:
        """A station that accepts only datagrams sealed with a key of the ring from now on.

        Raises InvalidInput for a member on a wildcard address, for which nothing can be sealed.
        """
        own = ip_of(endpoint.address[0])
        if keys.is_member and own is not None and own.is_unspecified:
            raise InvalidInput(
                f"{format_address(endpoint.address)} is every address of this machine",
                code="transport.bad_address",
                hint="a member of a network listens on the address by which the others reach it",
            )
        seal = Sealer(keys, secrets.token_bytes(RUN_BYTES))
        unseal = Unsealer(keys, since_ms=clock.now_ms(), own=seal)
        return Station(endpoint, clock=clock, seal=seal, unseal=unseal, limits=limits)

    def send(self, message: bytes, to: Address) -> None:
        """Sends to one address; raises TooLarge."""
        peer = self._heard.get(to)
        key = peer.answer_with if peer is not None else None
        if len(message) <= self._whole_bytes:
            datagram = self._sealed(WHOLE + message, key, to)
            if datagram is not None:
                self.endpoint.send(datagram, to)
        else:
            for datagram in self._datagrams(message, key, to):
                self.endpoint.send(datagram, to)
        self.counters.sent += 1

    def broadcast(self, message: bytes) -> None:
        """Sends to all in range that hold our key; raises Unsupported if the medium cannot."""
        for datagram in self._datagrams(message, None, None):
            self.endpoint.broadcast(datagram)
        self.counters.sent += 1

    def receive(self, handler: MessageHandler) -> None:
        """Sets the handler of messages; replaces an earlier one."""
        self._handler = handler
        self.endpoint.receive(self._take)

    async def close(self) -> None:
        await self.endpoint.close()

    def _datagrams(
        self, message: bytes, key: DatagramKey | None, to: Address | None
    ) -> list[bytes]:
        check_size(message, self.assembly.limits.message_bytes)
        self._number += 1
        fragments = split_message(message, self._fragment_bytes, self._number)
        sealed = [self._sealed(fragment, key, to) for fragment in fragments]
        return [datagram for datagram in sealed if datagram is not None]

    def _sealed(self, fragment: bytes, key: DatagramKey | None, to: Address | None) -> bytes | None:
        """The datagram, for one or for all; None if no key is valid, which is logged."""
        seal = self._seal
        if seal is None:
            return fragment
        wall_ms = self._clock.now_ms()
        try:
            if key is not None:
                return seal.seal(fragment, wall_ms, seal.keys.still(key, wall_ms))
            if to is None:
                return seal.seal(fragment, wall_ms, to_all=True)
            name = self._names.get(to) or self._learn_name(to)
            return seal.seal(fragment, wall_ms, to=name)
        except Unavailable as error:
            self._report_keyless(error)
            return None

    def _take(self, datagram: bytes, address: Address) -> None:
        if self.unseal is None:
            self._dispatch(datagram, Sender(address))
            return
        opened = self.unseal.open(datagram, self._clock.now_ms(), self._own_name)
        if opened is None:
            if self.unseal.counters.stale > self._stale:
                self._report_stale(self.unseal.counters.stale)
            return
        fragment, origin = opened
        peer = self._heard.get(address)
        if peer is None or peer.origin is not origin:
            peer = self._meet(address, origin)
        self._dispatch(fragment, peer.sender)

    def _dispatch(self, fragment: bytes, sender: Sender) -> None:
        message: bytes | None
        if fragment[:1] == WHOLE and len(fragment) <= self.assembly.limits.message_bytes:
            message = fragment[1:]  # fast path: most messages are one datagram
        else:
            message = self.assembly.take(fragment, sender, self._clock.steady_ns() / 1e6)
        if message is not None and self._handler is not None:
            self.counters.received += 1
            self._handler(message, sender)

    def _learn_name(self, member: Address) -> bytes:
        if len(self._names) >= _MOST_SENDERS:
            self._names.clear()
        name = self._names[member] = receiver_name(member)
        return name

    def _meet(self, address: Address, origin: DatagramOrigin) -> _Peer:
        """Handles a new process or key at an address."""
        before = self._heard.get(address)
        if before is not None and (before.origin.kind, origin.kind) == ("network", "client"):
            # A client can forge a member's address; messages for the member would then be sealed
            # with the client's key. The datagram is accepted, but not answered there.
            return _Peer(Sender(address, origin.identity, origin.kind), origin, None)
        if len(self._heard) >= _MOST_SENDERS and address not in self._heard:
            del self._heard[next(iter(self._heard))]
        sender = Sender(address, origin.identity, origin.kind)
        answer_with = origin.key if origin.kind == "client" else None
        peer = self._heard[address] = _Peer(sender, origin, answer_with)
        return peer

    def _report_keyless(self, error: Unavailable) -> None:
        self.counters.keyless += 1
        if self._may_log():
            _log.error("nothing can be sent", error=error.message, hint=error.hint)

    def _report_stale(self, stale: int) -> None:
        self._stale = stale
        if self._may_log():
            hint = "do the clocks of this machine and of those that send differ?"
            _log.warning("datagrams are too old or from the future", so_far=stale, hint=hint)

    def _may_log(self) -> bool:
        """Limits log entries to one a minute, because anybody may send datagrams."""
        now_ms = self._clock.steady_ns() / 1e6
        if self._logged_ms is not None and now_ms < self._logged_ms + _LOG_PERIOD_MS:
            return False
        self._logged_ms = now_ms
        return True


EndpointWrapper = Callable[[Endpoint], Endpoint]
"""Wraps an endpoint; tests use it to lose and delay datagrams."""


def direct_link(endpoint: Endpoint) -> Endpoint:
    return endpoint


def check_sealed(
    addresses: Iterable[Address], *, has_keys: bool, code: str = "transport.no_keys", hint: str = ""
) -> None:
    """Raises InvalidInput for an address other than loopback without keys."""
    if has_keys:
        return
    for address in addresses:
        if not is_loopback(address):
            raise InvalidInput(
                f"{format_address(address)} is reached over a network, and there are no keys",
                code=code,
                hint=hint or "give keys; without them only addresses of this machine are used",
            )


async def open_station(
    listen: Address,
    keys: DatagramKeys | None,
    clock: Clock,
    *,
    link: EndpointWrapper = direct_link,
    group: MulticastGroup | None = None,
) -> Station:
    """Opens a station on UDP; the caller has applied `check_sealed`. Raises Unavailable if the
    address cannot be opened.
    """
    endpoint = link(await UdpEndpoint.open(*listen, group=group))
    if keys is None:
        return Station(endpoint, clock=clock)
    try:
        return Station.sealed(endpoint, keys, clock=clock)
    except InvalidInput:
        await endpoint.close()
        raise
