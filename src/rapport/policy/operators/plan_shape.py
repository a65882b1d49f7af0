"""Analyses a plan once: kinds of clauses, sets of terms that can form a match, how far it looks
back and ahead, and whether operators can execute it. Pure; docs/semantics.md has the rules. [PO-3,
PO-5, PO-6]"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from rapport.core.errors import InvalidInput, RapportError, Unsupported
from rapport.policy import measures, relations
from rapport.policy.ontology import PushSource
from rapport.policy.plan import (
    Absent,
    Clause,
    ConstraintTerm,
    CorrelationTerm,
    LastingTerm,
    LookedUp,
    Measure,
    Plan,
    Positive,
    Sequence,
    SilentTerm,
    StateTerm,
    state_terms,
    terms_of_child,
)

_MOST_CHOICES = 2_000


class Occurs(msgspec.Struct, frozen=True, tag=True):
    """The term occurs."""

    term: int

    def needs(self) -> tuple[int, ...]:
        """The terms whose occurrences form it."""
        return (self.term,)


class OrderedTerms(msgspec.Struct, frozen=True, tag="Ordered"):
    """`first`, then `second` within the window."""

    first: int
    second: int
    window_ms: int

    def needs(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys((self.first, self.second)))


class NotFollowed(msgspec.Struct, frozen=True, tag=True):
    """`first`, and within the window after it no joint occurrence of all of `absent`."""

    first: int
    absent: tuple[int, ...]
    window_ms: int

    def needs(self) -> tuple[int, ...]:
        return (self.first,)


class NotPreceded(msgspec.Struct, frozen=True, tag=True):
    """`second`, and within the window before it no joint occurrence of all of `absent`."""

    absent: tuple[int, ...]
    second: int
    window_ms: int

    def needs(self) -> tuple[int, ...]:
        return (self.second,)


Part = Occurs | OrderedTerms | NotFollowed | NotPreceded


class ClauseShape(msgspec.Struct, frozen=True):
    """A clause: positive parts, any of which satisfies it, and the joint counterexamples of its NOT
    children."""

    parts: tuple[Part, ...]
    counterexamples: tuple[tuple[int, ...], ...]
    """Tuples of terms that together refute the clause's absence."""
    window_ms: int


class Combination(msgspec.Struct, frozen=True):
    """A set of terms whose occurrences can be a match, with the choices (one part per clause)."""

    terms: tuple[int, ...]
    choices: tuple[tuple[Part, ...], ...]
    smaller: tuple[int, ...]
    """Numbers of the combinations with a subset of these terms: their matches make ours not
    minimal."""

    def parts(self) -> tuple[Part, ...]:
        """The distinct parts of all choices."""
        return tuple(dict.fromkeys(part for choice in self.choices for part in choice))

    def longest_sequence_ms(self) -> int:
        """How far before the end of a part another of its terms may lie."""
        return max(
            (part.window_ms for part in self.parts() if isinstance(part, OrderedTerms)), default=0
        )


ClauseKind = Literal["positive", "mixed", "absent"]


class PlanShape(msgspec.Struct, frozen=True):
    """The clauses of a plan by kind, and its combinations."""

    positive: tuple[ClauseShape, ...]
    mixed: tuple[ClauseShape, ...]
    absent: tuple[ClauseShape, ...]
    combinations: tuple[Combination, ...]
    kinds: tuple[tuple[ClauseKind, int], ...]
    """For every clause of the plan its kind, and its index among those of the kind."""

    def parts_around(self, number: int) -> tuple[Part, ...]:
        """The parts that decide whether a combination is a minimal match, including those of its
        subsets."""
        chosen = self.combinations[number]
        around = (chosen, *(self.combinations[other] for other in chosen.smaller))
        return tuple(dict.fromkeys(part for each in around for part in each.parts()))


def plan_shape(plan: Plan) -> PlanShape:
    """Analyses a plan; raises InvalidInput if nothing can open its absence, Unsupported if it has
    too many choices."""
    clauses = [_alternatives(clause, plan.window_ms) for clause in plan.clauses]
    if all(clause.counterexamples for clause in clauses):
        if not all(clause.parts for clause in clauses) or not clauses:
            raise InvalidInput(
                f"policy {plan.policy!r}: nothing can open the absence that it requires",
                code="policy.nothing_opens",
                hint="add a condition that events can satisfy",
            )
        # NOT children that nothing can open are ignored.
        clauses = [ClauseShape(clause.parts, (), clause.window_ms) for clause in clauses]
    found: dict[ClauseKind, list[ClauseShape]] = {"positive": [], "mixed": [], "absent": []}
    kinds: list[tuple[ClauseKind, int]] = []
    for clause in clauses:
        kind: ClauseKind = "mixed" if clause.parts else "absent"
        kind = kind if clause.counterexamples else "positive"
        kinds.append((kind, len(found[kind])))
        found[kind].append(clause)
    positive, mixed, absent = (tuple(each) for each in found.values())
    return PlanShape(positive, mixed, absent, _combinations(plan, positive), tuple(kinds))


