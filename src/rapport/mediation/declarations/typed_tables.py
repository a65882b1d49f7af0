"""Reads a typed interpretation from its table. [ME-5, ME-10, ME-17]"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal, cast

import msgspec

from rapport.core.errors import InterpretationError, Problem
from rapport.kernel.config_fields import Fields
from rapport.kernel.toml import Section
from rapport.mediation.conversion.conversions import Conversion
from rapport.mediation.conversion.lookups import Scalar
from rapport.mediation.declarations.conversion_tables import ConversionTableReader
from rapport.mediation.declarations.fields_tables import read_format_choice
from rapport.mediation.declarations.placed_values import (
    FAULT_CODES,
    is_scalar,
    strict_fields,
)
from rapport.mediation.declarations.type_tables import TypeNames, declared_names, read_types
from rapport.mediation.interpretations.model import (
    CANONICAL,
    CreateAttribute,
    Direction,
    DropAttribute,
    FormatChoice,
    Interpretation,
    MergeAttributes,
    RenameAttribute,
    Rule,
    ShapeStep,
    SourceLocation,
    SplitAttribute,
    TypeMapping,
)
from rapport.mediation.patterns import parse_pattern
from rapport.mediation.types import Type

REST = "*"
"""Drops every attribute that the target type lacks; `infer` expands it."""
_DIRECTIONS = ("in", "out", "both")
_MAPPING_KEYS = ("from", "to", "direction", "each", "drop", "rename", "merge", "split", "create")
_MAPPING = '[{ from = "UsWeather", to = "station", direction = "in" }]'
_RULE = '[{ match = "UsWeather.Fahrenheit", convert = "to-celsius" }]'
_MERGE = '[{ take = ["first", "last"], give = "name", convert = "join-names" }]'
_SPLIT = '[{ take = "name", give = ["first", "last"], convert = "cut-names" }]'


def read_mappings(fields: Fields, names: TypeNames) -> tuple[TypeMapping, ...]:
    """All of `mappings`; one in both directions becomes two."""
    found = fields.entries("mappings", _MAPPING_KEYS, _MAPPING)
    return tuple(mapping for each in found for mapping in _read_mapping(each, names))


def read_rules(fields: Fields) -> tuple[Rule, ...]:
    """All of `rules`, with a syntax check of their patterns."""
    found = fields.entries("rules", ("match", "convert", "direction"), _RULE)
    return tuple(_read_rule(each) for each in found)


def reversed_mapping(mapping: TypeMapping) -> TypeMapping | None:
    """The reverse mapping; None if information would be lost. Created attributes are dropped,
    renames reversed, and attributes that the other side lacks dropped.
    """
    back: list[ShapeStep] = []
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
    return TypeMapping(mapping.target, mapping.source, direction, tuple(back))


def _read_mapping(fields: Fields, names: TypeNames) -> Iterator[TypeMapping]:
    if fields.has("direction"):
        direction = fields.choice("direction", _DIRECTIONS, "in")
    else:
        direction = fields.text("direction", example='"in"') or "in"
    mapping = TypeMapping(
        _event_type(fields, "from", names),
        _event_type(fields, "to", names),
        "in" if direction == "both" else cast("Direction", direction),
        tuple(_shape(fields, names)),
        fields.filled_text("each", ""),
    )
    yield mapping
    if direction == "both":
        back = reversed_mapping(mapping)
        if back is not None:
            yield back
            return
        message = f"{mapping.source} => {mapping.target} cannot be turned round"
        hint = 'renaming, creating and drop = ["*"] can be; else write one "in" and one "out"'
        fields.fault("direction", "mapping.one_way", message, hint=hint)


def _event_type(fields: Fields, key: str, names: TypeNames) -> str:
    written = fields.filled_text(key, example='"Order"')
    return names.event_type(fields, key, written) if written else ""


def _shape(fields: Fields, names: TypeNames) -> Iterator[ShapeStep]:
    """Drops come first, so that names are free."""
    for name in fields.texts("drop", (), example='["lines"]'):
        yield DropAttribute(name)
    renamed = fields.table("rename", None, '{ station = "key" }')
    for old in renamed.section.values if renamed else ():
        yield RenameAttribute(old, renamed.filled_text(old) if renamed else "")
    for each in fields.entries("merge", ("take", "give", "convert"), _MERGE):
        sources = each.texts("take", example='["first", "last"]')
        yield MergeAttributes(sources, each.filled_text("give"), each.filled_text("convert"))
    for each in fields.entries("split", ("take", "give", "convert"), _SPLIT):
        targets = each.texts("give", example='["first", "last"]')
        yield SplitAttribute(each.filled_text("take"), targets, each.filled_text("convert"))
    created = fields.table("create", None, '{ country = { type = "text", value = "US" } }')
    for name in created.section.values if created else ():
        if created is not None:
            yield from _created(created, name, names)


def _created(fields: Fields, name: str, names: TypeNames) -> Iterator[ShapeStep]:
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


TYPED_KEYS = ("types", "classes", "mappings", "rules", "conversions", "units", "parent")
"""A table with any of these is in the typed form."""
_KEYS = ("about", "format", *TYPED_KEYS)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*", re.ASCII)
_LONGEST_NAME = 100

TypesOfClass = Callable[[str], tuple[Type, ...]]
"""The types of a class named in a file; raises InterpretationError, or KeyError for an unknown
class.
"""


class UnitDeclaration(msgspec.Struct, frozen=True):
    """`station.temperature` is in `unit`."""

    attribute: str
    unit: str


class DeclaredInterpretation(msgspec.Struct, frozen=True, kw_only=True):
    """An interpretation as declared in a file, with location and comment."""

    interpretation: Interpretation
    about: str = ""
    units: tuple[UnitDeclaration, ...] = ()
    format: FormatChoice | None = None
    place: SourceLocation
    places: dict[str, SourceLocation] = {}
    """Locations of attributes (`Type.attribute`), conversions, rules (`rule T -> c`), mappings
    (`mapping T => T'`) and unit declarations.
    """

    @property
    def name(self) -> str:
        return self.interpretation.name


class InheritedNames(msgspec.Struct, frozen=True, kw_only=True):
    """Names from parents in the same files, and other known names."""

    types: Collection[str] = ()
    conversions: Mapping[str, Conversion] = {}
    known: Collection[str] | None = None
    classes: TypesOfClass | None = None


def parent_of(name: str) -> str:
    """The parent implied by a hierarchical name.

    >>> parent_of("us/weather"), parent_of("us"), parent_of("root")
    ('us', 'root', '')
    """
    return "" if name == CANONICAL else name.rpartition("/")[0] or CANONICAL


def is_typed_table(values: Any) -> bool:
    return isinstance(values, dict) and any(key in values for key in TYPED_KEYS)


def declared_parent(name: str, values: Mapping[str, Any]) -> str:
    """The parent from its key, or from the name."""
    parent = values.get("parent")
    return parent if isinstance(parent, str) and parent and name != CANONICAL else parent_of(name)


def declared_type_names(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the types that a table declares."""
    classes = values.get("classes")
    named = classes if isinstance(classes, list) else ()
    from_classes = (_last_part(each) for each in named if isinstance(each, str))
    return (*declared_names(values.get("types")), *from_classes)


