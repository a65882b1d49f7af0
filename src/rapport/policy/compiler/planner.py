"""Turns a logic tree into a plan: numbered terms, clauses over them, and faults for conditions that
can never hold. [PO-4, PO-5, PO-6]"""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable

import msgspec

from rapport.policy import relations
from rapport.policy.compiler.check import CheckedPolicy, operand_type, plan_value
from rapport.policy.compiler.logic_tree import (
    AtomBranch,
    FollowedByBranch,
    LogicTree,
    OrBranch,
    TermBranch,
)
from rapport.policy.compiler.normal_form import (
    TermAtom,
    TextAtom,
    atoms_of_expression,
    single_atom,
    term_atom,
)
from rapport.policy.compiler.scope import AttributeRef, Scope, event_names
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.tree import (
    Action,
    And,
    AttributeOf,
    Call,
    Comparison,
    DurationCondition,
    Expression,
    Measured,
    Or,
    PolicyTree,
    Quantity,
    SilenceCondition,
    SourceSpan,
    Term,
)
from rapport.policy.plan import (
    Absent,
    Child,
    Clause,
    Compared,
    Constant,
    ConstraintTerm,
    CorrelationTerm,
    LastingTerm,
    LookedUp,
    Measure,
    Operand,
    Plan,
    Positive,
    QueryTerm,
    ReadingTerm,
    Sequence,
    Side,
    SideValue,
    SilentTerm,
    StateAll,
    StateAny,
    StateAtom,
    StateExpression,
    StateTerm,
    TermStep,
    is_positive,
    signed_terms,
    terms_of_child,
)

_KINDS = (ConstraintTerm, QueryTerm, CorrelationTerm)
"""By the number of sides that events give."""


class TermPlanner:
    """Makes the terms of one checked policy."""

    def __init__(self, checked: CheckedPolicy, scope: Scope) -> None:
        self.scope = scope
        self.constraints, self.text_atoms = checked.constraints, checked.text_atoms

    def make(self, atom: TermAtom | TextAtom) -> TermStep:
        """The positive term of an atom."""
        if isinstance(atom, TermAtom):
            return self._relationship(atom)
        match self.text_atoms[atom.text]:
            case DurationCondition() as duration:
                return self._duration(duration)
            case SilenceCondition() as silent:
                return self._silent(silent)
            case Comparison() as comparison:
                return self._comparison(comparison)
            case Term() as term:
                return self._relationship(term_atom(term))

    def _relationship(self, literal: TermAtom) -> StateTerm:
        declared = self.scope.relationship(literal)
        kind = relations.get(declared.function).parameter_kind
        text = literal.parameter
        parameter = relations.parse_parameter(text, kind) if text else None
        first, second = (self._side(end) for end in self.scope.ends_of_term(literal))
        given = (first.stream is not None) + (second.stream is not None)
        return _KINDS[given](first, second, declared.function, parameter)

    def _comparison(self, comparison: Comparison) -> StateTerm:
        """A term by the attributes it reads; a comparison of one alias has it on both sides."""
        ends = self.scope.ends_of_comparison(comparison)
        chosen = _chosen(ends)
        compared = self._compared(comparison, chosen)
        sides = [self._side(end) for end in chosen]
        first, second = sides[0], sides[-1]
        given = sum(end.from_events for end in chosen)
        if given == 1 and len(sides) == 1:
            return ReadingTerm(first, compared)
        return _KINDS[given](first, second, "", compared=compared)

    def _compared(self, comparison: Comparison, sides: abc.Sequence[AttributeRef]) -> Compared:
        operands = (comparison.left, comparison.right)
        sorts = [operand_type(each, self.scope) for each in operands]
        kind = next(sort.type for sort in sorts if sort is not None)

        def operand(measured: Measured) -> Operand:
            match measured:
                case Quantity():
                    return Constant(plan_value(measured, kind))
                case AttributeOf():
                    (end,) = self.scope.ends_of_operand(measured)
                    return _value(end, sides)
                case Call(function):
                    declared = self.scope.ontology.functions[function]
                    of = tuple(_value(end, sides) for end in self.scope.ends_of_operand(measured))
                    measure = declared.measure
                    return Measure(measure, of) if measure else LookedUp(function, of)

        left, right = map(operand, operands)
        return Compared(left, comparison.operator, right)

    def _duration(self, duration: DurationCondition) -> LastingTerm:
        chosen = _one_per_alias(self.scope.ends(duration.inner))
        sides = [self._side(end) for end in chosen]
        return LastingTerm(sides[0], sides[-1], self._state(duration.inner), duration.duration_ms)

    def _state(self, expression: Expression) -> StateExpression:
        match expression:
            case And(parts):
                return StateAll(tuple(self._state(part) for part in parts))
            case Or(parts):
                return StateAny(tuple(self._state(part) for part in parts))
            case Comparison():
                return StateAtom(self._comparison(expression), expression.negated)
            case Term():
                return StateAtom(self._relationship(term_atom(expression)), expression.negated)
            case _:
                raise AssertionError("the parser lets nothing else stand inside a 'for'")

    def _silent(self, silent: SilenceCondition) -> SilentTerm:
        ends = self.scope.ends(silent)
        streams = tuple(end.stream for end in ends if end.stream is not None)
        return SilentTerm(self._side(ends[0]), streams, silent.duration_ms)

    def _side(self, end: AttributeRef) -> Side:
        constraints = self.constraints.get(end.alias, ())
        return Side(end.alias, end.concept, end.attribute, constraints, end.stream)


