"""A conversion of named values against its signature: is everything there, of the right kind, in
the right unit? [ME-7]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rapport.core.errors import InvalidInput, Problem, nearest_names
from rapport.mediation.model.conversions import Conversion, ValueKind
from rapport.mediation.model.ports import Port
from rapport.mediation.model.types import Attribute, Types
from rapport.units.catalogue import BY_NAME
from rapport.units.quantities import unit_named

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
    """Everything that is wrong between what the kind takes and gives and what is declared."""
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
    """A type that is named by its unit says the unit of its numbers."""
    try:
        said = unit_named(unit)
    except InvalidInput as error:
        yield bad(conversion, error.message, error.hint, error.code)
        return
    known = BY_NAME.get(type_name)
    if known is not None and known.symbol == type_name and known != said:
        hint = f"say {type_name!r}, or name a type of {unit}"
        yield bad(conversion, f"{type_name} is not in {unit}", hint, "unit.mismatch")


def bad(
    conversion: Conversion, reason: str, hint: str = "", code: str = "conversion.signature"
) -> Problem:
    """A fault of a conversion."""
    return Problem(code=code, message=f"conversion {conversion.name}: {reason}", hint=hint)


def suggestion(name: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    """The nearest name as a hint."""
    nearest = nearest_names(name, list(known), 1)
    return f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(list(known)[:8])}"


def _places(
    references: tuple[str, ...], ports: tuple[Port, ...], types: Types
) -> Mapping[str, Attribute] | None:
    """Where each value stands, by its name; None: there are more or fewer than places."""
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
            hint = "only what is always there can be converted"
            yield bad(conversion, f"{port.name!r} may be missing", hint)


def _complete(conversion: Conversion, gives: tuple[Port, ...], types: Types) -> Iterator[Problem]:
    """All that the result must have is given, or stays from the argument."""
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
