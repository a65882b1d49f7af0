"""How far the policy got with certain identities: decisions and partial matches as candidates.
[PO-11]
"""

from __future__ import annotations

from collections.abc import Mapping

from rapport.policy.explaining.attempts import TimeSpan
from rapport.policy.explaining.clause_words import ClauseWords, kinds_of, terms_of_child
from rapport.policy.explaining.deciding import Decision, Decisions
from rapport.policy.explaining.hearing import observed_readings
from rapport.policy.explaining.matching import ClauseOutcome, bindings_of, latest_end, part_end
from rapport.policy.explaining.nodes import NodeBuilder
from rapport.policy.explaining.partials import PartialMatch
from rapport.policy.explaining.stretch import Occurrence
from rapport.policy.explaining.verdict import Candidate, ConditionNode, Truth
from rapport.policy.explaining.wording import bindings_text, duration, time_mark
from rapport.policy.plan import Clause, LastingTerm, SilentTerm
from rapport.policy.runners.operators.shapes import (
    Alternatives,
    NotFollowed,
    NotPreceded,
    Occurs,
    Ordered,
    Part,
)

_MOST_NEAREST = 5


class CandidateBuilder:
    """Turns decisions and partial matches into candidates."""

    def __init__(self, decisions: Decisions, nodes: NodeBuilder, given: Mapping[str, str]) -> None:
        self._decisions, self._nodes, self._given = decisions, nodes, given
        self._plan, self._shape = decisions.plan, decisions.shape
        self._kinds = kinds_of(self._plan.clauses)
        self._words = ClauseWords(self._plan, nodes.wording)

    def of_decision(self, decision: Decision) -> Candidate:
        """A match: all its positive clauses hold."""
        clauses = []
        for number, clause in enumerate(self._plan.clauses):
            if number in self._kinds.positive:
                alternatives = self._shape.positive[self._kinds.positive[number]]
                clauses.append(self._taken(clause, alternatives, decision.match.assignment))
            elif number in self._kinds.absent:
                place = self._kinds.absent[number]
                clauses.append(self._absence(clause, decision, decision.absences[place]))
            else:
                clauses.append(self._mixed(clause, decision, self._kinds.mixed[number]))
        if decision.became == "left out":
            clauses.append(self._throttled(decision))
        if decision.silent:
            clauses.append(_unheard(decision))
        return Candidate(
            bindings=dict(sorted(decision.detection.bindings.items())),
            became=decision.became,
            time=decision.t0,
            clauses=tuple(clauses),
            detection=decision.detection,
            silent=decision.silent,
        )

    def nearest_to(self, partial: PartialMatch, span: TimeSpan) -> list[dict[str, str]]:
        """Whom a partial match is about: where that is open, those who came nearest to the first
        condition that is missing.
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
        """Something is missing."""
        timed = [one for one in partial.assignment.values() if not one.is_fact]
        time = latest_end(partial.assignment) if timed else span.middle
        clauses = []
        for number, clause in enumerate(self._plan.clauses):
            place = self._kinds.positive.get(number)
            if place is None:
                clauses.append(self._unopened(clause))
            elif partial.parts[place] is not None:
                alternatives = self._shape.positive[place]
                clauses.append(self._taken(clause, alternatives, partial.assignment))
            else:
                clauses.append(self._missing(clause, partial, bindings, span))
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
        self, clause: Clause, alternatives: Alternatives, assignment: Mapping[int, Occurrence]
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
        if isinstance(part, Ordered):
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
            self._decisions.world, part.absent, bindings, start, start + part.window_ms
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
        because += observed_readings(self._decisions.world, terms, bindings, decision.t0, end)
        if decision.silent:
            because = f"cannot be told: {', '.join(decision.silent)} promised to be heard and "
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
        self, clause: Clause, partial: PartialMatch, bindings: Mapping[str, str], span: TimeSpan
    ) -> ConditionNode:
        place = self._kinds.positive[self._plan.clauses.index(clause)]
        parts = self._shape.positive[place].parts
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
            for one in self._decisions.matching.occurring.of(term, known)
            if self._decisions.matching.agree(one, known)
            and not one.is_fact
            and one.first_moment <= span.end
            and one.end >= span.start
        ]
        return min(every, key=lambda one: span.distance(one.end), default=None)

    def _wrong_order(
        self, part: Part, found: Mapping[int, Occurrence]
    ) -> tuple[str, tuple[ConditionNode, ...]]:
        if isinstance(part, Ordered):
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
            because=f"{bindings_text(by.bindings) or 'it'} was told at {time_mark(by.time)}, detection {by.id()}; "
            f"the next is told from {time_mark(by.time + once_per)} on",
        )

    def _named(self, clause: Clause, node: ConditionNode) -> ConditionNode:
        """A clause that comes down to one node."""
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


def _unheard(decision: Decision) -> ConditionNode:
    names = ", ".join(decision.silent)
    return ConditionNode(
        text="whoever would have told the contrary was heard",
        truth="unknown",
        because=f"{names} promised to be heard and was silent for longer",
    )


def _worst(nodes: list[ConditionNode]) -> Truth:
    return "false" if any(node.truth == "false" for node in nodes) else "unknown"
