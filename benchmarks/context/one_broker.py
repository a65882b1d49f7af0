"""One broker: how many requests it answers, how soon, and whether its table's size matters. [CX-12]

Sealed datagrams of version 1 on the loopback, records of 1 kB; broker and clients are processes of
their own.
"""

from __future__ import annotations

import asyncio

from benchmarks.context.broker_process import CLOCK, processor_s
from benchmarks.context.flood import UNDER_WAY, Flooded, flood, flood_echo
from benchmarks.context.load import Crowd, consume
from benchmarks.context.network import BrokerAtWork, brokers_at_work, fill
from benchmarks.context.subject import (
    SCOPE,
    Keys,
    client_keys,
    fresh_keys,
    question_of,
    small_record,
)
from benchmarks.results import Result, limit, rate, share
from rapport.context.clients.consumer import ContextConsumer
from rapport.context.records import RecordTable, key_of
from rapport.kernel.clock import Chance

GOAL_PER_SECOND, GOAL_MEDIAN_MS, GOAL_GROWTH = 20_000, 0.5, 1.5
"""The last is ours, for \"does not grow\": a large table misses the processor's caches."""
RECORDS = 1_000
_AT_A_BEAT = 1_000
_LOOK_UPS = 100_000


def one_broker(quick: bool) -> list[Result]:
    """Some 40 s; 8 s when quick."""
    keys = fresh_keys()
    with brokers_at_work(1, "centralized", keys) as (broker,):
        fill(broker, RECORDS, large=RECORDS)
        results = _throughput(broker, keys, 10_000 if quick else 200_000)
        results += _at_a_beat(broker, keys, 1.0 if quick else 10.0)
    return results + _growth(keys, quick)


def _throughput(broker: BrokerAtWork, keys: Keys, requests: int) -> list[Result]:
    flood(broker.address, keys, requests=requests // 10, things=RECORDS)
    asked, broker_us = _flooded(broker, keys, requests, RECORDS)
    bare = flood_echo(keys, requests=requests)
    what = f"one broker, 1 kB from its table, {UNDER_WAY} under way"
    return [
        rate(f"{what}, answered", asked.per_second, "requests/s", GOAL_PER_SECOND),
        limit(f"{what}, not answered", asked.lost, "requests"),
        limit(f"{what}, processor time of the broker", broker_us, "us/request"),
        limit(f"{what}, processor time of the client", asked.client_us, "us/request"),
        rate("the same client and a bare echo instead of a broker", bare.per_second, "requests/s"),
    ]


def _flooded(broker: BrokerAtWork, keys: Keys, requests: int, things: int) -> tuple[Flooded, float]:
    """How it went, and the broker's processor time for each answer in us."""
    before = broker.look()
    asked = flood(broker.address, keys, requests=requests, things=things)
    return asked, (broker.look().processor_s - before.processor_s) / asked.answered * 1e6


def _at_a_beat(broker: BrokerAtWork, keys: Keys, seconds: float) -> list[Result]:
    crowd = Crowd(brokers=(broker.address,), clients=_AT_A_BEAT, interval_s=1.0)
    asked = consume(crowd, keys, seconds, warm_s=0.5)
    with_client = asyncio.run(_by_consumer(broker, keys, int(seconds * 500)))
    what = f"one broker, {_AT_A_BEAT:,} requests/s, time of an answer"
    return [
        limit(f"{what}, p50", share(asked.took_us, 50) / 1e3, "ms", GOAL_MEDIAN_MS),
        limit(f"{what}, p99", share(asked.took_us, 99) / 1e3, "ms"),
        limit(f"{what}, not answered", asked.refused + asked.unanswered, "requests"),
        limit("ContextConsumer, one request after another, p50", share(with_client, 50), "ms"),
        limit("ContextConsumer, one request after another, p99", share(with_client, 99), "ms"),
    ]


async def _by_consumer(broker: BrokerAtWork, keys: Keys, requests: int) -> list[float]:
    """Times in ms as a program that uses the client sees them."""
    entity = question_of(0).entity
    async with await ContextConsumer.open([broker.address], keys=client_keys(keys)) as consumer:
        await consumer.request(entity, SCOPE)
        return [(await consumer.request(entity, SCOPE)).took_ms for _ in range(requests)]


# --- size of the table ---


def _growth(keys: Keys, quick: bool) -> list[Result]:
    """Small values here, so that a million records fit."""
    sizes = (1_000, 100_000) if quick else (1_000, 10_000, 100_000, 1_000_000)
    requests = 5_000 if quick else 50_000
    taken: dict[int, float] = {}
    results: list[Result] = []
    for size in sizes:
        with brokers_at_work(1, "centralized", keys) as (broker,):
            fill(broker, size, large=0)
            _flooded(broker, keys, requests // 10, size)
            taken[size] = min(_flooded(broker, keys, requests, size)[1] for _ in range(3))
        what = f"table of {size:,} records"
        results.append(limit(f"{what}, a request, broker's processor time", taken[size], "us"))
        results.append(limit(f"{what}, the look-up alone", look_up_ns(size), "ns"))
    grown = taken[sizes[-1]] / taken[sizes[0]]
    what = f"a request, {sizes[-1]:,} records / {sizes[0]:,}"
    return [*results, limit(what, grown, "times", GOAL_GROWTH)]


def look_up_ns(size: int) -> float:
    """Processor time of one look-up for a thing drawn at random, best of three rounds."""
    now_ms, table, chance = CLOCK.now_ms(), RecordTable(), Chance(5)
    for number in range(size):
        table.put(small_record(number, now_ms), now_ms)
    keys = [key_of(question_of(chance.randrange(size))) for _ in range(_LOOK_UPS)]
    rounds = []
    for _ in range(3):
        before_s = processor_s()
        for key in keys:
            table.answer(key, now_ms)
        rounds.append((processor_s() - before_s) / _LOOK_UPS * 1e9)
    return min(rounds)
