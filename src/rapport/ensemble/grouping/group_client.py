"""A node in groups: the recipients of its components' knowledge. [EN-5, EN-7]

The node publishes to the members of its components' groups and to their groupers. It never passes
on knowledge of others, because the members receive it from its source. Knowledge without a group
goes to members of any group that the node is in, and to groupers, which gossip it. Tables are
accepted only from groupers that are configured, known to the membership, or introduced by a
trusted grouper.

A table is a list of addresses to send to, so a forged table could direct a flood at a victim. The
defence: a publication goes to at most `recipients` nodes, and to an address that never spoke to
this node only `tries` times, then once in twelve periods. Groupers list only addresses that
knowledge really came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rapport.ensemble.grouping.group_ensembles import GrouperClient, GroupJoin, HeardGrouper
from rapport.ensemble.grouping.group_tables import (
    GROUPER,
    TABLE,
    GroupingSettings,
    GroupPeers,
    GroupTable,
    read_table,
)
from rapport.ensemble.protocol import OutgoingMessage, PublishedKnowledge
from rapport.ensemble.trace import IP, Kind, TraceEvent, Tracing, address_text
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Address, Sender

_REMEMBERED = 4_096
"""Addresses that spoke, or did not answer yet."""
_ASKED = 2
"""Further groupers that get a publication while a group's table is missing."""
_AGAIN = 12
"""Periods after which one that did not answer is tried once more: there may have been no way."""

GroupsOf = Callable[[str], Sequence[str]]
"""The groups of a component, by its id; none for one that is not there."""


def is_of_groupers(message: PublishedKnowledge) -> bool:
    """Whether a message is a table or an announcement: not for replicas and gossip."""
    roles = message.roles
    return len(roles) == 1 and (roles[0] == TABLE or roles[0] == GROUPER)


class _Tried(NamedTuple):
    """How often an address was sent to without an answer, and when last."""

    times: int = 0
    last_ms: float = float("-inf")


