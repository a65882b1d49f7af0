"""A node that is a grouper: registers members, publishes tables, forwards other groups' knowledge.
[EN-7]

Every grouper announces itself to the others and names some of those it knows, so one well-known
address is enough to join. Knowledge of a group that a grouper does not keep goes to the next
grouper, each version once, so it ends after as many hops as there are groupers. The sender learns
which groupers keep the group and uses them from then on.

Members are registered with the address that their knowledge came from, or that another grouper
received it from, so no node can enter a third address into a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rapport.ensemble.grouping.group_client import GroupClient, GroupsOf, is_of_groupers, traced
from rapport.ensemble.grouping.group_ensembles import (
    Grouper,
    GroupJoin,
    HeardClient,
)
from rapport.ensemble.grouping.group_register import KnownGroupers, MemberRegister
from rapport.ensemble.grouping.group_tables import (
    GROUPER,
    GROUPERS,
    TABLE,
    Announcement,
    GroupingSettings,
    GroupTable,
    TableEntry,
    component_of,
    encode_body,
    read_announcement,
    split,
    table_component,
)
from rapport.ensemble.protocol import OutgoingMessage, PublishedKnowledge
from rapport.ensemble.trace import Kind, TraceEvent, Tracing, address_text
from rapport.kernel.clock import Chance, Now
from rapport.overlay.hash_ring import ring_position
from rapport.overlay.routing import SeenFilter
from rapport.transport.base import Address, Sender


class GrouperMessages:
    """Makes the messages of one grouper."""

    def __init__(self, node: str, address: Address) -> None:
        self._node, self._address = node, address
        self._version = 0

    def page(self, table: GroupTable, now: Now) -> PublishedKnowledge:
        """A page of a table, or an introduction."""
        component = table_component(self._address, table.group, table.page)
        return self._knowledge(component, TABLE, encode_body(table), (), now)

    def announcement(self, announcement: Announcement, now: Now) -> PublishedKnowledge:
        """An announcement for other groupers."""
        component = component_of(self._address)
        return self._knowledge(component, GROUPER, encode_body(announcement), (GROUPERS,), now)

    def next_version(self, now: Now) -> int:
        """The wall clock, or one more than the last where that clock stands or goes back."""
        self._version = max(now.wall_ms, self._version + 1)
        return self._version

    def _knowledge(
        self, component: str, role: str, body: bytes, groups: tuple[str, ...], now: Now
    ) -> PublishedKnowledge:
        version = self.next_version(now)
        return PublishedKnowledge(
            component, version, now.wall_ms, self._node, (role,), body, self._address, groups
        )


_SLOTS = 8
"""Slots of a period: each group has its own, so that tables are not all sent at once."""
_PASSED_ON = 65_536
"""Versions remembered so that they are passed on once."""
_TELLS_AGAIN = 4
"""Every so many messages, a client that uses a grouper with a copy only learns the publisher."""


def is_of_network(sender: Sender) -> bool:
    """The default check of groupers: every member of the network may be one."""
    return sender.kind == "network"


class GrouperMachine:
    """A grouper, and the recipients of its own components' knowledge; pure.

    Taking in a member's knowledge costs about 8 us, publishing the tables of 100 groups of 20
    12 ms (2,000 messages, spread over a period).
    """

    def __init__(
        self,
        node: str,
        address: Address,
        chance: Chance,
        now: Now,
        settings: GroupingSettings | None = None,
        *,
        groupers: Iterable[Address] = (),
        groups_of: GroupsOf | None = None,
        may_be_grouper: Callable[[Sender], bool] = is_of_network,
        trace: Tracing | None = None,
    ) -> None:
        """`groupers`: well-known others; none for the first one. `groups_of`: of this node's own
        components.
        """
        self.settings = settings or GroupingSettings()
        self.outbox: list[OutgoingMessage] = []
        self.refused = 0
        """Refused messages."""
        self.others = KnownGroupers(address, self.settings, now)
        self.register = MemberRegister(self.settings)
        self.component = Grouper(
            id=component_of(address), address=address, register=self.register, others=self.others
        )
        well_known = tuple(one for one in groupers if one != address)
        self.client = GroupClient(
            node,
            address,
            chance,
            self.settings,
            groupers=(address, *well_known),
            groups_of=groups_of or _no_groups,
            trace=trace,
        )
        self._node, self._address, self._chance, self._trace = node, address, chance, trace
        self._may_be_grouper = may_be_grouper
        self._acquaintances = AnnouncementTargets(well_known, self.settings)
        self._passed_on = SeenFilter(_PASSED_ON, 4 * self.settings.period_ms)
        self._voice, self._began_ms = GrouperMessages(node, address), now.steady_ms
        self._announce_due_ms = now.steady_ms
        slot_ms = self.settings.period_ms / _SLOTS
        self._slot, self._slot_due_ms = 0, now.steady_ms + chance.random() * slot_ms

    def received(self, message: PublishedKnowledge, sender: Sender, now: Now) -> None:
        """Knowledge came over IP, from its node or from a grouper."""
        if not is_of_groupers(message):
            self.client.spoke(sender.address)
            if message.groups or message.component in self.register:
                self._take(message, sender, now)
        elif message.roles[0] == TABLE:
            self.client.received(message, sender, now)
        else:
            self._take_announcement(message, sender, now)

    def to_publish(self, component: str, now: Now) -> list[Address]:
        """Where the knowledge of a component of this node goes; it is registered here as well."""
        groups = self.client.groups_of(component) if component else ()
        kept = [group for group in groups if self.component.keeps(group)]
        if component:
            self.register.update(component, self._voice.next_version(now), self._address, kept, now)
        keepers = [one for group in groups for one in self.others.registrars(group)]
        chosen = dict.fromkeys((*keepers, *self.client.to_publish(component, now)))
        if component and not groups:
            chosen.update(dict.fromkeys(self._drawn()))
        chosen.pop(self._address, None)
        return list(chosen)[: self.settings.recipients]

    def to_pass_on(self, message: PublishedKnowledge, now: Now) -> list[Address]:
        """Knowledge without a group: to some members and one grouper, drawn anew each time; costs
        a look at all nodes that are registered. Nowhere else by gossip: `received` passes on what
        concerns other groupers.
        """
        if message.groups:
            return []
        return [one for one in self._drawn() if one != message.address]

    def tick(self, now: Now) -> None:
        """Announces this grouper and publishes tables, if it is time to."""
        if now.steady_ms >= self._announce_due_ms:
            self._announce_due_ms = _next(
                self._announce_due_ms, self.settings.announcing_ms, now.steady_ms
            )
            self._forget_silent(now)
            self._announce(self._acquaintances.to_tell(self.others.others()), now)
        period_ms = self.settings.period_ms
        if now.steady_ms >= self._slot_due_ms + period_ms:
            # The machine slept: nothing is published twice to make up for it.
            self._slot_due_ms = _next(self._slot_due_ms, period_ms, now.steady_ms) - period_ms
        while now.steady_ms >= self._slot_due_ms:
            self._publish_tables(self._slot, now)
            self._slot = (self._slot + 1) % _SLOTS
            self._slot_due_ms += period_ms / _SLOTS

    def next_due_ms(self) -> float:
        """The steady time of the next tick that may do something."""
        return min(self._announce_due_ms, self._slot_due_ms)

    def leave(self, now: Now) -> None:
        """Announces that it leaves, so that others take over at once."""
        self._announce(self.others.others(), now, leaving=True)

    def mark_alive(self, address: Address, now: Now) -> None:
        """The membership found the node alive."""
        self.others.mark_alive(address, now)

    def gone(self, address: Address) -> None:
        """The membership found the node dead."""
        self.register.gone(address)
        self.client.gone(address)
        if self.others.gone(address):
            self._acquaintances.lost(address)

    def know_groupers(self, addresses: Sequence[Address]) -> None:
        """The membership knows these groupers to be alive, and no others: this one announces itself
        to them, so that groupers without a well-known one in common form one ring.
        """
        others = [one for one in addresses if one != self._address]
        self.client.know_groupers(others)
        self._acquaintances.know(others)

    def _drawn(self) -> list[Address]:
        """Recipients of knowledge without a group: some members, and another grouper."""
        others = self.others.others()
        grouper = [self._chance.choice(others)] if others else []
        taken = {self._address, *grouper}
        nodes = [one for one in self.register.nodes() if one not in taken]
        wanted = self.settings.without_group
        return grouper + (nodes if len(nodes) <= wanted else self._chance.sample(nodes, wanted))

    def _take(self, message: PublishedKnowledge, sender: Sender, now: Now) -> None:
        address, is_direct = message.address, message.address == sender.address
        if address is None or not (is_direct or sender.address in self.others):
            self.refused += 1
            return
        groups = tuple(dict.fromkeys(message.groups))[: self.settings.groups_per_component]
        client = HeardClient(message, groups, address, now)
        if GroupJoin.membership(self.component, client):
            GroupJoin.exchange(self.component, client)
        else:
            self.register.update(message.component, message.version, address, (), now)
        others = [group for group in groups if self._is_for_another(group, message, is_direct)]
        if others and self._passed_on.first_time((message.component, message.version), now):
            self._pass_on(message, others, now)
            if is_direct:
                self._introduce(others, address, now)

    def _is_for_another(self, group: str, message: PublishedKnowledge, is_direct: bool) -> bool:
        """Whether a grouper that publishes the group's table should get this, too. A client that
        speaks to one who only keeps a copy may know no other: it is notified now and then.
        """
        if not self.component.keeps(group):
            return True
        if self.others.publisher(group) == self._address or not is_direct:
            return False
        times = self.register.times_heard(message.component)
        return times <= 2 or times % _TELLS_AGAIN == 0

    def _pass_on(self, message: PublishedKnowledge, groups: list[str], now: Now) -> None:
        """Sends knowledge on towards those who keep these groups."""
        hops = dict.fromkeys(self.others.next_hop(group) for group in groups)
        hops.pop(self._address, None)
        if hops and self._trace is not None:
            component, version = message.component, message.version
            self._trace(
                TraceEvent(
                    now.steady_ms,
                    now.wall_ms,
                    Kind.PASSED_ON,
                    self._node,
                    component=component,
                    version=version,
                    detail="grouper",
                )
            )
        self.outbox.extend(OutgoingMessage(message, hop) for hop in hops)

    def _introduce(self, groups: list[str], to: Address, now: Now) -> None:
        """Sends a client the groupers of its groups, so that it uses and trusts them."""
        for group in groups:
            table = GroupTable(group, self.others.registrars(group))
            self.outbox.append(OutgoingMessage(self._voice.page(table, now), to))

    def _take_announcement(self, message: PublishedKnowledge, sender: Sender, now: Now) -> None:
        announcement = read_announcement(message)
        address = sender.address
        if announcement is None or message.address != address or not self._may_be_grouper(sender):
            self.refused += 1
            return
        if announcement.leaving:
            self.others.gone(address)
            return
        is_new = address not in self.others
        if not self.others.announced(address, announcement.up_ms, now):
            return
        self.client.introduce((address,))
        named = [one.address for one in announcement.groupers if one.address != self._address]
        self._acquaintances.learn((one for one in named if one not in self.others), met=address)
        if is_new:
            self._announce([address], now)

    def _announce(self, to: Iterable[Address], now: Now, *, leaving: bool = False) -> None:
        others = self.others.others()
        if len(others) > self.settings.page_members:
            others = self._chance.sample(others, self.settings.page_members)
        up_ms = max(0, int(now.steady_ms - self._began_ms))
        announcement = Announcement(
            up_ms, leaving, tuple(TableEntry(host, port) for host, port in others)
        )
        message = self._voice.announcement(announcement, now)
        self.outbox.extend(OutgoingMessage(message, address) for address in to)

    def _forget_silent(self, now: Now) -> None:
        for address in self.others.drop_silent(now):
            self._acquaintances.lost(address)
        self.others.settle(now)
        self.register.drop_silent(now)

    def _publish_tables(self, slot: int, now: Now) -> None:
        for group in self.register.groups():
            if (
                ring_position(group) % _SLOTS == slot
                and self.others.publisher(group) == self._address
            ):
                self._publish_table(group, now)

    def _publish_table(self, group: str, now: Now) -> None:
        """Each page goes to all members, to those that it names first (rule 16)."""
        entries = self.register.entries(group, now)
        parts = split(entries, self.settings.page_members)
        keepers = self.others.registrars(group)
        tables = [
            GroupTable(group, keepers, part, number, len(parts))
            for number, part in enumerate(parts)
        ]
        messages = [self._voice.page(table, now) for table in tables]
        for table, message in zip(tables, messages, strict=True):
            for entry in table.members:
                self._send_page(message, table, entry.address, now)
        for table, message in zip(tables, messages, strict=True):
            for other in tables:
                for entry in other.members if other is not table else ():
                    self._send_page(message, table, entry.address, now)

    def _send_page(
        self, message: PublishedKnowledge, table: GroupTable, to: Address, now: Now
    ) -> None:
        if self._trace is not None:
            kind, other = Kind.TABLE_PUBLISHED, address_text(to)
            self._trace(traced(kind, self._node, other, message, table, now))
        if to == self._address:
            self.client.received(message, Sender(to), now)
        else:
            self.outbox.append(OutgoingMessage(message, to))


def _next(due_ms: float, period_ms: float, now_ms: float) -> float:
    """The first time after now on the same schedule."""
    return due_ms + (int((now_ms - due_ms) // period_ms) + 1) * period_ms


def _no_groups(component: str) -> tuple[str, ...]:
    return ()


class AnnouncementTargets:
    """The addresses to which a grouper announces itself beside those it knows: the well-known ones
    and those of the membership always, those that others named a few times, and one of those it
    lost each time, so that the halves of a partition find each other again.
    """

    def __init__(self, well_known: Iterable[Address], settings: GroupingSettings) -> None:
        self._well_known = tuple(well_known)
        self._most, self._tries = settings.groupers, settings.tries
        self._members: tuple[Address, ...] = ()
        self._named: dict[Address, int] = {}
        self._lost: dict[Address, None] = {}

    def learn(self, addresses: Iterable[Address], *, met: Address) -> None:
        """Adds addresses named by a grouper that was met."""
        self._named.pop(met, None)
        self._lost.pop(met, None)
        for address in addresses:
            if len(self._named) < self._most:
                self._named.setdefault(address, self._tries)

    def know(self, addresses: Iterable[Address]) -> None:
        """The membership knows these groupers, and no others."""
        self._members = tuple(addresses)[: self._most]

    def lost(self, address: Address) -> None:
        """A known grouper fell silent."""
        self._lost[address] = None
        if len(self._lost) > self._most:
            del self._lost[next(iter(self._lost))]

    def to_tell(self, known: Iterable[Address]) -> list[Address]:
        """The recipients of the next announcement."""
        found = dict.fromkeys((*known, *self._well_known, *self._members, *self._named))
        for address, tries in list(self._named.items()):
            if tries > 1:
                self._named[address] = tries - 1
            else:
                del self._named[address]
        if self._lost:
            address = next(iter(self._lost))
            del self._lost[address]
            self._lost[address] = found[address] = None
        return list(found)
