"""Views of interpretations for people and tools: list, details, history. [ME-7, ME-8, ME-12]"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from rapport.core.errors import InterpretationError, Problem, UnknownName
from rapport.mediation.codegen.transformer import generate
from rapport.mediation.conversion.conversions import Conversion
from rapport.mediation.interpretations.change_log import LoggedChange, change_kind, change_target
from rapport.mediation.interpretations.change_state import (
    ChangeOutcome,
    ChangeStatus,
    InterpretationState,
)
from rapport.mediation.interpretations.model import Direction, FormatChoice, TypeMapping
from rapport.mediation.interpretations.repository import ActiveInterpretations
from rapport.mediation.types import Type


class InterpretationRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    form: str
    stamp: str
    parent: str = ""
    format: str = ""
    in_file: bool = False
    """Declared in the site's files; changes may have modified it since."""
    root_version: int = 0
    """The canonical version it was written for; for the canonical model the newest."""


class RefusedInterpretation(msgspec.Struct, frozen=True):
    """An interpretation that is declared but not in force, with the reasons."""

    name: str
    problems: tuple[Problem, ...]


class InterpretationOverview(msgspec.Struct, frozen=True, kw_only=True):
    """All active and refused interpretations."""

    interpretations: list[InterpretationRow]
    refused: list[RefusedInterpretation]
    changes: int
    not_in_force: int
    """Changes that a newer file superseded or that no longer fit."""


class ResolvedRule(msgspec.Struct, frozen=True, kw_only=True):
    """An applicable rule and the interpretation that declared it."""

    pattern: str
    conversion: str
    direction: str
    owner: str
    injected: bool = False


class ResolvedView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything visible in an interpretation, including inherited parts."""

    lineage: tuple[str, ...]
    types: tuple[Type, ...]
    mappings: list[TypeMapping]
    rules: list[ResolvedRule]
    conversions: list[Conversion]


class InterpretationView(msgspec.Struct, frozen=True, kw_only=True):
    """One interpretation as declared and as resolved."""

    name: str
    form: str
    stamp: str
    format: FormatChoice = FormatChoice()
    declared: Any = None
    """The interpretation as declared, in its form."""
    resolved: ResolvedView | None = None
    children: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


class ChangeView(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    number: int
    time: int
    by: str
    node: str
    state: ChangeStatus
    what: list[str]
    """Such as `declare us`."""
    changes: Any
    problems: tuple[Problem, ...] = ()


def overview(
    standing: InterpretationState, outcomes: Iterable[ChangeOutcome]
) -> InterpretationOverview:
    """The list, the canonical model first."""
    in_force, files = standing.in_force, standing.files
    typed = in_force.typed
    rows = [
        InterpretationRow(
            name=name,
            form="typed",
            stamp=in_force.stamps[name],
            parent=typed.named(name).parent,
            format=in_force.format_of(name).name,
            in_file=name in files.typed,
            root_version=typed.canonical_version(name) + 1,
        )
        for name in typed.names
    ]
    rows += [
        InterpretationRow(
            name=name,
            form="fields",
            stamp=one.stamp(),
            format=one.format.name,
            in_file=name in files.fields,
        )
        for name, one in in_force.fields.items()
    ]
    listed = list(outcomes)
    return InterpretationOverview(
        interpretations=rows,
        refused=[
            RefusedInterpretation(name, why) for name, why in sorted(in_force.refused.items())
        ],
        changes=len(listed),
        not_in_force=sum(each.state != "in force" for each in listed),
    )


def interpretation_view(in_force: ActiveInterpretations, name: str) -> InterpretationView:
    """One interpretation by name; raises UnknownName with the nearest."""
    if name in in_force.typed:
        return _typed(in_force, name)
    if name in in_force.fields:
        one = in_force.fields[name]
        return InterpretationView(
            name=name, form="fields", stamp=one.stamp(), format=one.format, declared=one.meaning()
        )
    if name in in_force.refused:
        return InterpretationView(
            name=name, form="refused", stamp="", problems=in_force.refused[name]
        )
    known = [*in_force.fields, *in_force.typed.names, *in_force.refused]
    raise UnknownName("interpretation", name[:200], known, code="interpretation.unknown")


def _typed(in_force: ActiveInterpretations, name: str) -> InterpretationView:
    typed = in_force.typed
    checked = typed.checked(name)
    scope = checked.scope
    return InterpretationView(
        name=name,
        form="typed",
        stamp=in_force.stamps[name],
        format=in_force.format_of(name),
        declared=typed.named(name),
        resolved=ResolvedView(
            lineage=checked.lineage,
            types=scope.types.all(),
            mappings=list(scope.mappings.values()),
            rules=[
                ResolvedRule(
                    pattern=each.rule.pattern,
                    conversion=each.rule.conversion,
                    direction=each.rule.direction,
                    owner=each.owner,
                    injected=each.rule.injected,
                )
                for each in scope.bound
            ],
            conversions=list(scope.conversions.values()),
        ),
        children=typed.children(name),
        problems=checked.problems,
    )


def transformer_text(
    in_force: ActiveInterpretations, name: str, type_name: str, direction: Direction
) -> str:
    """The generated Python for a type; raises UnknownName or InterpretationError."""
    if name not in in_force.typed:
        if name in in_force.refused:
            raise InterpretationError(in_force.refused[name])
        known = in_force.typed.names
        raise UnknownName("typed interpretation", name[:200], known, code="interpretation.unknown")
    return generate(in_force.typed.plan(name, type_name, direction)).source


def change_view(kept: LoggedChange, outcome: ChangeOutcome) -> ChangeView:
    changed = kept.changed
    return ChangeView(
        id=kept.id,
        number=changed.number,
        time=kept.time,
        by=changed.by,
        node=changed.node,
        state=outcome.state,
        what=[f"{change_kind(each)} {change_target(each)}" for each in changed.changes],
        changes=msgspec.to_builtins(changed.changes),
        problems=outcome.problems,
    )


def split_path(rest: str, known: Iterable[str]) -> tuple[str, str | None]:
    """Splits a path into a name and the type after `/transformers/`, if any; names may contain
    slashes. >>> split_path("us/weather/transformers/m/s", ["us/weather"]) ('us/weather', 'm/s')
    """
    names = set(known)
    if rest in names:
        return rest, None
    parts = rest.split("/transformers/")
    for number in range(1, len(parts)):
        name = "/transformers/".join(parts[:number])
        if name in names:
            return name, "/transformers/".join(parts[number:])
    return (parts[0], "/transformers/".join(parts[1:])) if len(parts) > 1 else (rest, None)