class GroupClient:
    """The recipients of one node's knowledge, by the groups that it is in.

    Pure and bounded. What is no table costs 0.5 us, a table of 20 members 10 us, `to_publish` about
    1 us for each recipient.
    """

    def __init__(
        self,
        node: str,
        address: Address,
        chance: Chance,
        settings: GroupingSettings | None = None,
        *,
        groupers: Iterable[Address],
        groups_of: GroupsOf,
        trace: Tracing | None = None,
    ) -> None:
        """`groupers`: well-known ones; one that is alive is enough, here or in the membership."""
        self.settings = settings or GroupingSettings()
        self.peers = GroupPeers(self.settings)
        self.outbox: list[OutgoingMessage] = []
        self.component = GrouperClient(id=f"group-client/{address_text(address)}", peers=self.peers)
        self.refused = 0
        """Refused tables: of an untrusted sender, of other groups, or invalid."""
        self._node, self._address, self._chance = node, address, chance
        self._groups_of, self._trace = groups_of, trace
        self._well_known = tuple(dict.fromkeys(groupers))
        self._members: tuple[Address, ...] = ()
        self._introduced: dict[Address, None] = {}
        self._published: set[str] = set()
        self._spoke: dict[Address, None] = {}
        self._tried: dict[Address, _Tried] = {}
        self._turn = 0

    def received(self, message: PublishedKnowledge, sender: Sender, now: Now) -> None:
        """Handles knowledge over IP: applies a table; other senders become known as alive."""
        if not is_of_groupers(message):
            self.spoke(sender.address)
        elif message.roles[0] == TABLE:
            self._take(message, sender.address, now)

    def spoke(self, address: Address) -> None:
        """The address sent knowledge to this node, so this node may send to it."""
        if address not in self._spoke:
            if len(self._spoke) >= _REMEMBERED:
                del self._spoke[next(iter(self._spoke))]
            self._spoke[address] = None
            self._tried.pop(address, None)

    def tick(self, now: Now) -> None:
        """Does nothing: clients send only their components' knowledge."""

    def next_due_ms(self) -> float | None:
        """Nothing is ever due."""
        return None

    def leave(self, now: Now) -> None:
        """Does nothing: groupers forget silent clients."""

    def mark_alive(self, address: Address, now: Now) -> None:
        """Does nothing: the groupers' tables list the members."""

    def gone(self, address: Address) -> None:
        """The node there is known to be dead; it is sent nothing until a table names it again."""
        self.peers.gone(address)
        self._spoke.pop(address, None)

    def trusts(self, address: Address) -> bool:
        """Whether tables of this grouper are accepted."""
        return (
            address in self._introduced or address in self._well_known or address in self._members
        )

    def know_groupers(self, addresses: Sequence[Address]) -> None:
        """The membership knows these groupers to be alive, and no others."""
        self._members = tuple(addresses)[: self.settings.groupers]

    def introduce(self, groupers: Iterable[Address]) -> None:
        """These are groupers, too; of many the last ones are remembered."""
        for address in groupers:
            self._introduced.pop(address, None)
            self._introduced[address] = None
        while len(self._introduced) > self.settings.groupers:
            del self._introduced[next(iter(self._introduced))]

    def to_publish(self, component: str, now: Now) -> list[Address]:
        """Where the component's knowledge goes now: groupers, then members of its groups, or of
        any group if it has none. For no component (headers, pulls): members of any group.
        """
        if not component:
            return self._drawn(self._members_of(self.peers.groups(), now), 0)
        groups = self.groups_of(component)
        groupers = dict.fromkeys(self._groupers_left(component, groups, now))
        for group in groups:
            groupers.update(dict.fromkeys(self._groupers_for(group, now)))
        if not groups:
            groupers.update(dict.fromkeys(self._some_groupers(())))
            groups = tuple(self.peers.groups())
        groupers.pop(self._address, None)
        members = [one for one in self._members_of(groups, now) if one not in groupers]
        chosen = self._drawn(members, len(groupers))
        self._count_tries(chosen, now)
        return [*groupers, *chosen]

    def to_pass_on(self, message: PublishedKnowledge, now: Now) -> list[Address]:
        """No recipients: members of the group receive it from its source."""
        return []

    def groups_of(self, component: str) -> tuple[str, ...]:
        """The groups of a component of this node, as many as are heeded."""
        return tuple(self._groups_of(component))[: self.settings.groups_per_component]

    def _groupers_for(self, group: str, now: Now) -> Sequence[Address]:
        """The groupers of the group; while no table arrives, two other groupers as well, different
        ones each time, because one of them may be dead.
        """
        known = self.peers.groupers(group, now)
        if known and self.peers.is_fresh(group, now):
            return known
        return (*known, *self._some_groupers(known))

    def _some_groupers(self, known: Sequence[Address]) -> list[Address]:
        """Two others than these, each time the next ones."""
        others = dict.fromkeys((*self._members, *self._well_known, *self._introduced))
        unknown = [one for one in others if one not in known and one != self._address]
        turn, self._turn = self._turn, self._turn + _ASKED
        return [unknown[(turn + step) % len(unknown)] for step in range(_ASKED) if unknown]

    def _groupers_left(self, component: str, groups: Sequence[str], now: Now) -> list[Address]:
        """The groupers of groups that no component is in any more; they get this publication."""
        self._published.add(component)
        present = set(groups)
        for other in self._published - {component}:
            own = self.groups_of(other)
            present.update(own)
            if not own:
                self._published.discard(other)
        self.component.groups = frozenset(present)
        left = [group for group in self.peers.groups() if group not in present]
        return [grouper for group in left for grouper in self.peers.leave(group, now)]

    def _members_of(self, groups: Iterable[str], now: Now) -> list[Address]:
        """All members of the groups that may be spoken to, without this node."""
        found: dict[Address, None] = {}
        for group in groups:
            found.update(dict.fromkeys(self.peers.members(group, now)))
        found.pop(self._address, None)
        spoke = self._spoke
        return [one for one in found if one in spoke or self._may_be_tried(one, now)]

    def _may_be_tried(self, address: Address, now: Now) -> bool:
        """Whether to send to an address that never sent anything. Both sides may have tried while
        there was no connection, so a rare try always remains.
        """
        tried = self._tried.get(address)
        if tried is None or tried.times < self.settings.tries:
            return True
        return now.steady_ms >= tried.last_ms + _AGAIN * self.settings.period_ms

    def _drawn(self, members: list[Address], taken: int) -> list[Address]:
        """As many of them as may be sent to, drawn at random if these are not all."""
        room = max(self.settings.recipients - taken, 0)
        fan_out = self.settings.fan_out
        wanted = room if fan_out is None else min(fan_out, room)
        return members if len(members) <= wanted else self._chance.sample(members, wanted)

    def _count_tries(self, chosen: Iterable[Address], now: Now) -> None:
        for address in chosen:
            if address not in self._spoke:
                if address not in self._tried and len(self._tried) >= _REMEMBERED:
                    del self._tried[next(iter(self._tried))]
                times = self._tried.get(address, _Tried()).times
                self._tried[address] = _Tried(times + 1, now.steady_ms)

    def _take(self, message: PublishedKnowledge, sender: Address, now: Now) -> None:
        table = read_table(message) if self.trusts(sender) else None
        if table is None or message.address != sender:
            self.refused += 1
            return
        grouper = HeardGrouper(table, sender, message.version, now)
        if not GroupJoin.membership(grouper, self.component):
            self.refused += 1
            return
        self.introduce(table.groupers)
        before = self.peers.applied
        GroupJoin.exchange(grouper, self.component)
        if self._trace is not None and self.peers.applied > before:
            self._trace(traced(Kind.TABLE_APPLIED, self._node, message.node, message, table, now))


def traced(
    kind: Kind, node: str, other: str, message: PublishedKnowledge, table: GroupTable, now: Now
) -> TraceEvent:
    """The trace event of a page of a table."""
    return TraceEvent(
        now.steady_ms,
        now.wall_ms,
        kind,
        node,
        component=message.component,
        version=message.version,
        other=other,
        detail=table.group,
        medium=IP,
        value=message.version,
        entries=tuple((address_text(entry.address), 0) for entry in table.members),
    )
