"""The nearest miss: the smallest change of one reading that would have made the policy fire.
[PO-11]

The relative size of a change is |needed - actual| / max(|actual|, scale). The scale is the needed
value for numbers, the reach for distances, the longest side for areas, and the window or duration
for times. A change to another text or boolean has the size 1.

Every change is verified: the decisions are made again with the changed reading.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from rapport.policy import measures, relations
from rapport.policy.explain.evidence import Evidence, Reading, TimeSpan, Value
from rapport.policy.explain.geometry import (
    at_distance,
    at_distance_on_sphere,
    distance,
    extent,
    moved_point,
)
from rapport.policy.explain.matches import Decision, Decisions, PartialMatch, bindings_of, part_end
from rapport.policy.explain.term_occurrences import (
    Occurrence,
    StateSpan,
    atom_events,
    bindings_of_state,
    silences,
    state_moments,
    state_spans,
    state_truth,
)
from rapport.policy.explain.term_truth import (
    Attempt,
    attempts,
    event_places,
    operands,
    sides_of,
    values,
)
from rapport.policy.explain.wording import Wording, approximate, duration, value_text
from rapport.policy.language.tree import MIRRORED_OPERATORS, NEGATED_OPERATORS
from rapport.policy.operators.plan_shape import (
    NotFollowed,
    NotPreceded,
    Occurs,
    OrderedTerms,
    Part,
    pair_window_ms,
)
from rapport.policy.plan import (
    CorrelationTerm,
    LastingTerm,
    Measure,
    SideValue,
    SilentTerm,
    StateTerm,
    TermStep,
    state_atoms,
)
from rapport.policy.relations import Space
from rapport.units import sphere

_SLIGHT_METRES = 0.001
_MORE = {">": "more than ", "<": "less than ", ">=": "at least ", "<=": "at most "}
_MOST_TRIED = 80


class ReadingChange(msgspec.Struct, frozen=True):
    """A reading with another value or time."""

    reading: Reading
    changed: Reading
    relative: float
    text: str

    @property
    def is_in_time(self) -> bool:
        return self.reading.value == self.changed.value


def moved_reading(reading: Reading, time: int, scale_ms: int) -> ReadingChange:
    """The same reading earlier or later."""
    shift = time - reading.time
    attribute = reading.stream.partition(".")[2]
    direction = "later" if shift > 0 else "earlier"
    text = f"the {attribute} of {reading.key} {duration(abs(shift))} {direction}"
    relative = abs(shift) / max(scale_ms, 1)
    return ReadingChange(reading, msgspec.structs.replace(reading, time=time), relative, text)


class ValueChanges:
    """Changes of values."""

    def __init__(self, evidence: Evidence, wording: Wording) -> None:
        self._evidence, self._wording = evidence, wording

    def of(self, term: StateTerm, attempt: Attempt, *, wanted: bool) -> Iterator[ReadingChange]:
        """The smallest change of each reading that makes the term hold, or not hold; none for
        functions whose inverse is unknown.
        """
        if term.compared is not None:
            yield from self._compared(term, attempt, wanted)
            return
        relation = relations.get(term.function)
        first, second = values(self._evidence, term, attempt.bindings, attempt.events)
        if first is None or second is None:
            return
        if relation.shape == "contains" and 0 in attempt.events:
            yield from self._area(term, attempt, first, second, wanted)
        elif relation.shape == "distance":
            reach = float(term.parameter or 0.0)
            operator = "<=" if wanted else ">"
            points = (first, second)
            yield from self._distance(attempt, points, reach, operator, relation.space)
        elif term.function == "same" and wanted:
            for place, reading in attempt.events.items():
                yield self._other(reading, (second if place == 0 else first,)[0])

    def _area(
        self, term: StateTerm, attempt: Attempt, point: Value, area: Value, wanted: bool
    ) -> Iterator[ReadingChange]:
        reading, relation = attempt.events[0], relations.get(term.function)
        target = moved_point(relation, point, area, inside=wanted)
        if target is None:
            return
        on_sphere = relation.first_type == "geo_point"
        move = distance(target, point, sphere.positions if on_sphere else None)
        name = attempt.bindings[term.second.alias]
        where = f"inside {name}" if wanted else f"outside {name}"
        text = f"{reading.key} {_moved_by(move)} away from there, {where}"
        size = move / max(extent(relation, area), move, 1e-9)
        yield ReadingChange(reading, msgspec.structs.replace(reading, value=target), size, text)

    def _distance(
        self,
        attempt: Attempt,
        points: tuple[Value, Value],
        reach: float,
        operator: str,
        space: Space | None,
    ) -> Iterator[ReadingChange]:
        apart, nearer = distance(*points, space), operator in ("<", "<=")
        for place, reading in attempt.events.items():
            other = points[1 - place]
            move = at_distance if space is None else at_distance_on_sphere
            target = move(points[place], other, reach, -1 if nearer else 1)
            if target is None:
                continue
            how = "nearer" if nearer else "further away"
            text = (
                f"{reading.key} {_moved_by(abs(apart - reach))} {how}: "
                f"{_MORE[operator]}{value_text(reach)} m apart instead of "
                f"{_distinct_digits(apart, reach)} m"
            )
            size = abs(apart - reach) / max(apart, reach, 1e-9)
            yield ReadingChange(reading, msgspec.structs.replace(reading, value=target), size, text)

    def _other(self, reading: Reading, value: Value) -> ReadingChange:
        text = self._text(reading, self._wording.value(reading.stream, value))
        return ReadingChange(reading, msgspec.structs.replace(reading, value=value), 1.0, text)

    # Comparisons.

    def _compared(self, term: StateTerm, attempt: Attempt, wanted: bool) -> Iterator[ReadingChange]:
        assert term.compared is not None
        found = operands(self._evidence, term, attempt.bindings, attempt.events)
        if found.left is None or found.right is None:
            return
        operator = term.compared.operator if wanted else NEGATED_OPERATORS[term.compared.operator]
        ways = (
            (term.compared.left, operator, found.right),
            (term.compared.right, MIRRORED_OPERATORS[operator], found.left),
        )
        for operand, needed_operator, bound in ways:
            if isinstance(operand, SideValue):
                yield from self._plain_value(term, attempt, operand, needed_operator, bound)
            elif isinstance(operand, Measure):
                yield from self._measured(term, attempt, operand, needed_operator, bound)

    def _plain_value(
        self, term: StateTerm, attempt: Attempt, operand: SideValue, operator: str, bound: Any
    ) -> Iterator[ReadingChange]:
        side = sides_of(term)[operand.side]
        if operand.side not in attempt.events or operand.attribute != side.attribute:
            return
        reading = attempt.events[operand.side]
        actual = reading.value[0]
        if isinstance(actual, bool):
            yield self._other(reading, (not actual,))
        elif isinstance(actual, str):
            if operator == "=":
                yield self._other(reading, (bound,))
        else:
            needed = _beyond(operator, float(bound))
            needed_text = self._wording.value(reading.stream, (float(bound),))
            size = abs(needed - actual) / max(abs(actual), abs(needed), 1e-9)
            text = self._text(reading, _MORE.get(operator, "") + needed_text)
            if (
                needed_text == self._wording.value(reading.stream, reading.value)
                and actual != bound
            ):
                text = self._text(reading, _MORE.get(operator, "") + needed_text, exact=actual)
            changed = msgspec.structs.replace(reading, value=(needed,))
            yield ReadingChange(reading, changed, size, text)

    def _measured(
        self, term: StateTerm, attempt: Attempt, operand: Measure, operator: str, bound: Any
    ) -> Iterator[ReadingChange]:
        """Only the distance of two points can be inverted."""
        if measures.get(operand.function).shape != "distance" or operator in ("=", "!="):
            return
        places = event_places(term)
        if len(places) != 2 or {one.side for one in operand.of} != {0, 1}:
            return
        points = (attempt.events[0].value, attempt.events[1].value)
        space = measures.get(operand.function).space
        yield from self._distance(attempt, points, float(bound), operator, space)

    def _text(self, reading: Reading, needed: str, exact: float | None = None) -> str:
        """`exact`: the value, written in full where rounding would make it equal to the
        needed one.
        """
        attribute = reading.stream.partition(".")[2]
        actual = self._wording.value(reading.stream, reading.value)
        if exact is not None:
            actual = actual.replace(value_text(exact), repr(float(exact)), 1)
        return f"{attribute} of {reading.key} {needed} instead of {actual}"


def _moved_by(metres: float) -> str:
    """A distance in words; below a millimetre it is "slightly"."""
    return "slightly" if metres < _SLIGHT_METRES else f"{approximate(metres)} m"


def _distinct_digits(number: float, bound: float) -> str:
    """A computed number with enough digits to differ from a bound.

    >>> _distinct_digits(5.00004, 5), _distinct_digits(10.63, 5), _distinct_digits(5.0, 5)
    ('5.00004', '10.6', '5')
    """
    for digits in (3, 5, 7, 10):
        text = f"{number:.{digits}g}"
        if float(text) != bound:
            return approximate(number) if digits == 3 else text
    return value_text(number)


def _beyond(operator: str, bound: float) -> float:
    """The value nearest to the bound that satisfies the operator."""
    if operator in (">", "!="):
        return math.nextafter(bound, math.inf)
    return math.nextafter(bound, -math.inf) if operator == "<" else bound


class MissSearch:
    """Searches the smallest sufficient change of one reading."""

    def __init__(
        self, decisions: Decisions, wording: Wording, bindings: Mapping[str, str], span: TimeSpan
    ) -> None:
        self._decisions, self._evidence = decisions, decisions.evidence
        self._plan, self._shape = decisions.plan, decisions.shape
        self._bindings, self._span = bindings, span
        self._values = ValueChanges(self._evidence, wording)

    def of_partial(self, partial: PartialMatch) -> ReadingChange | None:
        """The change that completes a match."""
        return self._first_enough(self._completing(partial))

    def of_decision(self, decision: Decision) -> ReadingChange | None:
        """The change that keeps a match from being refuted."""
        return self._first_enough(self._unrefuting(decision))

    def _first_enough(self, changes: Iterable[ReadingChange]) -> ReadingChange | None:
        unique: dict[tuple[Reading, Reading], ReadingChange] = {}
        for change in changes:
            known = unique.get((change.reading, change.changed))
            if change.reading != change.changed and (
                known is None or change.relative < known.relative
            ):
                unique[change.reading, change.changed] = change
        ordered = sorted(unique.values(), key=lambda one: one.relative)
        for change in ordered[:_MOST_TRIED]:
            if fires(self._evidence, change, self._bindings, self._span):
                return change
        return None

    # What a partial match misses.

    def _completing(self, partial: PartialMatch) -> Iterator[ReadingChange]:
        bindings = {**self._bindings, **bindings_of(partial.assignment.values())}
        for clause, taken in zip(self._shape.positive, partial.parts, strict=True):
            if taken is None:
                for part in clause.parts:
                    yield from self._for_part(part, partial, bindings)
        parts = [part for part in partial.parts if part is not None]
        yield from self._nearer_together(parts, partial.assignment)

    def _for_part(
        self, part: Part, partial: PartialMatch, bindings: Mapping[str, str]
    ) -> Iterator[ReadingChange]:
        for term in part.needs():
            if term not in partial.assignment:
                yield from self._for_term(self._plan.terms[term], bindings)
        if isinstance(part, Occurs):
            return
        for found in self._filled(part, partial, bindings):
            if isinstance(part, OrderedTerms):
                yield from _in_order(found[part.first], found[part.second], part.window_ms)
            else:
                own = bindings_of(found.values())
                refuters = self._decisions.matching.part_refuters(part, found, own)
                yield from self._without(refuters or (), self._forbidden(part, found))

    def _filled(
        self, part: Part, partial: PartialMatch, bindings: Mapping[str, str]
    ) -> Iterator[dict[int, Occurrence]]:
        missing = [term for term in part.needs() if term not in partial.assignment]
        for number, way in enumerate(
            self._decisions.matching.fill(missing, partial.assignment, bindings)
        ):
            if number >= _MOST_TRIED:
                return
            yield way

    def _forbidden(self, part: Part, found: Mapping[int, Occurrence]) -> tuple[int, int]:
        """The time range in which an occurrence must not end."""
        assert isinstance(part, NotFollowed | NotPreceded)
        end = part_end(part, found)
        if isinstance(part, NotFollowed):
            return (end + 1, end + part.window_ms)
        return (end - part.window_ms + 1, end)

    def _nearer_together(
        self, parts: list[Part], assignment: Mapping[int, Occurrence]
    ) -> Iterator[ReadingChange]:
        window = self._plan.window_ms
        timed = [
            (part_end(part, assignment), part)
            for part in parts
            if any(not assignment[term].is_fact for term in part.needs())
        ]
        ends = sorted(end for end, _ in timed)
        for end, part in timed:
            for term in part.needs():
                for event in assignment[term].events:
                    if event.time != end:
                        continue
                    if end == ends[0] and ends[-1] - end >= window:
                        yield moved_reading(event, ends[-1] - window + 1, window)
                    if end == ends[-1] and end - ends[0] >= window:
                        yield moved_reading(event, ends[0] + window - 1, window)

    # What would make a term occur.

    def _for_term(self, term: TermStep, bindings: Mapping[str, str]) -> Iterator[ReadingChange]:
        match term:
            case LastingTerm():
                yield from self._for_lasting(term, bindings)
            case SilentTerm():
                for one in silences(self._evidence, term, bindings):
                    yield from _longer(one, term.duration_ms, self._span)
            case _:
                yield from self._for_state_term(term, bindings)

    def _for_state_term(
        self, term: StateTerm, bindings: Mapping[str, str]
    ) -> Iterator[ReadingChange]:
        if not event_places(term):
            return
        for attempt in attempts(self._evidence, term, bindings, self._span):
            if attempt.truth is False:
                yield from self._values.of(term, attempt, wanted=True)
            elif attempt.truth and isinstance(term, CorrelationTerm):
                yield from _within(attempt, pair_window_ms(self._plan, term))

    def _for_lasting(
        self, term: LastingTerm, bindings: Mapping[str, str]
    ) -> Iterator[ReadingChange]:
        for one in state_spans(self._evidence, term, bindings):
            yield from _longer(one, term.duration_ms, self._span)
        for own in bindings_of_state(self._evidence, term, bindings):
            for moment in state_moments(self._evidence, term, own):
                if moment.time > self._span.end + term.duration_ms or moment.truth:
                    continue
                if moment.time < self._span.start - term.duration_ms:
                    continue
                for atom in state_atoms(term.state):
                    if state_truth(self._evidence, atom, own, moment.known) is False:
                        attempt = Attempt(dict(own), atom_events(atom, moment.known), atom.negated)
                        yield from self._values.of(atom.term, attempt, wanted=not atom.negated)

    # What refuted it.

    def _unrefuting(self, decision: Decision) -> Iterator[ReadingChange]:
        t0 = decision.t0
        clauses = [*self._shape.absent, *self._shape.mixed]
        for clause, decided in zip(clauses, [*decision.absences, *decision.mixed], strict=False):
            if decided.satisfied_at is not None:
                continue
            yield from self._without(decided.refuters, (t0, t0 + clause.window_ms))
            if clause.parts:
                partial = PartialMatch(dict(decision.taken), (None,) * len(self._shape.positive))
                for part in clause.parts:
                    bindings = {**self._bindings, **bindings_of(decision.taken.values())}
                    yield from self._for_part(part, partial, bindings)

    def _without(
        self, refuters: Iterable[tuple[int, Occurrence]], forbidden: tuple[int, int]
    ) -> Iterator[ReadingChange]:
        """Changes that remove a counterexample; it must not end in [start, end)."""
        start, end = forbidden
        for number, found in refuters:
            term = self._plan.terms[number]
            for event in found.events:
                yield moved_reading(event, start - 1, end - start)
                yield moved_reading(event, end, end - start)
            if isinstance(term, LastingTerm | SilentTerm):
                continue
            events = dict(zip(event_places(term), found.events, strict=True))
            attempt = Attempt(found.bindings, events, True)
            yield from self._values.of(term, attempt, wanted=False)


def fires(
    evidence: Evidence, change: ReadingChange, bindings: Mapping[str, str], span: TimeSpan
) -> bool:
    """Whether the policy fires for these identities around the time with the changed reading."""
    readings = [change.changed if one == change.reading else one for one in evidence.readings]
    decisions = Decisions(evidence.with_readings(readings)).all(bindings, near=span)
    return any(one.became == "detected" and one.is_near(*span) for one in decisions)


def _in_order(first: Occurrence, second: Occurrence, window: int) -> Iterator[ReadingChange]:
    """Moves one of two occurrences so that they are in order."""
    apart = first.uncertainty + second.uncertainty + 1
    soonest, latest = first.end + apart, first.end + window - 1
    target = min(max(second.end, soonest), latest)
    shift = target - second.end
    for event in second.events:
        if event.time == second.end and shift:
            yield moved_reading(event, event.time + shift, window)
    for event in first.events:
        if event.time == first.end and shift:
            yield moved_reading(event, event.time - shift, window)


def _within(attempt: Attempt, window: int) -> Iterator[ReadingChange]:
    """Moves one of two readings so that they form a pair."""
    one, other = attempt.events[0], attempt.events[1]
    early, late = sorted((one, other), key=lambda each: each.time)
    if late.time - early.time >= window:
        yield moved_reading(late, early.time + window - 1, window)
        yield moved_reading(early, late.time - window + 1, window)


def _longer(stretch: StateSpan, length: int, span: TimeSpan) -> Iterator[ReadingChange]:
    """Moves the end of a state or silence later, or its beginning earlier."""
    own, ending = stretch.occurrence, stretch.ended_by
    if stretch.has_lasted or ending is None or stretch.ended is None:
        return
    if own.first_moment > span.end or stretch.ended < span.start:
        return
    yield moved_reading(ending, own.end, length)
    for event in own.events:
        if event.time == own.since:
            yield moved_reading(event, stretch.ended - length, length)
