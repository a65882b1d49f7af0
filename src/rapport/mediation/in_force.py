"""All that gives events their meaning at one moment, as one value. [ME-5, ME-6, ME-7]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from rapport.core.errors import Problem
from rapport.mediation.concepts import Concepts, root_of
from rapport.mediation.interpretation import FormatChoice
from rapport.mediation.interpretation import Interpretation as FieldsForm
from rapport.mediation.model.changes import load
from rapport.mediation.model.interpretation import ROOT
from rapport.mediation.model.interpretation import Interpretation as TypedForm
from rapport.mediation.model.interpretations import Interpretations


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

    def with_typed(self, typed: Interpretations) -> InForce:
        """The same with other typed interpretations; one in force is refused no longer."""
        refused = {name: why for name, why in self.refused.items() if name not in typed}
        return InForce(
            self.fields,
            typed,
            formats=self.formats,
            concepts=self.concepts,
            refused=refused,
        )


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
    base, problems = root_of(concepts)
    declared = {each.name: each for each in typed}
    root = declared.get(ROOT)
    declared[ROOT] = _joined(base, root) if root is not None else base
    found, outcomes = load(declared.values())
    refused = {}
    for name, (_, faults) in outcomes.items():
        problems += [_named(name, fault) for fault in faults]
        if name not in found:
            refused[name] = tuple(fault for fault in faults if fault.severity == "error")
    in_force = InForce(fields, found, formats=formats, concepts=concepts, refused=refused)
    return in_force, tuple(problems)


def _joined(base: TypedForm, more: TypedForm) -> TypedForm:
    """Root of the ontology and what the site declares for it; the same type twice is once."""
    known = set(base.types)
    return msgspec.structs.replace(
        more, parent="", types=(*base.types, *(one for one in more.types if one not in known))
    )


def _named(name: str, fault: Problem) -> Problem:
    message = fault.message if fault.message.startswith(name) else f"{name}: {fault.message}"
    return msgspec.structs.replace(fault, message=message)
