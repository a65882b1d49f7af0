"""The rules of one interpretation from its table in a file. [ME-10]"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, cast

from rapport.core.errors import InvalidInput, nearest_names
from rapport.kernel.plugins import Plugins
from rapport.kernel.toml import Section
from rapport.mediation.form import Form
from rapport.mediation.interpretation import (
    ConversionRule,
    IdentityRule,
    OriginRule,
    Path,
    Scalar,
    TableLookup,
    TimeRule,
    ValueRule,
)
from rapport.units.numbers import DecimalMark
from rapport.units.quantities import converter, unit_named
from rapport.units.timeformats import zone_named

TableColumns = Mapping[str, Collection[str]]
"""Tables of the site with their columns; for checking names before anything runs."""

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


def read_time(form: Form) -> TimeRule | None:
    """`time = { field, format, zone }`; absent: the envelope's time."""
    time = form.table("time", ("field", "format", "zone"), _TIME, optional=True)
    if time is None:
        return None
    field = time.path("field", example='"t"')
    written = time.text("format", example='"iso8601"')
    zone = time.text("zone", optional=True)
    if zone:
        _check(time, "zone", lambda: zone_named(zone))
    if written and written not in _FORMATS:
        _check_pattern(time, written, zone)
    return TimeRule(field, written, zone)


def read_identity(form: Form, tables: TableColumns | None) -> IdentityRule:
    """`identity = { field, lookup, nobody, otherwise }`."""
    keys = ("field", "lookup", "nobody", "otherwise")
    identity = form.table("identity", keys, _IDENTITY, optional=False)
    if identity is None:
        return IdentityRule(())
    return IdentityRule(
        field=identity.path("field", example='"tag"'),
        lookup=_read_lookup(identity, tables),
        nobody=identity.texts("nobody", example='["unknown"]', optional=True),
        otherwise=_template(identity.text("otherwise", optional=True)),
    )


def read_values(form: Form) -> tuple[ValueRule, ...]:
    """`value.NAME = { field, unit, to, decimal }`; for a single part `value = { field, ... }`."""
    values = form.section.values.get("value")
    if isinstance(values, dict) and "field" in values and not isinstance(values["field"], dict):
        return (_read_value(form, "value", "value"),)
    if not isinstance(values, dict) or not values:
        form.table("value", (), f"{{ x = {_VALUE}, y = ... }}", optional=False)
        if values == {}:
            form.fault("value", "interpretation.missing_key", "value names nothing")
        return ()
    below = Form(form.section.section("value"), tuple(values), form.problems)
    return tuple(_read_value(below, name, name) for name in values)


def read_origin(form: Form, tables: TableColumns | None) -> OriginRule | None:
    """`relative_to = { table, key, x, y, heading, unit, heading_unit }`."""
    keys = ("table", "key", "x", "y", "heading", "unit", "heading_unit")
    origin = form.table("relative_to", keys, _ORIGIN, optional=True)
    if origin is None:
        return None
    rule = OriginRule(
        table=origin.text("table", example='"sensors"'),
        key=origin.path("key", example='"reader"'),
        x=origin.text("x", example='"x_m"'),
        y=origin.text("y", example='"y_m"'),
        heading=origin.text("heading", optional=True),
        unit=origin.text("unit", optional=True) or "m",
        heading_unit=origin.text("heading_unit", optional=True) or "deg",
    )
    _check(origin, "unit", lambda: converter(rule.unit, "m"))
    _check(origin, "heading_unit", lambda: converter(rule.heading_unit, "deg"))
    _check_table(origin, tables, rule.table, {"x": rule.x, "y": rule.y, "heading": rule.heading})
    return rule


