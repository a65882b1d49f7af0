"""The fields form as column operations, in the order of `fields_compiler.py`. [ME-14, PI-4]"""

from __future__ import annotations

import re

from rapport.mediation.conversion.lookups import SiteTables, numbers_finder
from rapport.mediation.fields_compiler import ResolvedFields, ResolvedValue, resolve
from rapport.mediation.formats.base import decimal_mark
from rapport.mediation.formats.csv_format import csv_options, joins_of
from rapport.mediation.interpretations.model import (
    FieldsInterpretation,
    FormatChoice,
    IdentityRule,
    OriginRule,
    TimeRule,
    dotted_path,
)
from rapport.mediation.rejections import RejectedValue
from rapport.mediation.source_bindings import SourceBinding
from rapport.pipeline.mediation.instants import is_fixed_pattern
from rapport.pipeline.mediation.meanings import SentTables
from rapport.pipeline.mediation.operations import (
    Arithmetic,
    Concatenation,
    Constant,
    EnvelopeTime,
    Epoch,
    FirstOf,
    Instant,
    InTable,
    NativePlan,
    Need,
    Node,
    NotColumnsError,
    PayloadField,
    ReadingColumns,
    StepResult,
    StepShown,
    Sum,
    Unless,
    bare,
)
from rapport.pipeline.mediation.python_rows import part_columns
from rapport.pipeline.mediation.steps import InstantStep, PolarStep
from rapport.units.coordinates import direction
from rapport.units.quantities import Affine, DecimalMark

_NUMBER = re.compile(r"-?[0-9].*", re.DOTALL)
MOST_ROWS = 200_000
"""A larger table is looked up by the generated Python."""


def fields_plan(
    interpretation: FieldsInterpretation | None, binding: SourceBinding, tables: SentTables
) -> NativePlan:
    """The plan; raises NotColumnsError with the reason, InterpretationError for what does not fit
    its source.
    """
    stamp = "" if interpretation is None else interpretation.stamp()
    decimal, formatted = None, False
    if interpretation is not None and interpretation.format != FormatChoice():
        _check_format(interpretation.format)
        decimal, formatted = decimal_mark(interpretation.format), True
    resolved = resolve(interpretation, binding)
    return _FieldsPlan(resolved, tables, decimal, formatted).plan(
        stamp or resolved.interpretation.stamp()
    )


def _check_format(choice: FormatChoice) -> None:
    """Rows of CSV are objects of texts once they are in a channel."""
    if choice.name == "json":
        return
    if choice.name != "csv":
        raise NotColumnsError("format", f"events are written as {choice.name}")
    options = csv_options(choice.options)
    if joins_of(options) or options.thousands != "none":
        raise NotColumnsError("format", "columns of the CSV are joined, or numbers are grouped")


