"""Loads a Python file of components and ensembles, as named by a site or a command. [EN-10]

The file is trusted local code: it runs with all rights of this process.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput
from rapport.ensemble.model.component import Component
from rapport.ensemble.model.ensemble import Ensemble
from rapport.ensemble.model.faults import fault_of
from rapport.ensemble.runtime.node_status import RuntimeSettings

_HINT = (
    "the file has classes of ensembles, and `components`: a list, or a function that is given "
    "the node's name and returns one"
)


class Program(msgspec.Struct, frozen=True):
    """The components, ensembles and settings of a file."""

    components: tuple[Component, ...]
    ensembles: tuple[type[Ensemble], ...]
    settings: RuntimeSettings


def load_program(path: Path, node: str) -> Program:
    """Runs the file and takes from it `components`, the ensembles that it defines (or lists in
    `ensembles`) and `settings`, if it has any. Raises InvalidInput (`ensemble.bad_program`).
    """
    module = _run(path)
    settings = getattr(module, "settings", RuntimeSettings())
    if not isinstance(settings, RuntimeSettings):
        raise _bad(path, "settings are not RuntimeSettings(...)")
    return Program(_components(module, path, node), _ensembles(module, path), settings)


def _run(path: Path) -> ModuleType:
    if not path.is_file():
        raise _bad(path, "there is no such file")
    name = f"ensemble_{blake2b(str(path.resolve()).encode(), digest_size=6).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise _bad(path, "its name does not end with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where typing looks up what annotations mean
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        fault = fault_of(error, "ensemble.bad_program")
        where = f" ({fault.place})" if fault.place else ""
        raise _bad(path, f"{fault.message}{where}") from error
    return module


def _components(module: ModuleType, path: Path, node: str) -> tuple[Component, ...]:
    given: Any = getattr(module, "components", None)
    if inspect.isfunction(given):
        try:
            given = given(node)
        except (Exception, SystemExit) as error:
            raise _bad(path, f"components({node!r}): {fault_of(error, '').message}") from error
    found = tuple(given) if isinstance(given, Iterable) else None
    if found is None or not all(isinstance(one, Component) for one in found):
        raise _bad(path, "`components` is missing, or is not a list of components")
    return found


def _ensembles(module: ModuleType, path: Path) -> tuple[type[Ensemble], ...]:
    listed: Any = getattr(module, "ensembles", None)
    if listed is None:
        listed = [
            one
            for one in vars(module).values()
            if _is_ensemble(one) and one.__module__ == module.__name__
        ]
    found = tuple(listed) if isinstance(listed, Iterable) else (None,)
    if not all(_is_ensemble(one) for one in found):
        raise _bad(path, "`ensembles` is not a list of classes of ensembles")
    return found


def _is_ensemble(one: object) -> bool:
    return inspect.isclass(one) and issubclass(one, Ensemble) and one is not Ensemble


def _bad(path: Path, why: str) -> InvalidInput:
    return InvalidInput(f"{path}: {why}", code="ensemble.bad_program", hint=_HINT)
