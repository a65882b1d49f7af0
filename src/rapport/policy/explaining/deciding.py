"""How every match around a time was decided: detected, undecided, left out, refuted. [PO-7,
PO-11]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from rapport.core.detection import Detection, detection_order
from rapport.policy.explaining.matching import (
    ClauseOutcome,
    Match,
    PlanMatches,
    bindings_of,
    latest_end,
)
from rapport.policy.explaining.occurring import TermOccurrences
from rapport.policy.explaining.stretch import Occurrence
from rapport.policy.explaining.world import Evidence
from rapport.policy.runners.operators.reaches import longest_window_ms
from rapport.policy.runners.operators.shapes import (
    Alternatives,
    NotFollowed,
    NotPreceded,
    shape_of,
)

MatchOutcome = Literal["detected", "undecided", "left out", "refuted"]


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A match and what became of it."""

    became: MatchOutcome
    match: Match
    taken: dict[int, Occurrence]
    """The match with what mixed clauses chose."""
    t0: int
    absences: tuple[ClauseOutcome, ...]
    """Of each NOT clause."""
    mixed: tuple[ClauseOutcome, ...]
    """Of each mixed clause, as far as they were decided."""
    detection: Detection
    """What it would be, or is."""
    silent: tuple[str, ...] = ()
    """The sources whose silence leaves it open."""
    suppressed_by: Detection | None = None
    """The detection because of which it is left out, by `at most once per`."""

    @property
    def first_moment(self) -> int:
        """When the first of what it takes began."""
        timed = [one.first_moment for one in self.taken.values() if not one.is_fact]
        return min(timed, default=self.t0)

    def is_near(self, start: int, end: int) -> bool:
        """Whether any moment of it lies in [start, end]."""
        return self.first_moment <= end and self.detection.time >= start


class Decisions:
    """The decisions of one plan over one world."""

    def __init__(self, world: Evidence) -> None:
        self.world, self.plan = world, world.plan
        self.shape = shape_of(world.plan)
        self.matching = PlanMatches(TermOccurrences(world), self.shape)
        self._doubt_ms = longest_window_ms(world.plan)
        self._bindable = self._positive_aliases()
        self._heard: dict[str, list[int]] = {}
        for reading in world.readings:
            self._heard.setdefault(reading.source, []).append(reading.time)

    def all(
        self,
        given: Mapping[str, str],
        *,
        reported: Sequence[Detection] | None = None,
        near: tuple[int, int] | None = None,
    ) -> list[Decision]:
        """What became of every match with these identities, in the order of the output.

        Args:
            reported: what was told in fact, by which `at most once per` is judged; None: what is
                found here.
            near: only what has a moment in this span of time is asked for; others may be left out.
        """
        matches = self.matching.minimal(given)
        if near is not None and (self.plan.once_per_ms is None or reported is not None):
            matches = [match for match in matches if self._may_be_near(match, *near)]
        found = [self._decide(match) for match in matches]
        asked = {alias: one for alias, one in given.items() if alias in self._bindable}
        fitting = [one for one in found if asked.items() <= one.detection.bindings.items()]
        fitting.sort(key=lambda one: detection_order(one.detection))
        return self._throttled(_each_once(fitting), reported)

    def _may_be_near(self, match: Match, start: int, end: int) -> bool:
        """Whether deciding it can matter: absence and mixed clauses reach two windows further."""
        timed = [one for one in match.assignment.values() if not one.is_fact]
        reach = 2 * self._doubt_ms
        first = min(one.first_moment for one in timed)
        return (
            first <= end + reach and max(match.when, latest_end(match.assignment)) + reach >= start
        )

    def _positive_aliases(self) -> frozenset[str]:
        """Those that a detection may bind; the others only absence mentions."""
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
        for told in reported or ():
            last.setdefault(_key(told), []).append(told)
        found = []
        for one in decisions:
            before, time = last.setdefault(_key(one.detection), []), one.detection.time
            is_new = one.became == "detected" and one.detection.id() not in known
            near = [told for told in before if 0 <= time - told.time < once_per]
            if is_new and near:
                by = max(near, key=lambda told: told.time)
                found.append(msgspec.structs.replace(one, became="left out", suppressed_by=by))
                continue
            if is_new and reported is None:
                before.append(one.detection)
            found.append(one)
        return found

    # Silent sources.

    def _silent(self, time: int, bare: Iterable[Alternatives]) -> tuple[str, ...]:
        """The sources with a period that were silent although the absence rests on them."""
        if self.plan.when_unsure == "fire":
            return ()
        streams = self.plan.streams_of(self._absent_terms(bare))
        return tuple(
            sorted(
                name
                for name, one in self.world.sources.items()
                if one.period_ms > 0
                and not one.streams.isdisjoint(streams)
                and self._was_silent(name, one.period_ms, time - self._doubt_ms, time)
            )
        )

    def _absent_terms(self, bare: Iterable[Alternatives]) -> Collection[int]:
        clauses = [*self.shape.absent, *bare]
        terms = {term for one in clauses for each in one.counterexamples for term in each}
        for clause in (*self.shape.positive, *self.shape.mixed):
            for part in clause.parts:
                if isinstance(part, NotFollowed | NotPreceded):
                    terms.update(part.absent)
        return terms

    def _was_silent(self, source: str, period: int, start: int, end: int) -> bool:
        began = self.world.readings[0].time if self.world.readings else end
        heard = [time for time in self._heard.get(source, ()) if time < end]
        return any(
            until - since > period and until > start and since < end
            for since, until in pairwise([began, *heard, end])
        )


def _each_once(decisions: list[Decision]) -> list[Decision]:
    """Of matches that come to the same detection the first; one that is detected before others."""
    best: dict[str, Decision] = {}
    for one in decisions:
        known = best.get(one.detection.id())
        if known is None or (known.became == "refuted" and one.became != "refuted"):
            best[one.detection.id()] = one
    return list(best.values())


def _key(detection: Detection) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(detection.bindings.items()))
