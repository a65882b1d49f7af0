"""Conversions as Python functions, called by generated transformers. [ME-4, ME-8]

Values reach a calculation one by one or as attributes of an object, as the signature says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from rapport.core.errors import InterpretationError, InvalidInput, Problem
from rapport.mediation.conversion.conversions import (
    Call,
    Chain,
    Conversion,
    Cut,
    Enumeration,
    Formula,
    Gather,
    Identity,
    Join,
    Lookup,
    Rename,
    Scatter,
    Stateful,
    UnitChange,
    ValueKind,
)
from rapport.mediation.conversion.currencies import ChangeCurrency, currency_calculation
from rapport.mediation.conversion.lookups import (
    ContextLookup,
    ConversionEnvironment,
    TableLookup,
    lookup_calculation,
)
from rapport.mediation.conversion.notations import Notation, notation_calculation
from rapport.mediation.conversion.places import place_calculation
from rapport.mediation.memory import ConversionMemory, Function, Functions
from rapport.mediation.rejections import (
    SHOWN,
    Calculation,
    RejectedValue,
    a_list,
    an_object,
    finite,
    missing,
    null,
    number,
    text,
    type_mismatch,
    unknown_type,
)
from rapport.mediation.types import TAG, Types


def as_function(
    conversion: Conversion, how: ValueKind, calculate: Calculation, types: Types
) -> Callable[..., Any]:
    """Adapts the calculation to the conversion's signature; raises RejectedValue. From object to
    object, attributes that are not taken are kept if the result type has them.
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
            raise RejectedValue(error.code, f"{name}: {error.message}", error.hint) from None

    return careful


def _taken(value: Any, names: Sequence[str], name: str) -> list[Any]:
    found: Mapping[str, Any] = an_object(value, name)
    for each in names:
        if each not in found:
            missing(name, each)
    return [found[each] for each in names]


def _kept(conversion: Conversion, types: Types) -> frozenset[str] | None:
    """The attributes to keep; None: all, since the type does not change."""
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


GENERATED_NAMES: Mapping[str, Any] = {
    "number": number,
    "finite": finite,
    "an_object": an_object,
    "a_list": a_list,
    "missing": missing,
    "null": null,
    "unknown_type": unknown_type,
    "Rejected": RejectedValue,
}
"""The names that generated text uses."""


def callable_of(
    conversion: Conversion,
    functions: Functions,
    memory: ConversionMemory,
    types: Types,
    surroundings: ConversionEnvironment | None = None,
) -> Function:
    """The conversion as a function that returns the result or raises RejectedValue. Exceptions and
    wrong results of site functions become rejections. Raises InterpretationError if a site
    function is missing.
    """
    how = conversion.how
    if isinstance(how, Identity):
        return lambda value: value
    if isinstance(how, (Formula, UnitChange)):
        affine = how.affine()
        return lambda value: finite(affine.apply(number(value, conversion.name)), conversion.name)
    if isinstance(how, Lookup):
        return _lookup(conversion, how)
    if isinstance(how, Enumeration):
        return _lookup(conversion, how.lookup())
    around = surroundings if surroundings is not None else ConversionEnvironment()
    if isinstance(how, Chain):
        return _chain([callable_of(step, functions, memory, types, around) for step in how.steps])
    if isinstance(how, ValueKind):
        calculate = _calculation(conversion, how, memory, types, around)
        return as_function(conversion, how, calculate, types)
    if isinstance(how, (Call, Stateful)):
        return _guarded(conversion, _of_site(conversion, how, functions, memory), types)
    return _structural(conversion, how, types)


def _calculation(
    conversion: Conversion,
    how: ValueKind,
    memory: ConversionMemory,
    types: Types,
    around: ConversionEnvironment,
) -> Calculation:
    kinds = _result_kinds(conversion, how, types)
    if isinstance(how, (TableLookup, ContextLookup)):
        return lookup_calculation(how, conversion.name, kinds, around)
    if isinstance(how, ChangeCurrency):
        return currency_calculation(conversion, how, around, memory)
    if isinstance(how, Notation):
        return notation_calculation(how, conversion.name, kinds)
    return place_calculation(conversion, how, around, memory)


def _result_kinds(conversion: Conversion, how: ValueKind, types: Types) -> list[str]:
    """The kinds of its results, part by part."""
    if len(conversion.results) == 1 and types.is_complex(conversion.result):
        attributes = types.attributes(conversion.result)
        given = [attributes[port.name].type for port in how.gives(1)]
        return [types.kind(each) for each in given]
    return [types.kind(each) for each in conversion.results]


