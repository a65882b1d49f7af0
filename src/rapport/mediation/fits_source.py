"""Whether a typed interpretation says what the source that speaks it is bound to give. [ME-5, ME-7]

Pure; asked before anything runs, and again for every change.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rapport.core.errors import InterpretationError, InvalidInput, Problem, UnknownName
from rapport.mediation.binding import SourceBinding
from rapport.mediation.formats.named import format_named
from rapport.mediation.in_force import InForce
from rapport.mediation.model.checking import Checked
from rapport.mediation.model.interpretation import (
    CreateAttribute,
    DropAttribute,
    Mapping,
    MergeAttributes,
    RenameAttribute,
    SplitAttribute,
)
from rapport.mediation.model.plan import Convert


def source_problems(binding: SourceBinding, in_force: InForce) -> list[Problem]:
    """Everything that keeps the source's events from a meaning, or some of them."""
    name = binding.interpretation
    if not name or name in in_force.refused:  # a refused one has its problems already
        return []
    if name not in in_force.typed:
        if name in in_force.fields:
            return [*_only_typed(binding)]
        known = [*in_force.fields, *in_force.typed.names]
        error = UnknownName("interpretation", name, known, code="interpretation.unknown")
        return [_problem(binding, error.code, error.message, error.hint)]
    try:
        checked = in_force.typed.checked(name)
        choice = in_force.format_of(name)
        format_named(choice.name, choice.options)
    except (InterpretationError, InvalidInput) as error:
        return [_problem(binding, error.code, error.message, error.hint)]
    return [*_speaks(binding, checked), *_gives(binding, checked, in_force)]


def _only_typed(binding: SourceBinding) -> Iterator[Problem]:
    if not binding.concept:
        message = f"{binding.interpretation!r} gives readings, but the source is of no concept"
        hint = "declare types and mappings in it, or name a concept instead of `into`"
        yield _problem(binding, "source.needs_types", message, hint)
    elif binding.further:
        message = f"{binding.interpretation!r} gives one attribute, but the source has several"
        hint = "declare types and mappings in it, or bind one attribute per source"
        yield _problem(binding, "source.needs_types", message, hint)


def _speaks(binding: SourceBinding, checked: Checked) -> Iterator[Problem]:
    types = checked.scope.types
    if binding.speaks and not types.is_complex(binding.speaks):
        error = UnknownName("type", binding.speaks, types.complex_names, code="type.unknown")
        yield _problem(binding, error.code, error.message, error.hint)


def _gives(binding: SourceBinding, checked: Checked, in_force: InForce) -> Iterator[Problem]:
    """What can be received must come to the concept with all its attributes, or to another type of
    root that goes into a channel.
    """
    mapped = [each for each in checked.scope.mappings.values() if each.direction == "in"]
    if binding.speaks and checked.scope.types.is_complex(binding.speaks):
        own = checked.scope.mapping_of(binding.speaks, "in")
        mapped = [own] if own is not None else []
    if not binding.concept:
        if not mapped and not _passes(binding, checked):
            yield _nothing(binding, "a type of root")
        return
    fitting = [each for each in mapped if each.target == binding.concept]
    if not fitting and not _passes(binding, checked):
        yield _nothing(binding, binding.concept)
        return
    if not fitting:
        yield from _bypassed(binding, checked)
    given = {name for each in fitting for name in attributes_given(each, checked)}
    missing = [name for name in binding.attributes if fitting and name not in given]
    if missing and all(not _converts_whole(each, checked) for each in fitting):
        message = f"nothing that can be received gives {', '.join(missing)} of {binding.concept}"
        hint = f"map an attribute to it: rename = {{ NAME = {missing[0]!r} }}"
        yield _problem(binding, "mapping.missing", message, hint)


def attributes_given(mapping: Mapping, checked: Checked) -> set[str]:
    """The attributes that events have after a mapping."""
    names = set(checked.scope.types.attributes(mapping.source))
    for step in mapping.shape:
        if isinstance(step, RenameAttribute):
            names = names - {step.old} | {step.new}
        elif isinstance(step, DropAttribute):
            names.discard(step.name)
        elif isinstance(step, CreateAttribute):
            names.add(step.name)
        elif isinstance(step, MergeAttributes):
            names = names - set(step.sources) | {step.target}
        elif isinstance(step, SplitAttribute):
            names = names - {step.source} | set(step.targets)
    return names


def _converts_whole(mapping: Mapping, checked: Checked) -> bool:
    """A conversion takes the event as it is: what it gives is for it to know."""
    plan = checked.plan(mapping.source, "in")
    return plan is not None and any(isinstance(stage, Convert) for stage in plan.stages)


def _passes(binding: SourceBinding, checked: Checked) -> bool:
    """Events of a type of root are received as they are."""
    wanted = binding.speaks or binding.concept
    plan = checked.plan(wanted, "in") if checked.scope.types.is_complex(wanted) else None
    return plan is not None and plan.mapping is None


def _bypassed(binding: SourceBinding, checked: Checked) -> Iterator[Problem]:
    """A source that names root's own type goes past all that its interpretation says."""
    mapped = [
        each.source
        for each in checked.scope.mappings.values()
        if each.direction == "in" and each.target == binding.concept
    ]
    if binding.speaks and mapped:
        message = (
            f"type = {binding.speaks!r} is root's own: its events are taken as they are, and what "
            f"{binding.interpretation!r} says of {', '.join(sorted(mapped))} does not apply"
        )
        hint = f"write type = {sorted(mapped)[0]!r}, or leave the line out"
        problem = _problem(binding, "source.bypasses_interpretation", message, hint)
        yield msgspec.structs.replace(problem, severity="warning")


def _nothing(binding: SourceBinding, what: str) -> Problem:
    message = f"{binding.interpretation!r} maps nothing that can be received to {what}"
    hint = f"map a type to it: from = TYPE, to = {binding.concept or 'TYPE'!r}"
    return _problem(binding, "mapping.missing", message, hint)


def _problem(binding: SourceBinding, code: str, message: str, hint: str) -> Problem:
    return Problem(code=code, message=f"source {binding.source!r}: {message}", hint=hint)
