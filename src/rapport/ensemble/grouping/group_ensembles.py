"""Groupers and their clients as components, and the ensemble between them. [EN-7]

Section 6.3 of the source, but the ensemble is evaluated when the knowledge of the other side
arrives instead of every so often: only then is it known who sent it.
"""

from __future__ import annotations

from collections.abc import Collection

from rapport.ensemble.grouping.group_register import KnownGroupers, MemberRegister
from rapport.ensemble.grouping.group_tables import GroupPeers, GroupTable
from rapport.ensemble.model.component import Component
from rapport.ensemble.model.ensemble import Ensemble
from rapport.ensemble.model.role import Local, Role
from rapport.ensemble.protocol import PublishedKnowledge
from rapport.kernel.clock import Now
from rapport.transport.base import Address


class Grouping(Role):
    """Keeps the tables of groups."""

    def keeps(self, group: str) -> bool:
        """Whether it registers the members of a group."""
        raise NotImplementedError

    def hear(self, member: Grouped) -> None:
        """Puts the member into its tables."""
        raise NotImplementedError


class Grouped(Role):
    """Lives in groups and knows its peers there."""

    groups: Local[Collection[str]] = frozenset()

    def join(self, grouper: Grouping) -> None:
        """Takes the grouper's table as its peers."""
        raise NotImplementedError


class Grouper(Component, Grouping):
    """A grouper. Its tables are not published with its other knowledge, but one by one to the
    members of each (rules 15 and 16).
    """

    address: Address
    register: Local[MemberRegister]
    others: Local[KnownGroupers]

    def keeps(self, group: str) -> bool:
        return self.address in self.others.registrars(group)

    def hear(self, member: Grouped) -> None:
        if isinstance(member, HeardClient):
            message = member.message
            groups = [group for group in member.groups if self.keeps(group)]
            self.register.update(
                message.component, message.version, member.address, groups, member.now
            )


class GrouperClient(Component, Grouped):
    """What a node in groups knows of them."""

    peers: Local[GroupPeers]

    def join(self, grouper: Grouping) -> None:
        if isinstance(grouper, HeardGrouper):
            self.peers.apply(grouper.table, grouper.address, grouper.version, grouper.now)


class HeardClient(Grouped):
    """What a grouper sees of a client: knowledge of one of its components."""

    def __init__(
        self, message: PublishedKnowledge, groups: Collection[str], address: Address, now: Now
    ) -> None:
        self.message, self.groups, self.address, self.now = message, groups, address, now

    def join(self, grouper: Grouping) -> None:
        """Nothing: it is another node's to change."""


class HeardGrouper(Grouping):
    """What a client sees of a grouper: one page of one table."""

    def __init__(self, table: GroupTable, address: Address, version: int, now: Now) -> None:
        self.table, self.address, self.version, self.now = table, address, version, now

    def keeps(self, group: str) -> bool:
        return group == self.table.group

    def hear(self, member: Grouped) -> None:
        """Nothing: it is another node's to change."""


class GroupJoin(Ensemble, every="5 s"):
    """A grouper and the clients in its groups: it registers them, they take its tables. On each
    node only the one that lives there is changed.
    """

    coordinator: Grouping
    member: Grouped

    def membership(coordinator: Grouping, member: Grouped) -> bool:  # type: ignore[misc]
        return any(coordinator.keeps(group) for group in member.groups)

    def exchange(coordinator: Grouping, member: Grouped) -> None:  # type: ignore[misc]
        coordinator.hear(member)
        member.join(coordinator)
