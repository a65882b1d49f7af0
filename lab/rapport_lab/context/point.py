"""One cell of the study of rare data: a network, a load, and what came out. Pure. [CX-12, PI-8]"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from rapport.context.broker.broker_settings import (
    BrokerLimits,
    BrokerSettings,
    LookAhead,
    ReplicationName,
    ReplicationSettings,
    SearchSettings,
    StrategyName,
)
from rapport.context.records import TableLimits
from rapport.core.errors import InvalidInput
from rapport.kernel.chance import Chance
from rapport.overlay.membership_steps import MembershipSettings
from rapport_lab.context.asked import Asked
from rapport_lab.context.copies import CopiesCount
from rapport_lab.context.formulas import expected_coverage, expected_hops, expected_success
from rapport_lab.context.load import Load
from rapport_lab.context.network import SimulatedNetwork
from rapport_lab.context.run import run_load
from rapport_lab.scheduler import without_collector
from rapport_lab.simulated_transport import SimulatedLink
from rapport_lab.topology import Topology, mesh, random_regular, ring, waxman

_FILTERS_EVERY_MS, _PINGS_EVERY_MS = 1_000.0, 30_000.0


class SearchPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a cell depends on; the same point gives the same row anywhere."""

    part: str
    """Which question of the study it belongs to."""
    brokers: int = 1_000
    topology: str = "regular"
    """`ring`, `mesh`, `waxman` or `regular` (every broker has `degree` neighbours)."""
    degree: int = 4
    copies: int = 1
    hop_limit: int = 64
    strategy: StrategyName = "walk"
    walkers: int = 4
    flood_ttl: int = 6
    look_ahead: LookAhead = "off"
    depth: int = 1
    avoid: bool = True
    replication: ReplicationName = "none"
    replicas: int = 0
    """With `random` replication: so many, or (0) as many as brokers on the path."""
    at_most: int = 8
    """The cap of copies that follow the path."""
    room: int = 100_000
    """How many replicas a broker keeps; beyond, those not asked for longest go."""
    popularity: str = "uniform"
    keys: int = 100
    requests: int = 1_000
    uncounted: float = 0.0
    """The share of requests at first that are not counted, while copies spread."""
    requests_per_second: float = 100.0
    update_every_ms: float = 0.0
    valid_for_ms: float = 3_600_000.0
    within_ms: int = 600_000
    """The deadline of a request."""
    delay_ms: float = 1.0
    loss: float = 0.0
    tries: int = 3
    """How often a hop is sent until it is acknowledged; 1: nothing is acknowledged."""
    seed: int = 1


def run_point(point: SearchPoint) -> pa.Table:
    """One row: the point, what was measured, and what the formulas expect."""
    network = make_network(point)
    load = make_load(point)
    settle_ms = 3 * _FILTERS_EVERY_MS if point.look_ahead == "bloom" else 0.0
    copies = CopiesCount(network, load, settle_ms)
    asked = run_load(network, load, settle_ms=settle_ms)
    row = msgspec.structs.asdict(point) | measured(asked, point.uncounted) | expected(point)
    row |= {"copies_mean": copies.mean(), "copies_slope": copies.slope()}
    return _one_row(row)


def make_topology(point: SearchPoint) -> Topology[int]:
    """The graph of a point, drawn from its seed."""
    nodes, chance = range(point.brokers), Chance(point.seed)
    if point.topology == "ring":
        return ring(nodes)
    if point.topology == "mesh":
        return mesh(nodes)
    if point.topology == "waxman":
        return waxman(nodes, chance, degree=point.degree)
    if point.topology == "regular":
        return random_regular(nodes, point.degree, chance)
    raise InvalidInput(
        f"there is no topology {point.topology!r}",
        code="context.bad_study",
        hint="ring, mesh, waxman or regular",
    )


def make_network(point: SearchPoint) -> SimulatedNetwork:
    """The brokers of a point, with nothing in them but the round trips to their neighbours."""
    search = SearchSettings(
        strategy=point.strategy,
        hop_limit=point.hop_limit,
        avoid_visited=point.avoid,
        walkers=point.walkers,
        flood_ttl=point.flood_ttl,
        look_ahead=point.look_ahead,
        look_ahead_depth=point.depth,
        tries=point.tries,
        # A round ends with its part of the deadline; one round shows one search.
        rounds=1,
    )
    replication = ReplicationSettings(
        kind=point.replication, copies=point.replicas, at_most=point.at_most
    )
    settings = BrokerSettings(
        search=search,
        replication=replication,
        table=TableLimits(replicas=point.room),
        membership=MembershipSettings(
            at_most=max(point.brokers, 20),
            # Pings carry the filters; where nobody dies they tell the round trips, no more.
            period_ms=_FILTERS_EVERY_MS if point.look_ahead == "bloom" else _PINGS_EVERY_MS,
        ),
        limits=BrokerLimits(searches=100_000, within_ms=600_000),
    )
    link = SimulatedLink(delay_ms=point.delay_ms, loss=point.loss)
    with without_collector():
        network = SimulatedNetwork(make_topology(point), settings, link=link, seed=point.seed)
        network.run(network.scheduler.time_ms + 1.5 * settings.membership.period_ms)
    return network


def make_load(point: SearchPoint) -> Load:
    """The requests of a point."""
    return Load(
        requests=point.requests,
        keys=point.keys,
        popularity=point.popularity,
        copies=point.copies,
        requests_per_second=point.requests_per_second,
        update_every_ms=point.update_every_ms,
        valid_for_ms=point.valid_for_ms,
        within_ms=point.within_ms,
        seed=point.seed,
    )


def measured(asked: Asked, uncounted: float = 0.0) -> dict[str, Any]:
    """Means over all counted requests; hops and times over those that found something."""
    every = asked.table()
    rows = every.slice(int(every.num_rows * uncounted))
    found = rows["found"].to_numpy()
    hops = rows["hops"].to_numpy()[found]
    times = rows["response_ms"].to_numpy()[found]
    return {
        "success": float(found.mean()),
        "hops_mean": _mean(hops),
        "messages_mean": _mean(rows["messages"].to_numpy()),
        "messages_per_found": float(rows["messages"].to_numpy().sum() / max(found.sum(), 1)),
        "probes_mean": _mean(rows["probes"].to_numpy()),
        "acknowledgements_mean": _mean(rows["acknowledgements"].to_numpy()),
        "response_ms_mean": _mean(times),
        "response_ms_p99": float(np.percentile(times, 99)) if len(times) else float("nan"),
    }


def expected(point: SearchPoint) -> dict[str, float]:
    """What the formulas say for a walk; they say nothing about other strategies."""
    depth = point.depth if point.look_ahead == "probe" else int(point.look_ahead == "bloom")
    coverage = expected_coverage(point.degree, depth)
    seen = 1 + point.hop_limit * coverage
    is_walk = point.strategy == "walk"
    nothing = float("nan")
    success = expected_success(point.brokers, point.copies, seen) if is_walk else nothing
    hops = expected_hops(point.brokers, point.copies) / coverage if is_walk else nothing
    return {"expected_success": success, "expected_hops": hops}


def _one_row(row: dict[str, Any]) -> pa.Table:
    """What has no value is null; the columns have the same types at every point."""
    types = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
    schema = pa.schema([(name, types[type(value)]) for name, value in row.items()])
    given = {name: None if value != value else value for name, value in row.items()}
    return pa.Table.from_pylist([given], schema=schema)


def _mean(values: Any) -> float:
    return float(values.mean()) if len(values) else float("nan")
