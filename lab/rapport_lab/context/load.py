"""The load of a simulated network: requests and updates, and the result of each request. Pure.
[CX-12]

Everything is drawn before the run, in arrays, from one seed: every network gets the same load.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rapport.context.protocol import PROCESSED
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


ASKS, RETURNS, PROBES, HEARD = range(4)
"""Places in a request's counts of messages: searching on, coming back, looking ahead,
acknowledging.
"""
NO_ANSWER = 0
"""The status of a request that nobody answered, not even with a refusal."""


class Asked:
    """The outcome of every request; filled while the simulation runs."""

    def __init__(self, requests: Moments) -> None:
        count = len(requests.times_ms)
        self.requests = requests
        self.statuses = [NO_ANSWER] * count
        self.hops = [0] * count
        self.response_ms = [float("nan")] * count
        self.counts = [[0, 0, 0, 0] for _ in range(count)]
        """Messages between brokers on behalf of each request."""
        self.answered = 0

    def answer(self, number: int, status: int, hops: int, time_ms: float) -> None:
        """Notes how a request ended; only the first answer counts."""
        if self.statuses[number] != NO_ANSWER:
            return
        self.statuses[number] = status
        self.hops[number] = hops
        self.response_ms[number] = time_ms - float(self.requests.times_ms[number])
        self.answered += 1

    def table(self) -> pa.Table:
        """A row for each request, in the order they were made. `messages` are those between
        brokers without acknowledgements, which stand beside.
        """
        counts = np.asarray(self.counts, dtype=np.int32).reshape(-1, 4)
        return pa.table(
            {
                "number": np.arange(len(self.statuses), dtype=np.int32),
                "key": self.requests.keys.astype(np.int32),
                "broker": self.requests.brokers.astype(np.int32),
                "asked_ms": self.requests.times_ms,
                "status": np.asarray(self.statuses, dtype=np.int16),
                "found": np.asarray(self.statuses) == PROCESSED,
                "hops": np.asarray(self.hops, dtype=np.int32),
                "messages": counts[:, :HEARD].sum(axis=1, dtype=np.int32),
                "asks": counts[:, ASKS],
                "returns": counts[:, RETURNS],
                "probes": counts[:, PROBES],
                "acknowledgements": counts[:, HEARD],
                "response_ms": np.asarray(self.response_ms),
            }
        )

    def write(self, path: Path) -> None:
        """The table as Parquet."""
        pq.write_table(self.table(), path, compression="zstd")
