"""Translates a policy written in the terms of an interpretation into canonical terms before
planning. Pure. [ME-9, PO-3]

A plan compares canonical columns. A number without a unit is in the interpretation's unit and
becomes the exact float at which the comparison changes its result (`core/terms.py`), so
runners and judge agree to the last bit with a comparison of converted values. A number with a unit
denotes that quantity. A condition that one canonical comparison cannot express is refused with its
place: different events could satisfy two comparisons.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from math import isclose, prod
from typing import TypeVar

import msgspec

from rapport.core.errors import InvalidInput, RapportError
from rapport.core.schema import PARTS
from rapport.core.terms import (
    ABSENT,
    Constant,
    Linear,
    Lookup,
    Members,
    Path,
    Same,
    Scalar,
    Term,
    float_range,
    term_at,
)
from rapport.policy import measures, relations
from rapport.policy.compiler.check import (
    TRUTHS,
    ComparisonFault,
    function_unit,
)
from rapport.policy.compiler.scope import IDENTITY
from rapport.policy.language.diagnostics import Diagnostics, did_you_mean
from rapport.policy.language.printer import print_expression, print_measured, print_term
from rapport.policy.language.tree import (
    MIRRORED_OPERATORS,
    AttributeOf,
    Call,
    Comparison,
    ConceptDef,
    Expression,
    Measured,
    Operator,
    PolicyTree,
    Property,
    Quantity,
    SilenceCondition,
    SourceSpan,
    map_children,
)
from rapport.policy.language.tree import Term as Relation
from rapport.policy.ontology import (
    Ontology,
    Relationship,
    SiteFunction,
    relationships_named,
    resolve_kind,
)
from rapport.units.catalogue import UNITS
from rapport.units.quantities import converter, unit_named

_LARGEST = sys.float_info.max


Translated = TypeVar("Translated")
_USE_CANONICAL_OR_UNITS = (
    "write this policy in canonical terms, or give the interpretation units or a look-up"
)
_USE_CANONICAL = "write this policy in canonical terms"


class UntranslatableTerm(Exception):
    """Canonical properties cannot express the term."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def canonical_properties(item: Property, term: Term) -> tuple[Property, ...]:
    """The property in canonical terms; empty if it always holds. Raises UntranslatableTerm.

    A property of the wrong type keeps its value: the check reports it.
    """
    match term:
        case Same(path):
            return _named(item, path)
        case Linear(path) if isinstance(item.value, str):
            return _named(item, path)
        case Linear():
            return _number(item, term)
        case Lookup():
            return _listed(item, term)
        case Constant(value):
            return _constant(item, value)
        case _:
            reason = getattr(term, "reason", "made of several attributes")
            raise UntranslatableTerm(
                f"cannot be compared in canonical terms ({reason})", _USE_CANONICAL_OR_UNITS
            )


def _named(item: Property, path: tuple[str | int, ...]) -> tuple[Property, ...]:
    if len(path) != 1:
        raise UntranslatableTerm("is part of another canonical attribute", _USE_CANONICAL_OR_UNITS)
    return (msgspec.structs.replace(item, attribute=str(path[0])),)


def _number(item: Property, term: Linear) -> tuple[Property, ...]:
    """A threshold as the canonical float at which the comparison changes its result."""
    (named,) = _named(item, term.path)
    assert not isinstance(item.value, str)
    if item.operator == "!=":
        return (_unequal(named, term, item.value),)
    span = float_range(term, item.operator, item.value)
    if span is None:
        return (_with(named, ">", _LARGEST),)  # no canonical number gives this value
    if span.low is not None and span.low == span.high:
        return (_with(named, "=", span.low),)
    ends = []
    if span.low is not None or span.high is None:
        ends.append(_with(named, ">=", -_LARGEST if span.low is None else span.low))
    if span.high is not None:
        ends.append(_with(named, "<=", span.high))
    return tuple(ends)


