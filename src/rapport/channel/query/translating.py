"""A condition in a consumer's own terms, said in root: same truth for every event. Pure. [ME-9,
CH-4]

`data.temp > 86` becomes `data.temperature >= 30.000000000000004`: the threshold is turned round
exactly (`core/terms.py`), so that it can be looked up and is calculated once, not per event. A
look-up becomes the list of keys that lead to what is asked for. Holds for events whose
transformation is accepted; others no consumer sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rapport.channel.query.folding import (
    NULL,
    TRUE,
    UNKNOWN,
    all_of,
    any_of,
    fields_of,
    is_never_true,
    opposite,
    said,
    truth_of,
)
from rapport.channel.query.printer import print_field
from rapport.channel.query.thresholds import listed, never, threshold
from rapport.channel.query.tree import (
    And,
    Arithmetic,
    Between,
    Compare,
    Condition,
    Field,
    In,
    IsNull,
    Like,
    Literal,
    Negative,
    Node,
    Not,
    Or,
    Value,
)
from rapport.core.errors import InvalidInput
from rapport.core.terms import Constant, Linear, Lookup, Members, Opaque, Same, Term, term_at

_TURNED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Untranslatable(InvalidInput):
    """Only the transformation itself can tell what `paths` hold; decide after it."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.paths = tuple(reasons)
        shown = "; ".join(f"{path}: {reason}" for path, reason in reasons.items())
        super().__init__(
            f"this cannot be said in root: {shown}",
            code="query.untranslatable",
            hint="it can be decided after the transformation",
        )


def translate(condition: Condition, terms: Term) -> Condition:
    """The condition in root; raises Untranslatable naming every path it cannot say.

    `terms` says what the consumer's `data` is. Envelope fields mean the same to both sides.
    """
    reasons = {
        print_field(field): term.reason
        for field in fields_of(condition)
        if isinstance(term := _term(field, terms), Opaque)
    }
    if reasons:
        raise Untranslatable(reasons)
    return _Translator(terms).condition(condition)


def translate_needed(condition: Condition, terms: Term) -> Condition:
    """What must be true in root for the condition to be true, as far as it can be said: for an
    index, and to leave events out before they are transformed.
    """
    match condition:
        case And(parts):
            return all_of([translate_needed(part, terms) for part in parts])
        case Or(parts):
            return any_of([translate_needed(part, terms) for part in parts])
        case _:
            try:
                return translate(condition, terms)
            except Untranslatable:
                return TRUE


def translate_types(
    condition: Condition, forms: Mapping[str, Term], *, needed: bool = False
) -> Condition:
    """The condition for a channel with events of several types, each with its own terms.

    Events of other types do not match: the consumer has no words for them. With `needed` as
    `translate_needed`, else as `translate`. Only where it is true is promised: what never is, is
    left out.
    """
    parts = condition.parts if isinstance(condition, And) else (condition,)
    envelope = [part for part in parts if not _speaks_of_data(part)]
    payload = all_of([part for part in parts if _speaks_of_data(part)])
    make = translate_needed if needed else translate
    by_type = [
        all_of([Compare("=", Field(("type",)), Literal(name)), make(payload, terms)])
        for name, terms in sorted(forms.items())
    ]
    return all_of([*envelope, any_of([each for each in by_type if not is_never_true(each)])])


def _speaks_of_data(node: Node) -> bool:
    return any(field.path[0] == "data" for field in fields_of(node))


def _term(field: Field, terms: Term) -> Term:
    return term_at(terms, field.path[1:]) if field.path[0] == "data" else Same(field.path)


def _is_fixed(term: Term) -> bool:
    """The same for all events."""
    return isinstance(term, Constant | Members)


def _fixed(term: Term) -> Any:
    """Its value; what an object holds does not matter, it is equal to nothing."""
    return term.value if isinstance(term, Constant) else {}


