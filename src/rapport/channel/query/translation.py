"""Translates a condition from a consumer's interpretation to canonical terms: same truth for every
event. Pure. [CH-4, ME-9]

`data.temp > 86` becomes `data.temperature >= 30.000000000000004`: the threshold is inverted exactly
(`core/terms.py`), so that an index can answer it and it is calculated once, not per event. A
look-up becomes the list of keys that lead to the requested value. Holds for events whose
transformation is accepted; no consumer sees others. Includes simplification and constant folding of
conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import msgspec

from rapport.channel.query.parser import MAX_CHOICES
from rapport.channel.query.tree import (
    TURNED,
    And,
    Arithmetic,
    Between,
    Compare,
    Comparison,
    Condition,
    Field,
    In,
    IsNull,
    Like,
    Literal,
    Negative,
    Not,
    Or,
    Value,
    fields_of,
    print_field,
    uses_payload,
)
from rapport.channel.query.values import calculate, compare, like_test, negative
from rapport.core.errors import InvalidInput
from rapport.core.terms import (
    Constant,
    FloatRange,
    Linear,
    Members,
    Opaque,
    Same,
    Scalar,
    Term,
    float_range,
    term_at,
)
from rapport.core.terms import Lookup as Listed

Truth = bool | None
"""None: unknown."""
Lookup = Callable[[Field], Any]

TRUE, FALSE = Literal(True), Literal(False)
NULL = Arithmetic("/", Literal(1), Literal(0))
"""A value that is always null: the language has no word for it."""
UNKNOWN = Compare("=", NULL, Literal(0))
"""A condition that is neither true nor false."""
_EXACT = 2**53
"""Whole numbers up to here are floats."""


def constant(truth: Truth) -> Condition:
    return UNKNOWN if truth is None else Literal(truth)


def all_of(parts: Iterable[Condition]) -> Condition:
    """AND without needless parts and nesting."""
    return _joined(parts, And, TRUE, FALSE)


def any_of(parts: Iterable[Condition]) -> Condition:
    """OR without needless parts and nesting."""
    return _joined(parts, Or, FALSE, TRUE)


def _joined(
    parts: Iterable[Condition], kind: type[And] | type[Or], idle: Literal, decides: Literal
) -> Condition:
    flat: list[Condition] = []
    for part in parts:
        flat += part.parts if isinstance(part, kind) else (part,)
    if decides in flat:
        return decides
    kept = [part for part in flat if part != idle]
    if not kept:
        return idle
    return kept[0] if len(kept) == 1 else kind(tuple(kept))


def negated(condition: Condition) -> Condition:
    """NOT, without double negation."""
    match condition:
        case Not(operand):
            return operand
        case Literal(value):
            return Literal(not value)
        case _:
            return condition if condition == UNKNOWN else Not(condition)


def is_never_true(condition: Condition) -> bool:
    """Whether the condition is visibly false or unknown for every event."""
    match condition:
        case And(parts):
            return any(is_never_true(part) for part in parts)
        case Or(parts):
            return all(is_never_true(part) for part in parts)
        case _:
            return condition in (FALSE, UNKNOWN)


def value_of(node: Value, look_up: Lookup) -> Any:
    """The value of an expression whose fields are known; None when it is null."""
    match node:
        case Literal(value):
            return value
        case Field():
            return look_up(node)
        case Negative(operand):
            return negative(value_of(operand, look_up))
        case Arithmetic(sign, left, right):
            return calculate(sign, value_of(left, look_up), value_of(right, look_up))


def truth_of(node: Condition, look_up: Lookup) -> Truth:
    """The truth of a condition without AND, OR and NOT whose fields are known."""
    match node:
        case Compare(operator, left, right):
            return compare(operator, value_of(left, look_up), value_of(right, look_up))
        case Between(operand, low, high):
            value = value_of(operand, look_up)
            ends = (
                compare(">=", value, value_of(low, look_up)),
                compare("<=", value, value_of(high, look_up)),
            )
            return False if False in ends else None if None in ends else True
        case In(operand, choices):
            value = value_of(operand, look_up)
            if value is None:
                return None
            return any(compare("=", value, choice.value) for choice in choices)
        case Like(operand, pattern, escape):
            value = value_of(operand, look_up)
            if value is None:
                return None
            return isinstance(value, str) and like_test(pattern, escape)(value)
        case IsNull(operand):
            return value_of(operand, look_up) is None
        case Field() | Literal():
            value = value_of(node, look_up)
            return value if isinstance(value, bool) else None
        case _:
            raise AssertionError(f"{node!r} has conditions in it")


def never(path: Field) -> Condition:
    """False for everything that is there, unknown for null."""
    return Between(path, Literal(1), Literal(0))


def threshold(operator: str, term: Linear, wanted: Scalar) -> Condition:
    """`operator wanted` on a calculated number, as a condition on its canonical number."""
    root = Field(term.path)
    if isinstance(wanted, bool) or not isinstance(wanted, int | float):
        return never(root)  # another kind is neither equal nor unequal
    if not term.steps:
        return Compare(cast(Comparison, operator), root, Literal(wanted))
    if operator == "<>":
        return negated(threshold("=", term, wanted))
    span = float_range(term, operator, wanted)
    return never(root) if span is None else _within(root, span)


def _within(root: Field, span: FloatRange) -> Condition:
    low, high = span.low, span.high
    number = _as_float(root, low, high)
    if low is not None and high is not None:
        is_one = low == high
        between = Between(number, Literal(low), Literal(high))
        return Compare("=", number, Literal(low)) if is_one else between
    if low is not None:
        return Compare(">=", number, Literal(low))
    if high is not None:
        return Compare("<=", number, Literal(high))
    return negated(never(root))


def _as_float(root: Field, low: float | None, high: float | None) -> Value:
    """Root's number as the transformer sees it: large whole numbers are rounded to floats."""
    is_exact = all(end is None or abs(end) < _EXACT for end in (low, high))
    return root if is_exact else Arithmetic("*", root, Literal(1.0))