def read_typed(
    name: str, section: Section, inherited: InheritedNames
) -> tuple[DeclaredInterpretation, list[Problem]]:
    """The interpretation as far as it can be read, and every fault."""
    problems: list[Problem] = []
    fields = strict_fields(section, problems, _KEYS)
    _check_name(fields, name)
    names = TypeNames({*declared_type_names(section.values), *inherited.types}, inherited.known)
    types = (*read_types(fields, names), *_class_types(fields, inherited.classes))
    table = fields.table("conversions", None, '{ to-celsius = { units = ["degF", "degC"] } }')
    conversions = ConversionTableReader(table, names, inherited.conversions).all()
    if fields.has("parent") and name == CANONICAL:
        fields.fault(
            "parent",
            FAULT_CODES.wrong_type,
            "the canonical model has no parent",
            hint="remove the key",
        )
    elif fields.has("parent"):
        fields.filled_text("parent", example='"us"')
    mappings = read_mappings(fields, names)
    interpretation = Interpretation(
        name=name,
        parent=declared_parent(name, section.values),
        types=_with_units(names, types),
        mappings=mappings,
        rules=read_rules(fields),
        conversions=conversions,
    )
    line, column = section.file.place_of(section.path)
    declared = DeclaredInterpretation(
        interpretation=interpretation,
        about=fields.filled_text("about", ""),
        units=_units(fields),
        format=read_format_choice(fields) if fields.has("format") else None,
        place=SourceLocation(section.file.name, line, column),
        places=_places(section),
    )
    return declared, problems