def _chosen(ends: abc.Sequence[AttributeRef]) -> tuple[AttributeRef, ...]:
    """The one or two ends of a comparison: both event-based ones of an alias, or one per alias."""
    events = tuple(end for end in ends if end.from_events)
    if len(events) > 1 and len({end.alias for end in events}) == 1:
        return events
    return _one_per_alias(ends)


def _one_per_alias(ends: abc.Sequence[AttributeRef]) -> tuple[AttributeRef, ...]:
    """For each alias, in the order written, its first event-based end, or else its first one."""
    chosen: dict[str, AttributeRef] = {}
    for end in ends:
        known = chosen.setdefault(end.alias, end)
        if end.from_events and not known.from_events:
            chosen[end.alias] = end
    return tuple(chosen.values())


def _value(end: AttributeRef, sides: abc.Sequence[AttributeRef]) -> SideValue:
    """The side that gives the value of an end: its own, or the one with the same alias."""
    if end in sides:
        return SideValue(sides.index(end), end.attribute)
    aliases = [side.alias for side in sides]
    return SideValue(aliases.index(end.alias), end.attribute)


def make_plan(
    tree: PolicyTree,
    checked: CheckedPolicy,
    logic_tree: LogicTree,
    scope: Scope,
    window_ms: int,
    faults: Diagnostics,
) -> Plan:
    """The plan of a checked policy; reports conditions that can never hold. `window_ms`: that of
    the site.
    """
    window_ms = tree.window_ms or window_ms
    planner = _Planner(checked, scope, window_ms, faults)
    clauses = planner.openable(planner.clauses(logic_tree))
    planner.check_sequences(clauses)
    plan = Plan(
        policy=tree.name,
        terms=tuple(planner.terms),
        clauses=clauses,
        actions=tuple(action.phrase for action in tree.actions),
        window_ms=window_ms,
        consumption=tree.consumption,
        distinct=tree.distinct,
        when_unsure=tree.when_unsure,
        once_per_ms=tree.once_per_ms,
        deliveries=deliveries_of(tree.actions),
    )
    return _without_unused(plan)


def deliveries_of(actions: Iterable[Action]) -> tuple[tuple[str, ...], ...]:
    """The delivery lines by action; empty if there are none."""
    lines = tuple(tuple(line.text for line in action.delivery) for action in actions)
    return lines if any(lines) else ()


