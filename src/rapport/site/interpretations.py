"""Interpretations and source bindings of a site, and the terms of policies written in them. [ME-5,
ME-7, UX-2, ME-9]

Policy and mediation are siblings and do not know each other; the site translates.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from rapport.core.errors import InterpretationError, Problem, nearest_names
from rapport.core.terms import Same
from rapport.kernel.config_fields import Fields
from rapport.kernel.toml import TomlFile
from rapport.mediation.concepts import PLACE_TYPES, ConceptAttribute, Concepts, canonical_model
from rapport.mediation.config import (
    ProblemsByName,
    interpretation_digest,
    interpretations_from_site,
)
from rapport.mediation.config import SiteInterpretations as FromFiles
from rapport.mediation.conversion.conversion_checks import check_references
from rapport.mediation.declarations.fields_tables import TableColumns
from rapport.mediation.declarations.files import Declarations
from rapport.mediation.declarations.inference import complete_declarations
from rapport.mediation.declarations.typed_tables import DeclaredInterpretation, is_typed_table
from rapport.mediation.interpretations.model import CANONICAL, Interpretation
from rapport.mediation.interpretations.model import TypeMapping as TypeMapping
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.interpretations.repository import (
    ActiveInterpretations,
    merged_canonical_model,
)
from rapport.mediation.outgoing.terms import terms_of
from rapport.mediation.source_bindings import SourceBinding, source_problems, sources_into_channels
from rapport.policy.compiler.interpretation import ConceptTerms, PolicyTerms
from rapport.policy.ontology import Ontology, PushSource


def source_bindings(ontology: Ontology, file: TomlFile | None = None) -> dict[str, SourceBinding]:
    """All sources by name; with the site's file also those that speak of no concept, and what it
    declares of ids and zones.
    """
    found = {name: _binding(source, ontology) for name, source in ontology.sources.items()}
    if file is None:
        return found
    whole = found | sources_into_channels(file)[0]
    return {name: _as_declared(binding, file) for name, binding in whole.items()}


def concepts_of(ontology: Ontology) -> Concepts:
    """The concepts with what root knows of their attributes."""
    return {
        concept: {
            name: ConceptAttribute(kind, ontology.units.get(concept, {}).get(name, ""))
            for name, kind in attributes.items()
        }
        for concept, attributes in ontology.concepts.items()
    }


def _as_declared(binding: SourceBinding, file: TomlFile) -> SourceBinding:
    source, site = file.section("sources").section(binding.source), file.section("site")
    own_id, zone = source.values.get("id"), site.values.get("zone")
    return msgspec.structs.replace(
        binding,
        own_id=own_id if isinstance(own_id, str) else "",
        zone=binding.zone or (zone if isinstance(zone, str) else ""),
    )


def _binding(source: PushSource, ontology: Ontology) -> SourceBinding:
    unit = ontology.units.get(source.concept, {}).get(source.attribute, "")
    return SourceBinding(
        source=source.name,
        concept=source.concept,
        attribute=source.attribute,
        type=ontology.concepts[source.concept][source.attribute],
        further=source.further,
        interpretation=source.interpretation,
        speaks=source.speaks,
        id=source.id,
        time=source.time,
        key=source.key,
        value=source.value,
        units=(unit,) if unit else (),
        zone=source.zone,
    )


_SECTION = "interpretations"
_OBSERVED = re.compile(
    r"(?P<type>.+) (?P<rest>has no mapping \((?P<direction>in|out)\) and (?P<what>.+))"
)
_MOST_NAMED = 6
_ABOUT_TYPE = ("source.bypasses_interpretation", "type.unknown")


class SiteInterpretations(msgspec.Struct, frozen=True, kw_only=True):
    """The declarations in files, their places, and the faults of reading them."""

    files: FromFiles
    declared: Mapping[str, DeclaredInterpretation]
    problems: tuple[Problem, ...]


def interpretations_in_site(
    file: TomlFile, directory: Path, ontology: Ontology, tables: TableColumns | None = None
) -> SiteInterpretations:
    """Everything that can be read; a faulty interpretation refuses only itself."""
    fields, declared = interpretations_from_site(file, directory, tables)
    concepts = concepts_of(ontology)
    root, _ = canonical_model(concepts)
    whole = complete_declarations(
        declared, merged_canonical_model(root, declared.interpretations.get(CANONICAL))
    )
    return SiteInterpretations(
        files=FromFiles(
            fields=fields,
            typed=whole.interpretations,
            formats=whole.formats,
            concepts=concepts,
            said=_digests(declared)
            | {name: interpretation_digest(one.meaning()) for name, one in fields.items()},
            unread=_unread(file, fields, whole),
            tables=tables,
        ),
        declared=whole.declared,
        problems=whole.problems,
    )


def interpretation_problems(
    found: SiteInterpretations, checks: ProblemsByName, file: TomlFile
) -> list[Problem]:
    """What the checks found, at the places it is about; observations of one kind are one hint."""
    placed = [
        _placed(name, problem, found.declared.get(name), file)
        for name, problems in checks
        for problem in _together(problems, _mapped(name, found.files.typed))
    ]
    return [*found.problems, *placed]


def references_of(found: SiteInterpretations, tables: TableColumns) -> ProblemsByName:
    """Tables, columns and concepts that conversions name and the site does not have."""
    columns = {name: tuple(each) for name, each in tables.items()}
    concepts = found.files.concepts
    checks = [
        (name, tuple(check_references(each.conversions, columns, concepts)))
        for name, each in found.files.typed.items()
    ]
    return [(name, problems) for name, problems in checks if problems]


def problems_of_sources(
    bindings: Iterable[SourceBinding], in_force: ActiveInterpretations, file: TomlFile
) -> list[Problem]:
    """Sources whose typed interpretation does not give their bound attribute."""
    found = []
    for binding in bindings:
        for problem in source_problems(binding, in_force):
            key = "type" if problem.code in _ABOUT_TYPE else "interpretation"
            placed = file.problem(
                ("sources", binding.source, key),
                problem.code,
                problem.message,
                hint=problem.hint,
                severity=problem.severity,
            )
            found.append(placed)
    return found


def _digests(declared: Declarations) -> dict[str, str]:
    return {
        name: interpretation_digest(each.interpretation, each.units, each.format)
        for name, each in declared.declared.items()
    }


def _unread(
    file: TomlFile, fields: Collection[str], whole: Declarations
) -> dict[str, tuple[Problem, ...]]:
    """Interpretations that have a table but could not be read, with the reasons."""
    faulty: dict[str, tuple[Problem, ...]] = dict(whole.faulty)
    for name, section in file.section(_SECTION).sections():
        if not is_typed_table(section.values) and name not in fields:
            message, hint = f"{name!r} has faults in its table", "rapport check lists them all"
            faulty[name] = (section.problem("", "interpretation.faulty", message, hint=hint),)
    return faulty


def _mapped(name: str, typed: Mapping[str, Interpretation]) -> list[TypeMapping]:
    """All mappings of an interpretation and of those above it."""
    above: dict[str, Interpretation] = {}
    while name in typed and name not in above:  # parents may lead in a circle
        above[name] = typed[name]
        name = typed[name].parent
    return [mapping for one in above.values() for mapping in one.mappings]


def _is_forgotten(match: re.Match[str], mapped: Sequence[TypeMapping]) -> bool:
    """Whether events of a type without a mapping are likely to be missed. Not where the
    interpretation serves the other direction only, where the type is what events become, or where
    events of root pass as they are.
    """
    direction, keeps_type = match["direction"], match["what"].startswith("keeps")
    if match["type"] in PLACE_TYPES or not any(one.direction == direction for one in mapped):
        return False
    if direction == "in":
        return all(one.target != match["type"] for one in mapped)
    return not keeps_type


def _together(problems: Iterable[Problem], mapped: Sequence[TypeMapping]) -> Iterator[Problem]:
    """Reports types without a mapping in one problem, if they are likely to be missed."""
    observed: dict[str, list[str]] = {}
    for problem in problems:
        match = _OBSERVED.fullmatch(problem.message) if problem.severity == "hint" else None
        if match is None:
            yield problem
        elif _is_forgotten(match, mapped):
            observed.setdefault(match["rest"], []).append(match["type"])
    for rest, types in observed.items():
        more = f" and {len(types) - _MOST_NAMED} more" if len(types) > _MOST_NAMED else ""
        yield Problem(
            code="mapping.missing",
            message=f"each {rest}: {', '.join(types[:_MOST_NAMED])}{more}",
            hint="map those that are received or sent: from = TYPE, to = TYPE",
            severity="hint",
        )


def _placed(
    name: str, problem: Problem, declared: DeclaredInterpretation | None, file: TomlFile
) -> Problem:
    """At the line that the message speaks of, else at that of the interpretation."""
    message = problem.message if problem.message.startswith(name) else f"{name}: {problem.message}"
    if declared is None:
        line, column = file.place_of(("concepts",) if name == CANONICAL else (_SECTION, name))
        return msgspec.structs.replace(
            problem, message=message, file=file.name, line=line, column=column
        )
    spoken = [about for about in declared.places if _is_spoken_of(about, problem.message)]
    place = declared.places[max(spoken, key=len)] if spoken else declared.place
    return msgspec.structs.replace(
        problem, message=message, file=place.file, line=place.line, column=place.column
    )


def _is_spoken_of(about: str, message: str) -> bool:
    """Names of conversions may be common words: they count where they are called conversions."""
    if about.startswith("rule "):
        pattern, _, _conversion = about.removeprefix("rule ").partition(" -> ")
        return about in message or message.startswith(f"pattern {pattern}:")
    if "." in about or about.startswith("mapping "):
        return about in message
    return f"conversion {about}:" in message


_TABLE, _ALL = "interpretations", "interpretation"


class TermsOfPolicies(msgspec.Struct, frozen=True):
    """What the words of each policy mean that is not written in root's; `unknown` are policies
    whose interpretation is not there, so that they mean nothing.
    """

    terms: dict[str, PolicyTerms] = {}
    unknown: frozenset[str] = frozenset()


class InterpretationTerms(msgspec.Struct, frozen=True):
    """The terms of every interpretation that a site's policies may be written in, and the names of
    all that there are.
    """

    terms: dict[str, PolicyTerms] = {}
    names: tuple[str, ...] = (CANONICAL,)


def terms_of_policies(
    file: TomlFile, directory: Path, ontology: Ontology, policies: Collection[str]
) -> tuple[TermsOfPolicies, list[Problem]]:
    """The terms of all policies, and the faults of naming them.

    Faults of an interpretation itself are reported where interpretations are checked.
    """
    spoken = InterpretationTerms()
    if names_interpretations(file):
        spoken = terms_spoken(file, ontology, interpretations_of_site(file, directory, ontology))
    return terms_among(spoken, file, policies)


def terms_among(
    spoken: InterpretationTerms, file: TomlFile, policies: Collection[str]
) -> tuple[TermsOfPolicies, list[Problem]]:
    """The same, given the terms of the interpretations."""
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


def terms_spoken(
    file: TomlFile, ontology: Ontology, interpretations: InterpretationRegistry
) -> InterpretationTerms:
    """The terms of interpretations for a site's policies."""
    section = file.section("policies")
    single = section.values.get(_TABLE, {})
    named = [section.values.get(_ALL), *(single.values() if isinstance(single, dict) else ())]
    terms = {
        name: policy_terms(interpretations, name, ontology)
        for name in named
        if isinstance(name, str) and name in interpretations and name != CANONICAL
    }
    return InterpretationTerms(terms, tuple(interpretations.names))


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
    in_force, _ = interpretations_in_site(file, directory, ontology).files.activate()
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