def _alternatives(clause: Clause, window_ms: int) -> ClauseShape:
    own_ms = _first_of(clause.window_ms, window_ms)
    parts: list[Part] = []
    refuting: list[tuple[int, ...]] = []
    for child in clause.children:
        if isinstance(child, Absent):
            refuting.append((child.term,))
        elif isinstance(child, Positive):
            parts.append(Occurs(child.term))
        elif child.first_negated and child.second_negated:
            refuting.append((child.first, child.second))
        else:
            parts.append(_sequence(clause, child, own_ms))
    joint = tuple(itertools.product(*refuting)) if refuting else ()
    return ClauseShape(tuple(dict.fromkeys(parts)), joint, own_ms)


def _sequence(clause: Clause, child: Sequence, clause_ms: int) -> Part:
    """A followed-by with at most one negated side; negated ones of a clause with the same other
    side and window are decided together."""
    window_ms = _first_of(child.window_ms, clause_ms)
    alike = [
        other
        for other in clause.children
        if isinstance(other, Sequence)
        and _first_of(other.window_ms, clause_ms) == window_ms
        and (other.first_negated, other.second_negated)
        == (child.first_negated, child.second_negated)
    ]
    if child.second_negated:
        absent = tuple(other.second for other in alike if other.first == child.first)
        return NotFollowed(child.first, absent, window_ms)
    if child.first_negated:
        absent = tuple(other.first for other in alike if other.second == child.second)
        return NotPreceded(absent, child.second, window_ms)
    return OrderedTerms(child.first, child.second, window_ms)


def _first_of(own_ms: int | None, around_ms: int) -> int:
    return around_ms if own_ms is None else own_ms


def _combinations(plan: Plan, clauses: tuple[ClauseShape, ...]) -> tuple[Combination, ...]:
    by_terms: dict[frozenset[int], list[frozenset[Part]]] = {}
    for choice in _choices(clauses):
        terms = frozenset(term for part in choice for term in part.needs())
        if any(not isinstance(plan.terms[term], ConstraintTerm) for term in terms):
            by_terms.setdefault(terms, []).append(choice)
    ordered = sorted(by_terms, key=lambda terms: (len(terms), sorted(terms)))
    return tuple(
        Combination(
            tuple(sorted(terms)),
            tuple(tuple(sorted(choice, key=repr)) for choice in by_terms[terms]),
            tuple(number for number, other in enumerate(ordered) if other < terms),
        )
        for terms in ordered
    )


def _choices(clauses: tuple[ClauseShape, ...]) -> list[frozenset[Part]]:
    """All ways to choose one part per clause, as sets of parts.

    A superset of another way is dropped: it is never minimal. Exception: absence evaluated with the
    identities of the whole match may hold for more terms and fail for fewer.
    """
    every = any(
        isinstance(part, NotFollowed | NotPreceded) for clause in clauses for part in clause.parts
    )
    ways: set[frozenset[Part]] = {frozenset()}
    for clause in clauses:
        grown: set[frozenset[Part]] = set()
        for way in ways:
            if not every and any(part in way for part in clause.parts):
                grown.add(way)
            else:
                grown.update(way | {part} for part in clause.parts)
        ways = grown
        if len(ways) > _MOST_CHOICES:
            raise Unsupported(
                f"a condition with more than {_MOST_CHOICES} ways to be true",
                hint="split the policy into several",
            )
    chosen = ways if every else {way for way in ways if not any(other < way for other in ways)}
    return sorted(chosen, key=lambda way: sorted(map(repr, way)))


def longest_window_ms(plan: Plan) -> int:
    """The largest window of the policy, its clauses and its sequences."""
    return max(_windows(plan))


def _windows(plan: Plan) -> list[int]:
    own = [clause.window_ms for clause in plan.clauses]
    own += [child.window_ms for child in plan.children() if isinstance(child, Sequence)]
    own += [term.window_ms for term in plan.terms if isinstance(term, CorrelationTerm)]
    return [plan.window_ms, *(window for window in own if window is not None)]


