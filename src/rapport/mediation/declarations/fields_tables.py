"""Reads an interpretation in the fields form from its table. [ME-10]"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, cast

from rapport.core.errors import InvalidInput, Problem, did_you_mean
from rapport.core.times import zone_named
from rapport.kernel.config_fields import Fields, suggest
from rapport.kernel.plugins import Plugins
from rapport.kernel.toml import Section
from rapport.mediation.declarations.placed_values import FAULT_CODES
from rapport.mediation.formats.catalogue import get_format, parse_format
from rapport.mediation.interpretations.model import (
    CANONICAL,
    ArgumentValue,
    ConversionRule,
    FieldPath,
    FieldsInterpretation,
    FormatChoice,
    IdentityLookup,
    IdentityRule,
    OriginRule,
    SourceLocation,
    TimeRule,
    ValueRule,
)
from rapport.units.quantities import DecimalMark, converter, unit_named

TableColumns = Mapping[str, Collection[str]]
"""Tables of the site with their columns, to check names in advance."""

_TIME = '{ field = "t", format = "iso8601" }'
_IDENTITY = '{ field = "tag", lookup = { table = "badges", column = "person" } }'
_VALUE = '{ field = "dx", unit = "m" }'
_ORIGIN = '{ table = "sensors", key = "reader", x = "x_m", y = "y_m" }'
_CONVERT = '[{ call = "package.module:function", take = ["x"], give = ["x"] }]'
_FORMATS = ("iso8601", "epoch_s", "epoch_ms")
_VALUE_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}", re.ASCII)
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_LONGEST_DEADLINE_MS = 60_000


def read_time(fields: Fields) -> TimeRule | None:
    """`time = { field, format, zone }`; absent: the envelope's time."""
    time = fields.table("time", ("field", "format", "zone"), _TIME)
    if time is None:
        return None
    field = time.names("field", example='"t"')
    written = time.filled_text("format", example='"iso8601"')
    zone = time.filled_text("zone", "")
    if zone:
        _check(time, "zone", lambda: zone_named(zone))
    if written and written not in _FORMATS:
        _check_pattern(time, written, zone)
    return TimeRule(field, written, zone)


def read_identity(fields: Fields, tables: TableColumns | None) -> IdentityRule:
    """`identity = { field, lookup, nobody, otherwise }`."""
    keys = ("field", "lookup", "nobody", "otherwise")
    identity = fields.table("identity", keys, _IDENTITY, needed=True)
    if identity is None:
        return IdentityRule(())
    return IdentityRule(
        field=identity.names("field", example='"tag"'),
        lookup=_read_lookup(identity, tables),
        nobody=identity.texts("nobody", (), example='["unknown"]'),
        otherwise=_template(identity.filled_text("otherwise", "")),
    )


def read_values(fields: Fields) -> tuple[ValueRule, ...]:
    """`value.NAME = { field, unit, to, decimal }`; for a single part `value = { field, ... }`."""
    example = f"{{ x = {_VALUE}, y = ... }}"
    below = fields.table("value", None, example, needed=True)
    if below is None:
        return ()
    values = below.section.values
    if "field" in values and not isinstance(values["field"], dict):
        return (_read_value(fields, "value", "value"),)
    if not values:
        hint = f"write value = {example}"
        fields.fault("value", "interpretation.missing_key", "'value' names nothing", hint=hint)
    return tuple(_read_value(below, name, name) for name in values)


def read_origin(fields: Fields, tables: TableColumns | None) -> OriginRule | None:
    """`relative_to = { table, key, x, y, heading, unit, heading_unit }`."""
    keys = ("table", "key", "x", "y", "heading", "unit", "heading_unit")
    origin = fields.table("relative_to", keys, _ORIGIN)
    if origin is None:
        return None
    rule = OriginRule(
        table=origin.filled_text("table", example='"sensors"'),
        key=origin.names("key", example='"reader"'),
        x=origin.filled_text("x", example='"x_m"'),
        y=origin.filled_text("y", example='"y_m"'),
        heading=origin.filled_text("heading", ""),
        unit=origin.filled_text("unit", "m"),
        heading_unit=origin.filled_text("heading_unit", "deg"),
    )
    _check(origin, "unit", lambda: converter(rule.unit, "m"))
    _check(origin, "heading_unit", lambda: converter(rule.heading_unit, "deg"))
    _check_table(origin, tables, rule.table, {"x": rule.x, "y": rule.y, "heading": rule.heading})
    return rule


