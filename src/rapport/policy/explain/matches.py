"""Matches of a plan for given identities by rules 7 to 9, the decision about each (detected,
undecided, suppressed, refuted), and partial matches. [PO-6, PO-7, PO-11]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Literal, NamedTuple

import msgspec

from rapport.core.detection import Detection, detection_order, identity_order
from rapport.policy.explain.evidence import Evidence, TimeSpan
from rapport.policy.explain.term_occurrences import Occurrence, TermOccurrences
from rapport.policy.operators.plan_shape import (
    ClauseShape,
    NotFollowed,
    NotPreceded,
    Occurs,
    OrderedTerms,
    Part,
    PlanShape,
    longest_window_ms,
    plan_shape,
)
from rapport.policy.plan import ConstraintTerm, Plan

Assignment = Mapping[int, Occurrence]
Counts = Callable[[Occurrence], bool]
"""Whether an occurrence with an end lies in the refuting range."""
MatchOutcome = Literal["detected", "undecided", "left out", "refuted"]
_KEPT = 60
_MOST_WAYS = 1_500


class Match(NamedTuple):
    """One occurrence per needed term, and the time when the last positive clause is satisfied."""

    assignment: dict[int, Occurrence]
    when: int


class ClauseOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a clause with absence, or of a mixed one."""

    satisfied_at: int | None
    """None: the clause failed."""
    refuters: tuple[tuple[int, Occurrence], ...] = ()
    """The counterexample, by term."""
    chosen: Part | None = None
    """The positive part that satisfied a mixed clause."""


