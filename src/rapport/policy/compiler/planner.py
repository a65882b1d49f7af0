"""From logic tree to plan: each term once, clauses over them, and what nothing could ever open.
[PO-5, PO-6]"""

from __future__ import annotations

import msgspec

from rapport.policy import relations
from rapport.policy.compiler.draft import Draft
from rapport.policy.compiler.logic_tree import (
    Edge,
    FollowedByBranch,
    LogicTree,
    OrBranch,
    RelationshipBranch,
)
from rapport.policy.compiler.normalize import terms_of
from rapport.policy.language.faults import Faults
from rapport.policy.language.tree import Place
from rapport.policy.plan import (
    Absent,
    Child,
    Clause,
    ConstraintTerm,
    CorrelationTerm,
    Plan,
    Positive,
    QueryTerm,
    Sequence,
    Side,
    TermStep,
)


def make_plan(draft: Draft, faults: Faults) -> Draft:
    """The draft with its plan; notes conditions that can never come true."""
    assert draft.logic_tree is not None
    steps = _Steps()
    clauses = steps.clauses(draft.logic_tree)
    plan = Plan(
        policy=draft.tree.name,
        terms=tuple(steps.terms),
        clauses=_openable(draft, clauses, steps, faults),
        actions=tuple(action.phrase for action in draft.tree.actions),
        window_ms=draft.tree.window_ms or draft.window_ms,
        consumption=draft.tree.consumption,
        distinct=draft.tree.distinct,
        when_unsure=draft.tree.when_unsure,
    )
    _check_sequences(draft, plan, steps, faults)
    return msgspec.structs.replace(draft, plan=_without_unused(plan))


class _Steps:
    """Gives each relationship, in its positive form, one number."""

    def __init__(self) -> None:
        self.terms: list[TermStep] = []
        self._numbers: dict[tuple[str, str, str, str], int] = {}

    def clauses(self, tree: LogicTree) -> list[Clause]:
        """The clauses of the tree, in its order."""
        found = []
        for branch in tree.children:
            children = branch.children if isinstance(branch, OrBranch) else (branch,)
            found.append(Clause(tuple(self._child(child) for child in children)))
        return found

    def has_events(self, number: int) -> bool:
        """False for a term that only tables decide."""
        return not isinstance(self.terms[number], ConstraintTerm)

    def key(self, number: int) -> tuple[str, str, str, str]:
        """Aliases, relationship and parameter of a term."""
        return next(key for key, found in self._numbers.items() if found == number)

    def _child(self, branch: RelationshipBranch | FollowedByBranch) -> Child:
        if isinstance(branch, FollowedByBranch):
            first, second = branch.first, branch.second
            return Sequence(
                self._number(first), self._number(second), first.negated, second.negated
            )
        number = self._number(branch)
        return Absent(number) if branch.negated else Positive(number)

    def _number(self, branch: RelationshipBranch) -> int:
        key = (
            branch.first.leaf.alias,
            branch.relationship,
            branch.second.leaf.alias,
            branch.parameter,
        )
        if key not in self._numbers:
            self._numbers[key] = len(self.terms)
            self.terms.append(_term(branch))
        return self._numbers[key]


def _term(branch: RelationshipBranch) -> TermStep:
    kind = relations.get(branch.function).parameter_kind
    parameter = relations.parse_parameter(branch.parameter, kind) if branch.parameter else None
    first, second = _side(branch.first), _side(branch.second)
    given = (first.stream is not None) + (second.stream is not None)
    make = (ConstraintTerm, QueryTerm, CorrelationTerm)[given]
    return make(first, second, branch.function, parameter)


def _side(edge: Edge) -> Side:
    leaf = edge.leaf
    stream = f"{leaf.concept}.{edge.attribute}" if edge.provision == "event-based" else None
    return Side(leaf.alias, leaf.concept, edge.attribute, leaf.constraints, stream)


