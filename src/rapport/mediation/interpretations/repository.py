"""The active interpretations of both forms, swapped in one step. [ME-5, ME-6, ME-7, ME-12]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import msgspec

from rapport.core.errors import Problem
from rapport.core.event import content_id
from rapport.mediation.concepts import Concepts, canonical_model
from rapport.mediation.interpretations.model import (
    CANONICAL,
    FieldsInterpretation,
    FormatChoice,
    Interpretation,
)
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.interpretations.type_changes import load_all

_replace = msgspec.structs.replace


def stamp_of(
    interpretations: InterpretationRegistry, name: str, format: FormatChoice | None = None
) -> str:
    """`name@version`; the version depends on everything that affects the meaning."""
    chain = interpretations.chain(name)
    later = interpretations.canonical_versions[interpretations.canonical_version(name) + 1 :]
    return stamp_from(name, chain, later, format)


def stamp_from(
    name: str,
    chain: Iterable[Interpretation | msgspec.Raw],
    later: Iterable[Interpretation | msgspec.Raw],
    format: FormatChoice | None = None,
) -> str:
    """The stamp for a chain from the canonical model; `later`: newer canonical versions."""
    parts = [msgspec.json.encode(tuple(chain)).decode(), msgspec.json.encode(tuple(later)).decode()]
    if format is not None and format != FormatChoice():
        parts.append(msgspec.json.encode(format, order="deterministic").decode())
    return f"{name}@{content_id(*parts)[:12]}"


class ActiveInterpretations:
    """Interpretations of both forms, formats of the typed ones, and the concepts. Immutable.
    `refused`: why a typed interpretation is not in `typed`; events in it are quarantined with
    that reason.
    """

    def __init__(
        self,
        fields: Mapping[str, FieldsInterpretation] | None = None,
        typed: InterpretationRegistry | None = None,
        *,
        formats: Mapping[str, FormatChoice] | None = None,
        concepts: Concepts | None = None,
        refused: Mapping[str, tuple[Problem, ...]] | None = None,
    ) -> None:
        self.fields: Mapping[str, FieldsInterpretation] = dict(fields or {})
        self.typed = typed or InterpretationRegistry()
        self.formats: Mapping[str, FormatChoice] = dict(formats or {})
        self.concepts: Concepts = concepts or {}
        self.refused: Mapping[str, tuple[Problem, ...]] = dict(refused or {})

    def format_of(self, name: str) -> FormatChoice:
        """The format of the interpretation, else of its nearest parent with one."""
        if name in self.fields:
            return self.fields[name].format
        while name and name != CANONICAL:
            if name in self.formats:
                return self.formats[name]
            name = self.typed.named(name).parent
        return FormatChoice()

    @cached_property
    def stamps(self) -> Mapping[str, str]:
        """`name@version` of every interpretation; slow on first use."""
        found = {name: one.stamp() for name, one in self.fields.items()}
        for name in self.typed.names:
            found[name] = stamp_of(self.typed, name, self.format_of(name))
        return found

    def with_typed(
        self,
        typed: InterpretationRegistry,
        formats: Mapping[str, FormatChoice] | None = None,
        fields: Mapping[str, FieldsInterpretation] | None = None,
    ) -> ActiveInterpretations:
        """A copy with other interpretations; those in it are no longer refused."""
        plain = self.fields if fields is None else fields
        return ActiveInterpretations(
            plain,
            typed,
            formats=self.formats if formats is None else formats,
            concepts=self.concepts,
            refused={
                name: why
                for name, why in self.refused.items()
                if name not in typed and name not in plain
            },
        )


def activate(
    fields: Mapping[str, FieldsInterpretation],
    typed: Iterable[Interpretation],
    *,
    concepts: Concepts,
    formats: Mapping[str, FormatChoice] | None = None,
    unread: Mapping[str, tuple[Problem, ...]] | None = None,
) -> tuple[ActiveInterpretations, list[tuple[str, tuple[Problem, ...]]]]:
    """Checks all declarations of a site together and returns the problems by the name of their
    interpretation; a faulty one refuses only itself and its descendants. `unread`: interpretations
    that could not be read, with the reasons; they are refused.
    """
    base, problems = canonical_model(concepts)
    declared = {each.name: each for each in typed}
    declared[CANONICAL] = merged_canonical_model(base, declared.get(CANONICAL))
    found, outcomes = load_all(declared.values())
    faulty_model = outcomes[CANONICAL]
    if has_errors(faulty_model[1]):  # the part from the ontology stays
        found, outcomes = load_all([*(declared | {CANONICAL: base}).values()])
        outcomes[CANONICAL] = faulty_model
    refused = dict(unread or {})
    for name, (_, faults) in outcomes.items():
        if name not in found or has_errors(faults):
            refused[name] = tuple(fault for fault in faults if fault.severity == "error")
    in_force = ActiveInterpretations(
        fields, found, formats=formats, concepts=concepts, refused=refused
    )
    by_name = [(name, faults) for name, (_, faults) in outcomes.items()]
    return in_force, [(CANONICAL, tuple(problems)), *by_name]


def merged_canonical_model(base: Interpretation, more: Interpretation | None) -> Interpretation:
    """The canonical model of the ontology with the site's additions; equal types are merged."""
    if more is None:
        return base
    known = set(base.types)
    return _replace(
        more, parent="", types=(*base.types, *(one for one in more.types if one not in known))
    )


def has_errors(problems: Iterable[Problem]) -> bool:
    return any(problem.severity == "error" for problem in problems)


class Repository:
    """Holds the active interpretations; a reader sees a change whole or not at all.

    `generation` grows with every change, so that readers know when to rebuild. Former versions are
    on record in the change log.
    """

    def __init__(self, in_force: ActiveInterpretations | None = None) -> None:
        self.in_force = in_force or ActiveInterpretations()
        self.generation = 0

    def swap(self, in_force: ActiveInterpretations) -> None:
        """Replaces everything in one step."""
        self.in_force = in_force
        self.generation += 1
