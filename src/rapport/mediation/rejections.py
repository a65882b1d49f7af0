"""Rejected events, and checks of single values that reject them. [ME-4, ME-7, ME-8, ME-11]

Generated transformers and conversions call the checks; each returns the value or raises Rejected.

A conversion works on named values, its ports. Its signature says how they arrive: as attributes of
one object (`Polar -> Point`), for rules, or one by one (`deg, m -> m, m`), for merges and splits in
a mapping.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NoReturn

import msgspec

from rapport.core.errors import RapportError
from rapport.core.event import Event
from rapport.kernel.worker_client import CallFailed
from rapport.mediation.types import TAG, TypeRef, Types, element_of


class RejectedValue(CallFailed):
    """Raised inside a transformer and caught there. `code` is public and counted."""


class Rejection(msgspec.Struct, frozen=True):
    """A raw event and the reason for its rejection; `interpretation` is `name@version` or
    empty.
    """

    code: str
    message: str
    hint: str
    event: Event
    position: int
    interpretation: str = ""


def reason_of(error: Exception) -> tuple[str, str, str]:
    """Code, message and hint of an error for a rejection, of bounded length."""
    if isinstance(error, (RejectedValue, RapportError)):
        return error.code, error.message[:500], error.hint[:500]
    return "mediation.fault", f"{type(error).__name__}: {error}"[:500], ""


SHOWN = 60
"""Maximum characters of a value in a message."""


def number(value: Any, path: str) -> float:
    """Returns a finite JSON number as a float."""
    if value.__class__ is int or value.__class__ is float:
        return float(value) if is_finite(value) else finite(math.inf, path)
    raise RejectedValue("value.not_a_number", f"{path} is {kind_of_value(value)}, not a number")


def finite(value: float, path: str) -> float:
    """Returns the number; rejects NaN and infinity."""
    if math.isfinite(value):
        return value
    raise RejectedValue("value.not_finite", f"{path} is not a finite number")


def is_finite(value: float) -> bool:
    """False for NaN, infinity and integers too large for a float."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def text(value: Any, path: str) -> str:
    if value.__class__ is str:
        return value
    raise RejectedValue("value.not_text", f"{path} is {kind_of_value(value)}, not text")


def an_object(value: Any, path: str) -> dict[str, Any]:
    if value.__class__ is dict:
        return value
    raise RejectedValue("value.not_an_object", f"{path} is {kind_of_value(value)}, not an object")


def a_list(value: Any, path: str) -> list[Any]:
    if value.__class__ is list:
        return value
    raise RejectedValue("value.not_a_list", f"{path} is {kind_of_value(value)}, not a list")


def missing(path: str, attribute: str) -> NoReturn:
    """Rejects a value without a required attribute."""
    raise RejectedValue("field.missing", f"{path} has no attribute {attribute!r}")


def null(path: str) -> NoReturn:
    """Rejects null in a required attribute."""
    raise RejectedValue("value.null", f"{path} is null", "declare it optional if that may be")


def unknown_type(found: Any, path: str, declared: str) -> NoReturn:
    """Rejects a dynamic type that is not allowed at this path."""
    raise RejectedValue(
        "value.unknown_type",
        f"{path} says it is {str(found)[:SHOWN]!r}, expected {declared} or a subtype",
    )


def kind_of_value(value: Any) -> str:
    """The kind of a JSON value, for messages."""
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    return "null" if value is None else kinds.get(value.__class__, "a number")


def is_of_kind(value: object, kind: str) -> bool:
    """Whether a JSON value has the kind of a type; contents are not inspected."""
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    wanted = {"text": str, "boolean": bool, "object": dict, "list": list}.get(kind, object)
    return isinstance(value, wanted)


PortKind = Literal["number", "integer", "text", "scalar"]
"""`scalar`: text, number or boolean, as the signature says."""


class Port(msgspec.Struct, frozen=True):
    """A value that a conversion takes or returns; `unit` is empty if unknown."""

    name: str
    kind: PortKind
    unit: str = ""


def number_ports(*names: str, unit: str = "") -> tuple[Port, ...]:
    return tuple(Port(name, "number", unit) for name in names)


Calculation = Callable[..., Sequence[Any]]
"""Takes and returns as many values as the kind declares; raises Rejected or InvalidInput."""


def type_mismatch(value: Any, reference: TypeRef, types: Types, path: str = "") -> str:
    """Describes the first mismatch between a value and a declared type; empty if it conforms.
    Undeclared attributes are allowed. Costs about a microsecond per value.
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