def _structural(
    conversion: Conversion, how: Rename | Join | Cut | Gather | Scatter, types: Types
) -> Function:
    name = conversion.name
    if isinstance(how, Rename):
        return _rename(conversion, how, types)
    if isinstance(how, Join):
        separator = how.separator
        return lambda *values: separator.join([text(value, name) for value in values])
    if isinstance(how, Gather):
        names = how.names
        return lambda *values: dict(zip(names, values, strict=True))
    if isinstance(how, Scatter):
        wanted = how.names
        return lambda value: _scatter(an_object(value, name), wanted, name)
    parts, mark = len(conversion.results), how.separator
    return lambda value: _cut(text(value, name), mark, parts, name)


def _rename(conversion: Conversion, how: Rename, types: Types) -> Function:
    name, result, renamed = conversion.name, conversion.result, dict(how.names)
    if not types.is_complex(result):  # any object
        return lambda value: {
            renamed.get(each, each): one for each, one in an_object(value, name).items()
        }
    given = set(renamed.values())
    declared = types.attributes(result)
    former = {each: each for each in declared if each not in given and each not in renamed}
    former |= {new: old for old, new in how.names if new in declared}

    def rename(value: Any) -> Any:
        found = an_object(value, name)
        return {new: found[old] for new, old in former.items() if old in found}

    return rename


def _scatter(value: dict[str, Any], wanted: tuple[str, ...], name: str) -> Any:
    for each in wanted:
        if each not in value:
            raise RejectedValue("field.missing", f"{name}: there is no attribute {each!r}")
    found = tuple(value[each] for each in wanted)
    return found if len(found) != 1 else found[0]


def _cut(value: str, separator: str, parts: int, name: str) -> Any:
    found = value.split(separator, parts - 1)
    if len(found) != parts:
        raise RejectedValue(
            "value.too_few_parts", f"{name}: {value[:SHOWN]!r} has not {parts} parts"
        )
    return found if parts != 1 else found[0]


def _lookup(conversion: Conversion, how: Lookup) -> Function:
    entries = {(key.__class__ is bool, key): value for key, value in how.entries}
    otherwise = how.otherwise

    def look_up(value: Any) -> Any:
        try:
            found = entries.get((value.__class__ is bool, value), otherwise)
        except TypeError:
            found = otherwise
        if found is msgspec.UNSET:
            message = f"{conversion.name} does not know {str(value)[:SHOWN]!r}"
            raise RejectedValue(
                "lookup.unknown", message, "add it to the look-up, or declare `otherwise`"
            )
        return found

    return look_up


def _chain(steps: list[Function]) -> Function:
    first, *others = steps

    def chained(*values: Any) -> Any:
        found = first(*values)
        for step in others:
            found = step(found)
        return found

    return chained


def _of_site(
    conversion: Conversion, how: Call | Stateful, functions: Functions, memory: ConversionMemory
) -> Function:
    function = functions.get(how.function)
    if function is None:
        raise InterpretationError(
            [
                Problem(
                    code="conversion.unavailable",
                    message=f"conversion {conversion.name}: there is no function {how.function!r}",
                    hint="name a function of the site or an installed plug-in",
                )
            ]
        )
    if isinstance(how, Call):
        return function

    def step(value: Any) -> Any:
        state, result = function(memory.state_of(conversion), value)
        memory.states[conversion.name] = state
        return result

    return step


def _guarded(conversion: Conversion, function: Function, types: Types) -> Function:
    promised = conversion.results
    single = len(promised) == 1
    name = conversion.name

    def guarded(*values: Any) -> Any:
        try:
            found = function(*values)
        except RejectedValue:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {error}"[:200]
            raise RejectedValue("conversion.raised", f"the conversion {name}: {text}") from error
        results = [found] if single else found
        if not isinstance(results, (list, tuple)) or len(results) != len(promised):
            message = f"the conversion {name} gave not {len(promised)} values"
            raise RejectedValue("conversion.bad_result", message)
        for result, reference in zip(results, promised, strict=True):
            fault = type_mismatch(result, reference, types)
            if fault:
                message = f"the conversion {name} gave what it did not promise: {fault}"
                raise RejectedValue("conversion.bad_result", message)
        return found

    return guarded
