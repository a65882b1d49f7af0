"""Bindings of sources: their attributes, interpretation and payload format; checks of a binding.
[ME-5, ME-7, ME-13, CH-6]

A source either delivers attributes of a concept (declared with the ontology) or, with `into`,
values of a type of the canonical model that go into a channel unchanged: orders, quotations, danger
reports.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from rapport.channel.validation import is_reserved
from rapport.core.errors import InterpretationError, InvalidInput, Problem, UnknownName
from rapport.core.event import Event
from rapport.core.schema import PART_UNITS, PARTS, AttributeType
from rapport.kernel.config_fields import Fields, read_zone
from rapport.kernel.toml import TomlFile
from rapport.mediation.formats.catalogue import get_format
from rapport.mediation.interpretation_checks import CheckedInterpretation
from rapport.mediation.interpretations.model import (
    CANONICAL,
    FieldsInterpretation,
    FormatChoice,
    IdentityRule,
    TimeRule,
    TypeMapping,
    ValueRule,
)
from rapport.mediation.interpretations.repository import ActiveInterpretations
from rapport.mediation.mapping_results import ShapeChecker
from rapport.mediation.plans import ConvertStep
from rapport.mediation.rejections import RejectedValue

RAW_PREFIX = "raw."
"""Received events are in the channels `raw.<source>`."""
EVENTS = "events"
"""The channel of readings."""
RAW_POSITION = "rawposition"
"""Header of a reading: the position of its raw event."""


class SourceBinding(msgspec.Struct, frozen=True, kw_only=True):
    """A source, the attributes it delivers, and its interpretation. Without `interpretation`
    the source sends canonical events: `time`, `key` and `value` name the fields of its payload
    (the envelope's time applies if the payload has none). `id` names the field in recorded
    files; events with an envelope keep its id.
    """

    source: str
    concept: str = ""
    """Empty: its events have a type of the canonical model and go into a channel unchanged."""
    attribute: str = ""
    type: AttributeType = "number"
    further: tuple[str, ...] = ()
    """Further attributes, delivered through a typed interpretation."""
    interpretation: str = ""
    speaks: str = ""
    """The type of its events in a typed interpretation; empty: the type of the envelope."""
    into: str = "events"
    """The channel for mediated events."""
    id: str = "id"
    own_id: str = ""
    """The payload field with the id of a live event; empty: each arrival is a new event."""
    zone: str = ""
    """The zone of local times without an offset, from the source or the site; empty: such times
    are quarantined.
    """
    time: str = "time"
    key: str = "key"
    value: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    """Canonical units of the parts, if declared; points and rectangles are in metres, geo_points in
    degrees."""

    @property
    def stream(self) -> str:
        """`concept.attribute`, the type of the readings."""
        return f"{self.concept}.{self.attribute}"

    @property
    def attributes(self) -> tuple[str, ...]:
        return (self.attribute, *self.further)

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the scalars that form one value."""
        return PARTS[self.type]

    @property
    def raw_channel(self) -> str:
        return RAW_PREFIX + self.source

    def canonical_unit(self, part: str) -> str:
        """The canonical unit of a part; empty if undeclared."""
        if part in self.parts and self.units:
            return self.units[self.parts.index(part)]
        return PART_UNITS.get(self.type, "")


def canonical_interpretation(binding: SourceBinding) -> FieldsInterpretation:
    """The implicit interpretation of a source that sends canonical events."""
    names = binding.value or binding.parts
    values = tuple(
        ValueRule(
            part,
            (name,),
            unit=binding.canonical_unit(part) or "1",
            to=binding.canonical_unit(part) or "1",
        )
        for part, name in zip(binding.parts, names, strict=True)
    )
    if binding.type in ("text", "boolean"):
        values = tuple(msgspec.structs.replace(value, unit="", to="") for value in values)
    return FieldsInterpretation(
        name=CANONICAL,
        time=TimeRule((binding.time,), "root", optional=True),
        identity=IdentityRule((binding.key,)),
        values=values,
    )


_KEYS = ("into", "interpretation", "type", "id", "zone")
_CHANNEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)


def sources_into_channels(file: TomlFile) -> tuple[dict[str, SourceBinding], list[Problem]]:
    """Reads `[sources.NAME]` tables with `into`: the valid bindings by name, and every fault."""
    problems: list[Problem] = []
    found: dict[str, SourceBinding] = {}
    for name, section in file.section("sources").sections():
        if "into" not in section.values:
            continue
        before = len(problems)
        fields = Fields(section, problems, known=_KEYS, strict=True)
        into = fields.filled_text("into", example='"orders"')
        fields.filled_text("id", "", example='"order"')
        _check_channel(fields, into)
        binding = SourceBinding(
            source=name,
            interpretation=fields.filled_text("interpretation", example='"de/orders"'),
            speaks=fields.filled_text("type", ""),
            into=into,
            zone=read_zone(fields),
        )
        if len(problems) == before:
            found[name] = binding
    return found, problems


