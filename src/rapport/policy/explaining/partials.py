"""Partial matches: occurrences that satisfy as many positive clauses as possible. [PO-11]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from rapport.policy.explaining.attempts import TimeSpan
from rapport.policy.explaining.deciding import Decisions
from rapport.policy.explaining.matching import bindings_of, latest_end
from rapport.policy.explaining.stretch import Occurrence
from rapport.policy.runners.operators.shapes import Part

_KEPT = 60
_MOST_WAYS = 1_500


class PartialMatch(NamedTuple):
    """Some positive clauses satisfied by occurrences that agree; the others are None."""

    assignment: dict[int, Occurrence]
    parts: tuple[Part | None, ...]

    @property
    def satisfied(self) -> int:
        """How many."""
        return sum(part is not None for part in self.parts)


def partial_matches(
    decisions: Decisions, given: Mapping[str, str], span: TimeSpan
) -> list[PartialMatch]:
    """Occurrences in the span that satisfy as many positive clauses as possible, best first."""
    found = [PartialMatch({}, ())]
    for clause in decisions.shape.positive:
        grown = [PartialMatch(one.assignment, (*one.parts, None)) for one in found]
        for one in found:
            for part in clause.parts:
                ways = islice(_ways(decisions, part, one, given, span), _MOST_WAYS)
                grown += [PartialMatch(way, (*one.parts, part)) for way in ways]
        grown.sort(key=lambda one: _rank(decisions, one, span))
        found = grown[:_KEPT]
    return found


def _ways(
    decisions: Decisions,
    part: Part,
    partial: PartialMatch,
    given: Mapping[str, str],
    span: TimeSpan,
) -> Iterator[dict[int, Occurrence]]:
    matching = decisions.matching
    missing = [term for term in part.needs() if term not in partial.assignment]
    for way in matching.fill(missing, partial.assignment, given):
        new = [way[term] for term in part.needs() if not way[term].is_fact]
        near = all(one.first_moment <= span.end and one.end >= span.start for one in new)
        if not near or not any(not one.is_fact for one in way.values()):
            continue
        if matching.part_at(part, way, bindings_of(way.values())) is not None:
            yield way


def _rank(decisions: Decisions, one: PartialMatch, span: TimeSpan) -> tuple[object, ...]:
    parts = [part for part in one.parts if part is not None]
    spread = decisions.matching.spread(parts, one.assignment)
    timed = [each for each in one.assignment.values() if not each.is_fact]
    far = span.distance(latest_end(one.assignment)) if timed else 0
    return (-one.satisfied, max(spread - decisions.plan.window_ms + 1, 0), far, repr(one.parts))
