"""Commands that the package `rapport_lab` adds: simulations, experiments, trace checks. [UX-3]"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

from cyclopts import Parameter

from rapport.core.errors import Unavailable


def lab_command(path: str) -> str:
    """Returns the import path of a command in `rapport_lab`, or of `not_installed` without it."""
    return path if find_spec("rapport_lab") else "rapport.cli.laboratory:not_installed"


def not_installed(
    *_arguments: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],
) -> None:
    """Needs the package rapport-lab."""
    raise Unavailable(
        "this command is part of rapport-lab, which is not installed",
        code="cli.no_laboratory",
        hint="install rapport-lab from the repository: pip install ./lab",
    )
