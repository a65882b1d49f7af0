"""One node as a pure state machine: its components and ensembles, its gossip, its groups.
[EN-5, EN-6, EN-7, EN-10]

The simulator and the real runtime run this same machine; only the clock and the media differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rapport.ensemble.gossip.gossip_machine import GossipMachine, Publication
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.gossip.recipients import PullCounts, RandomRecipients, Recipients
from rapport.ensemble.gossip.strategies import Strategy
from rapport.ensemble.gossip.versions import DuplicateComponent
from rapport.ensemble.grouping.group_client import (
    GroupClient,
    GroupsOf,
    is_of_groupers,
)
from rapport.ensemble.grouping.group_tables import GroupingSettings
from rapport.ensemble.grouping.grouper import GrouperMachine
from rapport.ensemble.model.calls import Call, Outcome
from rapport.ensemble.model.component import Component
from rapport.ensemble.model.faults import Fault
from rapport.ensemble.model.host import Host
from rapport.ensemble.protocol import Message, OutgoingMessage, PublishedKnowledge
from rapport.ensemble.trace import Tracing
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Address, Sender

Grouping = GroupClient | GrouperMachine


class NodeMachine:
    """A host and what it says to others.

    After each call the shell sends what is in `outbox`, may look at `changed`, and empties both;
    it calls `tick` when `next_due_ms` has come, and brings back what the calls found by
    `finished`. No call raises because of what messages or components do.
    """

    def __init__(
        self,
        host: Host,
        settings: GossipSettings,
        chance: Chance,
        *,
        strategy: Strategy | None = None,
        address: Address | None = None,
        known: Sequence[Address] = (),
        grouping: Callable[[GroupsOf], Grouping] | None = None,
        at_once: bool = False,
        trace: Tracing | None = None,
        given_before: int = 0,
        start_ms: float = 0.0,
    ) -> None:
        """`known`: other nodes on IP; `grouping`: makes the grouper or client of this node from
        the function that returns a component's groups; `at_once`: calls are run by `tick` itself,
        as simulators want it, instead of being returned; `given_before`: versions begin above it.
        """
        self.node, self.host, self.address = host.node, host, address
        askers = PullCounts(most=settings.askers)
        self._drawing = RandomRecipients(
            settings.fan_out, chance, known=known, own=address, askers=askers
        )
        self._groups: dict[str, tuple[str, ...]] = {}
        self.grouping = grouping(self.groups_of) if grouping is not None else None
        recipients: Recipients = self.grouping or self._drawing
        has_boundary = any(plan.boundary is not None for plan in host.ensembles)
        self.gossip = GossipMachine(
            host.node,
            settings,
            chance,
            source=self,
            strategy=strategy,
            only_ungrouped=self.grouping is not None and not settings.radio,
            boundary=host.may_pass_on if has_boundary else None,
            recipients=recipients,
            address=address,
            askers=askers,
            trace=trace,
            on_duplicate=self._note_duplicate_component,
            given_before=given_before,
            start_ms=start_ms,
        )
        self._at_once, self._stopped = at_once, False
        self._not_registered = 0
        self._last = Now(0, 0.0)
        self.outbox: list[OutgoingMessage] = self.gossip.outbox
        """What to send, in order; the shell empties this very list."""
        self.changed: list[PublishedKnowledge] = []
        """Versions that became replicas; the shell empties this very list."""
        for component in host.components:
            self._adopt(component)

    # Components

    def add(self, component: Component, now: Now) -> None:
        """A component lives here from now on; raises InvalidInput, DuplicateName."""
        self.host.add(component, now)
        self._adopt(component.id)

    def _adopt(self, component_id: str) -> None:
        self.gossip.adopt(component_id)
        if self.grouping is not None:
            self.host.note_outside_groups(component_id)

    def remove(self, component_id: str) -> None:
        self.host.remove(component_id)
        self.gossip.disown(component_id)
        self._groups.pop(component_id, None)

    def publish_now(self, component_id: str, now: Now) -> bool:
        """Publishes a component out of turn; false when it does not live here, or its knowledge
        cannot be published.
        """
        return self.gossip.publish_now(component_id, now)

    def published(self, now: Now) -> Iterable[Publication]:
        """What the components have to say: the source of the gossip machine."""
        self._last = now
        offers = []
        for component in self.host.components:
            found = self.host.snapshot(component)
            if found is None:
                offers.append(Publication(component, (), None))
                continue
            self._groups[component] = found.groups
            if self.grouping is not None:
                self._note_groups_left(component, found.groups, self.grouping.settings)
            offers.append(Publication(component, found.roles, found.body, found.groups))
        return offers

    def groups_of(self, component_id: str) -> tuple[str, ...]:
        """The groups of a component, as it last published them."""
        return self._groups.get(component_id, ())

    # Other nodes

    def know(self, nodes: Sequence[Address], groupers: Sequence[Address] = ()) -> None:
        """These are the other nodes on IP from now on, and these of them are groupers."""
        self._drawing.know(nodes)
        if self.grouping is not None:
            self.grouping.know_groupers(groupers)

    def node_gone(self, node: str, address: Address, now: Now) -> list[str]:
        """The membership knows that a node is dead: its replicas are dropped, and named."""
        self._last = now
        if self.grouping is not None:
            self.grouping.gone(address)
        return self.host.forget_node(node)

    # Messages and time

    def handle(self, message: Message, sender: Sender, now: Now) -> None:
        if (
            self.grouping is not None
            and type(message) is PublishedKnowledge
            and is_of_groupers(message)
        ):
            self.grouping.received(message, sender, now)
            self._send_of_grouping()
            return
        gossip = self.gossip
        gossip.handle(message, sender, now)
        if gossip.changed:
            self._take_over(sender, now)

    def tick(self, now: Now) -> list[Call]:
        """Does what is due; returns the calls to be run, none if it ran them itself."""
        self._last = now
        host = self.host
        host.drop_stale(now)
        calls: list[Call] = []
        if self._at_once:
            host.run(now)
        else:
            calls = host.tick(now)
        self.gossip.tick(now)
        if isinstance(self.grouping, GrouperMachine):
            self.grouping.tick(now)
            self._send_of_grouping()
            self._note_not_registered(self.grouping)
        return calls

    def finished(self, call: Call, outcome: Outcome | BaseException, now: Now) -> None:
        """Takes over what a call found."""
        self.host.finished(call, outcome, now)

    def next_due_ms(self) -> float | None:
        """The steady time of the earliest thing to do; none: nothing before a message."""
        if self._stopped:
            return None
        due = self.gossip.next_due_ms()
        of_host = self.host.next_due_ms()
        if of_host is not None and (due is None or of_host < due):
            due = of_host
        if isinstance(self.grouping, GrouperMachine):
            of_grouping = self.grouping.next_due_ms()
            if due is None or of_grouping < due:
                due = of_grouping
        return due

    def stop(self, now: Now) -> None:
        """Says good-bye where somebody counts on it; nothing is due any more."""
        self._stopped = True
        self.gossip.stop()
        if isinstance(self.grouping, GrouperMachine):
            self.grouping.leave(now)
            self._send_of_grouping()

    def _take_over(self, sender: Sender, now: Now) -> None:
        for message in self.gossip.changed:
            if self.host.replace(message, now):
                self.changed.append(message)
            if self.grouping is not None:
                self.grouping.received(message, sender, now)
        self.gossip.changed.clear()
        self._send_of_grouping()

    def _send_of_grouping(self) -> None:
        if isinstance(self.grouping, GrouperMachine) and self.grouping.outbox:
            for outgoing in self.grouping.outbox:
                message, to = outgoing.message, outgoing.to
                if (
                    type(message) is PublishedKnowledge
                    and to is not None
                    and not is_of_groupers(message)
                ):
                    self.gossip.send(message, to)
                else:  # tables and announcements are made to fit, and their parts nobody collects
                    self.outbox.append(outgoing)
            self.grouping.outbox.clear()

    def _note_groups_left(
        self, component: str, groups: Sequence[str], settings: GroupingSettings
    ) -> None:
        most = settings.groups_per_component
        if len(groups) > most:
            fault = Fault(
                code="ensemble.too_many_groups",
                message=f"it is in {len(groups)} groups, {most} are heeded: those of the others do "
                f"not hear it ({groups[most]!r} is the first)",
                hint="put it into fewer groups, or raise groups_per_component on all nodes",
                component=component,
            )
            self.host.faults.add(fault, self._last.wall_ms)

    def _note_not_registered(self, grouper: GrouperMachine) -> None:
        refused, before = grouper.register.refused, self._not_registered
        if refused > before:
            self._not_registered = refused
            fault = Fault(
                code="ensemble.not_registered",
                message=f"{refused - before} members were not taken into their groups' tables, so "
                "that others of these groups do not hear them",
                hint="groups are larger than group_members, nodes have more than node_members, or "
                "two nodes say they have the same component",
            )
            self.host.faults.add(fault, self._last.wall_ms)

    def _note_duplicate_component(self, double: DuplicateComponent) -> None:
        self.host.faults.add(
            Fault(
                code="ensemble.equal_ids",
                message=f"the node {double.node!r} at {double.address} says it has the component "
                f"{double.component!r}, which lives here",
                hint="ids are unique in the whole system; its knowledge is not taken",
                component=double.component,
            ),
            self._last.wall_ms,
        )
