"""The study of rare records: simulated networks under a load, point by point. Pure. [CX-12, PI-8]

It measures how probable it is that a rare record is found, and how many messages that takes,
against replicas, hop limit, look-ahead, replication, strategy, loss and the size of the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

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
from rapport.context.protocol import (
    PROCESSED,
    RECEIVED,
    Answer,
    Ask,
    FoundRecord,
    Have,
    HopAck,
    Message,
    Probe,
    Question,
    Request,
    SearchRefusal,
    Status,
)
from rapport.context.records import TableLimits
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Chance
from rapport.overlay.membership_steps import MembershipSettings
from rapport.transport.base import Address, Sender
from rapport_lab.context.formulas import expected_coverage, expected_hops, expected_success
from rapport_lab.context.load import (
    ASKS,
    HEARD,
    PROBES,
    RETURNS,
    Asked,
    Load,
    Moments,
    plan_homes,
    plan_requests,
    plan_updates,
)
from rapport_lab.context.network import CopiesCount, Letter, SimulatedNetwork
from rapport_lab.scheduler import Scheduler, without_collector
from rapport_lab.simulated_transport import SimulatedLink
from rapport_lab.topology import Topology, mesh, random_regular, ring, waxman

CONSUMER: Final = "consumer"
SCOPE: Final = "status"
_FOREVER_MS: Final = 1 << 50
_NOBODYS: Final = [0, 0, 0, 0]
"""Where messages are counted of which nobody knows whose they are."""
_COUNTED: Final[dict[type, int]] = {
    Ask: ASKS,
    FoundRecord: RETURNS,
    SearchRefusal: RETURNS,
    Probe: PROBES,
    Have: PROBES,
    HopAck: HEARD,
}


def run_load(network: SimulatedNetwork, load: Load, *, settle_ms: float = 0.0) -> Asked:
    """Gives brokers their records, lets them settle, makes all requests, and runs until each is
    answered or its deadline has passed.
    """
    running = _Running(network, load)
    with without_collector():
        _run(network.scheduler, running, settle_ms)
    return running.asked


def _run(scheduler: Scheduler, running: _Running, settle_ms: float) -> None:
    running.put_all()
    scheduler.run(scheduler.time_ms + settle_ms)
    running.start()
    last_ms = scheduler.time_ms + float(running.requests.times_ms[-1])
    scheduler.run(last_ms)
    # Then step by step: brokers that watch each other never run out of things to do.
    until_ms = last_ms + running.load.within_ms + 1_000
    while running.asked.answered < running.load.requests and scheduler.time_ms < until_ms:
        scheduler.run(min(scheduler.time_ms + 100, until_ms))


def question_of(key: int) -> Question:
    """What is asked for with a key."""
    return Question(EntityRef("thing", str(key)), SCOPE)


class _Running:
    """The clients of a run. Each request has an address of its own, so that every message that
    names the consumer or the search tells which request it serves.
    """

    def __init__(self, network: SimulatedNetwork, load: Load) -> None:
        brokers = len(network.machines)
        self.load = load
        self.requests = plan_requests(load, brokers)
        self.asked = Asked(self.requests)
        self._network = network
        self._begin_ms = 0.0
        self._updates = plan_updates(load, brokers, float(self.requests.times_ms[-1]))
        self._questions = [question_of(key) for key in range(load.keys)]
        self._searches: dict[int, list[int]] = {}
        self._asking: list[int] | None = None
        network.on_client = self._told
        network.on_send = self._count

    def put_all(self) -> None:
        """Every key's record at its first brokers."""
        homes = plan_homes(self.load, len(self._network.machines))
        for key, row in enumerate(homes.tolist()):
            for broker in row:
                self._put(broker, key)

    def start(self) -> None:
        """The load begins now."""
        self._begin_ms = self._network.scheduler.time_ms
        self._plan_request(0)
        self._plan_update(0)

    # --- providers ---

    def _plan_update(self, number: int) -> None:
        if number < len(self._updates.times_ms):
            self._at(self._updates, number, self._update)

    def _update(self, number: int) -> None:
        self._put(int(self._updates.brokers[number]), int(self._updates.keys[number]))
        self._plan_update(number + 1)

    def _put(self, broker: int, key: int) -> None:
        wall_ms = self._network.scheduler.now.wall_ms
        valid_for_ms = int(self.load.valid_for_ms) if self.load.update_every_ms else _FOREVER_MS
        question = self._questions[key]
        provider, values = f"provider-{key}", {"since": wall_ms}
        until_ms = wall_ms + valid_for_ms
        record = ContextRecord(provider, question.entity, question.scope, wall_ms, until_ms, values)
        self._network.put(broker, record)

    # --- consumers ---

    def _plan_request(self, number: int) -> None:
        if number < len(self.requests.times_ms):
            self._at(self.requests, number, self._request)

    def _request(self, number: int) -> None:
        question = self._questions[int(self.requests.keys[number])]
        message = Request(number, question, self.load.within_ms)
        self._asking = self.asked.counts[number]
        broker = int(self.requests.brokers[number])
        self._network.tell(broker, message, Sender((CONSUMER, number), CONSUMER, "client"))
        self._asking = None
        self._plan_request(number + 1)

    def _told(self, message: Message, to: Address) -> None:
        if to[0] != CONSUMER:
            return
        number, time_ms = to[1], self._network.scheduler.time_ms - self._begin_ms
        if isinstance(message, Answer):
            self.asked.answer(number, PROCESSED, message.hops, time_ms)
        elif isinstance(message, Status) and message.status != RECEIVED:
            self.asked.answer(number, message.status, 0, time_ms)

    # --- both ---

    def _count(self, letters: Sequence[Letter]) -> None:
        last, counts = -1, _NOBODYS
        for message, _to in letters:
            place = _COUNTED.get(type(message))
            if place is None:
                continue
            search: int = message.search  # type: ignore[union-attr]
            if search != last:  # most of what goes out at once is of one search
                last = search
                counts = self._searches.get(search) or self._begin_counting(message)
            counts[place] += 1

    def _begin_counting(self, message: Any) -> list[int]:
        """The first message of a search is sent while its request is handed over, or names its
        consumer.
        """
        counts = self._asking
        if counts is None and isinstance(message, Ask):
            counts = self.asked.counts[message.path[0][1]]
        if counts is None:
            return _NOBODYS
        self._searches[message.search] = counts
        return counts

    def _at(self, moments: Moments, number: int, call: Callable[[int], None]) -> None:
        due_ms = self._begin_ms + float(moments.times_ms[number])
        self._network.scheduler.at(due_ms, call, number)


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


