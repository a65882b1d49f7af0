"""Gossip on IP, to nodes drawn at random or to the members of groups: figures 31 and 32.
[EN-7, EN-12]

The nodes gossip beside a client or a grouper, as in `NodeMachine`, without components.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import isqrt

import msgspec
import pyarrow as pa

from rapport.ensemble.gossip.gossip_machine import GossipMachine, Publication
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.gossip.recipients import RandomRecipients
from rapport.ensemble.grouping.group_client import GroupClient, GroupsOf, is_of_groupers
from rapport.ensemble.grouping.group_tables import GroupingSettings
from rapport.ensemble.grouping.grouper import GrouperMachine
from rapport.ensemble.node_machine import Grouping
from rapport.ensemble.protocol import Message, OutgoingMessage, PublishedKnowledge
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Address, Sender
from rapport_lab.ensemble.experiments.city_run import PERIOD_MS, city_of, run_and_measure
from rapport_lab.ensemble.experiments.experiment import Experiment, one_row
from rapport_lab.ensemble.experiments.report import (
    Box,
    Boxes,
    Curves,
    Report,
    Row,
    Statement,
    Table,
    averaged,
    percent,
    seconds,
    whole,
)
from rapport_lab.ensemble.simulation.city import Actor
from rapport_lab.ensemble.simulation.ip_network import IpSettings
from rapport_lab.ensemble.simulation.measurements import KnowledgeAges
from rapport_lab.ensemble.simulation.world import SimulatedNode, World
from rapport_lab.scheduler import Scheduler

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
        make_side: Callable[[GroupsOf], Grouping],
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
        self.outbox: list[OutgoingMessage] = self.gossip.outbox
        self.changed: list[PublishedKnowledge] = []

    def handle(self, message: Message, sender: Sender, now: Now) -> None:
        """See SimulatedNode."""
        if type(message) is PublishedKnowledge and is_of_groupers(message):
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


_GROUPERS, _SECTORS = 8, 100
_SIMPLE, _GROUPED = "simple", "groupers"


class GrouperPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One run on IP; without groupers everybody knows everybody's address."""

    probability: float
    fan_out: int
    groupers: int = 0
    """The first so many nodes are groupers as well; 0: plain gossip."""
    sectors: int = _SECTORS
    """The city is divided into so many squares, each a group."""
    nodes: int = 200
    minutes: float = 15.0
    seed: int = 1


def grouper_points(quick: bool, seed: int) -> list[GrouperPoint]:
    """P = 0..0.5 and C = 1..3 without groupers; C = 1..3 with them, where nobody resends and so P
    plays no part.
    """
    make = partial(GrouperPoint, seed=seed)
    if quick:
        make = partial(make, nodes=40, minutes=1.0, sectors=9)
    tenths = (5, 0) if quick else (5, 4, 3, 2, 1, 0)
    counts = (3, 1) if quick else (3, 2, 1)
    return [
        *(make(probability=p / 10, fan_out=c) for p in tenths for c in counts),
        *(make(probability=0.0, fan_out=c, groupers=4 if quick else _GROUPERS) for c in counts),
    ]


def run_groupers(point: GrouperPoint) -> pa.Table:
    """One row; up to half a minute for 15 minutes of 200 nodes at P = 0.5 and C = 3."""
    city = city_of(point.nodes, point.minutes, point.seed)
    sector_of = _sectors(city.settings.side_metres, point.sectors)
    sources: list[SectorActor] = []

    def make_node(actor: Actor, chance: Chance) -> SimulatedNode:
        source = SectorActor(actor, sector_of)
        sources.append(source)
        return _make_node(point, source, chance)

    ages = KnowledgeAges()
    world = city.world(make_node, seed=point.seed, ip=IpSettings(), ages=ages)
    found = run_and_measure(city, world, ages)
    return one_row(point, {**found, "fresh": _fresh(world, sources)})


def _make_node(point: GrouperPoint, source: SectorActor, chance: Chance) -> SimulatedNode:
    actor = source.actor
    settings = GossipSettings(
        radio=False, ip=True, probability=point.probability, fan_out=point.fan_out
    )
    if point.groupers:
        return GroupedNode(source, settings, chance, partial(_make_side, point, actor, chance))
    known: list[Address] = [("simulated", number) for number in range(point.nodes)]
    recipients = RandomRecipients(point.fan_out, chance, known=known, own=actor.address)
    return GossipMachine(
        actor.name, settings, chance, source=source, recipients=recipients, address=actor.address
    )


def _make_side(point: GrouperPoint, actor: Actor, chance: Chance, groups_of: GroupsOf) -> Grouping:
    settings = GroupingSettings(period_ms=PERIOD_MS, fan_out=point.fan_out)
    first: list[Address] = [("simulated", 0)]
    if actor.number >= point.groupers:
        return GroupClient(
            actor.name, actor.address, chance, settings, groupers=first, groups_of=groups_of
        )
    now: Now = Scheduler().now
    return GrouperMachine(
        actor.name, actor.address, chance, now, settings, groupers=first, groups_of=groups_of
    )


def _sectors(side_metres: float, count: int) -> SectorOf:
    """The name of the square that a place is in."""
    across = max(isqrt(count), 1)

    def sector_of(place: tuple[float, float]) -> str:
        column, row = (min(int(part / side_metres * across), across - 1) for part in place)
        return f"sector {column} {row}"

    return sector_of