def read_conversions(fields: Fields) -> tuple[ConversionRule, ...]:
    """`convert = [{ call, take, give, arguments, deadline }]`, in the order of the file."""
    keys = ("call", "take", "give", "arguments", "deadline")
    return tuple(_read_conversion(entry) for entry in fields.entries("convert", keys, _CONVERT))


def _read_value(fields: Fields, key: str, name: str) -> ValueRule:
    value = fields.table(key, ("field", "unit", "to", "decimal"), _VALUE, needed=True)
    if not _VALUE_NAME.fullmatch(name):
        fields.fault(
            key,
            "interpretation.bad_name",
            f"{name[:40]!r} cannot name a value",
            hint="use small letters, digits and underscores, beginning with a letter",
        )
    if value is None:
        return ValueRule(name, ())
    unit, to = value.filled_text("unit", ""), value.filled_text("to", "")
    for key_of_unit, text in (("unit", unit), ("to", to)):
        if text:
            _check(value, key_of_unit, lambda text=text: unit_named(text))
    decimal = value.choice("decimal", ("point", "comma"), "")
    field = value.names("field", example='"dx"')
    return ValueRule(name, field, unit, to, cast("DecimalMark | None", decimal or None))


def _read_lookup(fields: Fields, tables: TableColumns | None) -> IdentityLookup | None:
    example = '{ table = "badges", column = "person" }'
    lookup = fields.table("lookup", ("table", "column"), example)
    if lookup is None:
        return None
    rule = IdentityLookup(
        lookup.filled_text("table", example='"badges"'),
        lookup.filled_text("column", example='"person"'),
    )
    _check_table(lookup, tables, rule.table, {"column": rule.column})
    return rule


def _read_conversion(rule: Fields) -> ConversionRule:
    call = rule.filled_text("call", example='"package.module:function"')
    _check_call(rule, call)
    take = rule.texts("take", example='["x", "y"]')
    give = rule.texts("give", example='["x", "y"]')
    for name in (*take, *give):
        if not _VALUE_NAME.fullmatch(name):
            rule.fault("", "interpretation.bad_name", f"{name[:40]!r} cannot name a value")
    if rule.has("give") and not give:
        rule.fault("", "interpretation.bad_value", f"the conversion {call!r} gives nothing")
    deadline_ms = max(rule.duration_ms("deadline", 1_000), 1)
    if deadline_ms > _LONGEST_DEADLINE_MS:
        rule.fault("deadline", "interpretation.bad_value", "a deadline is at most one minute")
    return ConversionRule(call, take, give, _arguments(rule), deadline_ms)


def _arguments(fields: Fields) -> tuple[tuple[str, ArgumentValue], ...]:
    values = fields.section.values.get("arguments", {})
    if not isinstance(values, dict) or not all(
        isinstance(value, (str, int, float, bool)) and name.isidentifier()
        for name, value in values.items()
    ):
        wanted = "a table of names with text, numbers, true or false"
        fields.wrong("arguments", wanted, "arguments = { factor = 2.5 }")
        return ()
    return tuple(sorted(values.items()))


def _check_call(fields: Fields, call: str) -> None:
    """Checks the name only; the import happens in the worker process."""
    if not call or _FUNCTION.fullmatch(call):
        return
    known = Plugins().names("conversions")
    if call not in known:
        message = f"there is no conversion {call[:60]!r}"
        hint = "name a plug-in of the group rapport.conversions, or package.module:function"
        hint = did_you_mean(call, known, hint)
        fields.fault("call", "interpretation.unknown_conversion", message, hint=hint)


