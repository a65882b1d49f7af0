"""Who is at the other end as far as the site says, and how much of it is heard. [CX-2, CX-9]"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_network

from rapport.core.errors import InvalidInput
from rapport.transport.addresses import ip_of
from rapport.transport.base import Address, Now

_MOST_HOSTS = 4_096


class Hosts:
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


class Caller:
    """Who sent a datagram. `room` is how many bytes it may still be told: none is no limit, for
    who is named by the site; else what it sent.
    """

    __slots__ = ("address", "room")

    def __init__(self, address: Address, room: int | None) -> None:
        self.address, self.room = address, room

    @property
    def is_named(self) -> bool:
        """Whether the site names its host."""
        return self.room is None

    def takes(self, size: int) -> bool:
        """Whether so many bytes may be told; if so they are counted."""
        if self.room is None:
            return True
        if size > self.room:
            return False
        self.room -= size
        return True


class Pace:
    """So many a second for each host, twice as many at once. Remembers a bounded number of hosts;
    a forgotten one starts anew.
    """

    def __init__(self, per_second: float) -> None:
        self._per_ms = per_second / 1_000
        self._most = max(2 * per_second, 1.0)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def takes(self, host: str, now: Now) -> bool:
        """Whether one more from this host is heard."""
        left, at = self._left.pop(host, (self._most, now.steady_ms))
        left = min(left + (now.steady_ms - at) * self._per_ms, self._most)
        taken = left >= 1
        self._left[host] = (left - 1 if taken else left, now.steady_ms)
        if len(self._left) > _MOST_HOSTS:
            self._left.popitem(last=False)
        return taken
