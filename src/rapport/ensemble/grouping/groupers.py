"""The groupers that one grouper knows, and who of them is responsible for a group. [EN-7]

Two rings. Members are registered by those whom the ring of all groupers names; tables are
published by the one whom the ring of the *settled* groupers names, those who have been there long
enough to have heard every member. So a grouper that joins disturbs no table, and where one dies
the next one has been registering the same members already.
"""

from __future__ import annotations

from rapport.ensemble.grouping.settings import GroupingSettings
from rapport.ensemble.trace import address_text
from rapport.kernel.clock import Now
from rapport.overlay.hash_ring import HashRing
from rapport.transport.base import Address

_REMEMBERED_GROUPS = 8_192


class _Other:
    __slots__ = ("heard_ms", "since_ms")

    def __init__(self, since_ms: float, heard_ms: float) -> None:
        self.since_ms, self.heard_ms = since_ms, heard_ms


class Groupers:
    """The known groupers, this one among them. All who know the same agree on every group."""

    def __init__(self, own: Address, settings: GroupingSettings, now: Now) -> None:
        self._own, self._settings = own, settings
        self._since_ms = now.steady_ms
        self._others: dict[Address, _Other] = {}
        self._addresses = {address_text(own): own}
        self._all = HashRing(self._addresses)
        self._settled = HashRing(self._addresses)
        self._registrars: dict[str, tuple[Address, ...]] = {}

    def __len__(self) -> int:
        """How many there are, with this one."""
        return len(self._addresses)

    def __contains__(self, address: object) -> bool:
        return address in self._others

    def others(self) -> list[Address]:
        """All but this one, in the order of meeting."""
        return list(self._others)

    def announced(self, address: Address, up_ms: float, now: Now) -> bool:
        """A grouper says that it is there; false when there is no room for it."""
        since_ms = now.steady_ms - up_ms
        other = self._others.get(address)
        if other is not None:
            other.heard_ms = now.steady_ms
            # A restart, not the jitter of the network.
            if since_ms > other.since_ms + self._settings.announcing_ms:
                other.since_ms = since_ms
                self.settle(now)
            return True
        if address == self._own or len(self._others) >= self._settings.groupers:
            return False
        self._others[address] = _Other(since_ms, now.steady_ms)
        self._addresses[address_text(address)] = address
        self._all.add(address_text(address))
        self._registrars.clear()
        self.settle(now)
        return True

    def heard(self, address: Address, now: Now) -> None:
        """Somebody else found out that it is alive."""
        if (other := self._others.get(address)) is not None:
            other.heard_ms = now.steady_ms

    def gone(self, address: Address) -> bool:
        """It left or died; false when it was not known."""
        if self._others.pop(address, None) is None:
            return False
        name = address_text(address)
        del self._addresses[name]
        self._all.remove(name)
        self._settled.remove(name)
        self._registrars.clear()
        return True

    def drop_silent(self, now: Now) -> list[Address]:
        """Forgets who did not announce itself for too long, and says who that is."""
        oldest_ms = now.steady_ms - self._settings.grouper_ms
        silent = [address for address, one in self._others.items() if one.heard_ms <= oldest_ms]
        for address in silent:
            self.gone(address)
        return silent

    def settle(self, now: Now) -> None:
        """Looks who may publish tables from now on: those who have been there long enough, and
        those who came when nobody had been.
        """
        sinces = {address: one.since_ms for address, one in self._others.items()}
        sinces[self._own] = self._since_ms
        founded_ms = min(sinces.values()) + self._settings.period_ms
        latest_ms = max(now.steady_ms - self._settings.settling_ms, founded_ms)
        for address, since_ms in sinces.items():
            name = address_text(address)
            change = self._settled.add if since_ms <= latest_ms else self._settled.remove
            if change(name):
                self._registrars.clear()

    def registrars(self, group: str) -> tuple[Address, ...]:
        """Who has to hear the members of a group: the one who publishes its table comes first."""
        known = self._registrars.get(group)
        if known is None:
            copies = self._settings.copies
            names = [*self._settled.owners(group, copies), *self._all.owners(group, copies)]
            known = tuple(self._addresses[name] for name in dict.fromkeys(names))
            if len(self._registrars) >= _REMEMBERED_GROUPS:
                self._registrars.clear()
            self._registrars[group] = known
        return known

    def publisher(self, group: str) -> Address:
        """Who publishes the table of a group. There always is one: at least this grouper."""
        return self.registrars(group)[0]

    def next_hop(self, group: str) -> Address:
        """Whom knowledge goes to that this grouper does not register."""
        return self.publisher(group) if self._settings.route == "direct" else self.successor()

    def successor(self) -> Address:
        """The next grouper in the ring of all, in the order of their addresses."""
        ring = sorted(self._addresses.values())
        return ring[(ring.index(self._own) + 1) % len(ring)]
