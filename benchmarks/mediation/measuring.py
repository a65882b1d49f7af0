"""Everything about mediation in one run: the scenarios of section 4.4 of the source, transformers
by themselves, their making, their weight, and what a change does to events. [ME-8, ME-9]

Five ways from publishers to consumers: *baseline* (nobody looks into an event), *content-based*
(decoded once for a filter, the bytes go on), *mediated* (brought to root, filtered, turned for the
consumers; generated code from bytes to bytes), *reflective* (the same, rules looked up while
walking each event), *external* (a client takes, transforms and publishes again). Rates are the
best of some rounds in which the ways take turns; mediated against content-based is the median of
the rounds, by processor time within one process and by the clock over HTTP.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import uvloop

from benchmarks.mediation.arriving import arriving
from benchmarks.mediation.doors import CONNECTIONS, WAYS, Doors, running_node, seconds_over_doors
from benchmarks.mediation.events import AFFECTED, ATTRIBUTES, Form
from benchmarks.mediation.inside import locality, ways_inside
from benchmarks.mediation.outgoing import said
from benchmarks.mediation.ratios import WITHIN_5, WITHIN_15, by_rounds, ratios
from benchmarks.mediation.transformers import (
    TYPES,
    Speeds,
    generation_ms,
    one_type,
    own_types,
    speeds,
    weight,
)
from benchmarks.mediation.update import BEAT_MS, delays
from benchmarks.results import Result, limit, rate, share

_BATCH = 10_000
_COMPARED = ("content-based", "mediated")
_FORMS: tuple[Form, ...] = ("flat", "deep")


def run(quick: bool) -> dict[str, Any]:
    """Three minutes, 15 s when quick; progress goes to stderr."""
    results: list[Result] = []
    alone = (_weight, _speeds, _generation, _update, arriving, said)
    parts = (*alone, ways_inside, ratios, locality, _doors)
    for part in parts:
        sys.stderr.write(f"{part.__name__.strip('_').replace('_', ' ')} …\n")
        # As `rapport up` does: a collection of what came before is no cost of what is measured.
        gc.collect()
        gc.freeze()
        results += part(quick)
    return {"name": "mediation", "results": results}


def _weight(quick: bool) -> list[Result]:
    found = weight(50 if quick else 1_000)
    what = f"memory per interpretation (one type of {ATTRIBUTES} attributes, mapping, rule)"
    return [
        limit(f"{what}, as declared", found.declared, "bytes"),
        limit(f"{what}, checked and in force", found.checked, "bytes"),
        limit(f"{what}, with its transformer", found.ready, "bytes"),
    ]


def _speeds(quick: bool) -> list[Result]:
    """Transformation alone: decoded values in, values out."""
    results: list[Result] = []
    for form in _FORMS:
        for affected in (1, AFFECTED, ATTRIBUTES):
            count = 2_000 if quick and form == "deep" else _BATCH
            found = speeds(form, affected, count, 3 if quick else 10)
            what = f"{form}, {affected} of {ATTRIBUTES} attributes by formula"
            results += _rates_of(found, what, form, affected)
    return results


def _rates_of(found: Speeds, what: str, form: Form, affected: int) -> list[Result]:
    goal = 1_000_000 if form == "flat" and affected <= AFFECTED else None
    ratio = found.batch_of_few / found.reflective
    known = found.batch_of_few / found.remembering
    alone = "one transformer"
    return [
        rate(f"{alone}, batch of values it may use up, {what}", found.given_away, "events/s", goal),
        rate(f"{alone}, batch of values, {what}", found.batch, "events/s"),
        rate(f"{alone}, one value a call, {what}", found.one_by_one, "events/s"),
        rate(f"{alone}, columns in and out, {what}", found.columns, "events/s"),
        rate(f"{alone}, JSON bytes to JSON bytes, {what}", found.from_bytes, "events/s"),
        rate(f"reflective, {what}", found.reflective, "events/s"),
        rate(f"transformer / reflective, {what}", ratio, "times", 10),
        rate(f"transformer / reflective that remembers its decisions, {what}", known, "times"),
    ]


def _generation(quick: bool) -> list[Result]:
    """Figure 4.16: resolving, fitting, writing and compiling."""
    results: list[Result] = []
    count = 100 if quick else 1_000
    for rules in (1, 10, 50, 100):
        for affected in (0.1, 0.5, 1.0):
            held = own_types(rules, affected)
            took = min(generation_ms(held, TYPES, count) for _ in range(3))
            metric = f"1,000 transformers made, {rules} rules, {affected:.0%} attributes affected"
            results.append(limit(metric, took, "ms"))
    per_rule = {}
    for rules in (10, 100):
        rounds = range(2 if quick else 5)
        held = one_type(rules)
        per_rule[rules] = min(generation_ms(held, 1, 20) for _ in rounds) / rules
        metric = f"1,000 transformers made, {rules} rules for {rules} attributes of one type"
        results.append(limit(metric, per_rule[rules] * rules, "ms"))
    metric = "time per rule at 100 rules / at 10 rules of one type (1 = linear)"
    return [*results, limit(metric, per_rule[100] / per_rule[10], "times", 1.2)]


def _update(quick: bool) -> list[Result]:
    """Figure 4.17. Of some rounds the quietest: what a change does is in each of them, and a hiccup
    of the machine in one.
    """
    rounds, events = (1, 300) if quick else (3, 1_500)
    results: list[Result] = []
    for rules in (1, 100):
        turns = [
            [uvloop.run(delays(rules, events, changing=changing)) for changing in (False, True)]
            for _ in range(rounds)
        ]
        still = min((turn[0].events for turn in turns), key=max)
        moved = min((turn[1] for turn in turns), key=lambda found: max(found.events))
        what = f"events on a beat of {BEAT_MS:g} ms, interpretation with {rules} rules"
        what += f", quietest of {rounds} rounds"
        results += [
            limit(f"delay p99, {what}, no change", share(still, 99), "ms"),
            limit(f"delay max, {what}, no change", max(still), "ms"),
            limit(f"delay p99, {what}, changed every 50 events", share(moved.events, 99), "ms"),
            limit(f"delay max, {what}, changed every 50 events", max(moved.events), "ms", 5),
            limit(f"a change and its transformers, {rules} rules", share(moved.changes, 50), "ms"),
        ]
    return results


def _doors(quick: bool) -> list[Result]:
    """Figures 4.12 and 4.13: publishers and consumers on connections of their own."""
    with running_node() as doors:
        return uvloop.run(_over_doors(doors, quick))


async def _over_doors(doors: Doors, quick: bool) -> list[Result]:
    results: list[Result] = []
    count = 400 if quick else 2_000
    turns = [WAYS] if quick else [WAYS, WAYS, *[_COMPARED] * 6]
    await seconds_over_doors(doors, "warm", "mediated", consumers=1, count=300)
    for consumers in (1, 10) if quick else (1, 2, 5, 10):
        taken: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn, ways in enumerate(turns):
            for way in ways[:: (-1) ** turn]:
                channel = f"{way}-{consumers}-{turn}"
                took = await seconds_over_doors(
                    doors, channel, way, consumers=consumers, count=count
                )
                taken[way].append(took)
        results += _shown(taken, consumers, count)
    return results


def _shown(taken: dict[str, list[float]], consumers: int, count: int) -> list[Result]:
    where = f"HTTP, one event a request, {CONNECTIONS} connections, 1:{consumers}"
    best = {way: count / min(rounds) for way, rounds in taken.items()}
    mediated = best["mediated"]
    ratio = by_rounds(taken["content-based"], taken["mediated"])
    goal = WITHIN_5 if consumers == 1 else WITHIN_15
    return [
        *(rate(f"{way}, {where}", found, "events/s") for way, found in best.items()),
        rate(f"mediated / content-based, {where}", ratio, "times", goal),
        rate(f"mediated / reflective, {where}", mediated / best["reflective"], "times"),
        rate(f"mediated / external, {where}", mediated / best["external"], "times"),
    ]