def _unequal(named: Property, term: Linear, value: float) -> Property:
    span = float_range(term, "=", value)
    if span is None:
        return _with(named, ">=", -_LARGEST)  # any number, but not a missing one
    if span.low is None or span.low != span.high:
        message = "several canonical numbers lead to this one, and != can name only one"
        raise UntranslatableTerm(
            message, "say < or > with two policies, or = with a rounded number"
        )
    return _with(named, "!=", span.low)


def _listed(item: Property, term: Lookup) -> tuple[Property, ...]:
    """Keys of the look-up: `=` with one key, or `!=` with each excluded key."""
    (named,) = _named(item, term.path)
    if item.operator not in ("=", "!="):
        raise UntranslatableTerm("comes from a look-up, which has no order", "use = or !=")
    meant = {key for key, value in term.entries if _holds(item, value) and key is not None}
    others = {key for key, _ in term.entries if key is not None and key not in meant}
    by_default = term.otherwise is not msgspec.UNSET and _holds(item, term.otherwise)
    if by_default and not others:
        raise UntranslatableTerm("holds for every value", "leave this property out")
    if by_default:
        return tuple(_with(named, "!=", _property_value(key)) for key in _in_order(others, term))
    if len(meant) == 1:
        return (_with(named, "=", _property_value(meant.pop())),)
    listed = ", ".join(repr(key) for key in _in_order(meant, term)) or "no canonical value"
    hint = "write one policy for each, or in canonical terms"
    raise UntranslatableTerm(f"means {listed}, and a property names one", hint)


def _holds(item: Property, value: Scalar) -> bool:
    """True if the value satisfies the property; a missing value satisfies none."""
    if value is None:
        return False
    wanted: Scalar = item.value
    if isinstance(value, bool):
        wanted = TRUTHS.get(item.value.lower()) if isinstance(item.value, str) else None
    is_same = isinstance(value, str) == isinstance(wanted, str) and value == wanted
    return is_same is (item.operator == "=")


def _constant(item: Property, value: Scalar) -> tuple[Property, ...]:
    if item.operator not in ("=", "!="):
        raise UntranslatableTerm(
            f"is always {value!r} here", "leave this property out, or use = or !="
        )
    if _holds(item, value):
        return ()
    raise UntranslatableTerm(
        f"is always {value!r} here, so this never holds", "mend or remove the policy"
    )


def _in_order(keys: Iterable[Scalar], term: Lookup) -> list[Scalar]:
    wanted = set(keys)
    return [key for key, _ in term.entries if key in wanted]


def _property_value(key: Scalar) -> str | float:
    """A canonical value as written in a property."""
    if isinstance(key, bool):
        return "true" if key else "false"
    assert key is not None
    return key if isinstance(key, str) else float(key)


def _with(named: Property, operator: Operator, value: str | float) -> Property:
    return msgspec.structs.replace(named, operator=operator, value=value)


class UnknownAttribute(Exception):
    """The interpretation has no such attribute of the operand's alias."""

    def __init__(self, operand: AttributeOf) -> None:
        super().__init__(operand.attribute)
        self.operand = operand


def _is_distance(function: SiteFunction) -> bool:
    try:
        return bool(function.measure) and measures.get(function.measure).shape == "distance"
    except RapportError:
        return False  # the check reports it


def _converts_units(term: Linear, root: str) -> bool:
    """True if the calculation converts the canonical unit into another of its dimension."""
    if not root:
        return False
    scale, offset = Fraction(1), Fraction(0)
    for step in term.steps:
        scale = scale * Fraction(step.multiply) / Fraction(step.divide)
        offset = (offset * Fraction(step.multiply) + Fraction(step.add)) / Fraction(step.divide)
    dimension = unit_named(root).dimension
    known = (converter(root, unit.symbol) for unit in UNITS if unit.dimension == dimension)
    return any(
        isclose(each.scale, scale, rel_tol=1e-12)
        and isclose(each.offset, offset, rel_tol=1e-12, abs_tol=1e-12)
        for each in known
    )


