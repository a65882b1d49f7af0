"""Checks of conversions before the first event: ports, units, zones, patterns, origins, feeds.
[ME-4, ME-7]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise

import msgspec

from rapport.core.errors import InvalidInput, Problem, did_you_mean
from rapport.core.times import zone_named
from rapport.mediation.conversion.conversions import (
    Chain,
    Conversion,
    Cut,
    Enumeration,
    Formula,
    Gather,
    Join,
    Scatter,
    Stateful,
    UnitChange,
    ValueKind,
    plain_steps,
)
from rapport.mediation.conversion.currencies import ChangeCurrency, RateEvents, RateTable
from rapport.mediation.conversion.lookups import ContextLookup, TableLookup
from rapport.mediation.conversion.notations import (
    EPOCH_MILLISECONDS,
    EPOCH_SECONDS,
    ISO,
    ParseTime,
    WriteAngle,
    WriteNumber,
    WriteTime,
)
from rapport.mediation.conversion.places import (
    FixedOrigin,
    MovingOrigin,
    TableOrigin,
    ToAbsolute,
    ToCartesian,
    ToLatLon,
    ToPlan,
    ToPolar,
    ToRelative,
)
from rapport.mediation.interpretations.model import (
    EXPLORE,
)
from rapport.mediation.rejections import Port, is_of_kind
from rapport.mediation.types import (
    Attribute,
    Types,
    innermost,
)
from rapport.units.catalogue import BY_NAME
from rapport.units.coordinates import PlanOrigin
from rapport.units.quantities import converter, unit_named

_TAKEN = {
    "number": ("number", "integer", "json"),
    "integer": ("integer", "number", "json"),
    "text": ("text", "json"),
    "scalar": ("text", "number", "integer", "boolean", "json"),
}
_GIVEN = {
    "number": ("number", "json"),
    "integer": ("integer", "number", "json"),
    "text": ("text", "json"),
    "scalar": ("text", "number", "integer", "boolean", "json"),
}


def check_ports(conversion: Conversion, how: ValueKind, types: Types) -> Iterator[Problem]:
    """Checks the ports of the kind against the declared signature."""
    takes, gives = how.takes(len(conversion.arguments)), how.gives(len(conversion.results))
    taken = _places(conversion.arguments, takes, types)
    given = _places(conversion.results, gives, types)
    if taken is None:
        names = ", ".join(port.name for port in takes)
        yield bad(conversion, f"takes {names}, but {len(conversion.arguments)} arguments are named")
    else:
        yield from _fit(conversion, takes, taken, types, _TAKEN)
    if given is None:
        names = ", ".join(port.name for port in gives)
        yield bad(conversion, f"gives {names}, but {len(conversion.results)} results are named")
    else:
        yield from _fit(conversion, gives, given, types, _GIVEN)
        yield from _complete(conversion, gives, types)


def check_unit(conversion: Conversion, unit: str, type_name: str) -> Iterator[Problem]:
    """Checks the unit against a type that is named after a unit."""
    try:
        declared = unit_named(unit)
    except InvalidInput as error:
        yield bad(conversion, error.message, error.hint, error.code)
        return
    known = BY_NAME.get(type_name)
    if known is not None and known.symbol == type_name and known != declared:
        hint = f"say {type_name!r}, or name a type of {unit}"
        yield bad(conversion, f"{type_name} is not in {unit}", hint, "unit.mismatch")


def bad(
    conversion: Conversion, reason: str, hint: str = "", code: str = "conversion.signature"
) -> Problem:
    return Problem(code=code, message=f"conversion {conversion.name}: {reason}", hint=hint)


def suggestion(name: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    return did_you_mean(name, known, f"there are {', '.join(list(known)[:8])}")


def _places(
    references: tuple[str, ...], ports: tuple[Port, ...], types: Types
) -> Mapping[str, Attribute] | None:
    """The attributes by port name; None if their number differs."""
    if len(references) == 1 and types.is_complex(references[0]):
        return types.attributes(references[0])
    if len(references) != len(ports):
        return None
    return {
        port.name: Attribute(port.name, reference)
        for port, reference in zip(ports, references, strict=True)
    }


def _fit(
    conversion: Conversion,
    ports: tuple[Port, ...],
    places: Mapping[str, Attribute],
    types: Types,
    allowed: Mapping[str, tuple[str, ...]],
) -> Iterator[Problem]:
    for port in ports:
        attribute = places.get(port.name)
        if attribute is None:
            hint = suggestion(port.name, places)
            yield bad(conversion, f"there is no attribute {port.name!r}", hint)
            continue
        kind = types.kind(attribute.type)
        if kind not in allowed[port.kind]:
            yield bad(conversion, f"{port.name!r} is {attribute.type}, expected {port.kind}")
        elif port.unit:
            yield from check_unit(conversion, port.unit, attribute.type)
        if attribute.optional and allowed is _TAKEN:
            hint = "only required attributes can be converted"
            yield bad(conversion, f"{port.name!r} may be missing", hint)


def _complete(conversion: Conversion, gives: tuple[Port, ...], types: Types) -> Iterator[Problem]:
    """Checks that every required attribute of the result is returned or kept from the argument."""
    if len(conversion.results) != 1 or not types.is_complex(conversion.result):
        return
    given = {port.name for port in gives}
    stays: Mapping[str, Attribute] = {}
    if len(conversion.arguments) == 1 and types.is_complex(conversion.argument):
        stays = types.attributes(conversion.argument)
    for name, wanted in types.attributes(conversion.result).items():
        if name in given:
            continue
        found = stays.get(name)
        if found is not None and not types.is_subtype(found.type, wanted.type):
            yield bad(conversion, f"{name!r}: {found.type} is no {wanted.type}")
        elif not wanted.optional and (found is None or found.optional):
            yield bad(conversion, f"does not give {name!r} of {conversion.result}")


_SOME_TIME = datetime(2026, 11, 15, 13, 57, 59, tzinfo=UTC)


def check_kind(conversion: Conversion, types: Types) -> Iterator[Problem]:
    """All faults of a conversion; expects that the types of its signature exist."""
    how = conversion.how
    if isinstance(how, UnitChange):
        yield from check_unit(conversion, how.from_unit, conversion.argument)
        yield from check_unit(conversion, how.to_unit, conversion.result)
    elif isinstance(how, Enumeration):
        yield from _enumeration(conversion, how, types)
    elif isinstance(how, Stateful):
        yield from _stateful(conversion, how, types)
    elif isinstance(how, ValueKind):
        yield from check_ports(conversion, how, types)
        yield from _details(conversion, how, types)


def _details(conversion: Conversion, how: ValueKind, types: Types) -> Iterator[Problem]:
    if isinstance(how, (ParseTime, WriteTime)):
        yield from _times(conversion, how)
    elif isinstance(how, (ToAbsolute, ToRelative)):
        yield from _frames(conversion, how, types)
    elif isinstance(how, (ToPlan, ToLatLon)):
        origin = PlanOrigin(how.latitude, how.longitude, how.range_metres)
        yield from _tried(conversion, origin.check)
        unit = how.to_unit if isinstance(how, ToPlan) else how.unit
        yield from _convertible(conversion, (unit, "m"))
    elif isinstance(how, (ToCartesian, ToPolar)):
        yield from _convertible(conversion, (how.angle_unit, "deg"), (how.unit, how.to_unit))
        yield from _convertible(conversion, (how.unit, "m"))
    elif isinstance(how, ChangeCurrency):
        yield from _currency(conversion, how, types)
    elif isinstance(how, (TableLookup, ContextLookup)):
        yield from _findings(conversion, how)
    elif isinstance(how, (WriteNumber, WriteAngle)) and not 0 <= (how.digits or 0) <= 15:
        yield bad(conversion, f"cannot write {how.digits} digits", "0 to 15")


def _enumeration(conversion: Conversion, how: Enumeration, types: Types) -> Iterator[Problem]:
    if not conversion.is_single:
        yield bad(conversion, "is from one value to one")
        return
    entries = [(two, one) for one, two in how.pairs] if how.backwards else list(how.pairs)
    otherwise = () if how.otherwise is msgspec.UNSET else (how.otherwise,)
    kind = types.kind(conversion.result)
    for value in dict.fromkeys((*(value for _, value in entries), *otherwise)):
        if value is not None and not is_of_kind(value, kind):
            yield bad(conversion, f"{value!r} is no {conversion.result}")
    for group in _repeated([(one, two) for two, one in entries]):
        message = f"{', '.join(map(repr, group[1:]))} all become {group[0]!r}"
        yield _lossy(conversion, message, f"the way back gives {group[1]!r}")
    for group in _repeated(entries):
        message = f"{group[0]!r} stands for {', '.join(map(repr, group[1:]))}"
        yield _lossy(conversion, message, f"{group[1]!r}, the first, counts")


def _repeated(entries: Sequence[tuple[object, object]]) -> Iterator[list[object]]:
    """Each key that occurs several times, followed by its values."""
    groups: dict[tuple[type, object], list[object]] = {}
    for key, value in entries:
        groups.setdefault((key.__class__, key), [key]).append(value)
    yield from (group for group in groups.values() if len(group) > 2)


def _lossy(conversion: Conversion, message: str, hint: str) -> Problem:
    return Problem(
        severity="hint",
        code="conversion.lossy",
        message=f"conversion {conversion.name}: {message}",
        hint=hint,
    )


def _stateful(conversion: Conversion, how: Stateful, types: Types) -> Iterator[Problem]:
    try:
        msgspec.json.decode(how.initial)
    except msgspec.DecodeError:
        yield bad(conversion, "its initial state is not JSON", "such as null, 0 or {}")
    if bool(how.feed) != bool(how.update):
        yield bad(conversion, "needs both `feed` and `update`, or neither")
    if how.feed:
        yield from _feed(conversion, how.feed, (), types)


def _feed(
    conversion: Conversion, feed: str, paths: tuple[str, ...], types: Types
) -> Iterator[Problem]:
    if not types.is_complex(feed):
        hint = suggestion(feed, types.complex_names)
        yield bad(conversion, f"there is no type {feed!r} of events", hint, "type.unknown")
        return
    for path in paths:
        if path and not _has(feed, path, types):
            known = types.attributes(feed)
            yield bad(conversion, f"{feed} has no attribute {path!r}", suggestion(path, known))


def _has(name: str, path: str, types: Types) -> bool:
    attributes = types.attributes(name) if types.is_complex(name) else {}
    if path in attributes:
        return True
    first, _, rest = path.partition(".")
    return bool(rest) and first in attributes and _has(attributes[first].type, rest, types)


def _times(conversion: Conversion, how: ParseTime | WriteTime) -> Iterator[Problem]:
    if how.zone:
        yield from _tried(conversion, lambda: zone_named(how.zone))
    if how.format in (EPOCH_SECONDS, EPOCH_MILLISECONDS):
        parts = conversion.arguments if isinstance(how, ParseTime) else conversion.results
        if max(len(parts), len(how.attributes)) > 1:
            yield bad(conversion, f"{how.format} is one number, not several parts")
        return
    if how.format == ISO:
        return
    try:
        written = _SOME_TIME.strftime(how.format)
        datetime.strptime(written, how.format)  # noqa: DTZ007 - only whether it can be read
    except ValueError as error:
        hint = "iso8601, epoch_s, epoch_ms or a pattern such as %d/%m/%Y %H:%M"
        yield bad(conversion, f"{how.format!r}: {error}", hint, "time.bad_pattern")
        return
    if isinstance(how, ParseTime) and not how.zone and "%z" not in how.format:
        hint = 'declare the zone of local times, such as zone = "Europe/Berlin"'
        yield bad(conversion, f"{how.format!r} has no offset from UTC", hint, "time.no_zone")


def _frames(
    conversion: Conversion, how: ToAbsolute | ToRelative, types: Types
) -> Iterator[Problem]:
    origin = how.origin
    yield from _convertible(conversion, (how.unit, "m"), (how.to_unit, "m"))
    yield from _convertible(conversion, (origin.unit, "m"), (origin.heading_unit, "deg"))
    if isinstance(origin, FixedOrigin):
        if not all(map(math.isfinite, (origin.x, origin.y, origin.heading))):
            yield bad(conversion, "its origin is not finite", code="place.bad_origin")
    elif isinstance(origin, MovingOrigin):
        if bool(origin.key) != bool(origin.feed_key):
            yield bad(conversion, "its origin needs both `key` and `feed_key`, or neither")
        paths = (origin.x, origin.y, origin.heading, origin.time, origin.feed_key)
        yield from _feed(conversion, origin.feed, paths, types)


def _currency(conversion: Conversion, how: ChangeCurrency, types: Types) -> Iterator[Problem]:
    rates = how.rates
    if not how.to or not rates.base:
        yield bad(conversion, "does not say to which currency, or what its rates are based on")
    if how.digits is not None and not 0 <= how.digits <= 15:
        yield bad(conversion, f"cannot round to {how.digits} digits", "0 to 15")
    if isinstance(rates, RateEvents):
        yield from _feed(conversion, rates.feed, (rates.currency, rates.rate, rates.time), types)
    else:
        yield from _tried(conversion, lambda: zone_named(rates.zone))


def _findings(conversion: Conversion, how: TableLookup | ContextLookup) -> Iterator[Problem]:
    count = len(how.columns if isinstance(how, TableLookup) else how.parts)
    if not count:
        yield bad(conversion, "has no column or part", "name a column, or the parts of the value")
    if isinstance(how, TableLookup) and how.attributes and len(how.attributes) != count:
        yield bad(conversion, f"names {len(how.attributes)} attributes for {count} columns")
    if how.otherwise is not msgspec.UNSET and len(how.otherwise) != count:
        yield bad(conversion, f"`otherwise` has not {count} values")


def _convertible(conversion: Conversion, *pairs: tuple[str, str]) -> Iterator[Problem]:
    for one, other in pairs:
        yield from _tried(conversion, partial(converter, one, other))


def _tried(conversion: Conversion, attempt: Callable[[], object]) -> Iterator[Problem]:
    try:
        attempt()
    except InvalidInput as error:
        yield bad(conversion, error.message, error.hint, error.code)


def check_conversion(conversion: Conversion, types: Types) -> Iterator[Problem]:
    """All faults of a conversion: its signature, then its kind."""
    name = conversion.name
    for reference in (*conversion.arguments, *conversion.results):
        if reference not in types:
            yield bad(conversion, f"there is no type {reference!r}", "", "type.unknown")
            return
    if not conversion.arguments or not conversion.results:
        yield bad(conversion, "has no argument or no result")
        return
    how = conversion.how
    kinds = [types.kind(each) for each in (*conversion.arguments, *conversion.results)]
    if isinstance(how, (Formula, UnitChange)):
        yield from _numbers(conversion, how, kinds)
    elif isinstance(how, (Join, Cut)) and any(kind != "text" for kind in kinds):
        yield bad(conversion, "joins and cuts texts only")
    elif isinstance(how, Cut) and not how.separator:
        yield bad(conversion, "has an empty separator")
    elif isinstance(how, (Gather, Scatter)):
        yield from _object_parts(conversion, how, types)
    elif isinstance(how, Chain):
        yield from _chained(conversion, how, types)
    yield from check_kind(conversion, types)
    if name == EXPLORE or not name:
        yield bad(conversion, "needs a name")


def _chained(conversion: Conversion, how: Chain, types: Types) -> Iterator[Problem]:
    """The first step may take several values and the last return several; in between it is one."""
    steps = how.steps
    if not steps:
        yield bad(conversion, "has no steps")
        return
    ends = (steps[0].arguments, steps[-1].results)
    if ends != (conversion.arguments, conversion.results):
        message = f"chains ({', '.join(ends[0])}) -> {', '.join(ends[1])}"
        yield bad(conversion, message)
    for one, other in pairwise(steps):
        fits = len(one.results) == len(other.arguments) == 1
        if not fits or not types.is_subtype(one.result, other.argument):
            found, wanted = ", ".join(one.results), ", ".join(other.arguments)
            message = f"{one.name} gives {found}, {other.name} takes {wanted}"
            yield bad(conversion, message)
    for step in steps:
        yield from check_conversion(step, types)


def _numbers(
    conversion: Conversion, how: Formula | UnitChange, kinds: Sequence[str]
) -> Iterator[Problem]:
    if any(kind not in ("number", "integer") for kind in kinds) or kinds[-1] == "integer":
        yield bad(conversion, "is arithmetic from a number to a number")
    try:
        affine = how.affine()
    except InvalidInput as error:
        yield bad(conversion, error.message, error.hint, error.code)
        return
    if affine.divide == 0 or not all(
        map(math.isfinite, (affine.multiply, affine.add, affine.divide))
    ):
        yield bad(conversion, "divides by zero or is not finite", "", "conversion.formula")


def _object_parts(conversion: Conversion, how: Gather | Scatter, types: Types) -> Iterator[Problem]:
    gathers = isinstance(how, Gather)
    whole = conversion.results[0] if gathers else conversion.arguments[0]
    values = conversion.arguments if gathers else conversion.results
    attributes = types.attributes(innermost(whole)) if types.is_complex(whole) else {}
    if len(values) != len(how.names) or any(name not in attributes for name in how.names):
        yield bad(conversion, f"names attributes that {whole} lacks")
        return
    for name, value in zip(how.names, values, strict=True):
        inner, outer = (value, attributes[name].type) if gathers else (attributes[name].type, value)
        if not types.is_subtype(inner, outer):
            yield bad(conversion, f"{name!r}: {inner} is no {outer}")
    missing = [each.name for each in attributes.values() if not each.optional]
    if gathers and set(missing) - set(how.names):
        yield bad(conversion, f"does not give all of {whole}")


def check_references(
    conversions: Iterable[Conversion],
    tables: Mapping[str, tuple[str, ...]],
    concepts: Mapping[str, Iterable[str]],
) -> list[Problem]:
    """Reports unknown tables, columns, concepts and attributes, with the nearest name.
    `tables`: as from `Tables.columns()`; `concepts`: with the names of their attributes.
    """
    return list(
        dict.fromkeys(
            problem
            for conversion in conversions
            for step in plain_steps(conversion)
            for problem in _check(step, tables, concepts)
        )
    )


def _check(
    conversion: Conversion,
    tables: Mapping[str, tuple[str, ...]],
    concepts: Mapping[str, Iterable[str]],
) -> Iterator[Problem]:
    how = conversion.how
    if isinstance(how, ContextLookup):
        yield from _concept(conversion, how, concepts)
        return
    table, columns = _table_of(conversion)
    if not table:
        return
    if table not in tables:
        hint = suggestion(table, tables) if tables else "declare it in the site file"
        yield bad(conversion, f"there is no table {table!r}", hint, "lookup.unknown_table")
        return
    for column in columns:
        if column not in tables[table]:
            hint = suggestion(column, tables[table])
            message = f"table {table!r} has no column {column!r}"
            yield bad(conversion, message, hint, "lookup.unknown_column")


def _table_of(conversion: Conversion) -> tuple[str, tuple[str, ...]]:
    how = conversion.how
    if isinstance(how, TableLookup):
        return how.table, how.columns
    if isinstance(how, (ToAbsolute, ToRelative)) and isinstance(how.origin, TableOrigin):
        origin = how.origin
        heading = (origin.heading,) if origin.heading else ()
        return origin.table, (origin.x, origin.y, *heading)
    if isinstance(how, ChangeCurrency) and isinstance(how.rates, RateTable):
        rates = how.rates
        return rates.table, (rates.currency, rates.rate, rates.valid_from)
    return "", ()


def _concept(
    conversion: Conversion, how: ContextLookup, concepts: Mapping[str, Iterable[str]]
) -> Iterator[Problem]:
    if how.concept not in concepts:
        hint = suggestion(how.concept, concepts) if concepts else ""
        message = f"there is no concept {how.concept!r}"
        yield bad(conversion, message, hint, "lookup.unknown_concept")
    elif how.attribute not in concepts[how.concept]:
        hint = suggestion(how.attribute, tuple(concepts[how.concept]))
        message = f"the concept {how.concept!r} has no attribute {how.attribute!r}"
        yield bad(conversion, message, hint, "lookup.unknown_attribute")