def _check_channel(fields: Fields, into: str) -> None:
    own = is_reserved(into) or into.startswith(RAW_PREFIX)
    if into and (own or not _CHANNEL.fullmatch(into)):
        message = "only the node appends to it" if own else "no channel can have this name"
        fields.fault("into", "source.bad_channel", f"{into[:60]!r}: {message}")


def source_problems(binding: SourceBinding, in_force: ActiveInterpretations) -> list[Problem]:
    """Every reason why events of the source cannot be mediated."""
    name = binding.interpretation
    if not name or name in in_force.refused:  # its problems are reported already
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
        get_format(choice.name, choice.options)
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


def _speaks(binding: SourceBinding, checked: CheckedInterpretation) -> Iterator[Problem]:
    types = checked.scope.types
    if binding.speaks and not types.is_complex(binding.speaks):
        error = UnknownName("type", binding.speaks, types.complex_names, code="type.unknown")
        yield _problem(binding, error.code, error.message, error.hint)


def _gives(
    binding: SourceBinding, checked: CheckedInterpretation, in_force: ActiveInterpretations
) -> Iterator[Problem]:
    """The received types must map to the concept with all its attributes, or to a type of the
    canonical model for a channel.
    """
    mapped = [each for each in checked.scope.mappings.values() if each.direction == "in"]
    if binding.speaks and checked.scope.types.is_complex(binding.speaks):
        own = checked.scope.mapping_of(binding.speaks, "in")
        mapped = [own] if own is not None else []
    if not binding.concept:
        if not mapped and not _passes(binding, checked):
            yield _nothing(binding, "a canonical type")
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
        message = f"no received type gives {', '.join(missing)} of {binding.concept}"
        hint = f"map an attribute to it: rename = {{ NAME = {missing[0]!r} }}"
        yield _problem(binding, "mapping.missing", message, hint)


def attributes_given(mapping: TypeMapping, checked: CheckedInterpretation) -> set[str]:
    """The attributes of an event after a mapping."""
    shape = ShapeChecker(mapping, checked.scope, "", [])
    return set(shape.apply(checked.scope.types.attributes(mapping.source)))


def _converts_whole(mapping: TypeMapping, checked: CheckedInterpretation) -> bool:
    """Whether a conversion takes the whole event, so that its attributes are unknown."""
    plan = checked.plan(mapping.source, "in")
    return plan is not None and any(isinstance(stage, ConvertStep) for stage in plan.stages)


def _passes(binding: SourceBinding, checked: CheckedInterpretation) -> bool:
    """Whether events of a canonical type are accepted unchanged."""
    wanted = binding.speaks or binding.concept
    plan = checked.plan(wanted, "in") if checked.scope.types.is_complex(wanted) else None
    return plan is not None and plan.mapping is None


def _bypassed(binding: SourceBinding, checked: CheckedInterpretation) -> Iterator[Problem]:
    """Warns about a source whose `type` is canonical, since its interpretation then has no
    effect.
    """
    mapped = [
        each.source
        for each in checked.scope.mappings.values()
        if each.direction == "in" and each.target == binding.concept
    ]
    if binding.speaks and mapped:
        message = (
            f"type = {binding.speaks!r} is canonical: its events are accepted unchanged, and what "
            f"{binding.interpretation!r} says of {', '.join(sorted(mapped))} does not apply"
        )
        hint = f"write type = {sorted(mapped)[0]!r}, or leave the line out"
        problem = _problem(binding, "source.bypasses_interpretation", message, hint)
        yield msgspec.structs.replace(problem, severity="warning")


def _nothing(binding: SourceBinding, what: str) -> Problem:
    message = f"{binding.interpretation!r} maps no received type to {what}"
    hint = f"map a type to it: from = TYPE, to = {binding.concept or 'TYPE'!r}"
    return _problem(binding, "mapping.missing", message, hint)


def _problem(binding: SourceBinding, code: str, message: str, hint: str) -> Problem:
    return Problem(code=code, message=f"source {binding.source!r}: {message}", hint=hint)


class SourcePayload(msgspec.Struct, frozen=True):
    """The format of a source's payloads and the field with an event's id, if declared."""

    format: FormatChoice
    own_id: str = ""

    def declared_id(self, event: Event) -> str:
        """The id in the payload; empty if undeclared, missing, or if the payload has
        several documents.
        """
        if not self.own_id:
            return ""
        try:
            documents = get_format(self.format.name, self.format.options).read(event, {})
        except RejectedValue:
            return ""  # quarantined later with the reason
        return field_id(documents[0].value, self.own_id) if len(documents) == 1 else ""


def source_payload(binding: SourceBinding, in_force: ActiveInterpretations) -> SourcePayload:
    """The payload format of a source; JSON if it has no interpretation in force."""
    choice = FormatChoice()
    if binding.interpretation:
        with suppress(UnknownName):
            choice = in_force.format_of(binding.interpretation)
    return SourcePayload(choice, binding.own_id)


def field_id(value: Any, field: str) -> str:
    """The text or integer in the id field as text; empty if there is none."""
    found: Any = value.get(field) if field and isinstance(value, dict) else None
    if isinstance(found, str):
        return found.strip()
    return str(found) if isinstance(found, int) and not isinstance(found, bool) else ""
