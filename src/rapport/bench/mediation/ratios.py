"""Mediated against content-based, the figure with a goal: the two ways alone, in turn, in one
process and by processor time, so that what else the machine does disturbs both alike. [ME-9]

Rounds are short and many. A ratio is the median of the ratios of all rounds, in each of which the
two ways come one right after the other.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from statistics import median

import uvloop

from rapport.bench.mediation.events import Form
from rapport.bench.mediation.inside import Makers, in_turn, where_inside
from rapport.bench.mediation.ways import ContentBased, Mediated
from rapport.bench.results import Result, rate

_FORMS: tuple[Form, ...] = ("flat", "deep")
WITHIN_5, WITHIN_15 = 0.95, 0.85


def ratios(quick: bool) -> list[Result]:
    """Single events and batches, flat and deep, for one to ten consumers."""
    return [
        _ratio(form, singly, consumers, quick)
        for singly in (True, False)
        for form in _FORMS
        for consumers in ((1, 10) if quick else (1, 2, 5, 10))
    ]


def _ratio(form: Form, singly: bool, consumers: int, quick: bool) -> Result:
    """Within 5 percent for a single event with one consumer, within 15 anywhere."""
    ways: Makers = {
        "content-based": ContentBased,
        "mediated": lambda: Mediated(form, readers=1),
    }
    count = 500 if quick else 1_000 if singly else 4_000
    rounds = 1 if quick else 25
    gc.collect()
    taken = uvloop.run(in_turn(form, ways, consumers, rounds, count=count, singly=singly))
    plain, mediated = ([each.processor for each in found] for found in taken.values())
    goal = WITHIN_5 if singly and consumers == 1 else WITHIN_15
    metric = f"mediated / content-based, {where_inside(form, singly, consumers)}, processor time"
    return rate(metric, by_rounds(plain, mediated), "times", goal)


def by_rounds(plain: Sequence[float], mediated: Sequence[float]) -> float:
    """How fast mediated is against content-based, 1 being the same, by the time of each round.

    >>> by_rounds([1.0, 1.0, 9.0], [2.0, 1.25, 10.0])
    0.8
    """
    return median(one / other for one, other in zip(plain, mediated, strict=True))
