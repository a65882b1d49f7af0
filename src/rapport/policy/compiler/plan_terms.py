"""The steps of a plan: each relationship, comparison, duration and silence as a term. [PO-5,
PO-6]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rapport.policy import relations
from rapport.policy.compiler.atoms import TermAtom, TextAtom, term_atom
from rapport.policy.compiler.operands import operand_type, plan_value
from rapport.policy.compiler.scope import AttributeRef, Scope
from rapport.policy.language.tree import (
    And,
    Atomic,
    AttributeOf,
    Call,
    Comparison,
    DurationCondition,
    Expression,
    Measured,
    Or,
    Quantity,
    SilenceCondition,
    Term,
)
from rapport.policy.plan import (
    Compared,
    Constant,
    Constraint,
    ConstraintTerm,
    CorrelationTerm,
    LastingTerm,
    LookedUp,
    Measure,
    Operand,
    QueryTerm,
    ReadingTerm,
    Side,
    SideValue,
    SilentTerm,
    StateAll,
    StateAny,
    StateAtom,
    StateExpression,
    StateTerm,
    TermStep,
)

_KINDS = (ConstraintTerm, QueryTerm, CorrelationTerm)
"""By the number of sides that come as events."""


class TermPlanner:
    """Makes the terms of one checked policy."""

    def __init__(
        self,
        scope: Scope,
        constraints: Mapping[str, tuple[Constraint, ...]],
        stated: Mapping[str, Atomic],
    ) -> None:
        self.scope, self.constraints, self.stated = scope, constraints, stated

    def make(self, atom: TermAtom | TextAtom) -> TermStep:
        """The term of an atom of the normal form, in its positive form and with the policy's
        window.
        """
        if isinstance(atom, TermAtom):
            return self._relationship(atom)
        match self.stated[atom.text]:
            case DurationCondition() as lasting:
                return self._lasting(lasting)
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
        """By the attributes it reads; a comparison of one alias has it on both sides."""
        ends = self.scope.ends_of_comparison(comparison)
        chosen = _chosen(ends)
        compared = self._compared(comparison, chosen)
        sides = [self._side(end) for end in chosen]
        first, second = sides[0], sides[-1]
        given = sum(end.from_events for end in chosen)
        if given == 1 and len(sides) == 1:
            return ReadingTerm(first, compared)
        return _KINDS[given](first, second, "", compared=compared)

    def _compared(self, comparison: Comparison, sides: Sequence[AttributeRef]) -> Compared:
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

    def _lasting(self, lasting: DurationCondition) -> LastingTerm:
        chosen = _one_per_alias(self.scope.ends(lasting.inner))
        sides = [self._side(end) for end in chosen]
        return LastingTerm(sides[0], sides[-1], self._state(lasting.inner), lasting.duration_ms)

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


def _chosen(ends: Sequence[AttributeRef]) -> tuple[AttributeRef, ...]:
    """The one or two ends that stand for a comparison's sides: both event-based ones of an alias,
    or else one per alias.
    """
    events = tuple(end for end in ends if end.from_events)
    if len(events) > 1 and len({end.alias for end in events}) == 1:
        return events
    return _one_per_alias(ends)


def _one_per_alias(ends: Sequence[AttributeRef]) -> tuple[AttributeRef, ...]:
    """For each alias, in the order written, its first event-based end, or else its first one."""
    chosen: dict[str, AttributeRef] = {}
    for end in ends:
        known = chosen.setdefault(end.alias, end)
        if end.from_events and not known.from_events:
            chosen[end.alias] = end
    return tuple(chosen.values())


def _value(end: AttributeRef, sides: Sequence[AttributeRef]) -> SideValue:
    """Which side gives the value of an end: its own, or that of the same alias by its identity."""
    if end in sides:
        return SideValue(sides.index(end), end.attribute)
    aliases = [side.alias for side in sides]
    return SideValue(aliases.index(end.alias), end.attribute)