def _check_table(
    fields: Fields, tables: TableColumns | None, table: str, columns: Mapping[str, str]
) -> None:
    if tables is None or not table:
        return
    if table not in tables:
        fields.fault(
            "table",
            "interpretation.unknown_table",
            f"there is no table {table[:60]!r}",
            hint=suggest(table, tables),
        )
        return
    for key, column in columns.items():
        if column and column not in tables[table]:
            message = f"table {table!r} has no column {column[:60]!r}"
            hint = suggest(column, tables[table])
            fields.fault(key, "interpretation.unknown_column", message, hint=hint)


def _check(fields: Fields, key: str, attempt: Any) -> None:
    try:
        attempt()
    except InvalidInput as error:
        fields.report(key, error)


def _check_pattern(fields: Fields, pattern: str, zone: str) -> None:
    if "%" not in pattern:
        message = f"there is no time format {pattern[:40]!r}"
        hint = f"known: {', '.join(_FORMATS)}, or a pattern such as %d/%m/%Y %H:%M:%S"
        hint = did_you_mean(pattern, _FORMATS, hint)
        fields.fault("format", "interpretation.bad_value", message, hint=hint)
        return
    moment, bare = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC), pattern.replace("%z", "")
    try:
        back = datetime.strptime(moment.strftime(bare), bare).replace(tzinfo=UTC)
    except (ValueError, re.error) as error:
        fields.fault("format", "interpretation.bad_value", f"the pattern cannot be read: {error}")
        return
    if back.date() != moment.date():
        fields.fault(
            "format", "interpretation.bad_value", "the pattern does not say the whole date"
        )
    elif not zone and "%z" not in pattern:
        fields.fault(
            "format",
            "time.no_zone",
            "the pattern says no offset from UTC",
            hint='add zone = "Europe/Berlin", or "UTC"',
        )


def _template(text: str) -> tuple[str | FieldPath, ...]:
    """Parses `unknown:{track}` to `("unknown:", ("track",))`; dots lead into nested objects."""
    pieces: list[str | FieldPath] = []
    for index, piece in enumerate(_PLACEHOLDER.split(text)):
        if index % 2:
            pieces.append(tuple(piece.split(".")))
        elif piece:
            pieces.append(piece)
    return tuple(pieces)


_KEYS = ("about", "type", "format", "time", "identity", "value", "relative_to", "convert")


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}", re.ASCII)


def read_interpretation(
    name: str, section: Section, tables: TableColumns | None = None
) -> tuple[FieldsInterpretation | None, list[Problem]]:
    """Reads one interpretation; None if it has a fault."""
    problems: list[Problem] = []
    fields = Fields(section, problems, known=_KEYS, strict=True, codes=FAULT_CODES)
    if not _NAME.fullmatch(name) or name in (CANONICAL, "files"):
        fields.fault(
            "",
            "interpretation.bad_name",
            f"{name[:60]!r} cannot name an interpretation",
            hint=f"use letters, digits, . _ / and -; {CANONICAL!r} is taken",
        )
    line, column = section.file.place_of(section.path)
    interpretation = FieldsInterpretation(
        name=name,
        about=fields.filled_text("about", ""),
        type=fields.filled_text("type", ""),
        format=read_format_choice(fields),
        time=read_time(fields),
        identity=read_identity(fields, tables),
        values=read_values(fields),
        origin=read_origin(fields, tables),
        conversions=read_conversions(fields),
        place=SourceLocation(section.file.name, line, column),
    )
    return (None if problems else interpretation), problems


def read_format_choice(fields: Fields) -> FormatChoice:
    """`format = "csv"`, or a table with name and options; absent: JSON."""
    if not fields.has("format"):
        return FormatChoice()
    try:
        name, options = parse_format(fields.section.values["format"])
        get_format(name, options)
    except InvalidInput as error:
        fields.report("format", error)
        return FormatChoice()
    return FormatChoice(name, options)
