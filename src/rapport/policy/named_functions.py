"""Finding a function that a site names: an installed plug-in, or `package.module:function`. [PO-1]

Shared by relationships and measures; each says what it takes for a function of its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from rapport.core.errors import InvalidInput, UnknownName
from rapport.kernel.plugins import Plugins

T = TypeVar("T")


class NamedFunctions(msgspec.Struct, frozen=True):
    """One kind of function: the group of its plug-ins, which begins its error codes too."""

    group: str
    what: str
    """For people: `relationship function`."""
    names: Callable[[], list[str]]
    """Those that need no module."""

    def find(self, name: str, kind: type[T], not_one: InvalidInput) -> T:
        """The function called `name`; raises UnknownName, InvalidInput when its module cannot be
        imported, or `not_one` when it is something else.
        """
        found = self._import(name, kind) if ":" in name else self._installed(name)
        if not isinstance(found, kind):
            raise not_one
        return found

    def _installed(self, name: str) -> Any:
        known = self.names()
        if name not in known:
            raise UnknownName(self.what, name, known, code=f"{self.group}.unknown")
        try:
            return Plugins().get(self.group, name)
        except Exception as error:  # whatever a foreign module raises while it is imported
            raise self._cannot_import(name, error) from error

    def _import(self, name: str, kind: type[Any]) -> Any:
        module_name, _, attribute = name.partition(":")
        try:
            module = importlib.import_module(module_name)
        except Exception as error:  # as above
            raise self._cannot_import(module_name, error) from error
        found = getattr(module, attribute, None)
        if found is None:
            known = [key for key, value in vars(module).items() if isinstance(value, kind)]
            code = f"{self.group}.unknown"
            raise UnknownName(f"function of {module_name}", attribute, known, code=code)
        return found

    def _cannot_import(self, name: str, error: Exception) -> InvalidInput:
        return InvalidInput(
            f"cannot import {name!r}: {type(error).__name__}: {error}",
            code=f"{self.group}.cannot_import",
            hint="the module must be installed, or lie on PYTHONPATH",
        )
