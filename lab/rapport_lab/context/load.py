"""What providers and consumers do to a simulated network: who asks where, when and for what. Pure.
[CX-12]

Everything is drawn before the run, in arrays, from one seed: the same load meets every network.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from rapport.core.errors import InvalidInput

Times = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Requests for keys, and the records behind the keys."""

    requests: int
    keys: int = 100
    """How many different questions there are; each has one record."""
    popularity: str = "uniform"
    """`uniform`, or `zipf`: the k-th key is asked for in proportion to 1/k^exponent."""
    exponent: float = 1.0
    copies: int = 1
    """At how many brokers, chosen by chance, the provider of a key puts its record."""
    requests_per_second: float = 1_000.0
    """For the whole network; at random moments (Poisson)."""
    consumers: int = 0
    """0: each request comes from a broker chosen by chance. Otherwise so many consumers, each at
    one broker for all of the run, each asking regularly.
    """
    update_every_ms: float = 0.0
    """0: records are put once and stay valid. Otherwise each is put again so often."""
    valid_for_ms: float = 3_600_000.0
    """How long an updated record is valid."""
    within_ms: int = 600_000
    """The deadline of a request."""
    seed: int = 1

    def __post_init__(self) -> None:
        if self.popularity not in ("uniform", "zipf"):
            raise InvalidInput(
                f"popularity {self.popularity!r} is neither uniform nor zipf",
                code="context.bad_load",
                hint='popularity = "zipf"',
            )
        if min(self.requests, self.keys, self.copies) < 1 or self.requests_per_second <= 0:
            raise InvalidInput(
                "a load has at least one request, one key, one copy and a rate above 0",
                code="context.bad_load",
                hint="see the fields of Load",
            )

    @property
    def duration_ms(self) -> float:
        """About how long it goes on."""
        return self.requests / self.requests_per_second * 1_000


class Moments(NamedTuple):
    """What happens, in order of time: at which broker, with which key."""

    times_ms: Times
    brokers: Numbers
    keys: Numbers


def popularities(load: Load) -> Times:
    """The share of requests that each key gets; they sum to 1."""
    if load.popularity == "uniform":
        return np.full(load.keys, 1.0 / load.keys)
    weights = 1.0 / np.arange(1, load.keys + 1) ** load.exponent
    return np.asarray(weights / weights.sum())


def plan_requests(load: Load, brokers: int) -> Moments:
    """When each request is made, at which broker, and for which key."""
    chance = np.random.default_rng([load.seed, 1])
    keys = chance.choice(load.keys, size=load.requests, p=popularities(load))
    if load.consumers:
        times, places = _regular(load, brokers, chance)
    else:
        times = np.sort(chance.uniform(0, load.duration_ms, load.requests))
        places = chance.integers(0, brokers, load.requests)
    return Moments(times, places, keys)


def _regular(load: Load, brokers: int, chance: np.random.Generator) -> tuple[Times, Numbers]:
    """Consumers that ask at the same interval, each with a beginning of its own."""
    interval = load.consumers / load.requests_per_second * 1_000
    begins = chance.uniform(0, interval, load.consumers)
    homes = chance.integers(0, brokers, load.consumers)
    number = np.arange(load.requests)
    consumer = np.argsort(begins)[number % load.consumers]
    return begins[consumer] + number // load.consumers * interval, homes[consumer]


def plan_homes(load: Load, brokers: int) -> Numbers:
    """The brokers that hold each key at first: a row for each key, `copies` different ones."""
    if load.copies > brokers:
        raise InvalidInput(
            f"{load.copies} copies do not fit {brokers} brokers",
            code="context.bad_load",
            hint="fewer copies, or more brokers",
        )
    chance = np.random.default_rng([load.seed, 2])
    rows = [chance.choice(brokers, load.copies, replace=False) for _ in range(load.keys)]
    return np.asarray(rows, dtype=np.int64)


def plan_updates(load: Load, brokers: int, until_ms: float) -> Moments:
    """When each record is put again after the first time; nothing when they are never updated."""
    if not load.update_every_ms:
        return Moments(np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64))
    chance = np.random.default_rng([load.seed, 3])
    rounds = int(until_ms // load.update_every_ms) + 1
    begins = chance.uniform(0, load.update_every_ms, load.keys)
    times = (begins[:, None] + np.arange(rounds) * load.update_every_ms).ravel()
    keys = np.repeat(np.arange(load.keys), rounds)
    homes = plan_homes(load, brokers)
    order = np.argsort(np.repeat(times, load.copies), kind="stable")
    return Moments(
        np.repeat(times, load.copies)[order],
        np.repeat(homes, rounds, axis=0).ravel()[order],
        np.repeat(keys, load.copies)[order],
    )