def read_conversions(form: Form) -> tuple[ConversionRule, ...]:
    """`convert = [{ call, take, give, arguments, deadline }]`, in the order of the file."""
    entries = form.section.values.get("convert", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        form.fault(
            "convert",
            "interpretation.bad_value",
            "convert must be a list of tables",
            f"write convert = {_CONVERT}",
        )
        return ()
    return tuple(_read_conversion(form, entry) for entry in entries)


def _read_value(form: Form, key: str, name: str) -> ValueRule:
    value = form.table(key, ("field", "unit", "to", "decimal"), _VALUE, optional=False)
    if not _VALUE_NAME.fullmatch(name):
        form.fault(
            key,
            "interpretation.bad_name",
            f"{name[:40]!r} cannot name a value",
            "use small letters, digits and underscores, beginning with a letter",
        )
    if value is None:
        return ValueRule(name, ())
    unit, to = value.text("unit", optional=True), value.text("to", optional=True)
    for key_of_unit, text in (("unit", unit), ("to", to)):
        if text:
            _check(value, key_of_unit, lambda text=text: unit_named(text))
    decimal = value.text("decimal", optional=True)
    if decimal not in ("", "point", "comma"):
        value.fault("decimal", "interpretation.bad_value", 'decimal must be "point" or "comma"')
        decimal = ""
    field = value.path("field", example='"dx"')
    return ValueRule(name, field, unit, to, cast("DecimalMark | None", decimal or None))


def _read_lookup(form: Form, tables: TableColumns | None) -> TableLookup | None:
    example = '{ table = "badges", column = "person" }'
    lookup = form.table("lookup", ("table", "column"), example, optional=True)
    if lookup is None:
        return None
    rule = TableLookup(
        lookup.text("table", example='"badges"'), lookup.text("column", example='"person"')
    )
    _check_table(lookup, tables, rule.table, {"column": rule.column})
    return rule


def _read_conversion(form: Form, entry: dict[str, Any]) -> ConversionRule:
    keys = ("call", "take", "give", "arguments", "deadline")
    # An entry of a list has no path of its own: its faults stand at `convert`.
    place = (*form.section.path, "convert")
    rule = Form(Section(form.section.file, place, entry), keys, form.problems)
    call = rule.text("call", example='"package.module:function"')
    _check_call(rule, call)
    take = rule.texts("take", example='["x", "y"]')
    give = rule.texts("give", example='["x", "y"]')
    for name in (*take, *give):
        if not _VALUE_NAME.fullmatch(name):
            rule.fault("", "interpretation.bad_name", f"{name[:40]!r} cannot name a value")
    if rule.has("give") and not give:
        rule.fault("", "interpretation.bad_value", f"the conversion {call!r} gives nothing")
    deadline_ms = rule.duration_ms("deadline", 1_000)
    if deadline_ms > _LONGEST_DEADLINE_MS:
        rule.fault("deadline", "interpretation.bad_value", "a deadline is at most one minute")
    return ConversionRule(call, take, give, _arguments(rule, entry), deadline_ms)


def _arguments(form: Form, entry: dict[str, Any]) -> tuple[tuple[str, Scalar], ...]:
    values = entry.get("arguments", {})
    if not isinstance(values, dict) or not all(
        isinstance(value, (str, int, float, bool)) and name.isidentifier()
        for name, value in values.items()
    ):
        form.fault(
            "arguments",
            "interpretation.bad_value",
            "arguments must be a table of names with text, numbers, true or false",
        )
        return ()
    return tuple(sorted(values.items()))


def _check_call(form: Form, call: str) -> None:
    """Names are checked, nothing is imported: that happens in the worker process."""
    if not call or _FUNCTION.fullmatch(call):
        return
    known = Plugins().names("conversions")
    if call not in known:
        nearest = nearest_names(call, known, 1)
        form.fault(
            "call",
            "interpretation.unknown_conversion",
            f"there is no conversion {call[:60]!r}",
            f"did you mean {nearest[0]!r}?"
            if nearest
            else "name a plug-in of the group rapport.conversions, or package.module:function",
        )


def _check_table(
    form: Form, tables: TableColumns | None, table: str, columns: Mapping[str, str]
) -> None:
    if tables is None or not table:
        return
    if table not in tables:
        form.fault(
            "table",
            "interpretation.unknown_table",
            f"there is no table {table[:60]!r}",
            _nearest(table, tables),
        )
        return
    for key, column in columns.items():
        if column and column not in tables[table]:
            message = f"table {table!r} has no column {column[:60]!r}"
            hint = _nearest(column, tables[table])
            form.fault(key, "interpretation.unknown_column", message, hint)


def _nearest(name: str, known: Collection[str]) -> str:
    nearest = nearest_names(name, known, 1)
    return f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(sorted(known)[:8])}"


def _check(form: Form, key: str, attempt: Any) -> None:
    try:
        attempt()
    except InvalidInput as error:
        form.fault_of(key, error)


def _check_pattern(form: Form, pattern: str, zone: str) -> None:
    if "%" not in pattern:
        nearest = nearest_names(pattern, _FORMATS, 1)
        form.fault(
            "format",
            "interpretation.bad_value",
            f"there is no time format {pattern[:40]!r}",
            f"did you mean {nearest[0]!r}?"
            if nearest
            else f"known: {', '.join(_FORMATS)}, or a pattern such as %d/%m/%Y %H:%M:%S",
        )
        return
    moment, bare = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC), pattern.replace("%z", "")
    try:
        back = datetime.strptime(moment.strftime(bare), bare).replace(tzinfo=UTC)
    except (ValueError, re.error) as error:
        form.fault("format", "interpretation.bad_value", f"the pattern cannot be read: {error}")
        return
    if back.date() != moment.date():
        form.fault("format", "interpretation.bad_value", "the pattern does not say the whole date")
    elif not zone and "%z" not in pattern:
        form.fault(
            "format",
            "time.no_zone",
            "the pattern says no offset from UTC",
            'add zone = "Europe/Berlin", or "UTC"',
        )


def _template(text: str) -> tuple[str | Path, ...]:
    """`unknown:{track}` as `("unknown:", ("track",))`; dots lead into nested objects."""
    pieces: list[str | Path] = []
    for index, piece in enumerate(_PLACEHOLDER.split(text)):
        if index % 2:
            pieces.append(tuple(piece.split(".")))
        elif piece:
            pieces.append(piece)
    return tuple(pieces)
