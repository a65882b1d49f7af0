"""How values reach a calculation and how its results come back: one by one, or as attributes of an
object, as the signature says. [ME-4]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rapport.core.errors import InvalidInput
from rapport.mediation.model.conversions import Conversion, ValueKind
from rapport.mediation.model.rejecting import an_object, missing, null
from rapport.mediation.model.types import TAG, Types
from rapport.mediation.rejection import Rejected

Calculation = Callable[..., Sequence[Any]]
"""As many values as the kind takes, to as many as it gives; Rejected or InvalidInput."""


def passed(
    conversion: Conversion, how: ValueKind, calculate: Calculation, types: Types
) -> Callable[..., Any]:
    """The calculation as the conversion's signature has it; raises Rejected.

    From an object to an object, attributes that are not taken stay if the result's type has them.
    """
    takes = tuple(port.name for port in how.takes(len(conversion.arguments)))
    gives = tuple(port.name for port in how.gives(len(conversion.results)))
    from_object = len(conversion.arguments) == 1 and types.is_complex(conversion.argument)
    to_object = len(conversion.results) == 1 and types.is_complex(conversion.result)
    careful = _careful(calculate, conversion.name)
    if from_object and to_object:
        kept = _kept(conversion, types)
        return lambda value: _replaced(value, kept, takes, gives, careful, conversion.name)
    if from_object:
        return lambda value: _single(careful(*_taken(value, takes, conversion.name)))
    if to_object:
        return lambda *values: dict(zip(gives, careful(*values), strict=True))
    return lambda *values: _single(careful(*values))


def _careful(calculate: Calculation, name: str) -> Calculation:
    def careful(*values: Any) -> Sequence[Any]:
        for value in values:
            if value is None:
                null(name)
        try:
            return calculate(*values)
        except InvalidInput as error:
            raise Rejected(error.code, f"{name}: {error.message}", error.hint) from None

    return careful


def _taken(value: Any, names: Sequence[str], name: str) -> list[Any]:
    found: Mapping[str, Any] = an_object(value, name)
    for each in names:
        if each not in found:
            missing(name, each)
    return [found[each] for each in names]


def _kept(conversion: Conversion, types: Types) -> frozenset[str] | None:
    """The attributes that may stay; None: all, since only values change and not the type."""
    if conversion.argument == conversion.result:
        return None
    return frozenset(types.attributes(conversion.result)) - {TAG}


def _replaced(
    value: Any,
    kept: frozenset[str] | None,
    takes: Sequence[str],
    gives: Sequence[str],
    calculate: Calculation,
    name: str,
) -> dict[str, Any]:
    results = calculate(*_taken(value, takes, name))
    found = {each: one for each, one in value.items() if kept is None or each in kept}
    found.update(zip(gives, results, strict=True))
    return found


def _single(results: Sequence[Any]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)
