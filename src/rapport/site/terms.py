"""Policies of a site that are written in an interpretation's own terms: `[policies] interpretation`
for all, `[policies.interpretations]` for single ones. [ME-9, UX-2]

Policies and mediation do not know each other: here the one's terms become the other's words.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from rapport.core.errors import InterpretationError, Problem, nearest_names
from rapport.core.terms import Same
from rapport.kernel.config_fields import Fields
from rapport.kernel.toml import TomlFile
from rapport.mediation.interpretations.model import CANONICAL
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.outgoing.terms import terms_of
from rapport.policy.compiler.interpretation import ConceptTerms, PolicyTerms
from rapport.policy.ontology import Ontology
from rapport.site.interpreting import meanings_in_site

_TABLE, _ALL = "interpretations", "interpretation"


class TermsOfPolicies(msgspec.Struct, frozen=True):
    """What the words of each policy mean that is not written in root's; `unknown` are policies
    whose interpretation is not there, so that they mean nothing.
    """

    terms: dict[str, PolicyTerms] = {}
    unknown: frozenset[str] = frozenset()


class Spoken(msgspec.Struct, frozen=True):
    """The terms of every interpretation that a site's policies may be written in, and the names of
    all that there are.
    """

    terms: dict[str, PolicyTerms] = {}
    names: tuple[str, ...] = (CANONICAL,)


def terms_of_policies(
    file: TomlFile, directory: Path, ontology: Ontology, policies: Collection[str]
) -> tuple[TermsOfPolicies, list[Problem]]:
    """The terms of all policies, and what is wrong with naming them.

    What is wrong with an interpretation itself is told where interpretations are checked.
    """
    spoken = Spoken()
    if names_interpretations(file):
        spoken = spoken_at(file, ontology, interpretations_of_site(file, directory, ontology))
    return terms_among(spoken, file, policies)


def terms_among(
    spoken: Spoken, file: TomlFile, policies: Collection[str]
) -> tuple[TermsOfPolicies, list[Problem]]:
    """The same, given what the interpretations say."""
    problems: list[Problem] = []
    chosen = _chosen(file, policies, problems)
    unknown = {policy for policy, name in chosen.items() if name not in spoken.names}
    problems += _not_there(file, {chosen[policy] for policy in unknown}, spoken.names)
    terms = {policy: spoken.terms[name] for policy, name in chosen.items() if name in spoken.terms}
    return TermsOfPolicies(terms, frozenset(unknown)), problems


def names_interpretations(file: TomlFile) -> bool:
    """Whether a site's policies may be written in other terms than root's."""
    policies = file.section("policies").values
    return _ALL in policies or _TABLE in policies


def spoken_at(
    file: TomlFile, ontology: Ontology, interpretations: InterpretationRegistry
) -> Spoken:
    """What interpretations say of the words of a site's policies."""
    section = file.section("policies")
    single = section.values.get(_TABLE, {})
    named = [section.values.get(_ALL), *(single.values() if isinstance(single, dict) else ())]
    terms = {
        name: policy_terms(interpretations, name, ontology)
        for name in named
        if isinstance(name, str) and name in interpretations and name != CANONICAL
    }
    return Spoken(terms, tuple(interpretations.names))


def policy_terms(
    interpretations: InterpretationRegistry, name: str, ontology: Ontology
) -> PolicyTerms:
    """The concepts of a site as an interpretation sees them; those it cannot be given are left
    out.
    """
    found: dict[str, ConceptTerms] = {}
    for concept in ontology.concepts:
        try:
            terms = terms_of(interpretations, name, concept, given=Same(()))
        except InterpretationError:
            continue  # a policy that speaks of it is refused
        found[terms.result] = ConceptTerms(concept, terms.whole)
    return PolicyTerms(name, found)


def interpretations_of_site(
    file: TomlFile, directory: Path, ontology: Ontology
) -> InterpretationRegistry:
    """The typed interpretations that a site declares, without those that are faulty."""
    in_force, _ = meanings_in_site(file, directory, ontology).files.activate()
    return in_force.typed


def _chosen(file: TomlFile, policies: Collection[str], problems: list[Problem]) -> dict[str, str]:
    """The interpretation of each policy that has one."""
    section = file.section("policies")
    everywhere = Fields(section, problems).filled_text(_ALL, "", example='"us-desk"')
    chosen = dict.fromkeys(policies, everywhere) if everywhere else {}
    single = Fields(section.section(_TABLE), problems)
    if not isinstance(section.values.get(_TABLE, {}), dict):
        Fields(section, problems).wrong(_TABLE, "a table", f'[policies.{_TABLE}] NAME = "us-desk"')
    for policy in single.section.values:
        name = single.filled_text(policy, "", example='"us-desk"')
        if name and policy in policies:
            chosen[policy] = name
    return chosen


def _not_there(file: TomlFile, names: Collection[str], known: Collection[str]) -> list[Problem]:
    """Named by a policy, but not declared in the typed form or faulty."""
    section = file.section("policies")
    problems = []
    for name in sorted(names):
        near = nearest_names(name, known, limit=1)
        hint = (
            f"did you mean {near[0]!r}?" if near else "declare it with types or units, or mend it"
        )
        message = f"policies are written in {name!r}, which is no sound typed interpretation"
        key = _ALL if section.values.get(_ALL) == name else _TABLE
        problems.append(section.problem(key, "policy.unknown_interpretation", message, hint=hint))
    return problems