def _places(section: Section) -> dict[str, SourceLocation]:
    """Locations for later checks."""
    found: dict[str, tuple[str, ...]] = {}
    for name, type_ in section.section("types").sections():
        for attribute in type_.values:
            found[f"{name}.{attribute}"] = (*type_.path, attribute)
        for attribute in type_.section("attributes").values:
            found[f"{name}.{attribute}"] = (*type_.path, "attributes", attribute)
    for key in ("conversions", "units"):
        for name in section.section(key).values:
            found[name] = (*section.path, key, name)
    for key, what, sign in (
        ("rules", ("match", "convert"), "->"),
        ("mappings", ("from", "to"), "=>"),
    ):
        listed = section.values.get(key)
        for number, entry in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(entry, dict):
                about = f"{key[:-1]} {entry.get(what[0])} {sign} {entry.get(what[1])}"
                found[about] = (*section.path, key, f"[{number}]")
    file = section.file
    return {name: SourceLocation(file.name, *file.place_of(path)) for name, path in found.items()}


def _with_units(names: TypeNames, types: tuple[Type, ...]) -> tuple[Type, ...]:
    own = {each.name for each in types}
    return (*(each for each in names.types_of_units() if each.name not in own), *types)


def is_interpretation_name(name: str) -> bool:
    """Whether letters, digits and . _ - form it, in parts with / between."""
    return len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) is not None


def _check_name(fields: Fields, name: str) -> None:
    if not is_interpretation_name(name) or name == "files":
        message = f"{name[:60]!r} cannot name an interpretation"
        hint = "use letters, digits, . _ and -, with / between the parts"
        fields.fault("", "interpretation.bad_name", message, hint=hint)


def _class_types(fields: Fields, classes: TypesOfClass | None) -> tuple[Type, ...]:
    found: dict[str, Type] = {}
    for number, name in enumerate(fields.texts("classes", (), example='["package.Class"]')):
        path = (*fields.section.path, "classes", f"[{number}]")
        placed = functools.partial(fields.section.file.problem, path)
        try:
            types = classes(name) if classes is not None else None
        except KeyError:
            types = None
        except InterpretationError as error:
            for each in error.problems:
                fields.problems.append(placed(each.code, each.message, hint=each.hint))
            continue
        if types is None:
            message = f"the class {name[:60]!r} is not available"
            hint = "describe the type by its attributes; files never load code"
            fields.problems.append(placed("type.unknown_class", message, hint=hint))
            continue
        found |= {each.name: each for each in types}
    return tuple(found.values())


def _units(fields: Fields) -> tuple[UnitDeclaration, ...]:
    example = '{ "station.temperature" = "degF" }'
    table = fields.table("units", None, example)
    found: list[UnitDeclaration] = []
    for attribute in table.section.values if table else ():
        if table is None or not table.filled_text(attribute, example='"degF"'):
            continue
        if not all(attribute.partition(".")):
            message = f"{attribute[:60]!r} names no attribute"
            table.fault(attribute, FAULT_CODES.wrong_type, message, hint=f"write units = {example}")
            continue
        found.append(UnitDeclaration(attribute, table.text(attribute)))
    return tuple(found)


def _last_part(dotted: str) -> str:
    return re.split(r"[.:]", dotted)[-1]
