"""Plug-ins by entry point: adapters, stores, conversions and others, loaded at first use. [UX-9]"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from rapport.core.errors import DuplicateName, UnknownName

GROUPS = (
    "adapters",
    "inputs",
    "stores",
    "backends",
    "runners",
    "interceptors",
    "conversions",
    "relations",
    "measures",
    "sources",
    "queries",
    "privacy",
)


class Plugins:
    """The built-ins and installed entry points of each group."""

    def __init__(self) -> None:
        self._added: dict[str, dict[str, Callable[..., Any]]] = {group: {} for group in GROUPS}

    def add(self, group: str, name: str, make: Callable[..., Any]) -> None:
        """Registers a built-in; raises DuplicateName when the name is taken."""
        if name in self._group(group):
            raise DuplicateName(f"{group} already has {name!r}")
        self._group(group)[name] = make

    def get(self, group: str, name: str) -> Callable[..., Any]:
        """Loads the built-in or entry point; raises UnknownName with the nearest name."""
        added = self._group(group)
        if name in added:
            return added[name]
        for entry in _installed(group):
            if entry.name == name:
                loaded: Callable[..., Any] = entry.load()
                return loaded
        raise UnknownName(group.removesuffix("s"), name, self.names(group))

    def names(self, group: str) -> list[str]:
        """All names of the group, sorted; loads nothing."""
        return sorted({*self._group(group), *(entry.name for entry in _installed(group))})

    def _group(self, group: str) -> dict[str, Callable[..., Any]]:
        if group not in self._added:
            raise UnknownName("plug-in group", group, GROUPS)
        return self._added[group]


def _installed(group: str) -> Iterator[EntryPoint]:
    yield from entry_points(group=f"rapport.{group}")
