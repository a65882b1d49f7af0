"""Policies in one's own terms: names and thresholds rewritten to root before planning. Pure. [ME-9,
PO-3]

A plan compares columns of root, so a threshold becomes the float of root at which the comparison in
own terms turns, found exactly (`core/boundaries.py`): both runners and the judge agree to the last
bit with a comparison of converted values. What properties cannot say is refused with its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import prod

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.schema import PARTS
from rapport.core.terms import Constant, Linear, Members, Path, Same, Term, at
from rapport.policy import relations
from rapport.policy.compiler.draft import TermRewrite
from rapport.policy.language.faults import Diagnostics, did_you_mean
from rapport.policy.language.printer import print_expression, print_measured, print_term
from rapport.policy.language.tree import (
    And,
    AttributeOf,
    Comparison,
    ConceptDef,
    DurationCondition,
    Expression,
    FollowedBy,
    Or,
    PolicyTree,
    Property,
    SilenceCondition,
    SourceSpan,
    Within,
)
from rapport.policy.language.tree import Term as Relation
from rapport.policy.ontology import Ontology, Relationship, relationships_named, resolve_kind
from rapport.policy.own_terms.comparisons import ComparisonRewriter, OwnConcept, UnknownAttribute
from rapport.policy.own_terms.properties import UntranslatableTerm


class ConceptTerms(msgspec.Struct, frozen=True):
    """A concept as an interpretation sees it; the paths in `whole` begin with root's attribute."""

    concept: str
    """Root's name."""
    whole: Term


class PolicyTerms(msgspec.Struct, frozen=True):
    """What a policy's words mean: concepts by the name that the interpretation gives them."""

    interpretation: str
    concepts: Mapping[str, ConceptTerms]


def rewrite_policy(
    tree: PolicyTree, terms: PolicyTerms, ontology: Ontology, faults: Diagnostics
) -> tuple[PolicyTree, tuple[TermRewrite, ...]]:
    """The policy in root, and what was rewritten in the order of the text; faults are noted.

    Relationships keep their names, lengths with a unit their meaning; a length without one is in
    the unit of the interpretation's positions.
    """
    rewriter = _Rewriter(tree, terms, ontology, faults)
    concepts = tuple(rewriter.definition(concept) for concept in tree.concepts)
    condition = rewriter.expression(tree.condition)
    changed = msgspec.structs.replace(tree, concepts=concepts, condition=condition)
    return changed, tuple(rewriter.rewritten)


