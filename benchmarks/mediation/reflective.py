"""Mediation as libraries do it by reflection: every event is walked, and for every attribute met
the types are asked and the rule is looked up. [ME-8]

It gives what generated transformers give for mappings without a shape. Patterns are parsed,
conversions bound and rules indexed before the first event; what is left to the event is what
cannot be known without reading the rules ahead: which of them counts where.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rapport.mediation.codegen.runtime import callable_of
from rapport.mediation.interpretations.model import EXPLORE, Direction
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.memory import ConversionMemory
from rapport.mediation.patterns import PathPosition, TypePath
from rapport.mediation.types import TAG, element_of

Convert = Callable[[Any], Any]


class Reflective:
    """One interpretation in one direction; with `remembering`, what was found for a path is kept,
    so that from the second event on nothing is looked up but the path itself.
    """

    def __init__(
        self,
        held: InterpretationRegistry,
        name: str,
        direction: Direction,
        *,
        remembering: bool = False,
    ) -> None:
        scope = held.checked(name).scope
        self._types = scope.types
        self._resolver = held.checked(name).resolver(direction)
        self._conversions = {
            each.name: callable_of(each, {}, ConversionMemory(), scope.types)
            for each in scope.conversions.values()
        }
        self._remembered: dict[TypePath, Convert | None] | None = {} if remembering else None

    def __call__(self, event: Any, type_name: str) -> Any:
        """The event on the other side, or Rejected."""
        return self._seen(event, (PathPosition("", (type_name,)),))

    def _seen(self, value: Any, path: TypePath) -> Any:
        convert = self._found(path)
        if convert is not None:
            return convert(value)
        here = path[-1].type
        inner = element_of(here)
        if inner is not None and isinstance(value, list):
            return [self._seen(item, self._below(path, item, inner)) for item in value]
        if not isinstance(value, dict):
            return value
        attributes = self._types.attributes(here)
        result = {}
        for name, each in value.items():
            if name in attributes and each is not None:
                further = (*path, PathPosition(name, ()))
                each = self._seen(each, self._below(further, each, attributes[name].type))
            result[name] = each
        return result

    def _below(self, path: TypePath, value: Any, declared: str) -> TypePath:
        """The path seen as the type that the value says it has."""
        face = value.get(TAG, declared) if isinstance(value, dict) else declared
        *before, last = path
        return (*before, PathPosition(last.attribute, (*last.faces, face)))

    def _found(self, path: TypePath) -> Convert | None:
        if self._remembered is None:
            return self._look_up(path)
        if path not in self._remembered:
            self._remembered[path] = self._look_up(path)
        return self._remembered[path]

    def _look_up(self, path: TypePath) -> Convert | None:
        rule = self._resolver.winner(path)
        if rule is None or rule.rule.conversion == EXPLORE:
            return None
        return self._conversions[rule.rule.conversion]
