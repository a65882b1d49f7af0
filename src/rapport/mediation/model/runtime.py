"""What generated transformers call: conversions as functions, and explanations when all is not
well. [ME-4, ME-8]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import msgspec

from rapport.core.errors import InterpretationError, Problem
from rapport.mediation.model.conversions import (
    Call,
    Chain,
    Conversion,
    Cut,
    Formula,
    Gather,
    Identity,
    Join,
    Lookup,
    Rename,
    Scatter,
    Stateful,
    UnitChange,
)
from rapport.mediation.model.shaping import is_of_kind
from rapport.mediation.model.types import Types
from rapport.mediation.rejection import Rejected

Function = Callable[..., Any]
Functions = Mapping[str, Function]
"""The site's functions by the names that `Call` and `Stateful` use."""

_SHOWN = 60


class Memory:
    """The states of stateful conversions by name; JSON, so it can be saved and given back."""

    def __init__(self, states: Mapping[str, Any] | None = None) -> None:
        self.states: dict[str, Any] = dict(states or {})

    def state_of(self, conversion: Conversion) -> Any:
        """The present state, at first the initial one."""
        assert isinstance(conversion.how, Stateful)
        if conversion.name not in self.states:
            self.states[conversion.name] = msgspec.json.decode(conversion.how.initial)
        return self.states[conversion.name]

    def feed(self, conversion: Conversion, event: Any, functions: Functions) -> None:
        """Takes in an event of the type the conversion is fed by."""
        how = conversion.how
        assert isinstance(how, Stateful)
        self.states[conversion.name] = functions[how.update](self.state_of(conversion), event)


def callable_of(
    conversion: Conversion, functions: Functions, memory: Memory, types: Types
) -> Function:
    """The conversion as a function that gives the result or raises Rejected.

    Functions of the site are looked at: what they raise is a rejection, what they give must look
    like what they promise. Raises InterpretationError when such a function is not there.
    """
    how = conversion.how
    if isinstance(how, Identity):
        return lambda value: value
    if isinstance(how, (Formula, UnitChange)):
        affine = how.affine()
        return lambda value: finite(affine.apply(number(value, conversion.name)), conversion.name)
    if isinstance(how, Lookup):
        return _lookup(conversion, how)
    if isinstance(how, Chain):
        return _chain([callable_of(step, functions, memory, types) for step in how.steps])
    if isinstance(how, (Call, Stateful)):
        return _guarded(conversion, _of_site(conversion, how, functions, memory), types)
    return _structural(conversion, how)


def _structural(conversion: Conversion, how: Rename | Join | Cut | Gather | Scatter) -> Function:
    name = conversion.name
    if isinstance(how, Rename):
        renamed = dict(how.names)
        return lambda value: {
            renamed.get(each, each): one for each, one in an_object(value, name).items()
        }
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


def _scatter(value: dict[str, Any], wanted: tuple[str, ...], name: str) -> Any:
    for each in wanted:
        if each not in value:
            raise Rejected("field.missing", f"{name}: there is no attribute {each!r}")
    found = tuple(value[each] for each in wanted)
    return found if len(found) != 1 else found[0]


def _cut(value: str, separator: str, parts: int, name: str) -> Any:
    found = value.split(separator, parts - 1)
    if len(found) != parts:
        raise Rejected("value.too_few_parts", f"{name}: {value[:_SHOWN]!r} has not {parts} parts")
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
            message = f"{conversion.name} does not know {str(value)[:_SHOWN]!r}"
            raise Rejected("lookup.unknown", message, "add it to the look-up, or say `otherwise`")
        return found

    return look_up


def _chain(steps: list[Function]) -> Function:
    def chained(value: Any) -> Any:
        for step in steps:
            value = step(value)
        return value

    return chained


def _of_site(
    conversion: Conversion, how: Call | Stateful, functions: Functions, memory: Memory
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
    kinds = [types.kind(each) for each in conversion.results]
    single = len(kinds) == 1
    name = conversion.name

    def guarded(*values: Any) -> Any:
        try:
            found = function(*values)
        except Rejected:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {error}"[:200]
            raise Rejected("conversion.raised", f"the conversion {name}: {text}") from error
        results = [found] if single else found
        if not isinstance(results, (list, tuple)) or len(results) != len(kinds):
            raise Rejected("conversion.bad_result", f"the conversion {name} gave not {len(kinds)}")
        for result, kind in zip(results, kinds, strict=True):
            if not is_of_kind(result, kind) or (kind == "number" and not _is_finite(result)):
                shown = repr(result)[:_SHOWN]
                raise Rejected("conversion.bad_result", f"the conversion {name} gave {shown}")
        return found

    return guarded


def number(value: Any, path: str) -> float:
    """A finite JSON number as a float."""
    if value.__class__ is int or value.__class__ is float:
        return float(value) if _is_finite(value) else finite(math.inf, path)
    raise Rejected("value.not_a_number", f"{path} is {_kind(value)}, not a number")


def finite(value: float, path: str) -> float:
    """The number, unless it is NaN or infinite."""
    if math.isfinite(value):
        return value
    raise Rejected("value.not_finite", f"{path} is not a finite number")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def text(value: Any, path: str) -> str:
    """A JSON text."""
    if value.__class__ is str:
        return value
    raise Rejected("value.not_text", f"{path} is {_kind(value)}, not text")


def an_object(value: Any, path: str) -> dict[str, Any]:
    """A JSON object."""
    if value.__class__ is dict:
        return value
    raise Rejected("value.not_an_object", f"{path} is {_kind(value)}, not an object")


def a_list(value: Any, path: str) -> list[Any]:
    """A JSON list."""
    if value.__class__ is list:
        return value
    raise Rejected("value.not_a_list", f"{path} is {_kind(value)}, not a list")


def missing(path: str, attribute: str) -> NoReturn:
    """A required attribute is not there."""
    raise Rejected("field.missing", f"{path} has no attribute {attribute!r}")


def null(path: str) -> NoReturn:
    """A required attribute is null."""
    raise Rejected("value.null", f"{path} is null", "declare it optional if that may be")


def unknown_type(found: Any, path: str, declared: str) -> NoReturn:
    """The value says a type that cannot stand here."""
    raise Rejected(
        "value.unknown_type",
        f"{path} says it is {str(found)[:_SHOWN]!r}, expected {declared} or a subtype",
    )


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    return "null" if value is None else kinds.get(value.__class__, "a number")
