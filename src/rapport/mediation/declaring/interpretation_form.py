"""One typed interpretation from its table. [ME-5, ME-10]"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from rapport.core.errors import InterpretationError, InvalidInput, Problem
from rapport.kernel.config_fields import Fields
from rapport.kernel.toml import Section
from rapport.mediation.declaring.mapping_forms import read_mappings, read_rules
from rapport.mediation.declaring.tree import CODES, fields_of
from rapport.mediation.declaring.type_forms import TypeNames, declared_names, read_types
from rapport.mediation.declaring.workbench import Workbench
from rapport.mediation.formats.named import format_named, read_format
from rapport.mediation.interpretation import FormatChoice, Place
from rapport.mediation.model.conversions import Conversion
from rapport.mediation.model.interpretation import ROOT, Interpretation
from rapport.mediation.model.types import Type

TYPED_KEYS = ("types", "classes", "mappings", "rules", "conversions", "units", "parent")
"""A table with any of these is of the typed form."""
_KEYS = ("about", "format", *TYPED_KEYS)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*", re.ASCII)
_LONGEST_NAME = 100

TypesOfClass = Callable[[str], tuple[Type, ...]]
"""The types of a class that a file names; raises InterpretationError, or KeyError for one that is
not there."""


class UnitWish(msgspec.Struct, frozen=True):
    """`station.temperature` is said in `unit`."""

    attribute: str
    unit: str


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """An interpretation as a file has it, with what is not part of the model."""

    interpretation: Interpretation
    about: str = ""
    units: tuple[UnitWish, ...] = ()
    format: FormatChoice | None = None
    place: Place
    places: dict[str, Place] = {}
    """Of attributes (`Type.attribute`), conversions, rules (`rule T -> c`), mappings (`mapping T =>
    T'`), and what units are wished for.
    """

    @property
    def name(self) -> str:
        """That of the interpretation."""
        return self.interpretation.name


class Inherited(msgspec.Struct, frozen=True, kw_only=True):
    """What the parents in the same files have, and what is known besides."""

    types: Collection[str] = ()
    conversions: Mapping[str, Conversion] = {}
    known: Collection[str] | None = None
    classes: TypesOfClass | None = None


def parent_of(name: str) -> str:
    """The parent that a hierarchical name says.

    >>> parent_of("us/weather"), parent_of("us"), parent_of("root")
    ('us', 'root', '')
    """
    return "" if name == ROOT else name.rpartition("/")[0] or ROOT


def is_typed(values: Any) -> bool:
    """The table declares a typed interpretation."""
    return isinstance(values, dict) and any(key in values for key in TYPED_KEYS)


def parent_said(name: str, values: Mapping[str, Any]) -> str:
    """The parent by its key, or by the name."""
    parent = values.get("parent")
    return parent if isinstance(parent, str) and parent and name != ROOT else parent_of(name)


def types_said(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the types that a table will declare."""
    classes = values.get("classes")
    named = classes if isinstance(classes, list) else ()
    from_classes = (_last_part(each) for each in named if isinstance(each, str))
    return (*declared_names(values.get("types")), *from_classes)


def read_typed(name: str, section: Section, inherited: Inherited) -> tuple[Declared, list[Problem]]:
    """The interpretation as far as it can be read, and every fault."""
    problems: list[Problem] = []
    fields = fields_of(section, problems, _KEYS)
    _check_name(fields, name)
    names = TypeNames({*types_said(section.values), *inherited.types}, inherited.known)
    types = (*read_types(fields, names), *_class_types(fields, inherited.classes))
    table = fields.table("conversions", None, '{ to-celsius = { units = ["degF", "degC"] } }')
    conversions = Workbench(table, names, inherited.conversions).all()
    if fields.has("parent") and name == ROOT:
        fields.fault("parent", CODES.wrong_type, "root has no parent", hint="remove the key")
    elif fields.has("parent"):
        fields.filled_text("parent", example='"us"')
    mappings = read_mappings(fields, names)
    interpretation = Interpretation(
        name=name,
        parent=parent_said(name, section.values),
        types=_with_units(names, types),
        mappings=mappings,
        rules=read_rules(fields),
        conversions=conversions,
    )
    line, column = section.file.place_of(section.path)
    declared = Declared(
        interpretation=interpretation,
        about=fields.filled_text("about", ""),
        units=_units(fields),
        format=_format(fields),
        place=Place(section.file.name, line, column),
        places=_places(section),
    )
    return declared, problems


def _places(section: Section) -> dict[str, Place]:
    """Where things stand that later checks may speak of."""
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
                found[about] = (*section.path, key, str(number))
    file = section.file
    return {name: Place(file.name, *file.place_of(path)) for name, path in found.items()}


def _with_units(names: TypeNames, types: tuple[Type, ...]) -> tuple[Type, ...]:
    own = {each.name for each in types}
    return (*(each for each in names.types_of_units() if each.name not in own), *types)


def _check_name(fields: Fields, name: str) -> None:
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name) or name == "files":
        message = f"{name[:60]!r} cannot name an interpretation"
        hint = "use letters, digits, . _ and -, with / between the parts"
        fields.fault("", "interpretation.bad_name", message, hint=hint)


def _class_types(fields: Fields, classes: TypesOfClass | None) -> tuple[Type, ...]:
    found: dict[str, Type] = {}
    for number, name in enumerate(fields.texts("classes", (), example='["package.Class"]')):
        path = (*fields.section.path, "classes", str(number))
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
            message = f"the class {name[:60]!r} is not at hand"
            hint = "describe the type by its attributes; files never load code"
            fields.problems.append(placed("type.unknown_class", message, hint=hint))
            continue
        found |= {each.name: each for each in types}
    return tuple(found.values())


def _units(fields: Fields) -> tuple[UnitWish, ...]:
    example = '{ "station.temperature" = "degF" }'
    table = fields.table("units", None, example)
    found: list[UnitWish] = []
    for attribute in table.section.values if table else ():
        if table is None or not table.filled_text(attribute, example='"degF"'):
            continue
        if not all(attribute.partition(".")):
            message = f"{attribute[:60]!r} names no attribute"
            table.fault(attribute, CODES.wrong_type, message, hint=f"write units = {example}")
            continue
        found.append(UnitWish(attribute, table.text(attribute)))
    return tuple(found)


def _format(fields: Fields) -> FormatChoice | None:
    """`format = "csv"`, or a table with `name` and the options of the format."""
    if not fields.has("format"):
        return None
    try:
        name, options = read_format(fields.section.values["format"])
        format_named(name, options)
    except InvalidInput as error:
        fields.report("format", error)
        return None
    return FormatChoice(name, options)


def _last_part(dotted: str) -> str:
    return re.split(r"[.:]", dotted)[-1]