class _Rewriter:
    """The rewriting of one policy."""

    def __init__(
        self, tree: PolicyTree, terms: PolicyTerms, ontology: Ontology, faults: Diagnostics
    ) -> None:
        self._terms, self._ontology, self._faults = terms, ontology, faults
        self._of_alias = {each.alias: self._concept(each.concept) for each in tree.concepts}
        self.rewritten: list[TermRewrite] = []
        known = {
            alias: OwnConcept(each.concept, each.whole)
            for alias, each in self._of_alias.items()
            if each is not None
        }
        self._comparisons = ComparisonRewriter(known, ontology, self._scale)

    def definition(self, concept: ConceptDef) -> ConceptDef:
        """The definition with root's name of the concept and its properties."""
        found = self._of_alias[concept.alias]
        if found is None:
            self._unknown(concept)
            return concept
        properties = tuple(
            changed
            for item in concept.properties
            for changed in self._property(concept.alias, item)
        )
        # A kind of root's (`employee`) keeps its name, which says more than its concept.
        name = concept.concept if concept.concept in self._ontology.kinds else found.concept
        return msgspec.structs.replace(concept, concept=name, properties=properties)

    def expression(self, expression: Expression) -> Expression:
        """The expression with root's names and numbers."""
        match expression:
            case And(parts):
                return And(tuple(self.expression(part) for part in parts))
            case Or(parts):
                return Or(tuple(self.expression(part) for part in parts))
            case FollowedBy(first, second):
                first, second = self.expression(first), self.expression(second)
                return msgspec.structs.replace(expression, first=first, second=second)
            case Within(inner) | DurationCondition(inner):
                return msgspec.structs.replace(expression, inner=self.expression(inner))
            case Comparison() | SilenceCondition():
                return self._compared(expression)
            case Relation():
                return self._relation(expression)

    def _compared(self, expression: Comparison | SilenceCondition) -> Comparison | SilenceCondition:
        """A comparison or a silence of root's attributes; as it was when faults were noted."""
        try:
            if isinstance(expression, Comparison):
                changed: Comparison | SilenceCondition = self._comparisons.rewritten(expression)
            else:
                changed = self._silence(expression)
        except UntranslatableTerm as error:
            shown = print_expression(expression)
            message = f"{shown!r} in the terms of {self._terms.interpretation}: {error}"
            self._faults.add("policy.untranslatable", message, expression.place, hint=error.hint)
            return expression
        except UnknownAttribute as error:
            concept = self._of_alias[error.operand.alias]
            assert concept is not None, "an attribute of it was looked for"
            self._unknown_attribute(concept, error.operand.attribute, error.operand.place)
            return expression
        self._note(print_expression(expression), print_expression(changed), expression.place)
        return changed

    def _silence(self, silent: SilenceCondition) -> SilenceCondition:
        if not silent.attribute:
            return silent
        wanted = AttributeOf(silent.attribute, silent.alias, silent.place, silent.alias_place)
        attribute = self._comparisons.root_attribute(wanted)
        return msgspec.structs.replace(silent, attribute=attribute)

    def _concept(self, name: str) -> ConceptTerms | None:
        """By the interpretation's name; root's is understood where it is nobody else's."""
        known = self._terms.concepts
        if name in known:
            return known[name]
        kind = resolve_kind(self._ontology, name)
        wanted = name if kind is None else kind.concept
        return next((each for each in known.values() if each.concept == wanted), None)

    def _unknown(self, concept: ConceptDef) -> None:
        """One of root's that the interpretation cannot be given; others the check names."""
        if concept.concept in self._ontology.concepts:
            message = f"{self._terms.interpretation} has no words for {concept.concept!r}"
            hint = f"map {concept.concept} in the interpretation, direction out"
            self._faults.add("policy.untranslatable", message, concept.place, hint=hint)

    def _property(self, alias: str, item: Property) -> tuple[Property, ...]:
        """A number without a unit is the interpretation's, one with a unit means that quantity."""
        concept = self._of_alias[alias]
        assert concept is not None, "the definition was faulted otherwise"
        try:
            found = self._comparisons.property_in_root(alias, item)
        except UnknownAttribute:
            self._unknown_attribute(concept, item.attribute, item.place)
            return ()
        except UntranslatableTerm as error:
            message = f"{item.attribute!r} in the terms of {self._terms.interpretation}: {error}"
            self._faults.add("policy.untranslatable", message, item.place, hint=error.hint)
            return ()
        self._note(_shown((item,)), _shown(found), item.place)
        return found

    def _unknown_attribute(self, concept: ConceptTerms, name: str, place: SourceSpan) -> None:
        names = sorted(_names(concept.whole, self._ontology.concepts.get(concept.concept, {})))
        message = f"{self._terms.interpretation} knows no attribute {name!r} here"
        hint = did_you_mean(name, names)
        self._faults.add("policy.unknown_attribute", message, place, hint=hint)

    def _relation(self, term: Relation) -> Relation:
        """A length without a unit in metres; anything else as it is."""
        declared = self._fitting(term)
        if not declared or not _is_bare(term.parameter):
            return term
        try:
            needs_length = all(
                relations.get(each.function).parameter_kind == "length" for each in declared
            )
        except InvalidInput:
            return term  # the check says why
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
        """The length by the scale of the positions on both sides, which must be one."""
        scales = {self._scale(*end) for end in ends}
        scale = scales.pop()
        return None if scales or scale is None else float(Fraction(term.parameter) / scale)

    def _scale(self, concept: str, attribute: str) -> Fraction | None:
        """By how much the interpretation multiplies root's positions; None: by no one number."""
        known = [each.whole for each in self._terms.concepts.values() if each.concept == concept]
        kind = self._ontology.concepts[concept][attribute]
        found = [scale_of(whole, attribute, PARTS[kind]) for whole in known]
        return found[0] if found else None

    def _note(self, written: str, root: str, place: SourceSpan) -> None:
        if written != root:
            self.rewritten.append(TermRewrite(written, root, place))


def _is_bare(parameter: str) -> bool:
    """A number without a unit."""
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
    """The attributes that the interpretation knows."""
    if not isinstance(whole, Members):
        return set(attributes)
    own = {name for name, term in whole.members.items() if term != Constant(None)}
    return own | {name for name in attributes if whole.rest and name not in whole.members}


def scale_of(whole: Term, attribute: str, parts: Sequence[str]) -> Fraction | None:
    """The factor of all parts of one of root's attributes, without its sign; None: there is none.

    >>> scale_of(Same(()), "position", ("x", "y"))
    Fraction(1, 1)
    """
    place: Path = (attribute,)
    found = [at(whole, place)]
    if isinstance(whole, Members):
        found = [term for term in whole.members.values() if _path_of(term) == place]
        found += [Same(place)] if whole.rest and attribute not in whole.members else []
    if len(found) != 1:
        return None
    single = len(parts) == 1
    scales = {_factor(found[0] if single else at(found[0], (part,))) for part in parts}
    return scales.pop() if len(scales) == 1 else None


def _path_of(term: Term) -> Path | None:
    return term.path if isinstance(term, Same | Linear | Members) else None


def _factor(term: Term) -> Fraction | None:
    if isinstance(term, Same):
        return Fraction(1)
    if not isinstance(term, Linear):
        return None
    factors = (Fraction(step.multiply) / Fraction(step.divide) for step in term.steps)
    return abs(prod(factors, start=Fraction(1)))