class PlanMatches:
    """The matches of one plan, optionally for given identities."""

    def __init__(self, occurrences: TermOccurrences, shape: PlanShape) -> None:
        self.occurrences, self.shape = occurrences, shape
        self.plan: Plan = occurrences.evidence.plan
        self._far = 2 * longest_window_ms(self.plan)
        self._concepts = {side.alias: side.concept for side in self.plan.sides()}

    def minimal(self, given: Mapping[str, str]) -> list[Match]:
        """The minimal matches: those that contain no smaller match."""
        valid: dict[frozenset[tuple[int, Occurrence]], int] = {}
        for assignment in self._assignments(given):
            when = self._satisfied_at(assignment)
            if when is not None:
                valid[frozenset(assignment.items())] = when
        return [
            Match(dict(sorted(items)), when)
            for items, when in valid.items()
            if not any(frozenset(part) in valid for part in _proper_parts(items))
        ]

    def agree(self, occurrence: Occurrence, bindings: Mapping[str, str]) -> bool:
        """Whether an occurrence fits the bindings: equal aliases have equal identities, distinct
        aliases different ones.
        """
        merged = {**bindings, **occurrence.bindings}
        if any(merged[alias] != identity for alias, identity in bindings.items()):
            return False
        return not any(
            first in merged
            and second in merged
            and (self._concepts[first], merged[first]) == (self._concepts[second], merged[second])
            for first, second in self.plan.distinct
        )

    # Parts.

    def part_at(
        self, part: Part, assignment: Assignment, bindings: Mapping[str, str]
    ) -> int | None:
        """When the given occurrences satisfy a part; None when they do not."""
        match part:
            case Occurs(term):
                found = assignment[term]
                return latest_end(assignment) if found.is_fact else found.end
            case OrderedTerms():
                return self._ordered(part, assignment)
            case NotFollowed() | NotPreceded():
                if self.part_refuters(part, assignment, bindings) is not None:
                    return None
                end = part_end(part, assignment)
                return end + part.window_ms if isinstance(part, NotFollowed) else end

    def _ordered(self, part: OrderedTerms, assignment: Assignment) -> int | None:
        first, second = assignment[part.first], assignment[part.second]
        surely = first.end + first.uncertainty < second.end - second.uncertainty
        return second.end if surely and second.end < first.end + part.window_ms else None

    def part_refuters(
        self, part: NotFollowed | NotPreceded, assignment: Assignment, bindings: Mapping[str, str]
    ) -> tuple[tuple[int, Occurrence], ...] | None:
        """Occurrences that followed or preceded although they must not; None when there are
        none.
        """
        (term,) = part.needs()
        own, window = assignment[term], part.window_ms

        def follows(other: Occurrence) -> bool:
            after = other.end + other.uncertainty > own.end - own.uncertainty
            return after and other.end - other.uncertainty < own.end + own.uncertainty + window

        def precedes(other: Occurrence) -> bool:
            before = other.end - other.uncertainty < own.end + own.uncertainty
            return before and other.end + other.uncertainty > own.end - own.uncertainty - window

        counts = follows if isinstance(part, NotFollowed) else precedes
        return self.refuters(part.absent, bindings, counts)

    def refuters(
        self, terms: tuple[int, ...], bindings: Mapping[str, str], counts: Counts
    ) -> tuple[tuple[int, Occurrence], ...] | None:
        """One occurrence per term with equal identities; None when there is no such set."""
        if not terms:
            return ()
        for found in self.occurrences.of(terms[0], bindings, negated=True):
            if (found.is_fact or counts(found)) and self.agree(found, bindings):
                rest = self.refuters(terms[1:], {**bindings, **found.bindings}, counts)
                if rest is not None:
                    return ((terms[0], found), *rest)
        return None

    # Matches.

    def _assignments(self, given: Mapping[str, str]) -> Iterator[dict[int, Occurrence]]:
        seen: set[frozenset[tuple[int, Occurrence]]] = set()
        for parts in itertools.product(*(clause.parts for clause in self.shape.positive)):
            terms = tuple(dict.fromkeys(term for part in parts for term in part.needs()))
            for assignment in self.fill(self._events_first(terms), {}, given):
                key = frozenset(assignment.items())
                if key not in seen and any(not one.is_fact for _, one in key):
                    seen.add(key)
                    yield assignment

    def _events_first(self, terms: Iterable[int]) -> list[int]:
        """Sorts facts last, because events bind the identities."""
        return sorted(terms, key=lambda term: isinstance(self.plan.terms[term], ConstraintTerm))

    def fill(
        self, terms: list[int], taken: dict[int, Occurrence], given: Mapping[str, str]
    ) -> Iterator[dict[int, Occurrence]]:
        """Every assignment of occurrences to the terms."""
        if not terms:
            yield taken
            return
        bindings = {**given, **bindings_of(taken.values())}
        for found in self.occurrences.of(terms[0], bindings):
            if self._may_join(found, taken) and self.agree(found, bindings):
                yield from self.fill(terms[1:], {**taken, terms[0]: found}, given)

    def _may_join(self, found: Occurrence, taken: Assignment) -> bool:
        return found.is_fact or all(
            abs(found.end - other.end) < self._far for other in taken.values() if not other.is_fact
        )

    def _satisfied_at(self, assignment: Assignment) -> int | None:
        bindings = bindings_of(assignment.values())
        options = [self._options(clause, assignment, bindings) for clause in self.shape.positive]
        times = [
            max(when for _, when in taken)
            for taken in itertools.product(*options)
            if {term for part, _ in taken for term in part.needs()} == set(assignment)
            and self.spread([part for part, _ in taken], assignment) < self.plan.window_ms
        ]
        return min(times, default=None)

    def _options(
        self, clause: ClauseShape, assignment: Assignment, bindings: Mapping[str, str]
    ) -> list[tuple[Part, int]]:
        times = [
            (part, self.part_at(part, assignment, bindings))
            for part in clause.parts
            if all(term in assignment for term in part.needs())
        ]
        return [(part, time) for part, time in times if time is not None]

    def spread(self, parts: Iterable[Part], assignment: Assignment) -> int:
        """The distance between the first and the last end of these parts."""
        ends = [
            part_end(part, assignment)
            for part in parts
            if any(not assignment[term].is_fact for term in part.needs())
        ]
        return max(ends) - min(ends) if ends else 0

    # Absence and mixed clauses.

    def absence(self, clause: ClauseShape, bindings: Mapping[str, str], t0: int) -> ClauseOutcome:
        """Whether the NOT children of a clause hold."""

        def counts(other: Occurrence) -> bool:
            return t0 <= other.start and other.end < t0 + clause.window_ms

        for terms in clause.counterexamples:
            found = self.refuters(terms, bindings, counts)
            if found is not None:
                return ClauseOutcome(satisfied_at=None, refuters=found)
        terms_of = {term for terms in clause.counterexamples for term in terms}
        waits = any(not isinstance(self.plan.terms[one], ConstraintTerm) for one in terms_of)
        return ClauseOutcome(satisfied_at=t0 + clause.window_ms if waits else t0)

    def earliest(
        self, clause: ClauseShape, taken: dict[int, Occurrence], t0: int
    ) -> tuple[ClauseOutcome, dict[int, Occurrence]] | None:
        """The earliest positive part of a mixed clause near `t0`, and its occurrences."""
        best: tuple[tuple[object, ...], ClauseOutcome, dict[int, Occurrence]] | None = None
        for place, part in enumerate(clause.parts):
            for assignment in self._choices(part, taken):
                bindings = bindings_of(assignment.values())
                when = self.part_at(part, assignment, bindings)
                end = part_end(part, assignment, default=t0)
                if when is None or not abs(end - t0) < clause.window_ms:
                    continue
                own = {term: assignment[term] for term in part.needs()}
                causes = sorted({event.cause for one in own.values() for event in one.events})
                rank = (end, causes, place, in_order(bindings))
                if best is None or rank < best[0]:
                    best = (rank, ClauseOutcome(satisfied_at=max(when, t0), chosen=part), own)
        return None if best is None else (best[1], best[2])

    def _choices(self, part: Part, taken: dict[int, Occurrence]) -> Iterator[dict[int, Occurrence]]:
        options: list[dict[int, Occurrence]] = [dict(taken)]
        for term in part.needs():
            if term in taken:
                continue
            options = [
                {**one, term: found}
                for one in options
                for found in self.occurrences.of(term, bindings_of(one.values()))
                if self.agree(found, bindings_of(one.values()))
            ]
        yield from options


