"""`rapport reload`: a running node takes over what its site's files say now. [UX-2, UX-3]"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from cyclopts import Parameter

from rapport.cli.terminal import stderr, stdout, write_json
from rapport.cli.where import HERE, Where


def reload(
    *,
    json: Annotated[bool, Parameter(help="As JSON.", negative="")] = False,
    where: Where = HERE,
) -> None:
    """Have the running node take people, actions, sources, interpretations, tables, ontology and
    policies from the site's files anew; with a fault anywhere nothing changes.
    """
    done = where.remote().post("/reload", b"{}")
    if json:
        write_json(done)
        return
    lines = list(lines_of(done))
    for line in lines or ["everything is as it was"]:
        stdout().print(line, highlight=False, markup=False, soft_wrap=True)
    for warning in done["warnings"]:
        stderr().print(f"warning: {warning}", highlight=False, markup=False, soft_wrap=True)


def lines_of(done: Any) -> Iterator[str]:
    """A line for each change."""
    yield from done["people"]
    for kind in ("action", "source", "interpretation"):
        for name in done[f"{kind}s"]:
            yield f"{kind} {name} changed"
    for one in done["policies"]:
        yield f"policy {one['name']} {one['what']}"
