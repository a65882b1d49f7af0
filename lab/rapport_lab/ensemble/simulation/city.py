"""A city of drivers and walkers that gossip their positions: the set-up of the source's
experiments, at any size. [EN-11, EN-12]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import nextafter, sqrt
from typing import Final

import msgspec

from rapport.core.errors import InvalidInput
from rapport.ensemble.gossip.gossip_machine import Boundary, GossipMachine, Publication
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.protocol import PublishedKnowledge
from rapport.ensemble.trace import Kind
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Address
from rapport_lab.ensemble.simulation.ip_network import IpNetwork, IpSettings
from rapport_lab.ensemble.simulation.measurements import KnowledgeAges, Sizes, Witness
from rapport_lab.ensemble.simulation.mobility import Mobility, PlanSettings, traffic
from rapport_lab.ensemble.simulation.radio import InRange, Radio, RadioSettings
from rapport_lab.ensemble.simulation.streets import GridSettings, Place, StreetMap, grid_streets
from rapport_lab.ensemble.simulation.world import SimulatedNode, World
from rapport_lab.scheduler import Scheduler

PERIODS: Final = 181
"""Publications of each node in the source's runs of 15 minutes: one each 5 s, the first at once."""
DURATION_MS: Final = PERIODS * 5_000.0
DRIVER: Final = "Driver"
WALKER: Final = "Walker"


class CitySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The published set-up, and what it leaves open."""

    nodes: int = 200
    """Half of them drive, the others walk."""
    nodes_per_km2: float = 25.0
    """200 on 8 square kilometres; a city of more nodes is larger, not denser."""
    range_metres: float = 250.0
    duration_ms: float = DURATION_MS
    radio: RadioSettings = RadioSettings()
    sizes: Sizes = Sizes()
    plans: PlanSettings = PlanSettings()
    grid: GridSettings = GridSettings()
    """Its width and height follow from nodes and density."""
    seed: int = 1
    """Of streets and plans."""

    @property
    def side_metres(self) -> float:
        """Of the square that the city is."""
        return 1_000 * sqrt(self.nodes / self.nodes_per_km2)


class City:
    """Streets and movement, made once; any number of worlds run on them, one after another.

    Making 200 nodes takes 0.2 s, 10,000 about 10 s. `keep`: who is in range at each second is kept
    for the next world: 30 MB for 200 nodes and 15 minutes.
    """

    def __init__(
        self,
        settings: CitySettings | None = None,
        *,
        streets: StreetMap | None = None,
        keep: bool = False,
    ) -> None:
        self.settings = settings = settings or CitySettings()
        if settings.nodes < 1 or not settings.nodes_per_km2 > 0 or not settings.range_metres > 0:
            raise InvalidInput(
                f"no city has {settings.nodes} nodes, {settings.nodes_per_km2} on a square "
                f"kilometre, with a range of {settings.range_metres} m",
                code="ensemble.bad_city",
                hint="at least one node, density and range above 0",
            )
        chance = Chance(settings.seed)
        self.streets = streets or grid_streets(_grid(settings), Chance(chance.getrandbits(64)))
        drivers = settings.nodes // 2
        self.drivers = drivers
        self.mobility: Mobility = traffic(
            self.streets,
            drivers=drivers,
            walkers=settings.nodes - drivers,
            until_ms=settings.duration_ms,
            chance=Chance(chance.getrandbits(64)),
            settings=settings.plans,
        )
        self.neighbourhoods = InRange(self.mobility, settings.range_metres, keep=keep)

    def world(
        self,
        make_node: MakeNode,
        *,
        seed: int = 1,
        ip: IpSettings | None = None,
        ages: KnowledgeAges | None = None,
        witness: Witness | None = None,
    ) -> World:
        """A world with a node for each actor, made by the function from the actor and a chance that
        all nodes share (one each would be 2.5 KB of state for each draw to fetch); with an IP
        network where its settings are given.
        """
        scheduler, chance = Scheduler(), Chance(seed)
        settings = self.settings
        radio = Radio(scheduler, self.neighbourhoods, _drawn(chance), settings.radio)
        network = IpNetwork(scheduler, _drawn(chance), ip) if ip is not None else None
        world = World(
            scheduler, radio=radio, ip=network, sizes=settings.sizes, ages=ages, witness=witness
        )
        here: list[Place] = self.mobility.positions_at(0.0).tolist()

        def look() -> None:
            here[:] = self.mobility.positions_at(scheduler.time_ms).tolist()

        radio.on_renew.append(look)
        of_nodes = _drawn(chance)
        for number in range(settings.nodes):
            actor = Actor(number, DRIVER if number < self.drivers else WALKER, here)
            world.add(actor.name, make_node(actor, of_nodes), actor.address)
        return world

    def gossip_world(
        self,
        gossip: GossipSettings,
        *,
        boundary_metres: float | None = None,
        seed: int = 1,
        ages: KnowledgeAges | None = None,
        witness: Witness | None = None,
    ) -> World:
        """A world of plain gossip machines, each with one component that knows where it is.

        With a boundary a version is passed on only by nodes that are so near to where its component
        was when it published it.
        """
        trace = witness.recorder if witness is not None else None

        def make_node(actor: Actor, chance: Chance) -> GossipMachine:
            boundary = None if boundary_metres is None else _boundary(actor, boundary_metres)
            return GossipMachine(
                actor.name, gossip, chance, source=actor, boundary=boundary, trace=trace
            )

        world = self.world(make_node, seed=seed, ages=ages, witness=witness)
        if trace is not None:
            for name in world.names:
                trace.happened(Kind.DEPLOYED, name, world.scheduler.now, component=name)
        return world

    def run(self, world: World) -> None:
        """All of the duration; what is due at its very end belongs to the next period."""
        world.run(nextafter(self.settings.duration_ms, 0.0))


class Actor:
    """Who drives or walks: where it is, as of the last whole second. As a source of knowledge it
    is a component of one value, its position.
    """

    __slots__ = ("_here", "address", "name", "number", "role", "roles")

    def __init__(self, number: int, role: str, here: list[Place]) -> None:
        self.number, self.role, self.roles, self._here = number, role, (role,), here
        self.name = f"n{number}"
        self.address: Address = ("simulated", number)

    @property
    def position(self) -> Place:
        """Metres east and north."""
        return self._here[self.number]

    def published(self, now: Now) -> Iterable[Publication]:
        """See KnowledgeSource."""
        return (Publication(self.name, self.roles, self._here[self.number]),)


MakeNode = Callable[[Actor, Chance], SimulatedNode]


def _boundary(actor: Actor, metres: float) -> Boundary:
    most = metres * metres

    def is_near(published: PublishedKnowledge) -> bool:
        east, north = actor.position
        there_east, there_north = published.body
        east -= there_east
        north -= there_north
        return bool(east * east + north * north <= most)

    return is_near


def _grid(settings: CitySettings) -> GridSettings:
    side = settings.side_metres
    block = min(settings.grid.block_metres, side / 2)
    return msgspec.structs.replace(
        settings.grid,
        width_metres=side,
        height_metres=side,
        block_metres=block,
        jitter_metres=min(settings.grid.jitter_metres, block / 4),
    )


def _drawn(chance: Chance) -> Chance:
    return Chance(chance.getrandbits(64))
