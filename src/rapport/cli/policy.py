"""`rapport policy`: a policy as the compiler sees it, stage by stage. [PO-5, PO-8]"""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter

from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import write_bytes

Stage = Literal["parsed", "terms", "ecnf", "tree", "plan", "json", "partitions"]

app = App(name="policy", help="Look at policies as the compiler sees them.")


@app.command
def show(
    name: str,
    *,
    site: SiteOption = None,
    stage: Annotated[Stage, Parameter(help="Which stage to show.")] = "tree",
) -> None:
    """Print one stage of a policy: parsed, own terms in root, normal form, tree, plan, Spark
    partitions."""
    from rapport.policy.compiler.compile import compile_draft
    from rapport.policy.compiler.normalize import ecnf_text
    from rapport.policy.compiler.plan_text import plan_text
    from rapport.policy.language.printer import print_policy
    from rapport.policy.plan import encode_plan
    from rapport.site.site import load_site

    loaded = load_site(site_directory(site), policies=[name])
    plan, written = loaded.policies[name].plan, print_policy(loaded.policies[name].tree)
    draft, _faults = compile_draft(
        written, name=name, ontology=loaded.ontology, window_ms=loaded.window_ms
    )
    if stage == "parsed":
        text = written
    elif stage == "terms":
        rewritten = loaded.policies[name].rewritten
        lines = [f"{each.place.line}: {each.written}  ->  {each.root}" for each in rewritten]
        text = "\n".join(lines) or "written in root's terms"
    elif stage == "ecnf":
        text = ecnf_text(draft.ecnf)
    elif stage == "tree":
        text = draft.logic_tree.text() if draft.logic_tree else ""
    elif stage == "plan":
        text = plan_text(plan)
    elif stage == "json":
        text = encode_plan(plan).decode()
    else:
        from rapport.pipeline.partitioning import explain_partitioning

        text = explain_partitioning(plan, loaded.ontology.sources)
    write_bytes(text.rstrip("\n").encode() + b"\n")