def _fresh(world: World, sources: Sequence[SectorActor]) -> float:
    """Of the pairs in the same sector at the end, how many hold a version of each other that is
    younger than two periods.
    """
    now_ms = world.scheduler.now.wall_ms
    by_sector: dict[str, list[int]] = {}
    for number, source in enumerate(sources):
        by_sector.setdefault(source.sector, []).append(number)
    pairs = [
        now_ms - _held_ms(world.nodes[one], sources[other].actor.name) < 2 * PERIOD_MS
        for members in by_sector.values()
        for one in members
        for other in members
        if one != other
    ]
    return sum(pairs) / max(len(pairs), 1)


def _held_ms(node: SimulatedNode, component: str) -> int:
    gossip = node.gossip if isinstance(node, GroupedNode) else node
    assert isinstance(gossip, GossipMachine)
    entry = gossip.buffer.entries.get(component)
    return entry.message.created_ms if entry is not None and entry.message is not None else 0


def report_groupers(rows: list[Row]) -> Report:
    """Simple and grouped beside each other; of figures 31 and 32 no numbers are published."""
    by = ("groupers", "fan_out", "probability", "sectors", "nodes", "minutes")
    found = averaged(rows, by)
    found.sort(key=lambda row: (row["fan_out"], row["groupers"], row["probability"]))
    return Report(
        tables=(_table(found),),
        plots=(
            _curves("messages", "Messages sent (figure 31)", found, "messages", in_tens=True),
            _ages(found),
            _curves("fresh", "Pairs of a sector that know of each other", found, "fresh"),
        ),
        statements=tuple(_statements(found)),
    )


def _way(row: Row) -> str:
    return _GROUPED if row["groupers"] else _SIMPLE


def _name(row: Row) -> str:
    return f"{_way(row)} C {row['fan_out']}"


def _table(rows: Iterable[Row]) -> Table:
    shown = [
        (
            _way(row),
            str(row["fan_out"]),
            "-" if row["groupers"] else f"{row['probability']:g}",
            whole(row["messages"]),
            f"{_per_node(row):.1f}",
            seconds(row["age_first_ms"]),
            seconds(row["age_median_ms"]),
            seconds(row["age_third_ms"]),
            percent(row["fresh"]),
        )
        for row in rows
    ]
    columns = (
        *("way", "C", "P", "messages", "per node and period"),
        *("age Q1 s", "median s", "Q3 s", "pairs of a sector that are fresh"),
    )
    return Table("Gossip on IP (figures 31, 32)", columns, tuple(shown))


def _per_node(row: Row) -> float:
    periods = (row["minutes"] * 60_000 + PERIOD_MS) / PERIOD_MS
    return float(row["messages"] / row["nodes"] / periods)


def _curves(
    name: str, title: str, rows: Iterable[Row], up: str, *, in_tens: bool = False
) -> Curves:
    series: dict[str, list[tuple[float, float]]] = {}
    most = max((row["probability"] for row in rows if not row["groupers"]), default=0.5)
    for row in rows:
        points = series.setdefault(_name(row), [])
        points.append((row["probability"], row[up]))
        if row["groupers"]:
            points.append((most, row[up]))  # the same for every probability
    return Curves(
        name=name,
        title=title,
        across="retransmission probability",
        up=up,
        series=series,
        in_tens=in_tens,
    )


def _ages(rows: Iterable[Row]) -> Boxes:
    boxes = tuple(
        Box(
            _name(row) + ("" if row["groupers"] else f" P {row['probability']:g}"),
            row["age_first_ms"] / 1_000,
            row["age_median_ms"] / 1_000,
            row["age_third_ms"] / 1_000,
        )
        for row in rows
    )
    return Boxes(name="ages", title="Age of knowledge (figure 32)", up="seconds", boxes=boxes)


def _statements(rows: list[Row]) -> Iterable[Statement]:
    simple = [row for row in rows if not row["groupers"]]
    grouped = [row for row in rows if row["groupers"]]
    if not simple or not grouped:
        return
    costliest = max(simple, key=lambda row: row["messages"])
    most = max(row["messages"] for row in grouped)
    says = "groupers need fewer messages than plain gossip of the greatest P and C"
    yield Statement(says, most < costliest["messages"])
    yield Statement(
        "plain gossip of about as many messages keeps fewer pairs of a sector fresh",
        _is_worse_at_equal_cost(simple, grouped, lambda row: float(row["fresh"])),
    )
    oldest = max(row["age_median_ms"] for row in grouped)
    youngest = min(row["age_median_ms"] for row in simple)
    yield Statement("knowledge is younger with groupers (median)", oldest <= youngest)


def _is_worse_at_equal_cost(
    simple: list[Row], grouped: list[Row], good: Callable[[Row], float]
) -> bool:
    """Whether plain runs that send no more than the costliest grouped one reach less."""
    most = max(row["messages"] for row in grouped)
    cheap = [good(row) for row in simple if row["messages"] <= most]
    return max(cheap, default=0.0) < min(good(row) for row in grouped)


GROUPERS = Experiment(
    name="groupers",
    repeats="figures 31, 32",
    points=grouper_points,
    run=run_groupers,
    report=report_groupers,
)
