"""`rapport init`, `check` and `completion`: a new site from a template, all mistakes of a site,
shell completion. [UX-2, UX-3]
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from rapport.cli.arguments import SiteOption, site_directory
from rapport.cli.output import (
    print_note,
    show_problems,
    stderr,
    write_bytes,
    write_json,
)
from rapport.core.errors import Conflict, InvalidInput

_SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"
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


def check(
    *, site: SiteOption = None, json: Annotated[bool, Parameter(help="Problems as JSON.")] = False
) -> int:
    """Find every mistake in a site; exits 1 when there is an error."""
    from rapport.site.site import check_site

    problems = check_site(site_directory(site))
    if json:
        write_json(problems)
    else:
        show_problems(problems)
        counts = {kind: sum(p.severity == kind for p in problems) for kind in ("error", "warning")}
        summary = ", ".join(f"{count} {kind}{'s' * (count != 1)}" for kind, count in counts.items())
        print_note(f"{summary}" if any(counts.values()) else "no problems found")
    return int(any(problem.severity == "error" for problem in problems))


def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print a completion script. bash: `eval "$(rapport completion bash)"` in ~/.bashrc; zsh:
    write it to a file _rapport in $fpath; fish: to ~/.config/fish/completions/rapport.fish.
    """
    from rapport.cli.main import app

    write_bytes(app.generate_completion(prog_name="rapport", shell=shell).encode())
