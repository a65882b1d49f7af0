"""Who is in which group, as one grouper heard it. [EN-7]"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rapport.ensemble.grouping.settings import GroupingSettings
from rapport.ensemble.grouping.table import Entry
from rapport.kernel.clock import Now
from rapport.transport.base import Address


class _Member:
    __slots__ = ("address", "groups", "heard_ms", "times", "version")

    def __init__(self, address: Address, version: int, heard_ms: float) -> None:
        self.address, self.version, self.heard_ms = address, version, heard_ms
        self.groups: tuple[str, ...] = ()
        self.times = 1


class Register:
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
        """How many were not registered: too many, or another node says to host the component."""

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

    def heard(
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
        """How often a component was heard in the groups it is in; 0: it is not registered."""
        member = self._members.get(component)
        return 0 if member is None else member.times

    def gone(self, address: Address) -> None:
        """The node there is known to be dead. Costs a look at every member."""
        dead = [name for name, member in self._members.items() if member.address == address]
        for component in dead:
            self._put(component, self._members[component], ())

    def drop_silent(self, now: Now) -> None:
        """Forgets who was not heard for too long."""
        oldest_ms = now.steady_ms - self._settings.member_ms
        silent = [name for name, one in self._members.items() if one.heard_ms <= oldest_ms]
        for component in silent:
            self._put(component, self._members[component], ())

    def entries(self, group: str, now: Now) -> list[Entry]:
        """The table of a group: each node once, with the age of its youngest component."""
        heard_ms: dict[Address, float] = {}
        for component in self._groups.get(group, ()):
            member = self._members[component]
            before_ms = heard_ms.get(member.address, member.heard_ms)
            heard_ms[member.address] = max(member.heard_ms, before_ms)
        return [
            Entry(host, port, max(0, int(now.steady_ms - heard)))
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
