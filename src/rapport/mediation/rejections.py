"""Why an event could not be given a meaning. [ME-7, ME-11]

Looking at values before they are used, and saying what is wrong with them. [ME-7, ME-8]

Generated transformers call these, and so do conversions; each raises Rejected, or gives the value.

What a conversion of values takes and gives, by name. [ME-4]

A conversion such as polar to Cartesian works on named values. How they reach it, its signature
says: as attributes of one object (`Polar -> Point`), for rules, or one by one (`deg, m -> m, m`),
for merging and splitting in a mapping.

Whether a value is what a type promises, all the way down: for what functions of the site give.
[ME-4, ME-7]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NoReturn

import msgspec

from rapport.core.event import Event
from rapport.kernel.worker_functions import CallFailed
from rapport.mediation.types import TAG, TypeRef, Types, element_of


class Rejected(CallFailed):
    """Raised inside a transformer; never leaves it. `code` is API and counted."""


class Rejection(msgspec.Struct, frozen=True):
    """A raw event and why it has no meaning yet; `interpretation` is `name@version` or empty."""

    code: str
    message: str
    hint: str
    event: Event
    position: int
    interpretation: str = ""


SHOWN = 60
"""So much of a value is shown in a message."""


def number(value: Any, path: str) -> float:
    """A finite JSON number as a float."""
    if value.__class__ is int or value.__class__ is float:
        return float(value) if is_finite(value) else finite(math.inf, path)
    raise Rejected("value.not_a_number", f"{path} is {_kind(value)}, not a number")


def finite(value: float, path: str) -> float:
    """The number, unless it is NaN or infinite."""
    if math.isfinite(value):
        return value
    raise Rejected("value.not_finite", f"{path} is not a finite number")


def is_finite(value: float) -> bool:
    """Neither NaN nor infinite, nor an integer that no float can hold."""
    try:
        return math.isfinite(value)
    except OverflowError:
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
        f"{path} says it is {str(found)[:SHOWN]!r}, expected {declared} or a subtype",
    )


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    return "null" if value is None else kinds.get(value.__class__, "a number")


def is_of_kind(value: object, kind: str) -> bool:
    """A JSON value is of a kind of type, looked at from outside only."""
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    wanted = {"text": str, "boolean": bool, "object": dict, "list": list}.get(kind, object)
    return isinstance(value, wanted)


PortKind = Literal["number", "integer", "text", "scalar"]
"""`scalar`: text, number or truth value, as the signature says."""


class Port(msgspec.Struct, frozen=True):
    """A value that goes in or comes out; `unit` is what its number is in, if that is known."""

    name: str
    kind: PortKind
    unit: str = ""


def number_ports(*names: str, unit: str = "") -> tuple[Port, ...]:
    """Several numbers of one unit."""
    return tuple(Port(name, "number", unit) for name in names)


Calculation = Callable[..., Sequence[Any]]
"""As many values as the kind takes, to as many as it gives; Rejected or InvalidInput."""


def type_mismatch(value: Any, reference: TypeRef, types: Types, path: str = "") -> str:
    """The first thing that is not as promised, for people; empty: all is.

    Attributes that the type does not have are no fault. Costs about a microsecond per value.
    """
    kind = types.kind(reference)
    if not is_of_kind(value, kind) or (kind in ("number", "integer") and not is_finite(value)):
        return f"{path}{': ' if path else ''}{repr(value)[:SHOWN]} is no {reference}"
    inner = element_of(reference)
    if inner is not None:
        return _first(
            type_mismatch(each, inner, types, f"{path}[{n}]") for n, each in enumerate(value)
        )
    if kind != "object":
        return ""
    actual = value.get(TAG, reference)
    if actual not in types.dynamic(reference):
        return f"{path}{': ' if path else ''}{str(actual)[:SHOWN]!r} is no kind of {reference}"
    return _first(
        _attribute(value.get(name), attribute.type, attribute.optional, types, f"{path}.{name}")
        for name, attribute in types.attributes(actual).items()
    )


def _attribute(value: Any, reference: TypeRef, optional: bool, types: Types, path: str) -> str:
    if value is not None:
        return type_mismatch(value, reference, types, path)
    return "" if optional or types.kind(reference) == "json" else f"{path} is missing"


def _first(faults: Iterable[str]) -> str:
    return next((fault for fault in faults if fault), "")
