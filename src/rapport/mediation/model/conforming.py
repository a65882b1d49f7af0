"""Whether a value is what a type promises, all the way down: for what functions of the site give.
[ME-4, ME-7]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rapport.mediation.model.rejecting import SHOWN, is_finite
from rapport.mediation.model.shaping import is_of_kind
from rapport.mediation.model.types import TAG, TypeRef, Types, element_of


def misfit(value: Any, reference: TypeRef, types: Types, path: str = "") -> str:
    """The first thing that is not as promised, for people; empty: all is.

    Attributes that the type does not have are no fault. Costs about a microsecond per value.
    """
    kind = types.kind(reference)
    if not is_of_kind(value, kind) or (kind in ("number", "integer") and not is_finite(value)):
        return f"{path}{': ' if path else ''}{repr(value)[:SHOWN]} is no {reference}"
    inner = element_of(reference)
    if inner is not None:
        return _first(misfit(each, inner, types, f"{path}[{n}]") for n, each in enumerate(value))
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
        return misfit(value, reference, types, path)
    return "" if optional or types.kind(reference) == "json" else f"{path} is missing"


def _first(faults: Iterable[str]) -> str:
    return next((fault for fault in faults if fault), "")