class _Planner:
    """Numbers the terms in positive form; a correlation gets one number per window."""

    def __init__(
        self, checked: CheckedPolicy, scope: Scope, window_ms: int, faults: Diagnostics
    ) -> None:
        self.terms: list[TermStep] = []
        self._atoms: list[TermAtom | TextAtom] = []
        """The atom of each term, without NOT."""
        self._condition, self._ontology, self._faults = checked.condition, scope.ontology, faults
        self._maker = TermPlanner(checked, scope)
        self._policy_window_ms = window_ms
        self._made: dict[TermAtom | TextAtom, TermStep] = {}
        self._numbers: dict[tuple[TermAtom | TextAtom, int | None], int] = {}

    def clauses(self, tree: LogicTree) -> list[Clause]:
        found = []
        for branch, window_ms in zip(tree.children, tree.windows, strict=True):
            children = branch.children if isinstance(branch, OrBranch) else (branch,)
            made = tuple(self._child(child, window_ms) for child in children)
            found.append(Clause(made, window_ms))
        return found

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
        # Only pairs of events depend on the surrounding window.
        pairs = isinstance(term, CorrelationTerm) and window_ms != self._policy_window_ms
        own = window_ms if pairs else None
        if (atom, own) not in self._numbers:
            self._numbers[atom, own] = len(self.terms)
            self._atoms.append(atom)
            if isinstance(term, CorrelationTerm):
                term = msgspec.structs.replace(term, window_ms=own)
            self.terms.append(term)
        return self._numbers[atom, own]

    def openable(self, clauses: list[Clause]) -> tuple[Clause, ...]:
        """Drops NOT children that no match can open (rule 4).

        Alone they make the policy invalid; next to positive ones they are dropped with a warning.
        """

        def occurs(child: Child) -> bool:
            constraint = isinstance(child, Positive) and not self._has_events(child.term)
            return is_positive(child) and not constraint

        def decided_by_tables(child: Child) -> bool:
            return not isinstance(child, Sequence) and not self._has_events(child.term)

        if any(all(occurs(child) for child in clause.children) for clause in clauses):
            return tuple(clauses)
        kept = []
        for clause in clauses:
            left = tuple(c for c in clause.children if occurs(c) or decided_by_tables(c))
            for child in clause.children:
                if child not in left:
                    self._report_unopenable(child, alone=not left)
            kept.append(Clause(left or clause.children, clause.window_ms))
        happens = any(occurs(child) for clause in clauses for child in clause.children)
        if not happens and not self._faults.has_errors():
            self._faults.add(
                "policy.no_events",
                "all of this stands in tables, so nothing ever happens that the policy could "
                "report",
                next(atoms_of_expression(self._condition)).place,
                hint=f"add a line about what comes as events: {event_names(self._ontology)}",
            )
        return tuple(kept)

    def check_sequences(self, clauses: Iterable[Clause]) -> None:
        """Reports sides of a FOLLOWED-BY that only tables decide."""
        children = [child for clause in clauses for child in clause.children]
        for child in (one for one in children if isinstance(one, Sequence)):
            for number, negated in signed_terms(child):
                if not self._has_events(number):
                    self._faults.add(
                        "policy.sequence_without_events",
                        "FOLLOWED-BY joins what happens, but this never does: it stands in tables",
                        self._place(number, negated=negated),
                        hint="put it on a line of its own, where it is true or not at any time",
                    )

    def _has_events(self, number: int) -> bool:
        """False for a term that only tables decide."""
        return not isinstance(self.terms[number], ConstraintTerm)

    def _report_unopenable(self, child: Child, *, alone: bool) -> None:
        place = self._place(terms_of_child(child)[0], negated=True)
        if alone:
            message = "this only says what does not happen, and no line says what happens before"
            hint = "add a line for what happens first, such as: A is inside R"
            self._faults.add("policy.absence_alone", message, place, hint=hint)
        else:
            self._faults.warn(
                "policy.absence_never_opens",
                "no line says what happens before this absence, so it is left out",
                place,
                hint="add a line of its own for what happens first",
            )

    def _place(self, number: int, *, negated: bool) -> SourceSpan | None:
        """Where the atom of a term stands in the text."""
        wanted = self._atoms[number]._replace(negated=negated)
        for atomic in atoms_of_expression(self._condition):
            if single_atom(atomic) == wanted:
                return atomic.place
        return None


def _without_unused(plan: Plan) -> Plan:
    """Drops terms without a clause and renumbers the rest."""
    children = [child for clause in plan.clauses for child in clause.children]
    used = sorted({number for child in children for number in terms_of_child(child)})
    numbers = {old: new for new, old in enumerate(used)}

    def renumbered(child: Child) -> Child:
        if isinstance(child, Sequence):
            first, second = numbers[child.first], numbers[child.second]
            return msgspec.structs.replace(child, first=first, second=second)
        return msgspec.structs.replace(child, term=numbers[child.term])

    clauses = tuple(
        Clause(tuple(map(renumbered, clause.children)), clause.window_ms) for clause in plan.clauses
    )
    terms = tuple(plan.terms[old] for old in used)
    return msgspec.structs.replace(plan, terms=terms, clauses=clauses)
