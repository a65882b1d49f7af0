"""Messages over an endpoint: cut into fragments, each sealed; and back. [CX-2, CX-9, EN-4]"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from rapport.core.errors import InvalidInput, Unavailable
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.transport.addresses import format_address, ip_of
from rapport.transport.base import Address, Endpoint, Sender
from rapport.transport.delivery import check_size
from rapport.transport.fragments import WHOLE, Assembly, AssemblyLimits, split
from rapport.transport.framing import OVERHEAD_BYTES, RUN_BYTES, Seal, receiver_name
from rapport.transport.keys import DatagramKey, DatagramKeys
from rapport.transport.unsealing import Origin, Unseal

MessageHandler = Callable[[bytes, Sender], None]

_log = get_logger(__name__)
_MOST_SENDERS = 65_536
_COMPLAIN_MS = 60_000


@dataclass(slots=True)
class StationCounters:
    """What a station did; only ever growing. The parts have more: endpoint, unseal, assembly."""

    sent: int = 0
    received: int = 0
    keyless: int = 0
    """Not sent: no key is valid."""


class _Heard(NamedTuple):
    """Who was heard last from an address, and the key to answer with, if not our own."""

    sender: Sender
    origin: Origin
    answer_with: DatagramKey | None


class Station:
    """Sends and receives messages up to `limits.message_bytes`; best effort, as its endpoint.

    A member answers a client with the key that the client used last from that address, so that a
    client needs no other key than its own; not at an address where a member was heard. Lives on one
    loop.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        clock: Clock,
        seal: Seal | None = None,
        unseal: Unseal | None = None,
        limits: AssemblyLimits | None = None,
    ) -> None:
        """Without `seal` and `unseal` anybody is heard, as a member without a name."""
        self.endpoint, self.address = endpoint, endpoint.address
        self.counters = StationCounters()
        self.assembly = Assembly(limits)
        self.unseal = unseal
        self._clock, self._seal = clock, seal
        self._fragment_bytes = endpoint.max_datagram - (OVERHEAD_BYTES if seal else 0)
        self._whole_bytes = min(self._fragment_bytes - 1, self.assembly.limits.message_bytes)
        self._number = secrets.randbits(32)
        self._heard: dict[Address, _Heard] = {}
        self._names: dict[Address, bytes] = {}
        """Of members: what is sealed for them."""
        self._own_name = receiver_name(self.address) if seal and seal.keys.is_member else None
        self._handler: MessageHandler | None = None
        self._stale = 0
        self._complained_ms: float | None = None

    @staticmethod
    def sealed(
        endpoint: Endpoint,
        keys: DatagramKeys,
        *,
        clock: Clock,
        limits: AssemblyLimits | None = None,
    ) -> Station:
        """A station that hears nobody without a key of the ring, and nothing sealed before now.

        Raises InvalidInput for a member without an address of its own: nothing could be sealed for
        it.
        """
        own = ip_of(endpoint.address[0])
        if keys.is_member and own is not None and own.is_unspecified:
            raise InvalidInput(
                f"{format_address(endpoint.address)} is every address of this machine",
                code="transport.bad_address",
                hint="a member of a network listens on the address by which the others reach it",
            )
        seal = Seal(keys, secrets.token_bytes(RUN_BYTES))
        unseal = Unseal(keys, since_ms=clock.now_ms(), own=seal)
        return Station(endpoint, clock=clock, seal=seal, unseal=unseal, limits=limits)

    def send(self, message: bytes, to: Address) -> None:
        """Towards one address; raises TooLarge, never for who is at the other end."""
        heard = self._heard.get(to)
        key = heard.answer_with if heard is not None else None
        if len(message) <= self._whole_bytes:
            datagram = self._sealed(WHOLE + message, key, to)
            if datagram is not None:
                self.endpoint.send(datagram, to)
        else:
            for datagram in self._datagrams(message, key, to):
                self.endpoint.send(datagram, to)
        self.counters.sent += 1

    def broadcast(self, message: bytes) -> None:
        """To all in range that hold our key; raises Unsupported where the medium cannot."""
        for datagram in self._datagrams(message, None, None):
            self.endpoint.broadcast(datagram)
        self.counters.sent += 1

    def receive(self, handler: MessageHandler) -> None:
        """Calls the handler for each message from now on; a second call replaces the first."""
        self._handler = handler
        self.endpoint.receive(self._take)

    async def close(self) -> None:
        """Closes the endpoint."""
        await self.endpoint.close()

    def _datagrams(
        self, message: bytes, key: DatagramKey | None, to: Address | None
    ) -> list[bytes]:
        check_size(message, self.assembly.limits.message_bytes)
        self._number += 1
        fragments = split(message, self._fragment_bytes, self._number)
        sealed = [self._sealed(fragment, key, to) for fragment in fragments]
        return [datagram for datagram in sealed if datagram is not None]

    def _sealed(self, fragment: bytes, key: DatagramKey | None, to: Address | None) -> bytes | None:
        """The datagram, to one or to all; none when no key is valid, as sending never fails for
        what may pass.
        """
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
            self._tell_keyless(error)
            return None

    def _take(self, datagram: bytes, address: Address) -> None:
        if self.unseal is None:
            self._hand_over(datagram, Sender(address))
            return
        opened = self.unseal.open(datagram, self._clock.now_ms(), self._own_name)
        if opened is None:
            if self.unseal.counters.stale > self._stale:
                self._tell_stale(self.unseal.counters.stale)
            return
        fragment, origin = opened
        heard = self._heard.get(address)
        if heard is None or heard.origin is not origin:
            heard = self._meet(address, origin)
        self._hand_over(fragment, heard.sender)

    def _hand_over(self, fragment: bytes, sender: Sender) -> None:
        message: bytes | None
        if fragment[:1] == WHOLE and len(fragment) <= self.assembly.limits.message_bytes:
            message = fragment[1:]  # most are whole: neither clock nor assembly is asked
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

    def _meet(self, address: Address, origin: Origin) -> _Heard:
        """Another process, or another key, speaks from the address."""
        before = self._heard.get(address)
        if before is not None and (before.origin.kind, origin.kind) == ("network", "client"):
            # Anybody can write any address on a datagram: what is for a member would be sealed with
            # the client's key, for the client to read. It is heard, and not answered there.
            return _Heard(Sender(address, origin.identity, origin.kind), origin, None)
        if len(self._heard) >= _MOST_SENDERS and address not in self._heard:
            del self._heard[next(iter(self._heard))]
        sender = Sender(address, origin.identity, origin.kind)
        answer_with = origin.key if origin.kind == "client" else None
        heard = self._heard[address] = _Heard(sender, origin, answer_with)
        return heard

    def _tell_keyless(self, error: Unavailable) -> None:
        self.counters.keyless += 1
        if self._may_complain():
            _log.error("nothing can be sent", error=error.message, hint=error.hint)

    def _tell_stale(self, stale: int) -> None:
        self._stale = stale
        if self._may_complain():
            hint = "do the clocks of this machine and of those that send differ?"
            _log.warning("datagrams are too old or from the future", so_far=stale, hint=hint)

    def _may_complain(self) -> bool:
        """At most once a minute, as anybody may send anything."""
        now_ms = self._clock.steady_ns() / 1e6
        if self._complained_ms is not None and now_ms < self._complained_ms + _COMPLAIN_MS:
            return False
        self._complained_ms = now_ms
        return True