class _Translator:
    """Conditions and values in the terms of one consumer, none of which is opaque."""

    def __init__(self, terms: Term) -> None:
        self._terms = terms

    def condition(self, node: Condition) -> Condition:
        """The condition in root."""
        match node:
            case And(parts):
                return all_of([self.condition(part) for part in parts])
            case Or(parts):
                return any_of([self.condition(part) for part in parts])
            case Not(operand):
                return opposite(self.condition(operand))
            case _:
                return self._leaf(node)

    def _leaf(self, node: Condition) -> Condition:
        live = {field: term for field in fields_of(node) if not _is_fixed(term := self._of(field))}
        if not live:
            return said(truth_of(node, lambda field: _fixed(self._of(field))))
        lists = [term for term in live.values() if isinstance(term, Lookup)]
        if lists and any(term != lists[0] for term in live.values()):
            raise Untranslatable(
                {print_field(field): "compared with another field" for field in live}
            )
        if lists:
            return self._listed(node, lists[0])
        return self._rewritten(node)

    def _listed(self, node: Condition, term: Lookup) -> Condition:
        """The leaf depends on one look-up: it is decided for each of its entries."""

        def decide(value: Any) -> bool | None:
            def look_up(field: Field) -> Any:
                found = self._of(field)
                return _fixed(found) if _is_fixed(found) else value

            return truth_of(node, look_up)

        return listed(term, decide)

    def _rewritten(self, node: Condition) -> Condition:
        match node:
            case Compare(operator, left, right):
                return self._compared(operator, left, right)
            case Between(operand, low, high):
                if isinstance(operand, Field) and isinstance(self._of(operand), Linear):
                    low_end = self._compared(">=", operand, low)
                    return all_of([low_end, self._compared("<=", operand, high)])
                return Between(self.value(operand), self.value(low), self.value(high))
            case In(Field() as field, choices) if (term := self._number(field)) is not None:
                return any_of([threshold("=", term, choice.value) for choice in choices])
            case In(operand, choices):
                return In(self.value(operand), choices)
            case Like(Field() as field) if self._number(field) is not None:
                return never(Field(self._path(field)))
            case Like(operand, pattern, escape):
                return Like(self.value(operand), pattern, escape)
            case IsNull(Field() as field):
                return IsNull(Field(self._path(field)))
            case IsNull(operand):
                return IsNull(self.value(operand))
            case Field():
                return UNKNOWN if self._number(node) is not None else Field(self._path(node))
            case _:
                raise AssertionError(f"{node!r} is no leaf")

    def _compared(self, operator: Any, left: Value, right: Value) -> Condition:
        """A number beside a constant becomes a threshold; anything else is calculated."""
        first, second = self.value(left), self.value(right)
        if isinstance(left, Field) and isinstance(second, Literal):
            term = self._number(left)
            if term is not None:
                return threshold(operator, term, second.value)
        if isinstance(right, Field) and isinstance(first, Literal):
            term = self._number(right)
            if term is not None:
                return threshold(_TURNED[operator], term, first.value)
        return Compare(operator, first, second)

    def value(self, node: Value) -> Value:
        """A value in root; numbers are calculated as the transformer does it."""
        match node:
            case Literal():
                return node
            case Negative(operand):
                return Negative(self._operand(operand))
            case Arithmetic(sign, left, right):
                return Arithmetic(sign, self._operand(left), self._operand(right))
            case Field():
                return self._field(node)

    def _operand(self, node: Value) -> Value:
        """A side of a calculation; with what is no number there is no result."""
        found = self.value(node)
        is_number = not isinstance(found, Literal) or not isinstance(found.value, str | bool)
        return found if is_number else NULL

    def _field(self, field: Field) -> Value:
        term = self._of(field)
        if isinstance(term, Linear):
            return _calculated(term)
        if not _is_fixed(term):
            return Field(self._path(field))
        value = _fixed(term)
        if value == {}:
            raise Untranslatable({print_field(field): "an object compared with a field"})
        return NULL if value is None else Literal(value)

    def _number(self, field: Field) -> Linear | None:
        term = self._of(field)
        return term if isinstance(term, Linear) else None

    def _path(self, field: Field) -> tuple[str | int, ...]:
        term = self._of(field)
        assert isinstance(term, Same | Linear)
        return term.path

    def _of(self, field: Field) -> Term:
        return _term(field, self._terms)


def _calculated(term: Linear) -> Value:
    """The transformer's arithmetic, step by step; every number of it is a float."""
    value: Value = Field(term.path)
    for step in term.steps:
        value = Arithmetic("*", value, Literal(step.multiply))
        if step.add != 0.0:
            value = Arithmetic("+", value, Literal(step.add))
        if step.divide != 1.0:
            value = Arithmetic("/", value, Literal(step.divide))
    return value