def pair_window_ms(plan: Plan, term: CorrelationTerm) -> int:
    """The maximal distance of the events of a pair."""
    return plan.window_ms if term.window_ms is None else term.window_ms


def uncertainty_ms(plan: Plan, sources: Mapping[str, PushSource]) -> int:
    """The largest clock uncertainty of the plan's sources."""
    return max(uncertainties(plan, sources).values(), default=0)


def uncertainties(plan: Plan, sources: Mapping[str, PushSource]) -> dict[str, int]:
    """The clock uncertainty of the plan's sources that declare one."""
    streams = plan.streams()
    return {
        name: one.uncertainty_ms
        for name, one in sources.items()
        if one.uncertainty_ms > 0 and not one.streams.isdisjoint(streams)
    }


def memory_ms(plan: Plan, uncertainty_ms: int, *, mixed: bool) -> int:
    """How long before the watermark an occurrence may matter.

    An open match began to wait less than a window ago, and its basis ended less than a window
    before. Each followed-by reaches one window further back, its earlier event another, and it
    waits one longer. Clock uncertainty adds to both.
    """
    windows = 2 if mixed else 1
    if any(isinstance(child, Sequence) for child in plan.children()):
        windows = 6
    return windows * longest_window_ms(plan) + 4 * uncertainty_ms


def looks_ahead_only(plan: Plan, *, mixed: bool) -> bool:
    """Whether a match never queries absence before its last event (rule 4), so that everything
    before all open matches and the watermark can be dropped. False if a followed-by has one NOT
    side, a clause is mixed, or occurrences arise by time alone."""
    return not (
        mixed
        or any(isinstance(term, LastingTerm | SilentTerm) for term in plan.terms)
        or any(
            isinstance(child, Sequence) and child.first_negated != child.second_negated
            for child in plan.children()
        )
    )


def check_supported(plan: Plan) -> list[str]:
    """The reasons why the plan cannot be executed, as sentences; empty if it can."""
    reasons = [*_bad_sequences(plan), *_bad_terms(plan)]
    if any(window <= 0 for window in _windows(plan)):
        reasons.append("the window is not longer than nothing")
    if plan.once_per_ms is not None and plan.once_per_ms <= 0:
        reasons.append("'at most once per' is not longer than nothing")
    try:
        plan_shape(plan)
    except RapportError as error:
        reasons.append(error.message)
    return reasons


def _bad_sequences(plan: Plan) -> Iterator[str]:
    for child in plan.children():
        for number in terms_of_child(child) if isinstance(child, Sequence) else ():
            if isinstance(plan.terms[number], ConstraintTerm):
                name = plan.terms[number].function
                yield f"{name!r} has no event, so nothing can be followed by it"


def _bad_terms(plan: Plan) -> Iterator[str]:
    for term in plan.terms:
        if isinstance(term, LastingTerm | SilentTerm) and term.duration_ms <= 0:
            yield "a duration is not longer than nothing"
        for one in state_terms(term):
            yield from _bad_functions(one)
        for side in (term.first, term.second):
            for constraint in side.constraints:
                if side.stream is not None and constraint.attribute == side.attribute:
                    yield (
                        f"{side.alias} is constrained by {side.attribute!r}, which events bring; "
                        "only attributes of tables can be constrained"
                    )


def _bad_functions(term: StateTerm) -> Iterator[str]:
    """Unknown relationships and measures."""
    try:
        if term.compared is None:
            relations.get(term.function)
            return
        for operand in (term.compared.left, term.compared.right):
            if isinstance(operand, Measure):
                measures.get(operand.function)
    except RapportError as error:
        yield error.message


def looked_up(plan: Plan) -> frozenset[str]:
    """The looked-up site functions of a plan."""
    compared = (one.compared for term in plan.terms for one in state_terms(term) if one.compared)
    operands = (operand for one in compared for operand in (one.left, one.right))
    return frozenset(one.function for one in operands if isinstance(one, LookedUp))


def is_built_in(term: StateTerm) -> bool:
    """Whether it uses no Python function of the site."""
    if term.compared is None:
        return term.function in relations.BUILT_IN
    operands = (term.compared.left, term.compared.right)
    return all(one.function in measures.BUILT_IN for one in operands if isinstance(one, Measure))


def is_of_tables_alone(term: StateTerm) -> bool:
    """Whether only instances decide it: no function or looked-up table of the site."""
    ends = () if term.compared is None else (term.compared.left, term.compared.right)
    return is_built_in(term) and not any(isinstance(one, LookedUp) for one in ends)
