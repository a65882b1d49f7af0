"""How much of the past and of what came after a time must be known to explain it. [PO-11]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rapport.policy.explaining.attempts import TimeSpan
from rapport.policy.ontology import PushSource
from rapport.policy.plan import LastingTerm, Plan, SilentTerm
from rapport.policy.runners.operators.reaches import longest_window_ms, uncertainty_ms

_WINDOWS = 8
"""Pairs use up events, chains reach back and absence waits: each of these one window or two."""


class NeededRange(NamedTuple):
    """From when to when readings are needed."""

    start: int
    end: int


def needed_range(plan: Plan, sources: Mapping[str, PushSource], span: TimeSpan) -> NeededRange:
    """The readings that decide what happens in the span. Longer chains of pairs that use each other
    up than eight windows are not followed.
    """
    window = _WINDOWS * (longest_window_ms(plan) + uncertainty_ms(plan, sources))
    lasting = longest_duration_ms(plan)
    period = max((one.period_ms for one in sources.values()), default=0)
    return NeededRange(span.start - window - 2 * lasting - 2 * period, span.end + window + lasting)


def longest_duration_ms(plan: Plan) -> int:
    """The longest `for` of a state or a silence; 0 without one."""
    terms = (term for term in plan.terms if isinstance(term, LastingTerm | SilentTerm))
    return max((term.duration_ms for term in terms), default=0)


def needs_last_values(plan: Plan) -> bool:
    """Whether the last reading before the span counts, however old it is."""
    return longest_duration_ms(plan) > 0
