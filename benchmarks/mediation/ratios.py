"""Mediated against content-based, and against the same written by hand: the ways alone, in turn, in
one process and by processor time, so that what else the machine does disturbs all alike. [ME-9]

Rounds are short and many. A ratio is the median of the ratios of all rounds, in each of which the
two ways come one right after the other.

Content-based is the measure where events are published one by one, as in the source. A batch of
1,000 in one process costs less than 3 µs an event with all that is done about it, so that there
encoding alone, which content-based does not do, is more than 15 percent: what is written by hand
does no better, and is the measure (decision 109).
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from statistics import median

import uvloop

from benchmarks.mediation.events import Form
from benchmarks.mediation.inside import Makers, in_turn, where_inside
from benchmarks.mediation.ways import ByHand, ContentBased, Mediated
from benchmarks.results import Result, rate

_FORMS: tuple[Form, ...] = ("flat", "deep")
WITHIN_5, WITHIN_15 = 0.95, 0.85


def ratios(quick: bool) -> list[Result]:
    """Single events and batches, flat and deep, for one to ten consumers."""
    return [
        result
        for singly in (True, False)
        for form in _FORMS
        for consumers in ((1, 10) if quick else (1, 2, 5, 10))
        for result in _ratios(form, singly, consumers, quick)
    ]


def _ratios(form: Form, singly: bool, consumers: int, quick: bool) -> list[Result]:
    """Within 5 percent for one consumer, within 15 for more: of content-based for single events, of
    what is written by hand for batches.
    """
    ways: Makers = {
        "content-based": ContentBased,
        "mediated": lambda: Mediated(form, readers=1),
    }
    if not singly:
        ways["written by hand"] = lambda: ByHand(form)
    count = 500 if quick else 1_000 if singly else 4_000
    rounds = 1 if quick else 25
    gc.collect()
    taken = uvloop.run(in_turn(form, ways, consumers, rounds, count=count, singly=singly))
    took = {name: [each.processor for each in found] for name, found in taken.items()}
    mediated = took.pop("mediated")
    goal = WITHIN_5 if consumers == 1 else WITHIN_15
    goals = {"content-based": goal if singly else None, "written by hand": goal}
    where = where_inside(form, singly, consumers)
    return [
        rate(f"mediated / {name}, {where}, processor time", by_rounds(other, mediated), "times",
             goals[name])
        for name, other in took.items()
    ]  # fmt: skip


def by_rounds(plain: Sequence[float], mediated: Sequence[float]) -> float:
    """How fast mediated is against another way, 1 being the same, by the time of each round.

    >>> by_rounds([1.0, 1.0, 9.0], [2.0, 1.25, 10.0])
    0.8
    """
    return median(one / other for one, other in zip(plain, mediated, strict=True))