Make = Callable[..., SearchPoint]


def study_points(*, quick: bool = False, seed: int = 1) -> list[SearchPoint]:
    """All points of the study: four minutes of one core; `quick`, with a tenth of the brokers, a
    quarter of a minute.
    """
    brokers, requests = (100, 200) if quick else (1_000, 500)
    make = partial(SearchPoint, brokers=brokers, requests=requests, seed=seed)
    return [
        *_limits(partial(make, part="limits"), quick),
        *_look_ahead(partial(make, part="look-ahead")),
        *_strategies(partial(make, part="strategies")),
        *_replication(partial(make, part="replication"), quick),
        *_loss(partial(make, part="loss")),
        *_sizes(partial(SearchPoint, part="sizes", requests=200, seed=seed), quick),
        *_topologies(partial(SearchPoint, part="topologies", requests=requests, seed=seed)),
    ]


def _limits(make: Make, quick: bool) -> list[SearchPoint]:
    """Success against copies and hop limit, with nothing but the walk."""
    copies = (1, 4) if quick else (1, 2, 4, 8, 16, 32)
    limits = (16, 64) if quick else (16, 64, 256)
    return [make(copies=r, hop_limit=t) for r in copies for t in limits]


def _look_ahead(make: Make) -> list[SearchPoint]:
    """Hops and messages against how far is looked ahead, until something is found."""
    points = []
    for copies in (1, 10):
        far = partial(make, copies=copies, hop_limit=20_000, requests=200)
        points += [far(look_ahead="off", depth=0)]
        points += [far(look_ahead="probe", depth=depth) for depth in (1, 2)]
        points += [far(look_ahead="bloom", depth=1)]
    return points


def _strategies(make: Make) -> list[SearchPoint]:
    """What each strategy costs for the same question."""
    few = partial(make, copies=5, hop_limit=256, requests=100)
    return [
        few(strategy="walk"),
        few(strategy="walk", look_ahead="probe"),
        few(strategy="walkers", walkers=4),
        few(strategy="walkers", walkers=16),
        few(strategy="flood", flood_ttl=6),
        few(strategy="normalized", flood_ttl=8),
        few(strategy="ring", flood_ttl=8),
    ]


def _replication(make: Make, quick: bool) -> list[SearchPoint]:
    """Messages per request when some things are asked for more often than others, and where copies
    end up: brokers have room for some replicas only.
    """
    alone = partial(make, popularity="zipf", hop_limit=20_000)
    zipf = partial(alone, requests=2_000 if quick else 4_000, uncounted=0.5, room=20)
    return [
        alone(replication="none", requests=100),
        zipf(replication="random", replicas=1),
        zipf(replication="random", at_most=8),
        zipf(replication="random", at_most=64),
        zipf(replication="random", at_most=20_000),
        zipf(replication="random", at_most=8, look_ahead="probe"),
        zipf(replication="path", at_most=8),
        zipf(replication="passive"),
        zipf(replication="cache"),
    ]


def _loss(make: Make) -> list[SearchPoint]:
    """What loss does to the walk with its acknowledged hops, within two seconds."""
    few = partial(make, copies=make().brokers // 20, look_ahead="probe", within_ms=2_000)
    return [few(loss=loss) for loss in (0.0, 0.1, 0.3)]


def _sizes(make: Make, quick: bool) -> list[SearchPoint]:
    """The same share of copies in networks of 100 to 10,000 brokers."""
    sizes = (100, 1_000) if quick else (100, 1_000, 10_000)
    return [make(brokers=n, copies=n // 100, look_ahead="probe") for n in sizes]


def _topologies(make: Make) -> list[SearchPoint]:
    """Ten brokers, one copy, limit ten: what avoiding visited brokers does on each topology."""
    ten = partial(make, brokers=10, hop_limit=10, degree=2)
    return [
        ten(topology=topology, avoid=avoid)
        for topology in ("ring", "waxman", "mesh")
        for avoid in (False, True)
    ]
