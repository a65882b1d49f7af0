"""The study of rare data: which points answer which question. Pure. [CX-12]

How probable is it that something rare is found, and how many messages does that take, against
copies, hop limit, look-ahead, replication, strategy, loss and the size of the network?
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rapport_lab.context.point import SearchPoint

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
