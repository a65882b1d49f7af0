"""Builds the candidates of an answer from decisions and partial matches: each condition as a node,
with the occurrence that satisfied it or the readings that came nearest. [PO-11]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from rapport.core.times import rough_duration
from rapport.policy.explain.answer import Candidate, ConditionNode, Truth
from rapport.policy.explain.evidence import Evidence, LateReading, TimeSpan
from rapport.policy.explain.matches import (
    ClauseOutcome,
    Decision,
    Decisions,
    PartialMatch,
    bindings_of,
    latest_end,
    part_end,
)
from rapport.policy.explain.term_occurrences import (
    Occurrence,
    StateMoment,
    StateSpan,
    atom_events,
    bindings_of_state,
    ends_of_state,
    silences,
    state_moments,
    state_spans,
    state_truth,
)
from rapport.policy.explain.term_truth import Attempt, Proximity, attempts, event_places, sides_of
from rapport.policy.explain.wording import (
    ClauseWords,
    Wording,
    bindings_text,
    duration,
    time_mark,
)
from rapport.policy.operators.plan_shape import (
    ClauseShape,
    NotFollowed,
    NotPreceded,
    Occurs,
    OrderedTerms,
    Part,
    pair_window_ms,
)
from rapport.policy.plan import (
    Clause,
    LastingTerm,
    Side,
    SilentTerm,
    StateTerm,
    TermStep,
    state_atoms,
    state_terms,
    terms_of_child,
)

_TRUTHS: dict[bool | None, Truth] = {True: "true", False: "false", None: "unknown"}
_MOST_NAMED = 5
_MOST_NEAREST = 5


class NodeBuilder:
    """Builds condition nodes for terms."""

    def __init__(self, evidence: Evidence, wording: Wording) -> None:
        self.evidence, self.wording = evidence, wording
        self.measuring = Proximity(evidence, wording)

    # Terms that hold.

    def held(self, term: TermStep, found: Occurrence) -> ConditionNode:
        """The node of a term that an occurrence satisfies."""
        shown = tuple(self.wording.reading(one) for one in found.events)
        return ConditionNode(
            text=self.wording.term(term),
            truth="true",
            because=self._reason_held(term, found),
            readings=shown,
        )

    def _reason_held(self, term: TermStep, found: Occurrence) -> str:
        match term:
            case LastingTerm():
                return f"true since {time_mark(found.since)}, {duration(term.duration_ms)} long"
            case SilentTerm():
                name = found.bindings[term.first.alias]
                return f"{name} sent nothing after {time_mark(found.since)}"
            case _:
                events = dict(zip(event_places(term), found.events, strict=True))
                return self.measuring.measured(term, Attempt(found.bindings, events, True))

    # Terms that do not.

    def missed(self, term: TermStep, bindings: Mapping[str, str], span: TimeSpan) -> ConditionNode:
        """The node of a term that did not occur in the span, with the nearest attempt."""
        sides = (term.first, term.second)
        if unknown := self._unknown(sides, bindings):
            return ConditionNode(text=self.wording.term(term), truth="unknown", because=unknown)
        if refused := self._refused(sides, bindings):
            return ConditionNode(text=self.wording.term(term), truth="false", because=refused)
        match term:
            case LastingTerm():
                return self._not_lasted(term, bindings, span)
            case SilentTerm():
                return self._not_silent(term, bindings, span)
            case _:
                return self._not_held(term, bindings, span)

    def _not_held(
        self, term: StateTerm, bindings: Mapping[str, str], span: TimeSpan
    ) -> ConditionNode:
        text = self.wording.term(term)
        tried = attempts(self.evidence, term, bindings, span)
        if not tried:
            return ConditionNode(
                text=text, truth="unknown", because=self._no_reading(term, bindings, span)
            )
        if any(one.truth for one in tried):
            return self._held_elsewhere(term, tried, text)
        known = [one for one in tried if one.truth is False]
        best = min(known or tried, key=lambda one: self.measuring.rank(term, one, span))
        return ConditionNode(
            text=text,
            truth=_TRUTHS[best.truth],
            because=self.measuring.measured(term, best),
            readings=tuple(self.wording.reading(one) for one in best.events.values()),
        )

    def _held_elsewhere(self, term: StateTerm, tried: list[Attempt], text: str) -> ConditionNode:
        """The term holds for some readings but did not occur where it was needed."""
        best = next(one for one in tried if one.truth)
        events = list(best.events.values())
        because = self.measuring.measured(term, best)
        if len(events) == 2:
            apart = abs(events[0].time - events[1].time)
            window = pair_window_ms(self.evidence.plan, term)  # type: ignore[arg-type]
            if apart >= window:
                because += f", but {duration(apart)} apart in time; less than {duration(window)}"
            else:
                because += ", but these readings were used for another match, or too far from"
                because += " the other conditions"
        else:
            because += ", but not together with the other conditions"
        shown = tuple(self.wording.reading(one) for one in events)
        return ConditionNode(text=text, truth="false", because=because, readings=shown)

    def _unknown(self, sides: Iterable[Side], bindings: Mapping[str, str]) -> str:
        """The message that a given identity is unknown; empty when all are known."""
        for side in sides:
            name = bindings.get(side.alias)
            if name is not None and self.evidence.is_unknown(side.concept, name):
                nearest = ", ".join(self.evidence.nearest_known(side.concept, name))
                hint = f"; the nearest known: {nearest}" if nearest else ""
                return f"{name} is unknown: no {side.concept} has that name{hint}"
        return ""

    def _too_late(
        self, side: Side, streams: Iterable[str], bindings: Mapping[str, str], span: TimeSpan | None
    ) -> str:
        """The message that matching readings arrived too late; empty when there are none."""
        name = bindings.get(side.alias)

        def is_meant(key: str) -> bool:
            return self.evidence.allows(side, key) if name is None else key == name

        late = [
            one
            for stream in streams
            for one in self.evidence.late(stream, is_meant)
            if span is None or span.start <= one.time <= span.end
        ]
        if not late:
            return ""
        worst = max(late, key=_delay)
        message = f"the {worst.stream.partition('.')[2]} of {worst.key} "
        if worst.received is None:
            message += "stands too far behind others in its file, too late to count"
        else:
            delay = rough_duration(_delay(worst))
            message += f"was received {time_mark(worst.received)}, {delay} late: too late to count"
        return message + (f" (and {len(late) - 1:,} more)" if len(late) > 1 else "")

    def _refused(self, sides: Iterable[Side], bindings: Mapping[str, str]) -> str:
        """The message that a given identity violates the constraints of its alias."""
        for side in sides:
            name = bindings.get(side.alias)
            if name is None or self.evidence.allows(side, name):
                continue
            for one in side.constraints:
                if self.evidence.allows(msgspec.structs.replace(side, constraints=(one,)), name):
                    continue
                value = self.evidence.in_tables(side.concept, one.attribute, name)
                wanted, actual = (
                    self.wording.of_property(side.concept, one.attribute, each)
                    for each in (one.value, None if value is None else value[0])
                )
                return (
                    f"{name} can not be {side.alias}: {side.alias} has {one.attribute} "
                    f"{one.operator} {wanted}, {name} has {actual}"
                )
        return ""

    def _no_reading(self, term: StateTerm, bindings: Mapping[str, str], span: TimeSpan) -> str:
        places = [sides_of(term)[place] for place in event_places(term)]
        for side in places:
            assert side.stream is not None
            name = bindings.get(side.alias)
            if late := self._too_late(side, (side.stream,), bindings, span):
                return late
            if name is None:
                continue
            if not self.evidence.between(side.stream, name, span.start, span.end):
                return self._silent_since(side.stream, name, span)
        aliases = " or ".join(dict.fromkeys(side.alias for side in places))
        return f"no reading of an identity that could be {aliases} in that time"

    def _silent_since(self, stream: str, name: str, span: TimeSpan) -> str:
        attribute = stream.partition(".")[2]
        own = self.evidence.of(stream, name)
        before = [one for one in own if one.time < span.start]
        after = [one for one in own if one.time > span.end]
        message = f"no {attribute} of {name} in that time"
        if before:
            message += f"; the last before was at {time_mark(before[-1].time)}"
        if after:
            message += f"; the next came at {time_mark(after[0].time)}"
        return message

    # Durations and silences.

    def _not_lasted(
        self, term: LastingTerm, bindings: Mapping[str, str], span: TimeSpan
    ) -> ConditionNode:
        text = self.wording.term(term)
        found = [
            one
            for one in state_spans(self.evidence, term, bindings)
            if one.occurrence.first_moment <= span.end
            and (one.ended is None or one.ended >= span.start)
        ]
        if found:
            best = max(found, key=_length)
            return self._too_short(term, best, text, span)
        return self._never_true(term, bindings, span, text)

    def _too_short(
        self, term: LastingTerm, best: StateSpan, text: str, span: TimeSpan
    ) -> ConditionNode:
        own = best.occurrence
        assert own.since is not None
        if best.has_lasted:
            because = f"true since {time_mark(own.since)}, {duration(term.duration_ms)} long"
            because += _counted(own.end, span, "when it was not true in between")
            return ConditionNode(text=text, truth="false", because=because)
        assert best.ended is not None
        lasted = best.ended - own.since
        because = (
            f"of {bindings_text(own.bindings)} it was true from {time_mark(own.since)} to "
            f"{time_mark(best.ended)}: {duration(lasted)}, "
            f"{duration(own.end - best.ended)} too short"
        )
        if best.ended_by is None:
            because += "; then the last value was too old to count (stale_after)"
            return ConditionNode(text=text, truth="false", because=because)
        ending = (self.wording.reading(best.ended_by),)
        return ConditionNode(
            text=text, truth="false", because=because + "; this ended it", readings=ending
        )

    def _never_true(
        self, term: LastingTerm, bindings: Mapping[str, str], span: TimeSpan, text: str
    ) -> ConditionNode:
        for own in bindings_of_state(self.evidence, term, bindings):
            last: StateMoment | None = None
            for moment in state_moments(self.evidence, term, own):
                if moment.time > span.end and last is not None:
                    break
                last = moment
            if last is not None:
                children = tuple(self._atoms(term, own, last))
                if last.truth:
                    because = (
                        f"of {bindings_text(own)} it was true only from {time_mark(last.time)} on"
                    )
                    return ConditionNode(
                        text=text, truth="false", because=because, children=children
                    )
                because = f"of {bindings_text(own)} it was not true at {time_mark(last.time)}"
                truth = _TRUTHS[last.truth]
                return ConditionNode(text=text, truth=truth, because=because, children=children)
        sides = {term.first.alias: term.first, term.second.alias: term.second}
        for alias, stream in ends_of_state(term):
            if late := self._too_late(sides[alias], (stream,), bindings, None):
                return ConditionNode(text=text, truth="unknown", because=late)
        return ConditionNode(
            text=text, truth="unknown", because="no identity it could be about sent a reading"
        )

    def _atoms(
        self, term: LastingTerm, own: Mapping[str, str], at: StateMoment
    ) -> Iterable[ConditionNode]:
        for atom in state_atoms(term.state):
            events = atom_events(atom, at.known)
            found = state_truth(self.evidence, atom, own, at.known)
            complete = all(place in events for place in event_places(atom.term))
            attempt = Attempt(dict(own), events, found)
            yield ConditionNode(
                text=self.wording.term(atom.term, negated=atom.negated),
                truth=_TRUTHS[found],
                because=self.measuring.measured(atom.term, attempt)
                if complete
                else "no reading yet",
                readings=tuple(self.wording.reading(one) for one in events.values()),
            )

    def _not_silent(
        self, term: SilentTerm, bindings: Mapping[str, str], span: TimeSpan
    ) -> ConditionNode:
        text = self.wording.term(term)
        found = [
            one
            for one in silences(self.evidence, term, bindings)
            if one.occurrence.first_moment <= span.end
            and (one.ended is None or one.ended >= span.start)
        ]
        if not found:
            streams = [] if term.first.stream is None else [term.first.stream]
            late = self._too_late(term.first, streams, bindings, None)
            because = late or "no identity it could be about is known"
            return ConditionNode(text=text, truth="unknown", because=because)
        best = max(found, key=_length)
        name = best.occurrence.bindings[term.first.alias]
        if best.ended is None or best.ended_by is None or best.has_lasted:
            because = f"{name} was silent so long"
            because += _counted(best.occurrence.end, span, "after an event")
            return ConditionNode(text=text, truth="false", because=because)
        since = best.occurrence.since or 0
        because = f"{name} was silent for {duration(best.ended - since)} only; then came this"
        ending = (self.wording.reading(best.ended_by),)
        return ConditionNode(text=text, truth="false", because=because, readings=ending)

    # Absence.

    def refuting(self, refuters: Iterable[tuple[int, Occurrence]]) -> tuple[ConditionNode, ...]:
        """The nodes of a counterexample; each of them is true."""
        return tuple(self.held(self.evidence.plan.terms[term], found) for term, found in refuters)


def _length(stretch: StateSpan) -> float:
    assert stretch.occurrence.since is not None
    return float("inf") if stretch.ended is None else stretch.ended - stretch.occurrence.since


def _delay(late: LateReading) -> int:
    return 0 if late.received is None else late.received - late.time


def _counted(end: int, span: TimeSpan, again: str) -> str:
    """Why a state or silence that lasted long enough does not suffice: it counts at one
    moment only.
    """
    if end < span.start:
        return f", which counted once, at {time_mark(end)}, and counts again only {again}"
    return ", but not together with the other conditions"


def observed_readings(
    evidence: Evidence, terms: Iterable[int], bindings: Mapping[str, str], start: int, end: int
) -> str:
    """Lists the identities whose readings in [start, end) could have contradicted an absence."""
    counts: dict[str, int] = {}
    seen: set[tuple[str, str, str]] = set()
    for side in _sides(evidence, terms):
        assert side.stream is not None
        keys = [bindings[side.alias]] if side.alias in bindings else _allowed(evidence, side)
        for key in keys:
            if (side.alias, side.stream, key) not in seen:
                seen.add((side.alias, side.stream, key))
                found = len(evidence.between(side.stream, key, start, end - 1))
                shown = f"{side.alias} = {key}"
                counts[shown] = counts.get(shown, 0) + found
    named = sorted((name for name, count in counts.items() if count), key=lambda n: -counts[n])
    if not named:
        return "no reading meanwhile could have contradicted it"
    message = ", ".join(f"{name} ({counts[name]})" for name in named[:_MOST_NAMED])
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return f"looked at the readings of {message}{more}"


def _sides(evidence: Evidence, terms: Iterable[int]) -> Iterable[Side]:
    for number in terms:
        term = evidence.plan.terms[number]
        if isinstance(term, SilentTerm):
            yield term.first
        for state in state_terms(term):
            yield from (sides_of(state)[place] for place in event_places(state))


def _allowed(evidence: Evidence, side: Side) -> list[str]:
    assert side.stream is not None
    return [key for key in evidence.keys(side.stream) if evidence.allows(side, key)]


class CandidateBuilder:
    """Builds candidates from decisions and partial matches."""

    def __init__(self, decisions: Decisions, nodes: NodeBuilder, given: Mapping[str, str]) -> None:
        self._decisions, self._nodes, self._given = decisions, nodes, given
        self._plan, self._shape = decisions.plan, decisions.shape
        self._words = ClauseWords(self._plan, nodes.wording)

    def of_decision(self, decision: Decision) -> Candidate:
        """The candidate of a match: all its positive clauses hold."""
        clauses = []
        for number, clause in enumerate(self._plan.clauses):
            kind, place = self._shape.kinds[number]
            if kind == "positive":
                alternatives = self._shape.positive[place]
                clauses.append(self._taken(clause, alternatives, decision.match.assignment))
            elif kind == "absent":
                clauses.append(self._absence(clause, decision, decision.absences[place]))
            else:
                clauses.append(self._mixed(clause, decision, place))
        if decision.became == "left out":
            clauses.append(self._throttled(decision))
        if decision.silent:
            clauses.append(_no_reading(decision))
        return Candidate(
            bindings=dict(sorted(decision.detection.bindings.items())),
            became=decision.became,
            time=decision.t0,
            clauses=tuple(clauses),
            detection=decision.detection,
            silent=decision.silent,
        )

    def nearest_to(self, partial: PartialMatch, span: TimeSpan) -> list[dict[str, str]]:
        """The bindings to show for a partial match; where they are open, those that came nearest to
        the first missing condition.
        """
        bindings = {**self._given, **bindings_of(partial.assignment.values())}
        for clause, taken in zip(self._shape.positive, partial.parts, strict=True):
            first = clause.parts[0]
            if taken is not None or not isinstance(first, Occurs):
                continue
            term = self._plan.terms[first.term]
            if isinstance(term, LastingTerm | SilentTerm):
                continue
            found = self._nodes.measuring.nearest(term, bindings, span, _MOST_NEAREST)
            if found:
                return found
        return [bindings]

    def of_partial(
        self, partial: PartialMatch, bindings: Mapping[str, str], span: TimeSpan
    ) -> Candidate:
        """The candidate of a partial match."""
        timed = [one for one in partial.assignment.values() if not one.is_fact]
        time = latest_end(partial.assignment) if timed else span.middle
        clauses = []
        for number, clause in enumerate(self._plan.clauses):
            kind, place = self._shape.kinds[number]
            if kind != "positive":
                clauses.append(self._unopened(clause))
            elif partial.parts[place] is not None:
                alternatives = self._shape.positive[place]
                clauses.append(self._taken(clause, alternatives, partial.assignment))
            else:
                parts = self._shape.positive[place].parts
                clauses.append(self._missing(clause, parts, partial, bindings, span))
        if all(part is not None for part in partial.parts):
            clauses.append(self._together(partial))
        return Candidate(
            bindings=dict(sorted(bindings.items())),
            became="incomplete",
            time=time,
            clauses=tuple(clauses),
        )

    # Clauses.

    def _taken(
        self, clause: Clause, alternatives: ClauseShape, assignment: Mapping[int, Occurrence]
    ) -> ConditionNode:
        bindings = bindings_of(assignment.values())
        for part in alternatives.parts:
            if any(term not in assignment for term in part.needs()):
                continue
            if self._decisions.matching.part_at(part, assignment, bindings) is not None:
                return self._named(clause, self._part_node(part, assignment))
        return ConditionNode(text=self._words.clause(clause), truth="true")

    def _part_node(self, part: Part, assignment: Mapping[int, Occurrence]) -> ConditionNode:
        held = [self._nodes.held(self._plan.terms[term], assignment[term]) for term in part.needs()]
        if isinstance(part, Occurs):
            return held[0]
        if isinstance(part, OrderedTerms):
            first, second = assignment[part.first], assignment[part.second]
            because = f"{duration(second.end - first.end)} later, less than "
            because += duration(part.window_ms)
            return ConditionNode(text="", truth="true", because=because, children=tuple(held))
        end = part_end(part, assignment)
        after, bindings = isinstance(part, NotFollowed), bindings_of(assignment.values())
        start = end if after else end - part.window_ms
        because = "nothing of it " + ("followed" if after else "came before")
        because += f" within {duration(part.window_ms)}; "
        because += observed_readings(
            self._decisions.evidence, part.absent, bindings, start, start + part.window_ms
        )
        return ConditionNode(text="", truth="true", because=because, children=tuple(held))

    def _absence(self, clause: Clause, decision: Decision, decided: ClauseOutcome) -> ConditionNode:
        window = self._window(clause)
        text, end = self._words.clause(clause), decision.t0 + window
        if decided.satisfied_at is None:
            return self._refuted(text, decided, bindings_of(decision.taken.values()), window)
        terms = [term for child in clause.children for term in terms_of_child(child)]
        bindings = bindings_of(decision.taken.values())
        because = (
            f"not seen from {time_mark(decision.t0)} to {time_mark(end)}, {duration(window)} long; "
        )
        because += observed_readings(self._decisions.evidence, terms, bindings, decision.t0, end)
        if decision.silent:
            because = f"unknown: {', '.join(decision.silent)} has a declared period and "
            because += "was silent"
            return ConditionNode(text=text, truth="unknown", because=because)
        return ConditionNode(text=text, truth="true", because=because)

    def _refuted(
        self, text: str, decided: ClauseOutcome, known: Mapping[str, str], window: int
    ) -> ConditionNode:
        seen = bindings_of(found for _, found in decided.refuters)
        others = {alias: one for alias, one in seen.items() if alias not in known}
        because = f"refuted by {bindings_text(others)}" if others else "refuted"
        because += f" within {duration(window)}"
        children = self._nodes.refuting(decided.refuters)
        return ConditionNode(text=text, truth="false", because=because, children=children)

    def _mixed(self, clause: Clause, decision: Decision, place: int) -> ConditionNode:
        text = self._words.clause(clause)
        if place >= len(decision.mixed):
            because = "was not decided any more"
            return ConditionNode(text=text, truth="unknown", because=because)
        decided = decision.mixed[place]
        if decided.chosen is not None:
            return self._named(clause, self._part_node(decided.chosen, decision.taken))
        return self._absence(clause, decision, decided)

    def _unopened(self, clause: Clause) -> ConditionNode:
        because = "is looked at only when all that must happen has happened"
        return ConditionNode(text=self._words.clause(clause), truth="unknown", because=because)

    def _missing(
        self,
        clause: Clause,
        parts: Iterable[Part],
        partial: PartialMatch,
        bindings: Mapping[str, str],
        span: TimeSpan,
    ) -> ConditionNode:
        children = [self._missing_part(part, partial, bindings, span) for part in parts]
        if len(children) == 1:
            return self._named(clause, children[0])
        return ConditionNode(
            text=self._words.clause(clause),
            truth=_worst(children),
            because="none of these",
            children=tuple(children),
        )

    def _missing_part(
        self, part: Part, partial: PartialMatch, bindings: Mapping[str, str], span: TimeSpan
    ) -> ConditionNode:
        if isinstance(part, Occurs):
            return self._nodes.missed(self._plan.terms[part.term], bindings, span)
        nodes = []
        found: dict[int, Occurrence] = dict(partial.assignment)
        for term in part.needs():
            occurrence = self._nearest(term, found, bindings, span)
            if occurrence is None:
                nodes.append(self._nodes.missed(self._plan.terms[term], bindings, span))
            else:
                found[term] = occurrence
                nodes.append(self._nodes.held(self._plan.terms[term], occurrence))
        text = self._words.part(part)
        if any(node.truth != "true" for node in nodes):
            return ConditionNode(text=text, truth=_worst(nodes), children=tuple(nodes))
        because, extra = self._wrong_order(part, found)
        return ConditionNode(text=text, truth="false", because=because, children=(*nodes, *extra))

    def _nearest(
        self,
        term: int,
        found: Mapping[int, Occurrence],
        bindings: Mapping[str, str],
        span: TimeSpan,
    ) -> Occurrence | None:
        if term in found:
            return found[term]
        known = {**bindings, **bindings_of(found.values())}
        every = [
            one
            for one in self._decisions.matching.occurrences.of(term, known)
            if self._decisions.matching.agree(one, known)
            and not one.is_fact
            and one.first_moment <= span.end
            and one.end >= span.start
        ]
        return min(every, key=lambda one: span.distance(one.end), default=None)

    def _wrong_order(
        self, part: Part, found: Mapping[int, Occurrence]
    ) -> tuple[str, tuple[ConditionNode, ...]]:
        if isinstance(part, OrderedTerms):
            first, second = found[part.first], found[part.second]
            after = second.end - first.end
            if after >= part.window_ms:
                limit = duration(part.window_ms)
                return f"{duration(after)} later, which is not less than {limit}", ()
            if after > 0:
                return "the order is not certain: the clocks may be wrong", ()
            return f"in the other order, {duration(-after)} apart", ()
        assert isinstance(part, NotFollowed | NotPreceded)
        bindings = bindings_of(found.values())
        refuters = self._decisions.matching.part_refuters(part, found, bindings) or ()
        how = "followed" if isinstance(part, NotFollowed) else "came before"
        text = f"this {how} within {duration(part.window_ms)}, which it must not"
        return text, self._nodes.refuting(refuters)

    def _together(self, partial: PartialMatch) -> ConditionNode:
        parts = [part for part in partial.parts if part is not None]
        spread = self._decisions.matching.spread(parts, partial.assignment)
        window = self._plan.window_ms
        return ConditionNode(
            text=f"all of this within {duration(window)}",
            truth="true" if spread < window else "false",
            because=f"{duration(spread)} apart",
        )

    def _throttled(self, decision: Decision) -> ConditionNode:
        once_per, by = self._plan.once_per_ms, decision.suppressed_by
        assert once_per is not None
        assert by is not None
        return ConditionNode(
            text=f"at most once per {duration(once_per)}",
            truth="false",
            because=f"{bindings_text(by.bindings) or 'it'} was detected at {time_mark(by.time)}, "
            f"detection {by.id()}; the next is emitted from {time_mark(by.time + once_per)} on",
        )

    def _named(self, clause: Clause, node: ConditionNode) -> ConditionNode:
        """A clause that consists of one node."""
        text = self._words.clause(clause)
        if node.text in ("", text):
            return ConditionNode(
                text=text,
                truth=node.truth,
                because=node.because,
                readings=node.readings,
                children=node.children,
            )
        return ConditionNode(text=text, truth=node.truth, children=(node,))

    def _window(self, clause: Clause) -> int:
        return self._plan.window_ms if clause.window_ms is None else clause.window_ms


def _no_reading(decision: Decision) -> ConditionNode:
    names = ", ".join(decision.silent)
    return ConditionNode(
        text="every source that could contradict it sent readings",
        truth="unknown",
        because=f"{names} has a declared period and was silent for longer",
    )


def _worst(nodes: list[ConditionNode]) -> Truth:
    return "false" if any(node.truth == "false" for node in nodes) else "unknown"
