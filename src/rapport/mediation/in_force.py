"""All that gives events their meaning at one moment, as one value. [ME-5, ME-6, ME-7]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import msgspec

from rapport.core.errors import Problem
from rapport.core.ids import content_id
from rapport.mediation.concepts import Concepts, root_of
from rapport.mediation.interpretation import FormatChoice
from rapport.mediation.interpretation import Interpretation as FieldsForm
from rapport.mediation.model.changes import load
from rapport.mediation.model.interpretation import ROOT
from rapport.mediation.model.interpretation import Interpretation as TypedForm
from rapport.mediation.model.interpretations import Interpretations

_replace = msgspec.structs.replace


def stamp_of(
    interpretations: Interpretations, name: str, format: FormatChoice | None = None
) -> str:
    """`name@version`; the version depends on everything the meaning depends on."""
    chain = interpretations.chain(name)
    later = interpretations.roots[interpretations.root_version(name) + 1 :]
    return stamp_from(name, chain, later, format)


def stamp_from(
    name: str,
    chain: Iterable[TypedForm | msgspec.Raw],
    later: Iterable[TypedForm | msgspec.Raw],
    format: FormatChoice | None = None,
) -> str:
    """The stamp of what stands at the end of a chain from root; `later` are newer roots."""
    parts = [msgspec.json.encode(tuple(chain)).decode(), msgspec.json.encode(tuple(later)).decode()]
    if format is not None and format != FormatChoice():
        parts.append(msgspec.json.encode(format, order="deterministic").decode())
    return f"{name}@{content_id(*parts)[:12]}"


class InForce:
    """Interpretations of both forms, how events of the typed ones are written, and the concepts of
    root.

    A value: a change makes a new one. `refused` says why a typed interpretation is not among
    `typed`: what is said in it is held back with that reason.
    """

    def __init__(
        self,
        fields: Mapping[str, FieldsForm] | None = None,
        typed: Interpretations | None = None,
        *,
        formats: Mapping[str, FormatChoice] | None = None,
        concepts: Concepts | None = None,
        refused: Mapping[str, tuple[Problem, ...]] | None = None,
    ) -> None:
        self.fields: Mapping[str, FieldsForm] = dict(fields or {})
        self.typed = typed or Interpretations()
        self.formats: Mapping[str, FormatChoice] = dict(formats or {})
        self.concepts: Concepts = concepts or {}
        self.refused: Mapping[str, tuple[Problem, ...]] = dict(refused or {})

    def format_of(self, name: str) -> FormatChoice:
        """That of the interpretation, else of its nearest parent that says one."""
        if name in self.fields:
            return self.fields[name].format
        while name and name != ROOT:
            if name in self.formats:
                return self.formats[name]
            name = self.typed.named(name).parent
        return FormatChoice()

    @cached_property
    def stamps(self) -> Mapping[str, str]:
        """`name@version` of every interpretation of either form; takes a while when first asked."""
        found = {name: one.stamp() for name, one in self.fields.items()}
        for name in self.typed.names:
            found[name] = stamp_of(self.typed, name, self.format_of(name))
        return found

    def with_typed(
        self,
        typed: Interpretations,
        formats: Mapping[str, FormatChoice] | None = None,
        fields: Mapping[str, FieldsForm] | None = None,
    ) -> InForce:
        """The same with other interpretations; one in force is refused no longer."""
        plain = self.fields if fields is None else fields
        return InForce(
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

    def with_parts(
        self,
        typed: Interpretations,
        formats: Mapping[str, FormatChoice],
        refused: Mapping[str, tuple[Problem, ...]],
    ) -> InForce:
        """The same fields form and concepts with another typed form."""
        return InForce(self.fields, typed, formats=formats, concepts=self.concepts, refused=refused)


def take_in(
    fields: Mapping[str, FieldsForm],
    typed: Iterable[TypedForm],
    *,
    concepts: Concepts,
    formats: Mapping[str, FormatChoice] | None = None,
) -> tuple[InForce, tuple[Problem, ...]]:
    """Everything a site declares, checked together; a faulty interpretation refuses only itself and
    those below it.
    """
    in_force, found = take_in_each(fields, typed, concepts=concepts, formats=formats)
    return in_force, tuple(_named(name, fault) for name, faults in found for fault in faults)


def take_in_each(
    fields: Mapping[str, FieldsForm],
    typed: Iterable[TypedForm],
    *,
    concepts: Concepts,
    formats: Mapping[str, FormatChoice] | None = None,
) -> tuple[InForce, list[tuple[str, tuple[Problem, ...]]]]:
    """The same, with the problems by the name of the interpretation they are about."""
    base, problems = root_of(concepts)
    declared = {each.name: each for each in typed}
    declared[ROOT] = with_own_root(base, declared.get(ROOT))
    found, outcomes = load(declared.values())
    faulty_root = outcomes[ROOT]
    if has_errors(faulty_root[1]):  # what the ontology says of root counts all the same
        found, outcomes = load([*(declared | {ROOT: base}).values()])
        outcomes[ROOT] = faulty_root
    refused = {
        name: tuple(fault for fault in faults if fault.severity == "error")
        for name, (_, faults) in outcomes.items()
        if name not in found or has_errors(faults)
    }
    in_force = InForce(fields, found, formats=formats, concepts=concepts, refused=refused)
    told = [(name, faults) for name, (_, faults) in outcomes.items()]
    return in_force, [(ROOT, tuple(problems)), *told]


def with_own_root(base: TypedForm, more: TypedForm | None) -> TypedForm:
    """Root of the ontology and what the site declares for it; the same type twice is once."""
    if more is None:
        return base
    known = set(base.types)
    return _replace(
        more, parent="", types=(*base.types, *(one for one in more.types if one not in known))
    )


def has_errors(problems: Iterable[Problem]) -> bool:
    """One of them refuses what it is about."""
    return any(problem.severity == "error" for problem in problems)


def _named(name: str, fault: Problem) -> Problem:
    message = fault.message if fault.message.startswith(name) else f"{name}: {fault.message}"
    return _replace(fault, message=message)
