"""From logic tree to plan: each term once, clauses over them, and what nothing could ever open.
[PO-5, PO-6]"""

from __future__ import annotations

import msgspec

from rapport.policy.compiler.atoms import TermAtom, TextAtom, atoms_of_expression, term_atom
from rapport.policy.compiler.check import positive_text
from rapport.policy.compiler.draft import CompilerDraft
from rapport.policy.compiler.logic_tree import (
    AtomBranch,
    FollowedByBranch,
    LogicTree,
    OrBranch,
    TermBranch,
)
from rapport.policy.compiler.plan_terms import TermPlanner
from rapport.policy.compiler.scope import event_names
from rapport.policy.language.faults import Diagnostics
from rapport.policy.language.tree import Atomic, SourceSpan, Term
from rapport.policy.plan import (
    Absent,
    Child,
    Clause,
    ConstraintTerm,
    CorrelationTerm,
    Plan,
    Positive,
    Sequence,
    TermStep,
)


def make_plan(draft: CompilerDraft, faults: Diagnostics) -> CompilerDraft:
    """The draft with its plan; notes conditions that can never come true."""
    assert draft.logic_tree is not None
    steps = _Steps(draft)
    clauses = steps.clauses(draft.logic_tree)
    plan = Plan(
        policy=draft.tree.name,
        terms=tuple(steps.terms),
        clauses=_openable(draft, clauses, steps, faults),
        actions=tuple(action.phrase for action in draft.tree.actions),
        window_ms=draft.own_window_ms,
        consumption=draft.tree.consumption,
        distinct=draft.tree.distinct,
        when_unsure=draft.tree.when_unsure,
        once_per_ms=draft.tree.once_per_ms,
        deliveries=_deliveries(draft),
    )
    _check_sequences(draft, plan, steps, faults)
    return msgspec.structs.replace(draft, plan=_without_unused(plan))


def _deliveries(draft: CompilerDraft) -> tuple[tuple[str, ...], ...]:
    lines = tuple(tuple(line.text for line in action.delivery) for action in draft.tree.actions)
    return lines if any(lines) else ()


class _Steps:
    """Gives each term, in its positive form, one number; a correlation one per window."""

    def __init__(self, draft: CompilerDraft) -> None:
        self.terms: list[TermStep] = []
        self.atoms: list[TermAtom | TextAtom] = []
        """Of each term, without its NOT."""
        self._maker = TermPlanner(draft.scope, draft.constraints, draft.stated)
        self._policy_window_ms = draft.own_window_ms
        self._made: dict[TermAtom | TextAtom, TermStep] = {}
        self._numbers: dict[tuple[TermAtom | TextAtom, int | None], int] = {}

    def clauses(self, tree: LogicTree) -> list[Clause]:
        """The clauses of the tree, in its order."""
        found = []
        for branch, window_ms in zip(tree.children, tree.windows, strict=True):
            children = branch.children if isinstance(branch, OrBranch) else (branch,)
            made = tuple(self._child(child, window_ms) for child in children)
            found.append(Clause(made, window_ms))
        return found

    def has_events(self, number: int) -> bool:
        """False for a term that only tables decide."""
        return not isinstance(self.terms[number], ConstraintTerm)

    def _child(self, branch: AtomBranch, window_ms: int | None) -> Child:
        if isinstance(branch, FollowedByBranch):
            around = window_ms if branch.window_ms is None else branch.window_ms
            first, second = branch.first, branch.second
            return Sequence(
                self._number(first, around),
                self._number(second, around),
                first.atom.negated,
                second.atom.negated,
                branch.window_ms,
            )
        number = self._number(branch, window_ms)
        return Absent(number) if branch.atom.negated else Positive(number)

    def _number(self, branch: TermBranch, window_ms: int | None) -> int:
        atom = branch.atom._replace(negated=False)
        if atom not in self._made:
            self._made[atom] = self._maker.make(atom)
        term = self._made[atom]
        # Only pairs of events depend on the window around them.
        pairs = isinstance(term, CorrelationTerm) and window_ms != self._policy_window_ms
        own = window_ms if pairs else None
        if (atom, own) not in self._numbers:
            self._numbers[atom, own] = len(self.terms)
            self.atoms.append(atom)
            if isinstance(term, CorrelationTerm):
                term = msgspec.structs.replace(term, window_ms=own)
            self.terms.append(term)
        return self._numbers[atom, own]


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
    draft: CompilerDraft, clauses: list[Clause], steps: _Steps, faults: Diagnostics
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
        kept.append(Clause(left or clause.children, clause.window_ms))
    happens = any(occurs(child) for clause in clauses for child in clause.children)
    if not happens and not faults.has_errors():
        faults.add(
            "policy.no_events",
            "all of this stands in tables, so nothing ever happens that the policy could report",
            next(atoms_of_expression(draft.condition)).place,
            hint=f"add a line about what comes as events: {event_names(draft.ontology)}",
        )
    return tuple(kept)


def _report_unopenable(
    draft: CompilerDraft, child: Child, steps: _Steps, faults: Diagnostics, *, alone: bool
) -> None:
    number = child.first if isinstance(child, Sequence) else child.term
    place = _place(draft, steps.atoms[number], negated=True)
    if alone:
        message = "this only says what does not happen, and no line says what happens before"
        hint = "add a line for what happens first, such as: A is inside R"
        faults.add("policy.absence_alone", message, place, hint=hint)
    else:
        faults.add(
            "policy.absence_never_opens",
            "no line says what happens before this absence, so it is left out",
            place,
            hint="add a line of its own for what happens first",
            severity="warning",
        )


def _check_sequences(draft: CompilerDraft, plan: Plan, steps: _Steps, faults: Diagnostics) -> None:
    for clause in plan.clauses:
        for child in clause.children:
            if not isinstance(child, Sequence):
                continue
            sides = ((child.first, child.first_negated), (child.second, child.second_negated))
            for number, negated in sides:
                if not steps.has_events(number):
                    faults.add(
                        "policy.sequence_without_events",
                        "FOLLOWED-BY joins what happens, but this never does: it stands in tables",
                        _place(draft, steps.atoms[number], negated=negated),
                        hint="put it on a line of its own, where it is true or not at any time",
                    )


def _place(draft: CompilerDraft, atom: TermAtom | TextAtom, *, negated: bool) -> SourceSpan | None:
    for atomic in atoms_of_expression(draft.condition):
        if _atom_of(atomic) == atom._replace(negated=negated):
            return atomic.place
    return None


def _atom_of(atomic: Atomic) -> TermAtom | TextAtom:
    if isinstance(atomic, Term):
        return term_atom(atomic)
    return TextAtom(positive_text(atomic), getattr(atomic, "negated", False))


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
        Clause(tuple(renumbered(c) for c in clause.children), clause.window_ms)
        for clause in plan.clauses
    )
    terms = tuple(plan.terms[old] for old in sorted(used))
    return msgspec.structs.replace(plan, terms=terms, clauses=clauses)
