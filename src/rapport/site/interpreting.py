"""What the files of a site say of interpretations, in both forms, with every problem at its place.
[ME-5, ME-7, UX-2]
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from rapport.core.errors import Problem
from rapport.kernel.toml import TomlFile
from rapport.mediation.concepts import PLACE_TYPES, canonical_model
from rapport.mediation.config import (
    ProblemsByName,
    SiteInterpretations,
    interpretation_digest,
    interpretations_from_site,
    typed_from_site,
)
from rapport.mediation.conversion.conversion_checks import check_references
from rapport.mediation.declarations.fields_tables import TableColumns
from rapport.mediation.declarations.files import Declarations
from rapport.mediation.declarations.inference import complete_declarations
from rapport.mediation.declarations.typed_tables import DeclaredInterpretation, is_typed_table
from rapport.mediation.interpretations.model import CANONICAL, Interpretation, TypeMapping
from rapport.mediation.interpretations.repository import (
    ActiveInterpretations,
    merged_canonical_model,
)
from rapport.mediation.source_bindings import SourceBinding, source_problems
from rapport.policy.ontology import Ontology
from rapport.site.bindings import concepts_of

_SECTION = "interpretations"
_OBSERVED = re.compile(
    r"(?P<type>.+) (?P<rest>has no mapping \((?P<direction>in|out)\) and (?P<what>.+))"
)
_MOST_NAMED = 6
_ABOUT_TYPE = ("source.bypasses_interpretation", "type.unknown")


class SiteMeanings(msgspec.Struct, frozen=True, kw_only=True):
    """What files declare, where it stands, and what is wrong with reading it."""

    files: SiteInterpretations
    declared: Mapping[str, DeclaredInterpretation]
    problems: tuple[Problem, ...]


def meanings_in_site(
    file: TomlFile, directory: Path, ontology: Ontology, tables: TableColumns | None = None
) -> SiteMeanings:
    """Everything that can be read; a faulty interpretation refuses only itself."""
    fields, problems = interpretations_from_site(file, directory, tables)
    concepts = concepts_of(ontology)
    root, _ = canonical_model(concepts)
    said = typed_from_site(file, directory)
    whole = complete_declarations(
        said, merged_canonical_model(root, said.interpretations.get(CANONICAL))
    )
    return SiteMeanings(
        files=SiteInterpretations(
            fields=fields,
            typed=whole.interpretations,
            formats=whole.formats,
            concepts=concepts,
            said=_digests(said)
            | {name: interpretation_digest(one.meaning()) for name, one in fields.items()},
            unread=_unread(file, fields, whole),
            tables=tables,
        ),
        declared=whole.declared,
        problems=(*problems, *whole.problems),
    )


def problems_of_meanings(
    found: SiteMeanings, checks: ProblemsByName, file: TomlFile
) -> list[Problem]:
    """What the checks found, at the places it is about; observations of one kind are one hint."""
    placed = [
        _placed(name, problem, found.declared.get(name), file)
        for name, problems in checks
        for problem in _together(problems, _mapped(name, found.files.typed))
    ]
    return [*found.problems, *placed]


def references_of(found: SiteMeanings, tables: TableColumns) -> ProblemsByName:
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
    """Sources whose typed interpretation does not say what they are bound to give."""
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


def _digests(said: Declarations) -> dict[str, str]:
    return {
        name: interpretation_digest(each.interpretation, each.units, each.format)
        for name, each in said.declared.items()
    }


def _unread(
    file: TomlFile, fields: Collection[str], whole: Declarations
) -> dict[str, tuple[Problem, ...]]:
    """Interpretations that have a table but could not be read, with the reasons."""
    faulty: dict[str, tuple[Problem, ...]] = dict(whole.faulty)
    for name, section in file.section(_SECTION).sections():
        if not is_typed_table(section.values) and name not in fields:
            message, hint = f"{name!r} has faults in its table", "rapport check tells them all"
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
    """Types without a mapping are told of in one sentence, if they are likely to be missed."""
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
