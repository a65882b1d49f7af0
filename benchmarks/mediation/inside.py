"""The ways of mediation inside one process, without doors: what is in the path of an event is the
channel, synced, and the consumer's durable place. [ME-9]
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import uvloop

from benchmarks.mediation.events import Form, events
from benchmarks.mediation.throughput import BATCH, PUBLISHERS, Took, seconds_of
from benchmarks.mediation.ways import (
    AtConsumers,
    Baseline,
    ByReflection,
    ContentBased,
    Mediated,
    Way,
)
from benchmarks.results import Result, rate
from rapport.channel.backends.local import open_embedded
from rapport.kernel.clock import SystemClock

Makers = dict[str, Callable[[], Way]]
_CLOCK = SystemClock()


def ways_inside(quick: bool) -> list[Result]:
    """Flat and deep events, one by one and in batches, for one to ten consumers."""
    results: list[Result] = []
    counts = (1, 10) if quick else (1, 2, 5, 10)
    for singly in (True, False):
        for consumers in counts:
            results += _shown("flat", singly, consumers, quick)
    for consumers in (1, 10):
        results += _shown("deep", True, consumers, quick)
    return results


def locality(quick: bool) -> list[Result]:
    """Figure 4.15: once near the producer against at each of ten consumers, who want the same."""
    makers: Makers = {
        "mediated once in the node": lambda: Mediated("flat", readers=1),
        "mediated at every consumer": lambda: AtConsumers("flat", consumers=10),
    }
    best = uvloop.run(_best("flat", makers, 10, singly=False, quick=quick))
    once, each = best.values()
    results = [rate(f"{name}, batches, 1:10", found, "events/s") for name, found in best.items()]
    return [*results, rate("once in the node / at every consumer, 1:10", once / each, "times")]


def _shown(form: Form, singly: bool, consumers: int, quick: bool) -> list[Result]:
    own = f"mediated, {consumers} interpretations"
    makers: Makers = {
        "baseline": Baseline,
        "content-based": ContentBased,
        "mediated": lambda: Mediated(form, readers=1),
        "reflective": lambda: ByReflection(form, readers=1),
    }
    if consumers > 1:
        makers[own] = lambda: Mediated(form, readers=consumers)
    best = uvloop.run(_best(form, makers, consumers, singly=singly, quick=quick))
    where = where_inside(form, singly, consumers)
    mediated, plain = best["mediated"], best["content-based"]
    results = [rate(f"{name}, {where}", found, "events/s") for name, found in best.items()]
    results.append(rate(f"mediated / reflective, {where}", mediated / best["reflective"], "times"))
    if consumers > 1:
        results.append(rate(f"{own} / content-based, {where}", best[own] / plain, "times"))
    return results


def where_inside(form: Form, singly: bool, consumers: int) -> str:
    """As a metric says it."""
    how = f"{PUBLISHERS} publishers of single events" if singly else f"batches of {BATCH:,}"
    return f"{form}, in process, {how}, 1:{consumers}"


async def _best(
    form: Form, makers: Makers, consumers: int, *, singly: bool, quick: bool
) -> dict[str, float]:
    """Events a second by way, the best of some rounds in which they take turns."""
    count = (500 if quick else 4_000) if singly else (1_000 if quick else 10_000)
    taken = await in_turn(form, makers, consumers, 1 if quick else 3, count=count, singly=singly)
    return {name: max(count / each.seconds for each in rounds) for name, rounds in taken.items()}


async def in_turn(
    form: Form, makers: Makers, consumers: int, rounds: int, *, count: int, singly: bool
) -> dict[str, list[Took]]:
    """What every way took in every round, by name; channels are new ones. In every other round
    they come the other way round, so that none is always after the same one.
    """
    sent = events(form, count)
    taken: dict[str, list[Took]] = {name: [] for name in makers}
    with tempfile.TemporaryDirectory(prefix="rapport-bench-") as directory:
        channels = open_embedded(Path(directory), _CLOCK)
        for turn in range(rounds):
            for number, (name, make) in list(enumerate(makers.items()))[:: (-1) ** turn]:
                took = await seconds_of(
                    channels, f"way-{number}-{turn}", sent, make(), consumers=consumers,
                    singly=singly,
                )  # fmt: skip
                taken[name].append(took)
        await channels.close()
    return taken
