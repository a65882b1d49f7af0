"""`rapport init DIR`: a small site to start from; never overwrites. [UX-2]"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from rapport.cli.terminal import stderr
from rapport.core.errors import Conflict, InvalidInput

_SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
Template = Literal["empty", "building", "home", "air", "duty", "secure-building"]
_DEMO: Template = "secure-building"


def init(
    directory: Path,
    *,
    template: Annotated[
        Template,
        Parameter(
            help="What to start from: something to fill in, badge readers, a freezer and doors, "
            "air quality, people on duty; or the whole site of the demo."
        ),
    ] = "building",
) -> None:
    """Make a new site directory with recorded readings to try it on."""
    folder = "secure_building/site" if template == _DEMO else f"templates/{template}"
    try:
        if directory.exists() and any(directory.iterdir()):
            raise Conflict(
                f"{directory} is not empty", code="init.not_empty", hint="choose a new directory"
            )
        shutil.copytree(_SCENARIOS / folder, directory, dirs_exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"cannot make {directory}: {error.strerror or error}",
            code="init.cannot_write",
            hint="choose a directory that is new or empty, where you may write",
        ) from None
    out = stderr()
    out.print(f"made {directory} from the template {template}; next:", soft_wrap=True)
    out.print(f"  rapport check --site {directory}", soft_wrap=True)
    if template != _DEMO:
        out.print(f"  rapport replay --site {directory}", soft_wrap=True)
    out.print(f"  rapport up --site {directory}", soft_wrap=True)
