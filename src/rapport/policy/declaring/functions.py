"""`[functions.X]`: numbers that comparisons call for: measured (`distance`) or looked up in a table
(`minimumDistance`). [PO-1, PO-3]
"""

from __future__ import annotations

from typing import Any

from rapport.core.errors import RapportError
from rapport.kernel.fields import Fields
from rapport.policy import measures
from rapport.policy.declaring.reading import AttributeEnd, OntologyDraft
from rapport.policy.declaring.relationships import may_import
from rapport.policy.language.faults import did_you_mean
from rapport.policy.ontology import PairTable, SiteFunction
from rapport.units.quantities import unit_named

_FUNCTION_KEYS = ("of", "measure", "table", "keys", "value", "unit", "symmetric")
_OF = '["substance.position", "substance.position"]'


def read_functions(reading: OntologyDraft) -> dict[str, SiteFunction]:
    """The sound functions."""
    found: dict[str, SiteFunction] = {}
    for name, section in reading.tables("functions"):
        fields = Fields(section, reading.problems, known=_FUNCTION_KEYS)
        before = len(reading.problems)
        function = _function(reading, name, fields)
        faults = reading.problems[before:]
        if not reading.named(name, section, "of", "function"):
            continue
        if function is not None and all(fault.severity != "error" for fault in faults):
            found[name] = function
    return found


def _function(reading: OntologyDraft, name: str, fields: Fields) -> SiteFunction | None:
    ends = _of(reading, fields)
    unit = _unit(fields)
    if fields.has("measure") == fields.has("table"):
        message = f"{name!r} is measured or looked up: it names 'measure' or 'table'"
        hint = 'add measure = "distance", or table, keys and value'
        fields.fault("measure", "ontology.bad_function", message, hint=hint)
        return None
    if fields.has("table"):
        lookup = _lookup(reading, fields, ends)
        return SiteFunction(name=name, of=tuple(ends), lookup=lookup, unit=unit) if lookup else None
    _needless(fields, ("keys", "value", "symmetric"))
    measuring = _measuring(reading, fields)
    if measuring is None or not ends or not _measure_fits(reading, fields, ends, measuring):
        return None
    if unit and measuring.unit and unit != measuring.unit:
        message = f"the measure {measuring.name!r} gives {measuring.unit}, not {unit}"
        fields.fault("unit", "ontology.bad_unit", message, hint="leave the unit out")
    return SiteFunction(
        name=name, of=tuple(ends), measure=fields.text("measure"), unit=unit or measuring.unit
    )


def _of(reading: OntologyDraft, fields: Fields) -> list[AttributeEnd]:
    """One or two attributes; none with a fault."""
    given = fields.texts("of", example=_OF)
    if not given:
        if fields.has("of") and fields.is_empty("of"):
            fields.wrong("of", "one or two attributes", f"of = {_OF}")
        return []
    if len(given) > 2:
        message = f"'of' names one or two attributes, not {len(given)}"
        fields.fault("of", "ontology.bad_of", message, hint=f"write of = {_OF}")
        return []
    found = [reading.ends(fields, "of", text, example="room.area") for text in given]
    for text, ends in zip(given, found, strict=True):
        if len(ends) > 1:
            message = f"{text!r} is of several concepts"
            hint = "a function is of one concept at each place; declare one per concept"
            fields.fault("of", "ontology.bad_of", message, hint=hint)
            return []
    return [ends[0] for ends in found] if all(found) else []


def _unit(fields: Fields) -> str:
    given = fields.text("unit", "")
    if not given:
        return ""
    try:
        return unit_named(given).symbol
    except RapportError as error:
        fields.fault("unit", "ontology.bad_unit", error.message, hint=error.hint)
        return ""


def _needless(fields: Fields, keys: tuple[str, ...]) -> None:
    for key in keys:
        if fields.has(key):
            message = f"{key!r} belongs to a function that is looked up in a table"
            fields.fault(key, "ontology.bad_function", message, hint="leave it out")


def _measuring(reading: OntologyDraft, fields: Fields) -> measures.Measuring | None:
    name = fields.filled_text("measure", example='"distance"')
    if not name or not may_import(reading, fields, "measure", name, "measures.untrusted"):
        return None
    try:
        return measures.get(name)
    except RapportError as error:
        fields.report("measure", error)
        return None


def _measure_fits(
    reading: OntologyDraft, fields: Fields, ends: list[AttributeEnd], measuring: measures.Measuring
) -> bool:
    takes = f"{measuring.name} takes a {' and a '.join(measuring.types)}"
    if len(ends) != len(measuring.types):
        message = f"{measuring.name!r} is of {len(measuring.types)} values, not {len(ends)}"
        fields.fault("of", "ontology.bad_of", message, hint=takes)
        return False
    fit = True
    for end, wanted in zip(ends, measuring.types, strict=True):
        given = reading.type_of(end)
        if given != wanted:
            fit = False
            shown = f"{'.'.join(end)} is a {given}"
            message = f"the measure {measuring.name!r} needs a {wanted} here, but {shown}"
            fields.fault("of", "ontology.wrong_type", message, hint=takes)
    return fit


def _lookup(reading: OntologyDraft, fields: Fields, ends: list[AttributeEnd]) -> PairTable | None:
    table = fields.filled_text("table", example='"minimum_distances"')
    keys = fields.texts("keys", example='["a", "b"]')
    value = fields.filled_text("value", example='"metres"')
    symmetric = fields.flag("symmetric")
    tables: Any = reading.file.values.get("tables")
    known = list(tables) if isinstance(tables, dict) else []
    if table and table not in known:
        message = f"there is no table {table!r}"
        hint = did_you_mean(table, known) or f"add [tables.{table}]"
        fields.fault("table", "ontology.unknown_table", message, hint=hint)
    if ends and keys and not _keys_fit(reading, fields, ends, keys, symmetric):
        return None
    if not (table and keys and value and ends):
        return None
    return PairTable(table=table, keys=keys, value=value, symmetric=symmetric)


def _keys_fit(
    reading: OntologyDraft,
    fields: Fields,
    ends: list[AttributeEnd],
    keys: tuple[str, ...],
    symmetric: bool,
) -> bool:
    if len(keys) != len(ends) or len(set(keys)) != len(keys) or not all(keys):
        message = f"'keys' names one column for each of the {len(ends)} in 'of'"
        fields.fault("keys", "ontology.bad_keys", message, hint='such as keys = ["a", "b"]')
        return False
    for end in ends:
        if reading.type_of(end) != "text":
            message = f"{'.'.join(end)} is a {reading.type_of(end)}; a table is asked by texts"
            fields.fault("of", "ontology.wrong_type", message, hint=f"such as {end[0]}.id")
            return False
    if symmetric and len(keys) == 1:
        message = "only a function of two can be symmetric"
        fields.fault("symmetric", "ontology.bad_function", message, hint="leave it out")
        return False
    return True
