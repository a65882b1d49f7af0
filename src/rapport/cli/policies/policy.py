"""`rapport policy`: a policy as the compiler sees it, stage by stage. [PO-3, PO-5, PO-8]"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from rapport.cli.files import cannot_write
from rapport.cli.policies.life import add_to
from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import write_bytes

Stage = Literal["parsed", "terms", "ecnf", "tree", "plan", "json", "partitions"]

app = App(name="policy", help="Look at policies, format them, and change them while events flow.")
add_to(app)


@app.command
def show(
    name: str,
    *,
    site: SiteOption = None,
    stage: Annotated[Stage, Parameter(help="Which stage to show.")] = "tree",
    svg: Annotated[bool, Parameter(help="Draw it: the tree or the plan.", negative="")] = False,
    out: Annotated[Path | None, Parameter(help="File to write to instead of stdout.")] = None,
) -> None:
    """Print one stage of a policy: parsed, own terms in root, normal form, tree, plan, Spark
    partitions."""
    from rapport.cli.policies.stages import stage_drawing, stage_text
    from rapport.site.site import load_site

    loaded = load_site(site_directory(site), policies=[name])
    text = stage_drawing(loaded, name, stage) if svg else stage_text(loaded, name, stage)
    raw = text.rstrip("\n").encode() + b"\n"
    if out is None:
        write_bytes(raw)
        return
    try:
        out.write_bytes(raw)
    except OSError as error:
        raise cannot_write(out, error) from None


@app.command
def fmt(
    *files: Path,
    site: SiteOption = None,
    check: Annotated[
        bool, Parameter(negative="", help="Write nothing; exit 1 when a file would change.")
    ] = False,
) -> int:
    """Rewrite policy files in canonical form, comments kept; all of the site's when none is
    named."""
    from rapport.cli.policies.format import format_files

    return format_files(files, site_directory(site), check=check)


@app.command
def similar(
    name: str,
    *,
    site: SiteOption = None,
    limit: Annotated[int, Parameter(help="At most so many.")] = 10,
    json: Annotated[bool, Parameter(help="As JSON.")] = False,
) -> None:
    """List the policies that speak of the same things as this one, most alike first."""
    from rapport.cli.policies.similar import show_similar

    show_similar(name, site_directory(site), limit=limit, as_json=json)
