"""A grouper's registers: the groupers that it knows, and the members of groups. [EN-7]

There are two rings. The ring of all groupers names those that register a group's members. The ring
of *settled* groupers, which have been up long enough to hear every member, names the one that
publishes the table. So a grouper that joins disturbs no table, and when one dies the next one has
been registering the same members already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rapport.ensemble.grouping.group_tables import (
    GroupingSettings,
    TableEntry,
)
from rapport.ensemble.trace import address_text
from rapport.kernel.clock import Now
from rapport.overlay.hash_ring import HashRing
from rapport.transport.base import Address

_REMEMBERED_GROUPS = 8_192


class _Other:
    __slots__ = ("heard_ms", "since_ms")

    def __init__(self, since_ms: float, heard_ms: float) -> None:
        self.since_ms, self.heard_ms = since_ms, heard_ms


class KnownGroupers:
    """The known groupers, including this one. Groupers with the same knowledge agree on every
    group.
    """

    def __init__(self, own: Address, settings: GroupingSettings, now: Now) -> None:
        self._own, self._settings = own, settings
        self._since_ms = now.steady_ms
        self._others: dict[Address, _Other] = {}
        self._addresses = {address_text(own): own}
        self._all = HashRing(self._addresses)
        self._settled = HashRing(self._addresses)
        self._registrars: dict[str, tuple[Address, ...]] = {}

    def __len__(self) -> int:
        """The number of groupers, including this one."""
        return len(self._addresses)

    def __contains__(self, address: object) -> bool:
        return address in self._others

    def others(self) -> list[Address]:
        """All but this one, in the order of meeting."""
        return list(self._others)

    def announced(self, address: Address, up_ms: float, now: Now) -> bool:
        """Registers an announcement of a grouper; false if there is no room for it."""
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

    def mark_alive(self, address: Address, now: Now) -> None:
        if (other := self._others.get(address)) is not None:
            other.heard_ms = now.steady_ms

    def gone(self, address: Address) -> bool:
        """Removes a grouper; false if it was not known."""
        if self._others.pop(address, None) is None:
            return False
        name = address_text(address)
        del self._addresses[name]
        self._all.remove(name)
        self._settled.remove(name)
        self._registrars.clear()
        return True

    def drop_silent(self, now: Now) -> list[Address]:
        """Forgets groupers that did not announce themselves for too long, and returns them."""
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
        """The groupers that register the members of a group, the publisher of its table first."""
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
        """The publisher of a group's table; at least this grouper."""
        return self.registrars(group)[0]

    def next_hop(self, group: str) -> Address:
        """The next grouper for knowledge that this one does not register."""
        return self.publisher(group) if self._settings.route == "direct" else self.successor()

    def successor(self) -> Address:
        """The next grouper in the ring of all, in the order of their addresses."""
        ring = sorted(self._addresses.values())
        return ring[(ring.index(self._own) + 1) % len(ring)]


class _Member:
    __slots__ = ("address", "groups", "heard_ms", "times", "version")

    def __init__(self, address: Address, version: int, heard_ms: float) -> None:
        self.address, self.version, self.heard_ms = address, version, heard_ms
        self.groups: tuple[str, ...] = ()
        self.times = 1


class MemberRegister:
    """The members of groups: components, and the addresses of their nodes.

    A member is renewed by newer versions only, so that nobody is kept alive by copies of what it
    once said. Memory is bounded by the settings; hearing one costs about 1 us.
    """

    def __init__(self, settings: GroupingSettings) -> None:
        self._settings = settings
        self._members: dict[str, _Member] = {}
        self._groups: dict[str, set[str]] = {}
        self._on_node: Counter[Address] = Counter()
        self.refused = 0
        """Refused registrations: too many members, or another node claims the component."""

    def __len__(self) -> int:
        return len(self._members)

    def groups(self) -> list[str]:
        """The groups that have a member."""
        return list(self._groups)

    def nodes(self) -> list[Address]:
        """Where the members live, each node once."""
        return list(self._on_node)

    def __contains__(self, component: object) -> bool:
        return component in self._members

    def update(
        self, component: str, version: int, address: Address, groups: Iterable[str], now: Now
    ) -> bool:
        """The component is in these groups of ours, and in no others; false when nothing is new.

        While a component is registered its address stays: who takes its name gets no messages.
        """
        member, wanted = self._members.get(component), tuple(dict.fromkeys(groups))
        if member is None:
            return self._register(component, version, address, wanted, now)
        if version <= member.version:
            return False
        if address != member.address:
            self.refused += 1
            return False
        member.version, member.heard_ms, member.times = version, now.steady_ms, member.times + 1
        self._put(component, member, wanted)
        return True

    def times_heard(self, component: str) -> int:
        """How often a component was received in its current groups; 0 if it is not registered."""
        member = self._members.get(component)
        return 0 if member is None else member.times

    def gone(self, address: Address) -> None:
        """The node there is known to be dead. Costs a look at every member."""
        dead = [name for name, member in self._members.items() if member.address == address]
        for component in dead:
            self._put(component, self._members[component], ())

    def drop_silent(self, now: Now) -> None:
        """Forgets members that were not received for too long."""
        oldest_ms = now.steady_ms - self._settings.member_ms
        silent = [name for name, one in self._members.items() if one.heard_ms <= oldest_ms]
        for component in silent:
            self._put(component, self._members[component], ())

    def entries(self, group: str, now: Now) -> list[TableEntry]:
        """The table of a group: each node once, with the age of its youngest component."""
        heard_ms: dict[Address, float] = {}
        for component in self._groups.get(group, ()):
            member = self._members[component]
            before_ms = heard_ms.get(member.address, member.heard_ms)
            heard_ms[member.address] = max(member.heard_ms, before_ms)
        return [
            TableEntry(host, port, max(0, int(now.steady_ms - heard)))
            for (host, port), heard in sorted(heard_ms.items())
        ]

    def _register(
        self, component: str, version: int, address: Address, groups: tuple[str, ...], now: Now
    ) -> bool:
        if not groups:
            return False
        is_full = len(self._members) >= self._settings.members
        if is_full or self._on_node[address] >= self._settings.node_members:
            self.refused += 1
            return False
        member = self._members[component] = _Member(address, version, now.steady_ms)
        self._on_node[address] += 1
        self._put(component, member, groups)
        return component in self._members

    def _put(self, component: str, member: _Member, groups: tuple[str, ...]) -> None:
        """Makes these its groups; without any it is forgotten."""
        if groups == member.groups and groups:
            return
        member.times = 1
        for group in member.groups:
            if group not in groups:
                self._groups[group].discard(component)
                if not self._groups[group]:
                    del self._groups[group]
        member.groups = tuple(group for group in groups if self._joins(component, group))
        if not member.groups:
            del self._members[component]
            self._on_node[member.address] -= 1
            if not self._on_node[member.address]:
                del self._on_node[member.address]

    def _joins(self, component: str, group: str) -> bool:
        present = self._groups.setdefault(group, set())
        if len(present) >= self._settings.group_members and component not in present:
            self.refused += 1
            return False
        present.add(component)
        return True