def listed(term: Listed, decide: Callable[[Scalar], Truth]) -> Condition:
    """A condition on a look-up's result, as a condition on its keys. `decide` gives the truth for
    each value of the list, and for null.
    """
    root = Field(term.path)
    keys: dict[Truth, list[Literal]] = {True: [], False: [], None: []}
    for key, value in term.entries:
        if key is not None:  # a null is never looked up
            keys[decide(value)].append(Literal(key))
    true, false = _one_of(root, keys[True]), _one_of(root, keys[False])
    unknown = all_of([_one_of(root, keys[None]), UNKNOWN]) if keys[None] else FALSE
    others = False if term.otherwise is msgspec.UNSET else decide(term.otherwise)
    if others is True:
        found = negated(any_of([false, unknown]))
    elif others is False:
        found = any_of([true, unknown])
    else:
        decided = _one_of(root, [*keys[True], *keys[False]])
        found = any_of([true, all_of([negated(decided), UNKNOWN])])
    return _with_null(root, found, decide(None))


def _with_null(root: Field, condition: Condition, truth: Truth) -> Condition:
    """The condition, which is unknown for null, with another truth there."""
    if truth is True:
        return any_of([IsNull(root), condition])
    if truth is False:
        return all_of([negated(IsNull(root)), condition])
    return condition


def _one_of(root: Field, keys: list[Literal]) -> Condition:
    if not keys:
        return never(root)
    if len(keys) == 1:
        return Compare("=", root, keys[0])
    chunks = range(0, len(keys), MAX_CHOICES)
    return any_of([In(root, tuple(keys[start : start + MAX_CHOICES])) for start in chunks])


class Untranslatable(InvalidInput):
    """Only the transformation itself can give the values at `paths`; decide after it."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.paths = tuple(reasons)
        shown = "; ".join(f"{path}: {reason}" for path, reason in reasons.items())
        super().__init__(
            f"this cannot be translated to canonical terms: {shown}",
            code="query.untranslatable",
            hint="it can be decided after the transformation",
        )


def translate(condition: Condition, terms: Term) -> Condition:
    """The condition in canonical terms; raises Untranslatable naming every path without a
    translation.

    `terms` describe the consumer's `data`. Envelope fields are the same on both sides.
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
    """A necessary condition in canonical terms: for an index, and before a transformation."""
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

    Events of other types do not match: the interpretation has no terms for them. With `needed` as
    `translate_needed`, else as `translate`. Parts that are never true are left out.
    """
    parts = condition.parts if isinstance(condition, And) else (condition,)
    envelope = [part for part in parts if not uses_payload(part)]
    payload = all_of([part for part in parts if uses_payload(part)])
    make = translate_needed if needed else translate
    by_type = [
        all_of([Compare("=", Field(("type",)), Literal(name)), make(payload, terms)])
        for name, terms in sorted(forms.items())
    ]
    return all_of([*envelope, any_of([each for each in by_type if not is_never_true(each)])])


def _term(field: Field, terms: Term) -> Term:
    return term_at(terms, field.path[1:]) if field.path[0] == "data" else Same(field.path)


def _is_fixed(term: Term) -> bool:
    """The same for all events."""
    return isinstance(term, Constant | Members)


def _fixed(term: Term) -> Any:
    """Its constant value; the members of an object do not matter, it is equal to nothing."""
    return term.value if isinstance(term, Constant) else {}


class _Translator:
    """Conditions and values in the terms of one consumer, none of which is opaque."""

    def __init__(self, terms: Term) -> None:
        self._terms = terms

    def condition(self, node: Condition) -> Condition:
        match node:
            case And(parts):
                return all_of([self.condition(part) for part in parts])
            case Or(parts):
                return any_of([self.condition(part) for part in parts])
            case Not(operand):
                return negated(self.condition(operand))
            case _:
                return self._leaf(node)

    def _leaf(self, node: Condition) -> Condition:
        live = {field: term for field in fields_of(node) if not _is_fixed(term := self._of(field))}
        if not live:
            return constant(truth_of(node, lambda field: _fixed(self._of(field))))
        lists = [term for term in live.values() if isinstance(term, Listed)]
        if lists and any(term != lists[0] for term in live.values()):
            raise Untranslatable(
                {print_field(field): "compared with another field" for field in live}
            )
        if lists:
            return self._listed(node, lists[0])
        return self._rewritten(node)

    def _listed(self, node: Condition, term: Listed) -> Condition:
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
        """A number compared with a constant becomes a threshold; anything else is calculated."""
        first, second = self.value(left), self.value(right)
        if isinstance(left, Field) and isinstance(second, Literal):
            term = self._number(left)
            if term is not None:
                return threshold(operator, term, second.value)
        if isinstance(right, Field) and isinstance(first, Literal):
            term = self._number(right)
            if term is not None:
                return threshold(TURNED[operator], term, first.value)
        return Compare(operator, first, second)

    def value(self, node: Value) -> Value:
        """A canonical value; numbers are calculated as the transformer does."""
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
        """An operand of a calculation; without a number there is no result."""
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
