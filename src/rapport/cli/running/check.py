"""`rapport check`: every mistake of a site, before anything runs. [UX-2]"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import show_problem, stderr, write_json


def check(
    *, site: SiteOption = None, json: Annotated[bool, Parameter(help="Problems as JSON.")] = False
) -> int:
    """Find every mistake in a site; exits 1 when there is an error."""
    from rapport.site.site import check_site

    problems = check_site(site_directory(site))
    if json:
        write_json(problems)
    else:
        for problem in problems:
            show_problem(problem)
        counts = {kind: sum(p.severity == kind for p in problems) for kind in ("error", "warning")}
        summary = ", ".join(f"{count} {kind}{'s' * (count != 1)}" for kind, count in counts.items())
        stderr().print(f"{summary}" if any(counts.values()) else "no problems found")
    return int(any(problem.severity == "error" for problem in problems))
