"""Section 8.2: nine nodes, pulling what is outdated, and a node that dies: tables 8 and 9, event by
event. [EN-8, EN-12]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from rapport.ensemble.gossip.gossip_machine import GossipMachine, Publication
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.trace import Kind, Recorder, TraceEvent
from rapport.kernel.clock import Chance, Now
from rapport_lab.ensemble.experiments.experiment import Experiment
from rapport_lab.ensemble.experiments.published import TABLE_8, TABLE_9
from rapport_lab.ensemble.experiments.report import Report, Row, Statement, Table
from rapport_lab.ensemble.simulation.measurements import Witness
from rapport_lab.ensemble.simulation.radio import EXACT, FixedLinks, Radio
from rapport_lab.ensemble.simulation.world import World
from rapport_lab.scheduler import Scheduler

LINKS: Final = "1-2 1-4 2-3 2-5 3-6 4-5 4-7 5-8 5-6 6-9 7-8 8-9"
"""Figure 36; the text's "1 is published to 2, 4 and 5" is not what it draws."""
KNOWLEDGE_MS: Final = {"1": 4_782}
HEADERS_MS: Final = {"2": 2_795, "3": 3_837}
PULLS_MS: Final = {"2": 3_657, "3": 1_585, "4": 4_726, "6": 1_585, "8": 4_850, "9": 1_408}
"""When tasks begin, modulo the period; all others at 0. The source does not tell them, the times in
its tables do.
"""
PERIOD_MS: Final = 5_000
UNTIL_MS: Final = 60_000
_NODES: Final = "123456789"
_OF: Final = "1"

_VERBS: Final[Mapping[Kind, str]] = {
    Kind.KNOWLEDGE_SENT: "sends KN",
    Kind.KNOWLEDGE_RECEIVED: "receives KN",
    Kind.HEADERS_SENT: "sends HD",
    Kind.HEADERS_RECEIVED: "receives HD",
    Kind.PULL_SENT: "sends PL",
    Kind.PULL_RECEIVED: "receives PL",
}

_SCHEMA: Final = pa.schema(
    [
        ("table", pa.int64()),
        ("published_ms", pa.int64()),
        ("event", pa.string()),
        ("ours_ms", pa.int64()),
    ]
)


class ScenarioPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two tables."""

    table: int
    dies_ms: float | None = None
    """When node 1 dies."""
    seed: int = 1


class Event(NamedTuple):
    """Something that happened to the knowledge of component 1."""

    time_ms: int
    what: str


class _One:
    """A component with nothing to say but that it is there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def published(self, now: Now) -> Iterable[Publication]:
        return (Publication(self._name, (), b"\x80"),)


def scenario_points(quick: bool, seed: int) -> list[ScenarioPoint]:
    """Table 8, and table 9 in which node 1 dies after 20 s."""
    return [
        ScenarioPoint(table=8, seed=seed),
        ScenarioPoint(table=9, dies_ms=20_000.0, seed=seed),
    ]


def run_scenario(point: ScenarioPoint) -> pa.Table:
    """A row for each event of the published table, and when it happened here; none: it did not."""
    found = set(happened(point.dies_ms))
    published = TABLE_8 if point.table == 8 else TABLE_9
    rows = [
        {
            "table": point.table,
            "published_ms": time_ms,
            "event": what,
            "ours_ms": _nearest(found, time_ms, what),
        }
        for time_ms, what in published
    ]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def happened(dies_ms: float | None = None) -> list[Event]:
    """All that happened to the knowledge of 1 within a minute, in order of time."""
    recorder = Recorder()
    world = nine_nodes(recorder)
    if dies_ms is not None:
        world.run(dies_ms)
        world.kill(_OF)
    world.run(UNTIL_MS)
    events = [event for told in recorder.events if (event := _told(told)) is not None]
    return sorted([*events, *_ends_of_pulling(events)])


def nine_nodes(recorder: Recorder) -> World:
    """The nodes of figure 36, one hop takes 101 ms, nothing is passed on unless it is pulled."""
    scheduler = Scheduler()
    links = [(int(one) - 1, int(other) - 1) for one, other in _pairs()]
    radio = Radio(scheduler, FixedLinks(len(_NODES), links), Chance(1), EXACT)
    world = World(scheduler, radio=radio, witness=Witness(recorder=recorder))
    for name in _NODES:
        settings = GossipSettings(
            knowledge_ms=PERIOD_MS,
            header_ms=PERIOD_MS,
            pull_ms=PERIOD_MS,
            local_ms=6_000,
            global_ms=10_000,
            probability=0,
            knowledge_offset_ms=KNOWLEDGE_MS.get(name, 0),
            header_offset_ms=HEADERS_MS.get(name, 0),
            pull_offset_ms=PULLS_MS.get(name, 0),
        )
        world.add(name, GossipMachine(name, settings, Chance(name), source=_One(name)))
    return world


def _pairs() -> Iterable[tuple[str, str]]:
    for link in LINKS.split():
        one, _, other = link.partition("-")
        yield one, other


def _told(event: TraceEvent) -> Event | None:
    """What the trace says of component 1; none for all else."""
    verb = _VERBS.get(event.kind)
    is_of_one = event.component == _OF or any(name == _OF for name, _ in event.entries)
    if verb is None or not is_of_one:
        return None
    origin = f" from {event.other}" if event.other else ""
    return Event(round(event.time_ms), f"{event.node} {verb} {_OF}{origin}")


def _ends_of_pulling(events: Iterable[Event]) -> list[Event]:
    """The first turn to pull that a node let pass after it had pulled 1."""
    turns: dict[str, set[int]] = {}
    for time_ms, what in events:
        node, _, verb = what.partition(" ")
        if verb == f"sends PL {_OF}":
            turns.setdefault(node, set()).add(time_ms)
    return [
        Event(time_ms + PERIOD_MS, f"{node} stops pulling {_OF}")
        for node, times in turns.items()
        for time_ms in times
        if time_ms + PERIOD_MS not in times and time_ms + PERIOD_MS <= UNTIL_MS
    ]


def _nearest(found: set[Event], time_ms: int, what: str) -> int | None:
    """When it happened, nearest to a time; the source does not always say from whom."""
    times = [
        one.time_ms for one in found if one.what == what or one.what.startswith(f"{what} from")
    ]
    return min(times, key=lambda one: abs(one - time_ms), default=None)


def report_scenario(rows: list[Row]) -> Report:
    """Each table with our times beside."""
    tables, statements = [], []
    for number in sorted({row["table"] for row in rows}):
        own = [row for row in rows if row["table"] == number]
        shown = tuple(
            (str(row["published_ms"]), str(row["ours_ms"] or "-"), row["event"]) for row in own
        )
        tables.append(Table(f"Table {number}", ("published ms", "ours ms", "event"), shown))
        exact = sum(row["published_ms"] == row["ours_ms"] for row in own)
        says = f"table {number}: {exact} of {len(own)} events to the millisecond"
        statements.append(Statement(says, exact == len(own)))
    return Report(tables=tuple(tables), statements=tuple(statements))


SCENARIO = Experiment(
    name="scenario",
    repeats="tables 8, 9 (section 8.2)",
    points=scenario_points,
    run=run_scenario,
    report=report_scenario,
)
