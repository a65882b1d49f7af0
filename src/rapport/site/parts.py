"""What the checkers of a site are given: its file, its directory, and what was read of it so far.
[UX-2]"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from rapport.core.errors import Problem
from rapport.kernel.toml import TomlFile
from rapport.policy.compiler.compile import CompiledPolicy
from rapport.policy.ontology import Ontology
from rapport.tables.tables import Tables


class SiteParts(msgspec.Struct, frozen=True, kw_only=True):
    """A site being read. `tables` is None when they could not be loaded; `policies` are those that
    compiled."""

    file: TomlFile
    directory: Path
    ontology: Ontology
    tables: Tables | None
    policies: dict[str, CompiledPolicy]
    texts: dict[str, str]
    """The text of each policy that was read, by name."""


Checker = Callable[[SiteParts], list[Problem]]


def has_errors(problems: list[Problem]) -> bool:
    """True when one of them keeps the site from being used."""
    return any(problem.severity == "error" for problem in problems)
