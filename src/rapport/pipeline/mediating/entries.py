"""Entries of look-ups, as far as columns can hold them. [ME-14, PI-4]"""

from __future__ import annotations

from typing import Any

from rapport.pipeline.mediating.nodes import Kind
from rapport.pipeline.mediating.steps import ConversionStep, called


def asked(step: ConversionStep, kinds: tuple[Kind, ...], key: str) -> tuple[Any, ...] | None:
    """What a look-up gives for a key; None when it refuses."""
    return called(step.function(), (key,), kinds)


def one_kind(results: list[Any]) -> Kind | None:
    """The kind that all results are of."""
    classes = {each.__class__ for each in results}
    kinds: dict[type, Kind] = {str: "text", float: "number", int: "integer", bool: "boolean"}
    if len(classes) != 1:
        return None
    found = kinds.get(classes.pop())
    fits = all(-(2**63) <= each < 2**63 for each in results) if found == "integer" else True
    return found if fits else None


def may_equal(key: Any, kind: str) -> bool:
    """A value of this kind can be this key."""
    if kind == "boolean":
        return key.__class__ is bool
    if kind == "text":
        return key.__class__ is str
    return key.__class__ in (int, float) and abs(key) < 2**53
