"""Relationships between two aliases: they exist, fit the aliases' concepts, and have the parameter
they need. [PO-3]"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from rapport.core.errors import InvalidInput, RapportError
from rapport.policy import relations
from rapport.policy.compiler.scope import Scope
from rapport.policy.language.faults import Diagnostics, did_you_mean
from rapport.policy.language.printer import print_term
from rapport.policy.language.tree import ConceptDef, SourceSpan, Term
from rapport.policy.ontology import Relationship, relationships_named


def check_alias(alias: str, place: SourceSpan, known: Collection[str], faults: Diagnostics) -> bool:
    """True when the policy defines the alias; else the fault is noted with the nearest one."""
    if alias not in known:
        message = f"there is no alias {alias!r}"
        faults.add("policy.unknown_alias", message, place, hint=did_you_mean(alias, known))
    return alias in known


class TermCheck:
    """The checks of relationships in one policy."""

    def __init__(
        self, scope: Scope, definitions: Sequence[ConceptDef], faults: Diagnostics
    ) -> None:
        self.scope, self.faults = scope, faults
        self.aliases = frozenset(definition.alias for definition in definitions)

    def checked(self, term: Term) -> Term:
        """The term with the relationship's name and the order of aliases as declared, and its
        parameter in base units; as it was when faults were noted.
        """
        known = [
            check_alias(term.first, term.first_place, self.aliases, self.faults),
            check_alias(term.second, term.second_place, self.aliases, self.faults),
        ]
        declared = self._declared(term)
        if not declared or not all(known):
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
            return self._ordered(term, declared)
        except RapportError as error:
            self.faults.add(error.code, error.message, term.function_place, hint=error.hint)
            return term

    def _declared(self, term: Term) -> list[Relationship]:
        """All relationships of that name; none, with a fault noted, when there is no such name."""
        declared = relationships_named(self.scope.ontology, term.function)
        if not declared:
            names = [each.name for each in self.scope.ontology.relationships.values()]
            message = f"there is no relationship named {term.function!r}"
            # With their negations, so that a misspelt NOT is not advised away.
            hint = did_you_mean(term.function, [*names, *(f"not {name}" for name in names)])
            self.faults.add("policy.unknown_relationship", message, term.function_place, hint=hint)
        return declared

    def _ordered(self, term: Term, declared: list[Relationship]) -> Term:
        """The term with its aliases in the order of the declaration that fits their concepts."""
        known = self.scope.concepts
        if term.first not in known or term.second not in known:
            return term  # the definition was faulted already
        concepts = (known[term.first], known[term.second])
        term = msgspec.structs.replace(term, function=declared[0].name)
        turned = msgspec.structs.replace(term, first=term.second, second=term.first)
        fitting = {(each.first[0], each.second[0]): each for each in declared}
        if concepts in fitting:
            return self._with_parameter(term, fitting[concepts])
        other = fitting.get(concepts[::-1])
        if other is not None and relations.get(other.function).symmetric:
            return self._with_parameter(turned, other)
        between = ", or between ".join(_two(pair) for pair in fitting)
        message = f"{term.function!r} is between {between}, not between {_two(concepts)}"
        hint = f"write: {print_term(turned)}" if other is not None else self._fitting(fitting)
        self.faults.add("policy.wrong_concepts", message, term.place, hint=hint)
        return term

    def _fitting(self, pairs: Iterable[tuple[str, str]]) -> str:
        def aliases_of(concept: str) -> list[str]:
            return [alias for alias, known in self.scope.concepts.items() if known == concept]

        names = dict.fromkeys(name for pair in pairs for name in pair)
        found = [f"{name}: {', '.join(aliases_of(name)) or 'none'}" for name in names]
        return f"aliases of fitting concepts are {'; '.join(found)}"

    def _with_parameter(self, term: Term, relationship: Relationship) -> Term:
        kind = relations.get(relationship.function).parameter_kind
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


def _two(names: tuple[str, str]) -> str:
    return f"{names[0]!r} and {names[1]!r}"