class ConceptTerms(msgspec.Struct, frozen=True):
    """A concept in an interpretation; the paths in `whole` begin with the canonical attribute."""

    concept: str
    """The canonical name."""
    whole: Term


class PolicyTerms(msgspec.Struct, frozen=True):
    """The concepts of an interpretation, by its own names."""

    interpretation: str
    concepts: Mapping[str, ConceptTerms]


def rewrite_policy(
    tree: PolicyTree, terms: PolicyTerms, ontology: Ontology, faults: Diagnostics
) -> tuple[PolicyTree, tuple[TermRewrite, ...]]:
    """Translates a policy; returns it with the translated terms in text order. Adds faults.

    Relationships keep their names and lengths with a unit their meaning; a length without a unit is
    in the unit of the interpretation's positions.
    """
    rewriter = _Rewriter(tree, terms, ontology, faults)
    concepts = tuple(rewriter.definition(concept) for concept in tree.concepts)
    condition = rewriter.expression(tree.condition)
    changed = msgspec.structs.replace(tree, concepts=concepts, condition=condition)
    return changed, tuple(rewriter.rewritten)


class _Rewriter:
    def __init__(
        self, tree: PolicyTree, terms: PolicyTerms, ontology: Ontology, faults: Diagnostics
    ) -> None:
        self._terms, self._ontology, self._faults = terms, ontology, faults
        self._of_alias = {each.alias: self._concept(each.concept) for each in tree.concepts}
        self.rewritten: list[TermRewrite] = []

    def definition(self, concept: ConceptDef) -> ConceptDef:
        """The definition with canonical concept and properties."""
        found = self._of_alias[concept.alias]
        if found is None:
            self._unknown(concept)
            return concept
        properties = tuple(
            changed
            for item in concept.properties
            for changed in self._property(concept.alias, item)
        )
        # A canonical kind (`employee`) keeps its name, which implies constraints.
        name = concept.concept if concept.concept in self._ontology.kinds else found.concept
        return msgspec.structs.replace(concept, concept=name, properties=properties)

    def expression(self, expression: Expression) -> Expression:
        match expression:
            case Comparison() | SilenceCondition():
                return self._compared(expression)
            case Relation():
                return self._relation(expression)
            case _:
                return map_children(expression, self.expression)

    def _compared(self, expression: Comparison | SilenceCondition) -> Comparison | SilenceCondition:
        """A comparison or silence of canonical attributes; unchanged if faults were added."""

        def translate() -> Comparison | SilenceCondition:
            if isinstance(expression, Comparison):
                return self._rewritten(expression)
            return self._silence(expression)

        shown = print_expression(expression)
        changed = self._translated(translate, shown, expression.place)
        if changed is None:
            return expression
        self._note(shown, print_expression(changed), expression.place)
        return changed

    def _translated(
        self, translate: Callable[[], Translated], shown: str, place: SourceSpan
    ) -> Translated | None:
        """The result of a translation; None with a fault if it fails."""
        try:
            return translate()
        except UntranslatableTerm as error:
            message = f"{shown!r} in the terms of {self._terms.interpretation}: {error}"
            self._faults.add("policy.untranslatable", message, place, hint=error.hint)
        except UnknownAttribute as error:
            concept, name = self._of_alias[error.operand.alias], error.operand.attribute
            assert concept is not None, "its attribute was translated"
            known = self._ontology.concepts.get(concept.concept, {})
            hint = did_you_mean(name, sorted(_names(concept.whole, known)))
            message = f"{self._terms.interpretation} knows no attribute {name!r} here"
            self._faults.add("policy.unknown_attribute", message, error.operand.place, hint=hint)
        return None

    def _silence(self, silent: SilenceCondition) -> SilenceCondition:
        if not silent.attribute:
            return silent
        wanted = AttributeOf(silent.attribute, silent.alias, silent.place, silent.alias_place)
        attribute = self._canonical_attribute(wanted)
        return msgspec.structs.replace(silent, attribute=attribute)

    def _concept(self, name: str) -> ConceptTerms | None:
        """The concept by the interpretation's name, or by its canonical name if that is free."""
        known = self._terms.concepts
        if name in known:
            return known[name]
        kind = resolve_kind(self._ontology, name)
        wanted = name if kind is None else kind.concept
        return next((each for each in known.values() if each.concept == wanted), None)

    def _unknown(self, concept: ConceptDef) -> None:
        """Reports a canonical concept that the interpretation does not map; the check reports
        others."""
        if concept.concept in self._ontology.concepts:
            message = f"{self._terms.interpretation} has no words for {concept.concept!r}"
            hint = f"map {concept.concept} in the interpretation, direction out"
            self._faults.add("policy.untranslatable", message, concept.place, hint=hint)

    def _property(self, alias: str, item: Property) -> tuple[Property, ...]:
        translate = partial(self._canonical_property, alias, item)
        found = self._translated(translate, item.attribute, item.place)
        if found is None:
            return ()
        self._note(_shown((item,)), _shown(found), item.place)
        return found

    def _relation(self, term: Relation) -> Relation:
        """Converts a length without a unit to metres."""
        declared = self._fitting(term)
        if not declared or not _is_bare(term.parameter):
            return term
        try:
            needs_length = all(
                relations.get(each.function).parameter_kind == "length" for each in declared
            )
        except InvalidInput:
            return term  # the check reports it
        if not needs_length:
            return term
        ends = [end for each in declared for end in (each.first, each.second)]
        metres = self._metres(term, ends)
        if metres is None:
            self._faults.add(
                "policy.untranslatable",
                f"{self._terms.interpretation} has no one unit of length for {term.parameter!r}",
                term.function_place,
                hint=f"write the unit: {term.parameter}m",
            )
            return term
        changed = msgspec.structs.replace(term, parameter=f"{metres!r}m")
        self._note(print_term(term), print_term(changed), term.place)
        return changed

    def _fitting(self, term: Relation) -> list[Relationship]:
        """The relationships of the term's name between the concepts of its aliases."""
        known = [self._of_alias.get(alias) for alias in (term.first, term.second)]
        concepts = {each.concept for each in known if each is not None}
        declared = relationships_named(self._ontology, term.function)
        return [each for each in declared if {each.first[0], each.second[0]} == concepts]

    def _metres(self, term: Relation, ends: Iterable[tuple[str, str]]) -> float | None:
        """The length in metres by the scale of both positions; None if the scales differ."""
        scales = {self._scale(*end) for end in ends}
        scale = scales.pop()
        return None if scales or scale is None else float(Fraction(term.parameter) / scale)

    def _scale(self, concept: str, attribute: str) -> Fraction | None:
        """The factor of canonical positions in the interpretation; None if there is no
        single one."""
        known = [each.whole for each in self._terms.concepts.values() if each.concept == concept]
        kind = self._ontology.concepts[concept][attribute]
        if kind == "geo_point":
            return Fraction(1)  # in degrees, whose distances are in metres
        found = [scale_of(whole, attribute, PARTS[kind]) for whole in known]
        return found[0] if found else None

    def _note(self, written: str, root: str, place: SourceSpan) -> None:
        if written != root:
            self.rewritten.append(TermRewrite(written, root, place))

    # --- comparisons ---

    def _rewritten(self, comparison: Comparison) -> Comparison:
        """The canonical comparison; raises UntranslatableTerm and UnknownAttribute.

        Unknown aliases and functions are left for the check.
        """
        if isinstance(comparison.left, Quantity):
            comparison = msgspec.structs.replace(
                comparison,
                left=comparison.right,
                operator=MIRRORED_OPERATORS[comparison.operator],
                right=comparison.left,
            )
        match comparison.left, comparison.right:
            case AttributeOf() as attribute, Quantity() as constant:
                return self._threshold(comparison, attribute, constant)
            case Call() as call, Quantity() as constant:
                right = self._length(call, constant)
                return msgspec.structs.replace(comparison, right=right)
            case Quantity(), _:
                return comparison
            case left, right:
                return self._of_two(comparison, left, right)

    def _canonical_property(self, alias: str, item: Property) -> tuple[Property, ...]:
        """The canonical properties of a known alias; empty if the property always holds. Raises
        UntranslatableTerm and UnknownAttribute."""
        operand = AttributeOf(item.attribute, alias, item.place, item.place)
        term = term_at(self._known(alias).whole, (item.attribute,))
        if term == ABSENT:
            raise UnknownAttribute(operand)
        if item.unit:
            name = self._named(operand, term, explicit=True).attribute
            return (msgspec.structs.replace(item, attribute=name),)
        return tuple(
            msgspec.structs.replace(each, unit=self._unit_of_value(alias, each))
            for each in canonical_properties(item, term)
        )

    def _canonical_attribute(self, operand: AttributeOf) -> str:
        """The canonical name of an attribute; raises UntranslatableTerm if it combines several."""
        term = self._term(operand)
        path = getattr(term, "path", None) if term is not None else (operand.attribute,)
        if path is None or len(path) != 1:
            raise UntranslatableTerm("is no canonical attribute by itself", _USE_CANONICAL)
        return str(path[0])

    def _term(self, operand: AttributeOf) -> Term | None:
        """The attribute in terms of canonical ones; None if no translation is needed."""
        own = self._of_alias.get(operand.alias)
        if own is None or operand.attribute == IDENTITY:
            return None
        term = term_at(own.whole, (operand.attribute,))
        if term == ABSENT:
            raise UnknownAttribute(operand)
        return term

    def _threshold(
        self, comparison: Comparison, attribute: AttributeOf, constant: Quantity
    ) -> Comparison:
        term = self._term(attribute)
        if term is None:
            return comparison
        if constant.unit:
            left = self._named(attribute, term, explicit=True)
            return msgspec.structs.replace(comparison, left=left)
        written = Property(
            attribute.attribute, comparison.operator, constant.value, comparison.place
        )
        found = canonical_properties(written, term)
        if not found:
            raise UntranslatableTerm("always holds here", "leave this comparison out")
        if len(found) > 1:
            message = "takes several canonical comparisons, which different events could satisfy"
            raise UntranslatableTerm(
                message, "compare with < or >, or write this policy in canonical terms"
            )
        (root,) = found
        unit = self._unit_of_value(attribute.alias, root)
        return msgspec.structs.replace(
            comparison,
            left=msgspec.structs.replace(attribute, attribute=root.attribute),
            operator=root.operator,
            right=msgspec.structs.replace(constant, value=root.value, unit=unit),
        )

    def _named(self, attribute: AttributeOf, term: Term, *, explicit: bool) -> AttributeOf:
        """The attribute under its canonical name, with equal numbers except for their unit."""
        name = self._canonical_attribute(attribute)
        unit = self._unit(attribute.alias, name)
        if isinstance(term, Same) or (isinstance(term, Linear) and not term.steps):
            return msgspec.structs.replace(attribute, attribute=name)
        if explicit and isinstance(term, Linear) and _converts_units(term, unit):
            return msgspec.structs.replace(attribute, attribute=name)
        message = "is calculated from the canonical one, so its unit is not known"
        raise UntranslatableTerm(
            message, "write the number without a unit, as it is in these terms"
        )

    def _unit_of_value(self, alias: str, root: Property) -> str:
        return "" if isinstance(root.value, str) else self._unit(alias, root.attribute)

    def _unit(self, alias: str, attribute: str) -> str:
        return self._ontology.units.get(self._known(alias).concept, {}).get(attribute, "")

    def _length(self, call: Call, constant: Quantity) -> Quantity:
        """A constant compared with a function: without a unit it is in the unit of positions for a
        distance; for other functions it needs a unit."""
        function = self._ontology.functions.get(call.function)
        if function is None or constant.unit or isinstance(constant.value, str):
            return constant
        try:
            unit = function_unit(function)
        except ComparisonFault:
            return constant  # the check reports it
        if unit in ("", "1"):
            return constant
        scales = {self._scale(*end) for end in function.of} if _is_distance(function) else {None}
        scale = scales.pop()
        if scales or scale is None:
            message = "has no one unit in these terms"
            raise UntranslatableTerm(message, f"write the unit, such as: {constant.value:g} {unit}")
        value = float(Fraction(repr(constant.value)) / scale)
        return msgspec.structs.replace(constant, value=value, unit=unit)

    def _of_two(self, comparison: Comparison, left: Measured, right: Measured) -> Comparison:
        """Compares two measured operands: canonical ones, or two with the same calculation.

        Equal calculations keep the order, so the canonical numbers are compared.
        """
        terms = [
            self._term(each) if isinstance(each, AttributeOf) else None for each in (left, right)
        ]
        if all(isinstance(each, Linear) and each.steps for each in terms):
            return self._alike(comparison, left, right, *terms)
        named = [
            self._named(each, term, explicit=False)
            if isinstance(each, AttributeOf) and term is not None
            else each
            for each, term in zip((left, right), terms, strict=True)
        ]
        return msgspec.structs.replace(comparison, left=named[0], right=named[1])

    def _alike(
        self,
        comparison: Comparison,
        left: Measured,
        right: Measured,
        first: Term | None,
        second: Term | None,
    ) -> Comparison:
        assert isinstance(left, AttributeOf)
        assert isinstance(right, AttributeOf)
        assert isinstance(first, Linear)
        assert isinstance(second, Linear)
        if first.steps != second.steps:
            raise UntranslatableTerm("two attributes calculated differently", _USE_CANONICAL)
        operator = comparison.operator
        return msgspec.structs.replace(
            comparison,
            left=msgspec.structs.replace(left, attribute=self._canonical_attribute(left)),
            operator=MIRRORED_OPERATORS[operator] if first.turns else operator,
            right=msgspec.structs.replace(right, attribute=self._canonical_attribute(right)),
        )

    def _known(self, alias: str) -> ConceptTerms:
        found = self._of_alias[alias]
        assert found is not None, "only attributes of known concepts are translated"
        return found