def is_positive(child: Child) -> bool:
    """True for what occurs; a followed-by counts as such unless both its sides are negated (rule
    5)."""
    match child:
        case Positive():
            return True
        case Absent():
            return False
        case Sequence():
            return not (child.first_negated and child.second_negated)


def _openable(
    draft: Draft, clauses: list[Clause], steps: _Steps, faults: Faults
) -> tuple[Clause, ...]:
    """The clauses without NOT children that no match ever opens (rule 4).

    Such children alone make the policy invalid; beside positive ones they are left out with a
    warning.
    """

    def occurs(child: Child) -> bool:
        constraint = isinstance(child, Positive) and not steps.has_events(child.term)
        return is_positive(child) and not constraint

    def decided_by_tables(child: Child) -> bool:
        return isinstance(child, Positive | Absent) and not steps.has_events(child.term)

    if any(all(occurs(child) for child in clause.children) for clause in clauses):
        return tuple(clauses)
    kept = []
    for clause in clauses:
        left = tuple(c for c in clause.children if occurs(c) or decided_by_tables(c))
        dropped = [child for child in clause.children if child not in left]
        for child in dropped:
            _report_unopenable(draft, child, steps, faults, alone=not left)
        kept.append(Clause(left or clause.children))
    happens = any(occurs(child) for clause in clauses for child in clause.children)
    if not happens and not faults.has_errors():
        faults.add(
            "policy.no_events",
            "nothing in the conditions comes as events, so the policy can never fire",
            next(terms_of(draft.condition)).place,
            hint="add a condition on an attribute that a [sources.*] table of the site gives",
        )
    return tuple(kept)


def _report_unopenable(
    draft: Draft, child: Child, steps: _Steps, faults: Faults, *, alone: bool
) -> None:
    number = child.first if isinstance(child, Sequence) else child.term
    place = _place(draft, steps.key(number), negated=True)
    if alone:
        message = "nothing says when to begin waiting for this absence"
        hint = "add a condition that something happens, such as: A is inside R"
        faults.add("policy.absence_alone", message, place, hint=hint)
    else:
        faults.add(
            "policy.absence_never_opens",
            "no other condition says when to begin waiting for this absence; it is left out",
            place,
            hint="add a condition that something happens on a line of its own",
            severity="warning",
        )


def _check_sequences(draft: Draft, plan: Plan, steps: _Steps, faults: Faults) -> None:
    for clause in plan.clauses:
        for child in clause.children:
            if not isinstance(child, Sequence):
                continue
            sides = ((child.first, child.first_negated), (child.second, child.second_negated))
            for number, negated in sides:
                if not steps.has_events(number):
                    faults.add(
                        "policy.sequence_without_events",
                        "FOLLOWED-BY needs events on both sides, but only tables decide this one",
                        _place(draft, steps.key(number), negated=negated),
                        hint="put it on a line of its own",
                    )


def _place(draft: Draft, key: tuple[str, str, str, str], *, negated: bool) -> Place | None:
    first, relationship, second, parameter = key
    for term in terms_of(draft.condition):
        same = (term.first, term.function, term.second, term.parameter, term.negated)
        if same == (first, relationship, second, parameter, negated):
            return term.place
    return None


def _without_unused(plan: Plan) -> Plan:
    """The plan without terms that no clause names any more, numbers closed up."""
    used: dict[int, int] = {}
    for clause in plan.clauses:
        for child in clause.children:
            for number in (
                (child.first, child.second) if isinstance(child, Sequence) else (child.term,)
            ):
                used.setdefault(number, 0)
    numbers = {old: new for new, old in enumerate(sorted(used))}

    def renumbered(child: Child) -> Child:
        if isinstance(child, Sequence):
            return msgspec.structs.replace(
                child, first=numbers[child.first], second=numbers[child.second]
            )
        return msgspec.structs.replace(child, term=numbers[child.term])

    clauses = tuple(
        Clause(tuple(renumbered(c) for c in clause.children)) for clause in plan.clauses
    )
    terms = tuple(plan.terms[old] for old in sorted(used))
    return msgspec.structs.replace(plan, terms=terms, clauses=clauses)
