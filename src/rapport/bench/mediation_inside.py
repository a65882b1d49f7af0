"""The ways of mediation inside one process, without doors: what is in the path of an event is the
channel, synced, and the consumer's durable place. [ME-9]
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import uvloop

from rapport.bench.mediation_events import Form, events
from rapport.bench.mediation_throughput import BATCH, PUBLISHERS, seconds_of
from rapport.bench.mediation_ways import (
    AtConsumers,
    Baseline,
    ByReflection,
    ContentBased,
    Mediated,
    Way,
)
from rapport.bench.results import Result, rate
from rapport.channel.backends.embedded import open_embedded
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
    how = f"{PUBLISHERS} publishers of single events" if singly else f"batches of {BATCH:,}"
    where = f"{form}, in process, {how}, 1:{consumers}"
    mediated, plain = best["mediated"], best["content-based"]
    goal = 0.85 if singly and form == "flat" else None
    results = [rate(f"{name}, {where}", found, "events/s") for name, found in best.items()]
    results += [
        rate(f"mediated / content-based, {where}", mediated / plain, "times", goal),
        rate(f"mediated / reflective, {where}", mediated / best["reflective"], "times"),
    ]
    if consumers > 1:
        results.append(rate(f"{own} / content-based, {where}", best[own] / plain, "times"))
    return results


async def _best(
    form: Form, makers: Makers, consumers: int, *, singly: bool, quick: bool
) -> dict[str, float]:
    """Events a second by way, the best of some rounds in which they take turns."""
    count = (500 if quick else 4_000) if singly else (1_000 if quick else 10_000)
    sent = events(form, count)
    best = dict.fromkeys(makers, 0.0)
    with tempfile.TemporaryDirectory(prefix="rapport-bench-") as directory:
        channels = open_embedded(Path(directory), _CLOCK)
        for turn in range(1 if quick else 4):
            for number, (name, make) in enumerate(makers.items()):
                took = await seconds_of(
                    channels, f"way-{number}-{turn}", sent, make(), consumers=consumers,
                    singly=singly,
                )  # fmt: skip
                best[name] = max(best[name], count / took)
        await channels.close()
    return best