def _is_bare(parameter: str) -> bool:
    try:
        return bool(parameter) and float(parameter) >= 0
    except ValueError:
        return False


def _shown(properties: tuple[Property, ...]) -> str:
    shown = (
        f"{each.attribute} {each.operator} {print_measured(each.constant)}" for each in properties
    )
    return " and ".join(shown) or "always"


def _names(whole: Term, attributes: Mapping[str, object]) -> set[str]:
    if not isinstance(whole, Members):
        return set(attributes)
    own = {name for name, term in whole.members.items() if term != Constant(None)}
    return own | {name for name in attributes if whole.rest and name not in whole.members}


def scale_of(whole: Term, attribute: str, parts: Sequence[str]) -> Fraction | None:
    """The absolute factor of all parts of a canonical attribute; None if there is no single one.

    >>> scale_of(Same(()), "position", ("x", "y"))
    Fraction(1, 1)
    """
    place: Path = (attribute,)
    found = [term_at(whole, place)]
    if isinstance(whole, Members):
        found = [term for term in whole.members.values() if getattr(term, "path", None) == place]
        found += [Same(place)] if whole.rest and attribute not in whole.members else []
    if len(found) != 1:
        return None
    single = len(parts) == 1
    scales = {_factor(found[0] if single else term_at(found[0], (part,))) for part in parts}
    return scales.pop() if len(scales) == 1 else None


def _factor(term: Term) -> Fraction | None:
    if isinstance(term, Same):
        return Fraction(1)
    if not isinstance(term, Linear):
        return None
    factors = (Fraction(step.multiply) / Fraction(step.divide) for step in term.steps)
    return abs(prod(factors, start=Fraction(1)))


class TermRewrite(msgspec.Struct, frozen=True):
    """A term of an interpretation and its canonical form, for people."""

    written: str
    root: str
    place: SourceSpan
