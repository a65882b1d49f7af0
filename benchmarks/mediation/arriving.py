"""The node's own way from producers: raw events brought to root by what gives a source its meaning.
[ME-8]
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.mediation.events import AFFECTED, PRODUCER, Form, events, interpretations
from benchmarks.results import Result, rate
from rapport.core.event import StoredEvent
from rapport.kernel.clock import SystemClock
from rapport.mediation.interpretations.repository import activate
from rapport.mediation.source_bindings import SourceBinding
from rapport.mediation.typed_source import TypedTransformer

_BATCH = 1_000
_CLOCK = SystemClock()
_FORMS: tuple[Form, ...] = ("flat", "deep")


def arriving(quick: bool) -> list[Result]:
    """Through `TypedTransformer.apply_many`, which every lane of mediation calls, together and one
    by one.
    """
    count, rounds = (1_000, 1) if quick else (10_000, 7)
    results = []
    for form in _FORMS:
        in_force, _ = activate({}, interpretations(form, affected=AFFECTED)[1], concepts={})
        stored = [StoredEvent(place, 0, one) for place, one in enumerate(events(form, count), 1)]
        meaning = TypedTransformer(SourceBinding(source="bench", interpretation=PRODUCER), in_force)
        for size in (_BATCH, 1):
            best = min(_seconds(meaning, stored, size) for _ in range(rounds))
            what = f"brought to root in the node, {form}, {size:,} at a time"
            results.append(rate(what, count / best, "events/s"))
    return results


def _seconds(meaning: TypedTransformer, stored: Sequence[StoredEvent], size: int) -> float:
    began = _CLOCK.steady_ns()
    for start in range(0, len(stored), size):
        _, rejections = meaning.apply_many(stored[start : start + size])
        assert not rejections, rejections[0]
    return (_CLOCK.steady_ns() - began) / 1e9
