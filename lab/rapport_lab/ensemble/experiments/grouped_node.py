"""A node of an experiment that talks to the members of its groups: gossip beside a client or a
grouper, as `NodeMachine` joins them, without components and ensembles. [EN-7, EN-12]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rapport.ensemble.gossip.gossip_machine import GossipMachine, Publication
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.grouping.group_client import GroupSide, GroupsOf, is_of_groupers
from rapport.ensemble.protocol import Message, Outgoing, Published
from rapport.kernel.chance import Chance
from rapport.kernel.clock import Now
from rapport.transport.base import Sender
from rapport_lab.ensemble.simulation.city import Actor

SectorOf = Callable[[tuple[float, float]], str]


class SectorActor:
    """A source of knowledge: an actor whose group is the sector that it is in."""

    def __init__(self, actor: Actor, sector_of: SectorOf) -> None:
        self.actor, self._sector_of = actor, sector_of

    @property
    def sector(self) -> str:
        """Where it is now."""
        return self._sector_of(self.actor.position)

    def published(self, now: Now) -> Iterable[Publication]:
        """See KnowledgeSource."""
        actor = self.actor
        return (Publication(actor.name, actor.roles, actor.position, (self.sector,)),)

    def groups_of(self, component: str) -> tuple[str, ...]:
        """Of its only component; others have none here."""
        return (self.sector,) if component == self.actor.name else ()


class GroupedNode:
    """Gossip whose recipients come from groups; a node of a World."""

    def __init__(
        self,
        source: SectorActor,
        settings: GossipSettings,
        chance: Chance,
        make_side: Callable[[GroupsOf], GroupSide],
    ) -> None:
        actor = source.actor
        self._side = make_side(source.groups_of)
        self.gossip = GossipMachine(
            actor.name,
            settings,
            chance,
            source=source,
            recipients=self._side,
            address=actor.address,
        )
        self.outbox: list[Outgoing] = self.gossip.outbox
        self.changed: list[Published] = []

    def handle(self, message: Message, sender: Sender, now: Now) -> None:
        """See SimulatedNode."""
        if type(message) is Published and is_of_groupers(message):
            self._side.received(message, sender, now)
        else:
            self.gossip.handle(message, sender, now)
            for changed in self.gossip.changed:
                self.changed.append(changed)
                self._side.received(changed, sender, now)
            self.gossip.changed.clear()
        self._send_of_side()

    def tick(self, now: Now) -> None:
        """See SimulatedNode."""
        self.gossip.tick(now)
        self._side.tick(now)
        self._send_of_side()

    def next_due_ms(self) -> float | None:
        """See SimulatedNode."""
        due = [ms for ms in (self.gossip.next_due_ms(), self._side.next_due_ms()) if ms is not None]
        return min(due, default=None)

    def _send_of_side(self) -> None:
        if self._side.outbox:
            self.outbox += self._side.outbox
            self._side.outbox.clear()
