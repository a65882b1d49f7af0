"""The stages of a compiled policy as text and as drawings. [PO-5]"""

from __future__ import annotations

from typing import Literal, get_args

from rapport.cli.policies.policy import Stage
from rapport.core.errors import InvalidInput
from rapport.policy.compiler.compile import compile_draft
from rapport.policy.compiler.drawing import draw_logic_tree, draw_plan
from rapport.policy.compiler.normal_form import ecnf_text
from rapport.policy.compiler.plan_text import plan_text
from rapport.policy.compiler.planner import CompilerDraft
from rapport.policy.language.printer import print_policy
from rapport.policy.plan import encode_plan
from rapport.site.site import Site

Drawn = Literal["tree", "plan"]


def stage_text(site: Site, name: str, stage: Stage) -> str:
    """One stage of a policy of the site, for people to read."""
    compiled = site.policies[name]
    match stage:
        case "parsed":
            return print_policy(compiled.tree)
        case "terms":
            lines = [f"{e.place.line}: {e.written}  ->  {e.root}" for e in compiled.rewritten]
            return "\n".join(lines) or "written in root's terms"
        case "ecnf":
            return ecnf_text(_draft(site, name).ecnf)
        case "tree":
            tree = _draft(site, name).logic_tree
            return tree.text() if tree else ""
        case "plan":
            return plan_text(compiled.plan)
        case "json":
            return encode_plan(compiled.plan).decode()
        case "partitions":
            from rapport.pipeline.history.explaining import explain_run

            return "\n".join(explain_run(compiled.plan, site.tables, site.ontology.sources))


def stage_drawing(site: Site, name: str, stage: Stage) -> str:
    """The logic tree or the plan as SVG; raises InvalidInput for other stages."""
    if stage == "plan":
        return draw_plan(site.policies[name].plan, title=f"Plan of {name}")
    tree = _draft(site, name).logic_tree
    if stage == "tree" and tree is not None:
        return draw_logic_tree(tree, title=f"Logic tree of {name}")
    raise InvalidInput(
        f"the stage {stage!r} is text and is not drawn",
        code="cli.not_drawn",
        hint=f"use --svg with --stage {' or '.join(get_args(Drawn))}",
    )


def _draft(site: Site, name: str) -> CompilerDraft:
    """What every stage made of the policy, written in root."""
    written = print_policy(site.policies[name].tree)
    draft, _ = compile_draft(written, name=name, ontology=site.ontology, window_ms=site.window_ms)
    return draft
