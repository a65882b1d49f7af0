"""Names and types of a parsed policy against the ontology; every fault with the nearest known name.
[PO-3]"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rapport.core.errors import InvalidInput, RapportError
from rapport.policy import relations
from rapport.policy.compiler.draft import Draft
from rapport.policy.compiler.properties import check_property
from rapport.policy.language.faults import Faults, did_you_mean
from rapport.policy.language.printer import print_term
from rapport.policy.language.tree import And, ConceptDef, Expression, FollowedBy, Or, Place, Term
from rapport.policy.ontology import Relationship
from rapport.policy.plan import Constraint


def check(draft: Draft, faults: Faults) -> Draft:
    """The draft with names as declared and constraints typed; faults are noted."""
    checker = _Checker(draft, faults)
    constraints = {concept.alias: checker.definition(concept) for concept in draft.tree.concepts}
    condition = checker.expression(draft.condition)
    return msgspec.structs.replace(draft, condition=condition, constraints=constraints)


def common_name(name: str) -> str:
    """How names of relationships are compared: without case, with one space between words, without
    `of`.

    >>> common_name("Belongs_To"), common_name("part of")
    ('belongs to', 'part')
    """
    words = name.casefold().replace("_", " ").replace("-", " ").split()
    return " ".join(words[:-1] if len(words) > 1 and words[-1] == "of" else words)


def _two(names: tuple[str, str]) -> str:
    return f"{names[0]!r} and {names[1]!r}"


class _Checker:
    """The checks of one policy."""

    def __init__(self, draft: Draft, faults: Faults) -> None:
        self.draft, self.faults = draft, faults
        self.ontology = draft.ontology
        self.aliases = {concept.alias: concept for concept in draft.tree.concepts}

    def definition(self, concept: ConceptDef) -> tuple[Constraint, ...]:
        """The constraints of an alias, typed."""
        attributes = self.ontology.concepts.get(concept.concept)
        if attributes is None:
            message = f"there is no concept named {concept.concept!r}"
            hint = did_you_mean(concept.concept, self.ontology.concepts)
            self.faults.add("policy.unknown_concept", message, concept.place, hint=hint)
            return ()
        streams = self.ontology.streams()
        found = (
            check_property(concept, item, attributes, streams, self.faults)
            for item in concept.properties
        )
        return tuple(constraint for constraint in found if constraint is not None)

    def expression(self, expression: Expression) -> Expression:
        """The expression with its terms as declared."""
        match expression:
            case Term():
                return self._term(expression)
            case And(parts):
                return And(tuple(self.expression(part) for part in parts))
            case Or(parts):
                return Or(tuple(self.expression(part) for part in parts))
            case FollowedBy(first, second, place):
                return FollowedBy(self.expression(first), self.expression(second), place)

    def _term(self, term: Term) -> Term:
        known = [
            self._alias(term.first, term.first_place),
            self._alias(term.second, term.second_place),
        ]
        relationship = self._relationship(term)
        if relationship is None or None in known:
            return term
        if term.first == term.second:
            self.faults.add(
                "policy.same_alias",
                f"{term.first!r} stands on both sides",
                term.second_place,
                hint="define a second alias of the same concept",
            )
            return term
        try:
            relation = relations.get(relationship.function)
        except RapportError as error:
            self.faults.add(error.code, error.message, term.function_place, hint=error.hint)
            return term
        term = self._ordered(term, relationship, relation)
        return self._with_parameter(term, relationship, relation)

    def _alias(self, alias: str, place: Place) -> ConceptDef | None:
        concept = self.aliases.get(alias)
        if concept is None:
            hint = did_you_mean(alias, self.aliases)
            message = f"there is no alias {alias!r}"
            self.faults.add("policy.unknown_alias", message, place, hint=hint)
        return concept

    def _relationship(self, term: Term) -> Relationship | None:
        declared = self.ontology.relationships
        if term.function in declared:
            return declared[term.function]
        wanted = common_name(term.function)
        for name, relationship in declared.items():
            if common_name(name) == wanted:
                return relationship
        message = f"there is no relationship named {term.function!r}"
        # With their negations, so that a misspelt NOT is not advised away.
        hint = did_you_mean(term.function, [*declared, *(f"not {name}" for name in declared)])
        self.faults.add("policy.unknown_relationship", message, term.function_place, hint=hint)
        return None

    def _ordered(
        self, term: Term, relationship: Relationship, relation: relations.Relation
    ) -> Term:
        """The term with its aliases in the order of the declaration."""
        concepts = (self.aliases[term.first].concept, self.aliases[term.second].concept)
        declared = (relationship.first[0], relationship.second[0])
        if not all(concept in self.ontology.concepts for concept in concepts):
            return term  # the definition was faulted already
        term = msgspec.structs.replace(term, function=relationship.name)
        turned = msgspec.structs.replace(term, first=term.second, second=term.first)
        if concepts == declared:
            return term
        if concepts == declared[::-1] and relation.symmetric:
            return turned
        message = f"{relationship.name!r} is between {_two(declared)}, not between {_two(concepts)}"
        hint = (
            f"write: {print_term(turned)}"
            if concepts == declared[::-1]
            else self._fitting(declared)
        )
        self.faults.add("policy.wrong_concepts", message, term.place, hint=hint)
        return term

    def _fitting(self, declared: tuple[str, str]) -> str:
        def aliases_of(concept: str) -> Iterable[str]:
            return (alias for alias, known in self.aliases.items() if known.concept == concept)

        found = [
            f"{name}: {', '.join(aliases_of(name)) or 'none'}" for name in dict.fromkeys(declared)
        ]
        return f"aliases of fitting concepts are {'; '.join(found)}"

    def _with_parameter(
        self, term: Term, relationship: Relationship, relation: relations.Relation
    ) -> Term:
        kind = relation.parameter_kind
        if kind == "none":
            if term.parameter:
                message = f"{relationship.name!r} takes no parameter"
                hint = f"leave {term.parameter!r} out"
                self.faults.add(
                    "policy.needless_parameter", message, term.function_place, hint=hint
                )
            return term
        if not term.parameter:
            example = "5m of" if kind == "length" else "5"
            message = f"{relationship.name!r} needs a {kind}"
            hint = f"write: {relationship.name} {example} {term.second}"
            self.faults.add("policy.missing_parameter", message, term.function_place, hint=hint)
            return term
        try:
            value = relations.parse_parameter(term.parameter, kind)
        except InvalidInput as error:
            self.faults.add(
                "policy.bad_parameter", error.message, term.function_place, hint=error.hint
            )
            return term
        # One spelling for one value, so that 5m and 500cm are the same term.
        unit = "m" if kind == "length" else ""
        return msgspec.structs.replace(term, parameter=f"{value!r}{unit}".replace(".0m", "m"))