class _FieldsPlan:
    def __init__(
        self,
        resolved: ResolvedFields,
        tables: SentTables,
        decimal: DecimalMark | None,
        formatted: bool,
    ) -> None:
        self._resolved, self._tables = resolved, tables
        self._decimal, self._formatted = decimal, formatted
        self._steps: list[StepShown] = []
        self._absent: list[tuple[str, ...]] = []
        self._needed: list[Need] = []

    def plan(self, stamp: str) -> NativePlan:
        said, binding = self._resolved.interpretation, self._resolved.binding
        if said.conversions:
            call = said.conversions[0].call
            raise NotColumnsError("convert", f"the function {call} of the site is called")
        if binding.type == "geo_point":
            raise NotColumnsError(binding.attribute, "longitudes and latitudes have ranges")
        for value in self._resolved.values:
            if value.kind == "number" and value.affine is None:
                raise NotColumnsError(dotted_path(value.rule.field), "its unit is not declared")
        time = self._time(said.time)
        key = self._identity(said.identity)
        values = {value.rule.name: self._value(value) for value in self._resolved.values}
        unused = [node for name, node in values.items() if name not in binding.parts]
        parts = self._placed(values, said.origin)
        columns = tuple(part_columns(binding.type)[name] for name in binding.parts)
        found = tuple(parts[name] for name in binding.parts)
        return NativePlan(
            source=binding.source,
            stamp=stamp,
            time=time,
            key=key,
            concept=binding.concept,
            given=(ReadingColumns(binding.stream, binding.attribute, found, columns),),
            needed=(*map(Need, unused), *self._needed),
            event_types=(said.type,) if said.type else (),
            plain=self._formatted,
            single=not self._formatted,
            absent=tuple(self._absent),
            steps=tuple(self._steps),
        )

    def _time(self, rule: TimeRule | None) -> Node:
        if rule is None:
            self._show("time", "of the envelope")
            return EnvelopeTime()
        place = dotted_path(rule.field)
        if rule.format in ("epoch_s", "epoch_ms"):
            self._show(place, f"time, {rule.format}")
            look = self._number(rule.field, self._decimal)
            return Epoch(look, 1_000.0 if rule.format == "epoch_s" else 1.0)
        if rule.format == "root":
            self._show(place, "time in milliseconds or ISO 8601")
            self._absent.append(rule.field)
            moment = PayloadField(rule.field, "moment")
            return FirstOf((moment, EnvelopeTime()), "integer") if rule.optional else moment
        text = PayloadField(rule.field, "bare")
        pattern = "" if rule.format == "iso8601" else rule.format
        if pattern and not is_fixed_pattern(pattern):
            self._show(place, f"time, {pattern}", "only Python reads this pattern")
            text = PayloadField(rule.field, "text")
            return StepResult((text,), InstantStep(pattern, rule.zone), ("integer",), 0)
        self._show(place, f"time, {rule.format}" + (f" in {rule.zone}" if rule.zone else ""))
        return Instant(text, pattern, rule.zone)

    def _number(self, field: tuple[str, ...], decimal: DecimalMark | None) -> PayloadField:
        return (
            PayloadField(field, "number-text", decimal)
            if decimal
            else PayloadField(field, "number")
        )

    def _identity(self, rule: IdentityRule) -> Node:
        seen: Node = PayloadField(rule.field, "name")
        what = "identity"
        if rule.otherwise:  # for null, but not for what is missing
            self._needed.append(Need(seen))
        if any(_NUMBER.fullmatch(word) for word in rule.nobody):
            raise NotColumnsError(dotted_path(rule.field), "a word for nobody may be a number")
        if rule.nobody:
            seen = Unless(seen, rule.nobody)
        if rule.lookup is not None:
            table, column = rule.lookup.table, rule.lookup.column
            what = f"identity, looked up in {table}"
            rows = self._texts(table, column)
            if not rule.otherwise:
                seen = bare(seen, (key for key, _ in rows))
            seen = InTable(seen, table, rows, ("text",), 0, may_miss=bool(rule.otherwise))
        self._show(dotted_path(rule.field), what)
        if not rule.otherwise:
            return seen
        pieces: list[Node] = [
            Constant(piece, "text") if isinstance(piece, str) else PayloadField(piece, "name")
            for piece in rule.otherwise
        ]
        return FirstOf((seen, Concatenation(tuple(pieces))), "text")

    def _texts(self, table: str, column: str) -> tuple[tuple[str, str], ...]:
        keys = self._keys(table)
        found = ((key, self._tables.lookup(table, key, column)) for key in keys)
        return tuple((key, text) for key, text in found if text)

    def _keys(self, table: str) -> tuple[str, ...]:
        keys = tuple(self._tables.keys(table))
        if len(keys) > MOST_ROWS:
            raise NotColumnsError(table, f"the table has more than {MOST_ROWS:,} rows")
        return keys

    def _value(self, value: ResolvedValue) -> Node:
        rule, place = value.rule, dotted_path(value.rule.field)
        if value.kind != "number":
            self._show(place, value.kind)
            return PayloadField(rule.field, value.kind)
        affine = value.affine
        assert affine is not None
        self._show(place, f"number, {affine.expression('x')}")
        taken = self._number(rule.field, rule.decimal or self._decimal)
        return taken if affine.is_identity else Arithmetic(taken, affine)

    def _placed(self, values: dict[str, Node], origin: OriginRule | None) -> dict[str, Node]:
        """Polar to cartesian, relative to absolute, as `compiler._place` writes it."""
        found = dict(values)
        at: tuple[Node, ...] = ()
        if origin is not None:
            at = self._origin(origin)
        if self._resolved.polar:
            bearing = values["bearing"]
            if origin is not None and origin.heading:
                bearing = Sum(bearing, ((at[2], None),), (False,))
            self._show("place", "bearing and distance", "sine and cosine differ in the last bit")
            polar = (bearing, values["distance"])
            found["x"], found["y"] = (
                StepResult(polar, PolarStep(), ("number", "number"), number) for number in (0, 1)
            )
        elif origin is not None and origin.heading:
            x, y, ahead_x, ahead_y = found["x"], found["y"], at[3], at[4]
            found["x"] = Sum(at[0], ((x, ahead_y), (y, ahead_x)), (False, False))
            found["y"] = Sum(at[1], ((x, ahead_x), (y, ahead_y)), (True, False))
            return found
        if origin is not None:
            for number, name in enumerate(("x", "y")):
                found[name] = Sum(at[number], ((found[name], None),), (False,))
        return found

    def _origin(self, origin: OriginRule) -> tuple[Node, ...]:
        """x, y, and with a heading that and the direction it looks along."""
        units = self._resolved.origin_units
        assert units is not None
        columns = [(origin.x, units[0]), (origin.y, units[0])]
        columns += [(origin.heading, units[1])] if origin.heading else []
        self._show(dotted_path(origin.key), f"place of the device, looked up in {origin.table}")
        rows = origin_rows(self._tables, origin.table, self._keys(origin.table), tuple(columns))
        device = bare(PayloadField(origin.key, "name"), (str(row[0]) for row in rows))
        kinds = ("number",) * (5 if origin.heading else 2)
        return tuple(
            InTable(device, f"{origin.table} as origin", rows, kinds, number)  # type: ignore[arg-type]
            for number in range(len(kinds))
        )

    def _show(self, place: str, what: str, why: str = "") -> None:
        self._steps.append(StepShown(place, what, "arrow" if why else "native", why))


def origin_rows(
    lookups: SiteTables,
    table: str,
    keys: tuple[str, ...],
    columns: tuple[tuple[str, Affine], ...],
    *,
    north: bool = False,
) -> tuple[tuple[object, ...], ...]:
    """Places by key: the numbers of the columns, and where a heading is among them the direction
    it looks along (`north`: also where there is none).

    Rows that cannot be used are left out: who names one is told why by Python.
    """
    find = numbers_finder(lookups, table, columns)
    found = []
    for key in keys:
        try:
            numbers = find(key)
        except RejectedValue:
            continue
        if north and len(numbers) == 2:
            numbers = (*numbers, 0.0)
        ahead = direction(numbers[2]) if len(numbers) > 2 else ()
        found.append((key, *numbers, *ahead))
    return tuple(found)
