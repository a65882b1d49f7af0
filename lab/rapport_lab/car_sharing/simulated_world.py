"""Car sharing in a simulated world: the same components on simulated time and media. [EN-13]"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from rapport.core.knowledge import Knowledge
from rapport.ensemble import Component
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.model.host import Host
from rapport.ensemble.model.work_scheduler import HostSettings
from rapport.ensemble.node_machine import NodeMachine
from rapport.kernel.clock import Chance
from rapport.transport.base import Address
from rapport_lab.car_sharing.cast import Part, make_component
from rapport_lab.car_sharing.ensembles import ENSEMBLES
from rapport_lab.car_sharing.seats import KEEP_MS
from rapport_lab.car_sharing.town import Town
from rapport_lab.car_sharing.vehicles import Placed
from rapport_lab.ensemble.simulation.ip_network import IpNetwork, IpSettings
from rapport_lab.ensemble.simulation.mobility import Positions
from rapport_lab.ensemble.simulation.radio import InRange, Radio, RadioSettings
from rapport_lab.ensemble.simulation.streets import Place, StreetMap
from rapport_lab.ensemble.simulation.world import World
from rapport_lab.scheduler import Scheduler

HOST = HostSettings(replica_ms=10_000)
"""Who is not heard for so long is forgotten."""
_NOWHERE: Place = (0.0, 0.0)


class StreetWorldSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What lies between them."""

    range_metres: float = 250.0
    """Of the radio; 0: there is none."""
    radio: RadioSettings = RadioSettings()
    ip: IpSettings | None = IpSettings()
    """The mobile network; none: there is none."""
    gossip: GossipSettings = GossipSettings(knowledge_ms=500, probability=0.3, fan_out=3)
    pace: float = 1.0
    """See Town."""
    seed: int = 1


class StreetWorld:
    """A town with all parts in it; each lives on a node of its own."""

    def __init__(
        self, streets: StreetMap, parts: Sequence[Part], settings: StreetWorldSettings | None = None
    ) -> None:
        self.streets, self.settings = streets, settings or StreetWorldSettings()
        self.parts = {part.name: part for part in parts}
        self._chance = Chance(self.settings.seed)
        self.scheduler = Scheduler()
        self._followed = _Followed(parts)
        self._addresses: list[Address] = [("simulated", number) for number in range(len(parts))]
        self.world = self._make_world()
        for number, part in enumerate(parts):
            machine = self._machine(number, part, opens_ms=0.0)
            self.world.add(part.name, machine, self._addresses[number])

    def run(self, until_ms: float) -> None:
        """Lets time pass."""
        self.world.run(until_ms)

    def component(self, name: str) -> Component:
        """One of them, as it is now; also after its death."""
        machine = self.world.nodes[self.world.number_of(name)]
        assert isinstance(machine, NodeMachine)
        return machine.host.components[name]

    def machines(self) -> Iterable[NodeMachine]:
        """Of all that live."""
        for name, node in zip(self.world.names, self.world.nodes, strict=True):
            if self.world.is_alive(name) and isinstance(node, NodeMachine):
                yield node

    def knowledge(self) -> list[Knowledge]:
        """What each of them would publish now: what an observer everywhere would see."""
        found = []
        now = self.scheduler.now
        for machine in self.machines():
            for name in machine.host.components:
                shot = machine.host.snapshot(name)
                if shot is not None:
                    found.append(
                        Knowledge(
                            name, machine.node, shot.roles, now.wall_ms, now.wall_ms, shot.values
                        )
                    )
        return found

    def kill(self, name: str) -> None:
        """It is gone, without a word."""
        self.world.kill(name)

    def revive(self, name: str) -> None:
        """It starts anew and knows nothing; a vehicle gives no seats at first."""
        number = self.world.number_of(name)
        opens_ms = self.scheduler.time_ms + KEEP_MS
        machine = self._machine(number, self.parts[name], opens_ms=opens_ms)
        self.world.revive(name, machine)

    def _make_world(self) -> World:
        settings, radio = self.settings, None
        if settings.range_metres:
            places = InRange(self._followed, settings.range_metres)
            radio = Radio(self.scheduler, places, self._drawn(), settings.radio)
        network = IpNetwork(self.scheduler, self._drawn(), settings.ip) if settings.ip else None
        return World(self.scheduler, radio=radio, ip=network)

    def _machine(self, number: int, part: Part, *, opens_ms: float) -> NodeMachine:
        scheduler, settings = self.scheduler, self.settings
        host = Host(part.name, ENSEMBLES, self._drawn(), HOST)
        town = Town(self.streets, lambda: scheduler.time_ms, self._drawn(), pace=settings.pace)
        gossip = msgspec.structs.replace(
            settings.gossip, radio=bool(settings.range_metres), ip=settings.ip is not None
        )
        machine = NodeMachine(
            host,
            gossip,
            self._drawn(),
            address=self._addresses[number] if settings.ip is not None else None,
            known=[one for one in self._addresses if one != self._addresses[number]],
            at_once=True,
            start_ms=scheduler.time_ms,
        )
        component = make_component(part, town, number=scheduler.now.wall_ms, opens_ms=opens_ms)
        machine.add(component, scheduler.now)
        self._followed.components[number] = component
        return machine

    def _drawn(self) -> Chance:
        return Chance(self._chance.getrandbits(64))


class _Followed:
    """Where the radio finds those who decide themselves where they go; the dead stay."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.components: list[Component | None] = [None] * len(parts)

    def __len__(self) -> int:
        return len(self.components)

    def positions_at(self, time_ms: float) -> Positions:
        """Of all, now; the past is not kept."""
        here = [self.position_at(actor, time_ms) for actor in range(len(self))]
        return np.asarray(here, dtype=np.float64).reshape(-1, 2)

    def position_at(self, actor: int, time_ms: float) -> Place:
        """Of one, now."""
        one = self.components[actor]
        return one.position if isinstance(one, Placed) else _NOWHERE
