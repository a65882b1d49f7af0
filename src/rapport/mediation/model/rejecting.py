"""Looking at values before they are used, and saying what is wrong with them. [ME-7, ME-8]

Generated transformers call these, and so do conversions; each raises Rejected, or gives the value.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

from rapport.mediation.rejection import Rejected

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
