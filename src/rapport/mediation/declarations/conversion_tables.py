"""Reads the conversions of an interpretation from their tables. [ME-4, ME-10]

The key of a conversion's kind is its tag, and the keys below it are its fields (`struct_reader`).
Kinds with a shorter notation have a reader of their own in `_READERS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

import msgspec

from rapport.kernel.config_fields import Fields, suggest
from rapport.mediation.conversion.conversions import (
    Call,
    Chain,
    Conversion,
    Enumeration,
    Formula,
    Gather,
    How,
    Identity,
    Lookup,
    Rename,
    Scatter,
    Stateful,
    UnitChange,
)
from rapport.mediation.conversion.lookups import Scalar
from rapport.mediation.declarations.placed_values import FAULT_CODES, is_scalar, strict_fields
from rapport.mediation.declarations.type_tables import TypeNames
from rapport.mediation.types import TypeRef
from rapport.units.catalogue import BY_NAME

_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
OWN_KEYS = ("from", "to")
"""Keys of a conversion besides that of its kind."""


KindReader = Callable[[Fields, str, "ConversionTableReader"], How | None]


def _tag(kind: type[Any]) -> str:
    return str(kind.__struct_config__.tag)


def struct_reader(kind: type[Any]) -> KindReader:
    """Reads a table whose keys are the fields of a struct; a struct with one field also without
    a table.
    """

    def read(fields: Fields, key: str, _tables: ConversionTableReader) -> How | None:
        value = fields.section.values[key]
        known = msgspec.structs.fields(kind)
        if not isinstance(value, dict):
            value = {known[0].name: value} if known and value is not True else {}
        else:
            strict_fields(
                fields.section.section(key), fields.problems, [each.name for each in known]
            )
        if not _is_sayable(value):
            fields.wrong(key, "made of plain finite values", f"{key} = {{ ... }}")
            return None
        try:
            made: How = msgspec.convert({**value, "type": _tag(kind)}, kind)
        except msgspec.ValidationError as error:
            message = f"{key!r} does not fit: {error}"
            fields.fault(key, FAULT_CODES.wrong_type, message, hint=f"keys: {_shown_fields(kind)}")
            return None
        return made

    return read


def _units(fields: Fields, key: str, _tables: ConversionTableReader) -> How | None:
    value = fields.section.values[key]
    if isinstance(value, dict):
        table = strict_fields(fields.section.section(key), fields.problems, OWN_KEYS)
        pair = [table.filled_text(each, example='"degF"') for each in OWN_KEYS]
    else:
        pair = list(fields.texts(key, example='["degF", "degC"]'))
    if len(pair) != 2:
        fields.wrong(key, "two units", f'{key} = ["degF", "degC"]')
        return None
    unknown = [unit for unit in pair if unit and unit not in BY_NAME]
    for unit in unknown:
        message = f"there is no unit named {unit[:40]!r}"
        fields.fault(key, "unit.unknown", message, hint=suggest(unit, BY_NAME))
    if unknown or not all(pair):
        return None
    first, second = (BY_NAME[unit] for unit in pair)
    if first.dimension != second.dimension:
        message = f"{pair[0]} is a {first.dimension}, {pair[1]} is a {second.dimension}"
        fields.fault(key, "unit.mismatch", message, hint="units of one dimension can be changed")
        return None
    return UnitChange(first.symbol, second.symbol)


def _formula(fields: Fields, key: str, _tables: ConversionTableReader) -> How | None:
    known = ("multiply", "add", "divide")
    table = fields.table(key, known, "{ multiply = 5, divide = 9 }")
    if table is None:
        return None
    numbers = {name: _number(table, name) for name in known if table.has(name)}
    if any(number is None for number in numbers.values()):
        return None
    made = Formula(**{name: float(number or 0.0) for name, number in numbers.items()})
    if made.divide == 0:
        table.fault("divide", "conversion.formula", "divides by zero", hint="divide = 9")
        return None
    return made


def _listed(fields: Fields, key: str, _tables: ConversionTableReader) -> How | None:
    """A look-up or an enumeration: pairs of keys and values, and the value for other keys."""
    is_lookup = key == "lookup"
    known = (
        ("entries", "otherwise") if is_lookup else ("pairs", "entries", "otherwise", "backwards")
    )
    listing = "entries" if is_lookup else "pairs"
    table = fields.table(key, known, f'{{ {listing} = {{ N = "north" }} }}')
    if table is None:
        return None
    pairs = _pairs(table, "entries" if table.has("entries") else listing, '{ N = "north" }')
    otherwise = table.section.values.get("otherwise", msgspec.UNSET)
    if otherwise is not msgspec.UNSET and not is_scalar(otherwise):
        table.wrong("otherwise", "a text, a number, true or false", 'otherwise = "other"')
        return None
    if is_lookup:
        return Lookup(pairs, otherwise) if pairs is not None else None
    backwards = table.flag("backwards")
    return Enumeration(pairs, otherwise, backwards) if pairs is not None else None


def _rename(fields: Fields, key: str, _tables: ConversionTableReader) -> How | None:
    example = '{ xValue = "x", yValue = "y" }'
    pairs = _pairs(fields, key, example)
    if pairs is None:
        return None
    if not all(isinstance(each, str) and each for pair in pairs for each in pair):
        fields.wrong(key, "a table of names", f"{key} = {example}")
        return None
    return Rename(tuple((str(old), str(new)) for old, new in pairs))


def _attributes(kind: type[Gather | Scatter]) -> KindReader:
    def read(fields: Fields, key: str, _tables: ConversionTableReader) -> How | None:
        return kind(fields.texts(key, example='["x", "y"]'))

    return read


def _call(fields: Fields, key: str, _tables: ConversionTableReader) -> How | None:
    if isinstance(fields.section.values[key], dict):
        table = fields.table(key, ("function",), '{ function = "package.module:function" }')
        return Call(_function(table, "function")) if table else None
    return Call(_function(fields, key))


def _stateful(fields: Fields, key: str, tables: ConversionTableReader) -> How | None:
    known = ("call", "initial", "feed", "update")
    table = fields.table(key, known, '{ call = "package.module:function", initial = 0 }')
    if table is None:
        return None
    initial = table.section.values.get("initial")
    feed = table.filled_text("feed", "")
    if not _is_sayable(initial):
        table.wrong("initial", "a plain value", "initial = { x = 0 }")
        return None
    return Stateful(
        _function(table, "call"),
        msgspec.json.encode(initial),
        tables.names.reference(table, "feed", feed) if feed else "",
        _function(table, "update") if table.has("update") else "",
    )


def _chain(fields: Fields, key: str, tables: ConversionTableReader) -> How | None:
    value = fields.section.values[key]
    example = f'{key} = ["to-kelvin", "to-celsius"]'
    if not isinstance(value, list) or not value:
        fields.wrong(key, "a list of conversions", example)
        return None
    steps: list[Conversion | None] = []
    for number, step in enumerate(value):
        if isinstance(step, str):
            steps.append(tables.named(fields, key, step))
        elif isinstance(step, dict):
            section = fields.section.section(key)
            below = type(section)(section.file, (*section.path, f"[{number}]"), step)
            steps.append(
                tables.read(f"step {number + 1}", strict_fields(below, fields.problems, None))
            )
        else:
            fields.wrong(key, "a list of conversions", example)
            return None
    whole = [step for step in steps if step is not None]
    return Chain(tuple(whole)) if len(whole) == len(steps) else None


def _identity(fields: Fields, key: str, _tables: ConversionTableReader) -> How | None:
    if not fields.flag(key):
        fields.wrong(key, "true", f"{key} = true")
    return Identity()


_READERS: Mapping[str, KindReader] = {
    "units": _units,
    "formula": _formula,
    "lookup": _listed,
    "enumeration": _listed,
    "rename": _rename,
    "gather": _attributes(Gather),
    "scatter": _attributes(Scatter),
    "call": _call,
    "chain": _chain,
    "identity": _identity,
    "stateful": _stateful,
}

KINDS: Mapping[str, KindReader] = {
    **{_tag(kind): struct_reader(kind) for kind in get_args(How)},
    **_READERS,
}
"""Readers by the key of the kind."""


def _function(fields: Fields, key: str) -> str:
    name = fields.filled_text(key, example='"package.module:function"')
    if name and not _FUNCTION.fullmatch(name):
        message = f"{name[:60]!r} names no function"
        fields.fault(key, "interpretation.unknown_conversion", message, hint="package.module:name")
    return name


def _pairs(fields: Fields, key: str, example: str) -> tuple[tuple[Scalar, Scalar], ...] | None:
    """Reads a table, or a list of pairs if keys are not texts."""
    value = fields.section.values.get(key)
    if isinstance(value, dict):
        if "entries" in value and isinstance(value["entries"], list):
            value = value["entries"]
        else:
            value = [[old, new] for old, new in value.items()]
    if isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(map(is_scalar, pair)) for pair in value
    ):
        return tuple((pair[0], pair[1]) for pair in value)
    fields.wrong(key, "a table, or a list of pairs", f"{key} = {example}")
    return None


def _number(fields: Fields, key: str) -> float | None:
    value = fields.section.values[key]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and is_scalar(value):
        return float(value)
    fields.wrong(key, "a number", f"{key} = 1.8")
    return None


def _is_sayable(value: object) -> bool:
    """Whether JSON can represent it."""
    if isinstance(value, dict):
        return all(_is_sayable(each) for each in value.values())
    return all(map(_is_sayable, value)) if isinstance(value, list) else is_scalar(value)


def _shown_fields(kind: type[Any]) -> str:
    return ", ".join(each.name for each in msgspec.structs.fields(kind)) or "none"


class ConversionTableReader:
    """Reads the conversions of one interpretation; steps of chains are read on demand."""

    def __init__(
        self, table: Fields | None, names: TypeNames, above: Mapping[str, Conversion]
    ) -> None:
        self.names = names
        self._table, self._above = table, above
        self._found: dict[str, Conversion | None] = {}

    def all(self) -> tuple[Conversion, ...]:
        """In the order of the file, without faulty ones."""
        if self._table is None:
            return ()
        found = [self.own(name) for name in self._table.section.values]
        return tuple(each for each in found if each is not None)

    def own(self, name: str) -> Conversion | None:
        """A conversion of this table; None while it is being read or if it is faulty."""
        if self._table is not None and name not in self._found:
            self._found[name] = None
            self._found[name] = self._read(self._table, name)
        return self._found.get(name)

    def named(self, fields: Fields, key: str, name: str) -> Conversion | None:
        """A step of a chain, from this table or a parent's; any other name is a fault."""
        known = (*(self._table.section.values if self._table else ()), *self._above)
        if name not in known:
            message = f"there is no conversion {name[:60]!r}"
            fields.fault(key, "rule.unknown_conversion", message, hint=suggest(name, known))
            return None
        if self._table is None or name not in self._table.section.values:
            return self._above[name]
        begun = name in self._found
        found = self.own(name)
        if found is None and begun:
            message = f"the step {name[:60]!r} leads back to itself, or has a fault"
            hint = "a chain is made of other conversions"
            fields.fault(key, "conversion.signature", message, hint=hint)
        return found

    def _read(self, table: Fields, name: str) -> Conversion | None:
        value = table.section.values[name]
        if not isinstance(value, dict):
            table.wrong(name, "a table", f'{name} = {{ units = ["degF", "degC"] }}')
            return None
        if not name:
            table.fault(name, "conversion.signature", "a conversion needs a name")
        return self.read(name, strict_fields(table.section.section(name), table.problems, None))

    def read(self, name: str, fields: Fields) -> Conversion | None:
        """Reads one conversion; missing `from` and `to` are inferred from the rules that
        use it.
        """
        kinds = [key for key in fields.section.values if key not in OWN_KEYS]
        faults = len(fields.problems)
        for key in kinds:
            if key not in KINDS:
                message = f"there is no kind of conversion {key[:40]!r}"
                hint = suggest(key, (*KINDS, *OWN_KEYS), most=20)
                fields.fault(key, FAULT_CODES.unknown_key, message, hint=hint)
        if len(kinds) != 1:
            message = f"the conversion {name[:40]!r} needs one kind, has {len(kinds)}"
            hint = f"one of {', '.join(KINDS)}"
            fields.fault("", "interpretation.missing_key", message, hint=hint)
        if len(fields.problems) > faults:
            return None
        how = KINDS[kinds[0]](fields, kinds[0], self)
        taken, given = self._types(fields, "from"), self._types(fields, "to")
        if how is None:
            return None
        usual = self._usual_types(how)
        return Conversion(name, taken or usual[:1], given or usual[1:], how)

    def _types(self, fields: Fields, key: str) -> tuple[TypeRef, ...]:
        written = fields.texts(key, (), example='"number"')
        return tuple(self.names.reference(fields, key, each) for each in written)

    def _usual_types(self, how: How) -> tuple[TypeRef, ...]:
        """Argument and result types that need not be declared."""
        if isinstance(how, Identity):
            return ("json", "json")
        if isinstance(how, UnitChange):
            return (self.names.add_unit(how.from_unit), self.names.add_unit(how.to_unit))
        return ()
