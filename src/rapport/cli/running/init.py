"""`rapport init DIR`: a small site to start from; never overwrites. [UX-2]"""

from __future__ import annotations

import shutil
from pathlib import Path

from rapport.cli.terminal import stderr
from rapport.core.errors import Conflict, InvalidInput

_TEMPLATE = Path(__file__).resolve().parents[2] / "scenarios" / "secure_building" / "site"


def init(directory: Path) -> None:
    """Make a new site directory from the secure-building scenario, ready to be changed."""
    try:
        if directory.exists() and any(directory.iterdir()):
            raise Conflict(
                f"{directory} is not empty", code="init.not_empty", hint="choose a new directory"
            )
        shutil.copytree(_TEMPLATE, directory, dirs_exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"cannot make {directory}: {error.strerror or error}",
            code="init.cannot_write",
            hint="choose a directory that is new or empty, where you may write",
        ) from None
    stderr().print(f"made {directory}; next: rapport check --site {directory}", soft_wrap=True)
