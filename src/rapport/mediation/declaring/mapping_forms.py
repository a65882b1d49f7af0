"""Mappings and rules from their tables. [ME-10, ME-17]"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, cast

import msgspec

from rapport.core.errors import Problem
from rapport.kernel.config_fields import Fields
from rapport.mediation.declaring.tree import entries, is_scalar
from rapport.mediation.declaring.type_forms import TypeNames
from rapport.mediation.model.finding import Scalar
from rapport.mediation.model.interpretation import (
    CreateAttribute,
    Direction,
    DropAttribute,
    Mapping,
    MergeAttributes,
    RenameAttribute,
    Rule,
    Shape,
    SplitAttribute,
)
from rapport.mediation.model.patterns import parse_pattern

REST = "*"
"""Drops what has no place in the promised type; `infer` says which these are."""
_DIRECTIONS = ("in", "out", "both")
_KEYS = ("from", "to", "direction", "each", "drop", "rename", "merge", "split", "create")
_MAPPING = '[{ from = "UsWeather", to = "station", direction = "in" }]'
_RULE = '[{ match = "UsWeather.Fahrenheit", convert = "to-celsius" }]'
_MERGE = '[{ take = ["first", "last"], give = "name", convert = "join-names" }]'
_SPLIT = '[{ take = "name", give = ["first", "last"], convert = "cut-names" }]'


def read_mappings(fields: Fields, names: TypeNames) -> tuple[Mapping, ...]:
    """All of `mappings`; one of both directions becomes two."""
    found = entries(fields, "mappings", _KEYS, _MAPPING)
    return tuple(mapping for each in found for mapping in _read_mapping(each, names))


def read_rules(fields: Fields) -> tuple[Rule, ...]:
    """All of `rules`, their patterns checked as far as they can be without types."""
    found = entries(fields, "rules", ("match", "convert", "direction"), _RULE)
    return tuple(_read_rule(each) for each in found)


def turned_round(mapping: Mapping) -> Mapping | None:
    """The mapping back, None where something would be lost: what is created there is dropped
    here, names change back, and what has no place on the other side is dropped either way.
    """
    back: list[Shape] = []
    for step in sorted(reversed(mapping.shape), key=lambda each: each != DropAttribute(REST)):
        if isinstance(step, RenameAttribute):
            back.append(RenameAttribute(step.new, step.old))
        elif isinstance(step, CreateAttribute):
            back.append(DropAttribute(step.name))
        elif step == DropAttribute(REST):
            back.append(step)
        else:
            return None
    if mapping.each:
        return None
    direction: Direction = "out" if mapping.direction == "in" else "in"
    return Mapping(mapping.target, mapping.source, direction, tuple(back))


def _read_mapping(fields: Fields, names: TypeNames) -> Iterator[Mapping]:
    if fields.has("direction"):
        direction = fields.choice("direction", _DIRECTIONS, "in")
    else:
        direction = fields.text("direction", example='"in"') or "in"
    mapping = Mapping(
        _event_type(fields, "from", names),
        _event_type(fields, "to", names),
        "in" if direction == "both" else cast("Direction", direction),
        tuple(_shape(fields, names)),
        fields.filled_text("each", ""),
    )
    yield mapping
    if direction == "both":
        back = turned_round(mapping)
        if back is not None:
            yield back
            return
        message = f"{mapping.source} => {mapping.target} cannot be turned round"
        hint = 'renaming, creating and drop = ["*"] can be; else write one "in" and one "out"'
        fields.fault("direction", "mapping.one_way", message, hint=hint)


def _event_type(fields: Fields, key: str, names: TypeNames) -> str:
    written = fields.filled_text(key, example='"Order"')
    return names.event_type(fields, key, written) if written else ""


def _shape(fields: Fields, names: TypeNames) -> Iterator[Shape]:
    """In this order: what goes makes room for what comes."""
    for name in fields.texts("drop", (), example='["lines"]'):
        yield DropAttribute(name)
    renamed = fields.table("rename", None, '{ station = "key" }')
    for old in renamed.section.values if renamed else ():
        yield RenameAttribute(old, renamed.filled_text(old) if renamed else "")
    for each in entries(fields, "merge", ("take", "give", "convert"), _MERGE):
        sources = each.texts("take", example='["first", "last"]')
        yield MergeAttributes(sources, each.filled_text("give"), each.filled_text("convert"))
    for each in entries(fields, "split", ("take", "give", "convert"), _SPLIT):
        targets = each.texts("give", example='["first", "last"]')
        yield SplitAttribute(each.filled_text("take"), targets, each.filled_text("convert"))
    created = fields.table("create", None, '{ country = { type = "text", value = "US" } }')
    for name in created.section.values if created else ():
        if created is not None:
            yield from _created(created, name, names)


def _created(fields: Fields, name: str, names: TypeNames) -> Iterator[Shape]:
    example = '{ type = "text", value = "US" }'
    table = fields.table(name, ("type", "value"), example)
    if table is None:
        return
    written = table.filled_text("type", example='"text"')
    reference = names.reference(table, "type", written) if written else ""
    value = table.section.values.get("value")
    if not is_scalar(value):
        table.wrong("value", "a text, a number, true or false", 'value = "US"')
        return
    yield CreateAttribute(name, reference, cast("Scalar", value))


def _read_rule(fields: Fields) -> Rule:
    pattern = fields.filled_text("match", example='"Order.Money"')
    if pattern:
        parsed = parse_pattern(pattern)
        if isinstance(parsed, Problem):
            placed = fields.section.problem("match", parsed.code, parsed.message, hint=parsed.hint)
            shown = f"{placed.excerpt}\n{parsed.excerpt}" if placed.excerpt else parsed.excerpt
            fields.problems.append(msgspec.structs.replace(placed, excerpt=shown))
    direction = fields.choice("direction", _DIRECTIONS, "both")
    return Rule(
        pattern,
        fields.filled_text("convert", example='"to-celsius"'),
        cast("Literal['both', 'in', 'out']", direction),
    )