def bindings_of(occurrences: Iterable[Occurrence]) -> dict[str, str]:
    return {alias: one for each in occurrences for alias, one in each.pairs}


def in_order(bindings: Mapping[str, str]) -> list[tuple[str, object]]:
    """Sort key of the output order."""
    return [(alias, identity_order(item)) for alias, item in sorted(bindings.items())]


def latest_end(assignment: Assignment) -> int:
    """`t0` of a match."""
    return max(one.end for one in assignment.values() if not one.is_fact)


def part_end(part: Part, assignment: Assignment, default: int = 0) -> int:
    ends = [assignment[term].end for term in part.needs() if not assignment[term].is_fact]
    return max(ends, default=default)


def _proper_parts(
    items: frozenset[tuple[int, Occurrence]],
) -> Iterator[tuple[tuple[int, Occurrence], ...]]:
    for size in range(1, len(items)):
        yield from itertools.combinations(items, size)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A match and its outcome."""

    became: MatchOutcome
    match: Match
    taken: dict[int, Occurrence]
    """The match with the occurrences that mixed clauses chose."""
    t0: int
    absences: tuple[ClauseOutcome, ...]
    """Outcome of each NOT clause."""
    mixed: tuple[ClauseOutcome, ...]
    """Outcome of each decided mixed clause."""
    detection: Detection
    """The detection that it is, or would be."""
    silent: tuple[str, ...] = ()
    """Sources whose silence leaves it undecided."""
    suppressed_by: Detection | None = None
    """The detection that suppresses it, by `at most once per`."""

    @property
    def first_moment(self) -> int:
        timed = [one.first_moment for one in self.taken.values() if not one.is_fact]
        return min(timed, default=self.t0)

    def is_near(self, start: int, end: int) -> bool:
        """Whether any moment of it lies in [start, end]."""
        return self.first_moment <= end and self.detection.time >= start


class Decisions:
    """The decisions about one plan's matches."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence, self.plan = evidence, evidence.plan
        self.shape = plan_shape(evidence.plan)
        self.matching = PlanMatches(TermOccurrences(evidence), self.shape)
        self._doubt_ms = longest_window_ms(evidence.plan)
        self._bindable = self._positive_aliases()
        self._times_by_source: dict[str, list[int]] = {}
        for reading in evidence.readings:
            self._times_by_source.setdefault(reading.source, []).append(reading.time)

    def all(
        self,
        given: Mapping[str, str],
        *,
        reported: Sequence[Detection] | None = None,
        near: tuple[int, int] | None = None,
    ) -> list[Decision]:
        """The outcome of every match with these identities, in output order.

        `reported`: the emitted detections, which `at most once per` refers to; None: those found
        here. `near`: only matches with a moment in this span are needed; others may be missing.
        """
        matches = self.matching.minimal(given)
        if near is not None and (self.plan.once_per_ms is None or reported is not None):
            matches = [match for match in matches if self._may_be_near(match, *near)]
        found = [self._decide(match) for match in matches]
        wanted = {alias: one for alias, one in given.items() if alias in self._bindable}
        fitting = [one for one in found if wanted.items() <= one.detection.bindings.items()]
        fitting.sort(key=lambda one: detection_order(one.detection))
        return self._throttled(_each_once(fitting), reported)

    def _may_be_near(self, match: Match, start: int, end: int) -> bool:
        """Whether the match can matter for the span: absence and mixed clauses reach two windows
        further.
        """
        timed = [one for one in match.assignment.values() if not one.is_fact]
        reach = 2 * self._doubt_ms
        first = min(one.first_moment for one in timed)
        return (
            first <= end + reach and max(match.when, latest_end(match.assignment)) + reach >= start
        )

    def _positive_aliases(self) -> frozenset[str]:
        """The aliases that a detection may bind; the others occur in absences only."""
        clauses = (*self.shape.positive, *self.shape.mixed)
        parts = (part for clause in clauses for part in clause.parts)
        terms = (self.plan.terms[number] for part in parts for number in part.needs())
        return frozenset(side.alias for term in terms for side in (term.first, term.second))

    def _decide(self, match: Match) -> Decision:
        t0 = latest_end(match.assignment)
        bindings = bindings_of(match.assignment.values())
        absences = [self.matching.absence(clause, bindings, t0) for clause in self.shape.absent]
        taken, mixed, bare = dict(match.assignment), [], []
        for clause in self.shape.mixed:
            chosen = self.matching.earliest(clause, taken, t0)
            if chosen is None:
                bare.append(clause)
                mixed.append(self.matching.absence(clause, bindings_of(taken.values()), t0))
            else:
                mixed.append(chosen[0])
                taken.update(chosen[1])
            if mixed[-1].satisfied_at is None:
                break
        decided = [*absences, *mixed]
        times = [one.satisfied_at for one in decided if one.satisfied_at is not None]
        detection = self._detection(taken, max([match.when, t0, *times]))
        failed = any(one.satisfied_at is None for one in decided)
        silent = () if failed else self._silent(detection.time, bare)
        return Decision(
            became="refuted" if failed else "undecided" if silent else "detected",
            match=match,
            taken=taken,
            t0=t0,
            absences=tuple(absences),
            mixed=tuple(mixed),
            detection=detection,
            silent=silent,
        )

    def _detection(self, taken: Mapping[int, Occurrence], time: int) -> Detection:
        causes = sorted({event.cause for one in taken.values() for event in one.events})
        return Detection(
            policy=self.plan.policy,
            version=self.plan.version(),
            time=time,
            bindings=bindings_of(taken.values()),
            causes=tuple(causes),
        )

    def _throttled(
        self, decisions: list[Decision], reported: Sequence[Detection] | None
    ) -> list[Decision]:
        once_per = self.plan.once_per_ms
        if once_per is None:
            return decisions
        known = {one.id() for one in reported or ()}
        last: dict[tuple[tuple[str, str], ...], list[Detection]] = {}
        for earlier in reported or ():
            last.setdefault(_key(earlier), []).append(earlier)
        found = []
        for one in decisions:
            before, time = last.setdefault(_key(one.detection), []), one.detection.time
            is_new = one.became == "detected" and one.detection.id() not in known
            near = [earlier for earlier in before if 0 <= time - earlier.time < once_per]
            if is_new and near:
                by = max(near, key=lambda earlier: earlier.time)
                found.append(msgspec.structs.replace(one, became="left out", suppressed_by=by))
                continue
            if is_new and reported is None:
                before.append(one.detection)
            found.append(one)
        return found

    # Silent sources.

    def _silent(self, time: int, bare: Iterable[ClauseShape]) -> tuple[str, ...]:
        """The sources with a period that were silent although the absence rests on them."""
        if self.plan.when_unsure == "fire":
            return ()
        streams = self.plan.streams_of(self._absent_terms(bare))
        return tuple(
            sorted(
                name
                for name, one in self.evidence.sources.items()
                if one.period_ms > 0
                and not one.streams.isdisjoint(streams)
                and self._was_silent(name, one.period_ms, time - self._doubt_ms, time)
            )
        )

    def _absent_terms(self, bare: Iterable[ClauseShape]) -> Collection[int]:
        clauses = [*self.shape.absent, *bare]
        terms = {term for one in clauses for each in one.counterexamples for term in each}
        for clause in (*self.shape.positive, *self.shape.mixed):
            for part in clause.parts:
                if isinstance(part, NotFollowed | NotPreceded):
                    terms.update(part.absent)
        return terms

    def _was_silent(self, source: str, period: int, start: int, end: int) -> bool:
        began = self.evidence.readings[0].time if self.evidence.readings else end
        times = [time for time in self._times_by_source.get(source, ()) if time < end]
        return any(
            until - since > period and until > start and since < end
            for since, until in pairwise([began, *times, end])
        )


def _each_once(decisions: list[Decision]) -> list[Decision]:
    """The first match per detection; a detected one before others."""
    best: dict[str, Decision] = {}
    for one in decisions:
        known = best.get(one.detection.id())
        if known is None or (known.became == "refuted" and one.became != "refuted"):
            best[one.detection.id()] = one
    return list(best.values())


def _key(detection: Detection) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(detection.bindings.items()))


class PartialMatch(NamedTuple):
    """Occurrences for some positive clauses; the parts of the others are None."""

    assignment: dict[int, Occurrence]
    parts: tuple[Part | None, ...]

    @property
    def satisfied(self) -> int:
        return sum(part is not None for part in self.parts)


def partial_matches(
    decisions: Decisions, given: Mapping[str, str], span: TimeSpan
) -> list[PartialMatch]:
    """The assignments in the span that satisfy the most positive clauses, best first."""
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
