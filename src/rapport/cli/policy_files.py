"""Compiler stages as text and drawings, `rapport policy fmt` and `rapport policy similar`; separate
from `policy.py` because it imports the compiler. [PO-3, PO-5, PO-12, UX-2]
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from rapport.cli.hints import NO_POLICIES, unknown, wrong_use
from rapport.cli.output import print_note, show_problems, write_json, write_table
from rapport.cli.policy import Stage
from rapport.core.errors import InvalidInput, PolicyError, Problem, StoreUnavailable
from rapport.kernel.files import atomic_replacement
from rapport.kernel.toml import TomlFile
from rapport.policy.compiler.compile import (
    CompiledConditions,
    CompiledSituation,
)
from rapport.policy.compiler.normal_form import ecnf_text
from rapport.policy.compiler.plan_drawing import draw_logic_tree, draw_plan
from rapport.policy.compiler.plan_text import plan_text
from rapport.policy.language.formatter import format_policy
from rapport.policy.language.printer import print_policy
from rapport.policy.language.situation_printer import print_situation
from rapport.policy.lint.policy_set import features, most_similar
from rapport.policy.plan import Plan, PolicyPlan, conditions_plan, encode_plan
from rapport.site.policies import PolicyFile, placed, policy_files, read_policy
from rapport.site.site import SITE_FILE, Site, load_site

Drawn = Literal["tree", "plan"]


def stage_text(site: Site, name: str, stage: Stage) -> str:
    """One stage of a policy of the site, for people to read."""
    compiled = site.policies[name]
    if isinstance(compiled, CompiledSituation):
        return _stage_of_situation(site, compiled, stage)
    match stage:
        case "parsed":
            return print_policy(compiled.tree)
        case "terms":
            lines = [f"{e.place.line}: {e.written}  ->  {e.root}" for e in compiled.rewritten]
            return "\n".join(lines) or "written in root's terms"
        case "ecnf":
            return ecnf_text(compiled.ecnf)
        case "tree":
            return compiled.logic_tree.text()
        case "plan":
            return plan_text(compiled.plan)
        case "json":
            return encode_plan(compiled.plan).decode()
        case "partitions":
            return _partitions_text(site, compiled.plan)


def _partitions_text(site: Site, plan: PolicyPlan) -> str:
    from rapport.pipeline.history.runner import explain_run

    return "\n".join(explain_run(plan, site.tables, site.ontology.sources))


def _stage_of_situation(site: Site, compiled: CompiledSituation, stage: Stage) -> str:
    """Raises InvalidInput for the stages of policies with conditions."""
    match stage:
        case "parsed":
            return print_situation(compiled.tree)
        case "tree" | "plan":
            return plan_text(compiled.plan)
        case "json":
            return encode_plan(compiled.plan).decode()
        case "partitions":
            return _partitions_text(site, compiled.plan)
        case _:
            raise InvalidInput(
                f"a policy with a situation has no stage {stage!r}",
                code="cli.no_stage",
                hint="use --stage parsed, plan, json or partitions",
            )


def stage_drawing(site: Site, name: str, stage: Stage) -> str:
    """The logic tree or the plan as SVG; raises InvalidInput for other stages, Unsupported for a
    situation."""
    compiled = site.policies[name]
    plan = conditions_plan(compiled.plan, "drawings")
    if stage == "plan":
        return draw_plan(plan, title=f"Plan of {name}")
    if stage == "tree" and isinstance(compiled, CompiledConditions):
        return draw_logic_tree(compiled.logic_tree, title=f"Logic tree of {name}")
    raise InvalidInput(
        f"the stage {stage!r} is text and is not drawn",
        code="cli.not_drawn",
        hint=f"use --svg with --stage {' or '.join(get_args(Drawn))}",
    )


def format_files(files: Sequence[Path], site: Path, *, check: bool) -> int:
    """Rewrites the files, all policies of the site when none is named; prints those that changed.

    With `check` nothing is written. Returns 1 when a file is faulty, which leaves it untouched, or
    would change under `check`.
    """
    policies, faulty = _of_site(site) if not files else ([_of_path(path) for path in files], False)
    changed = 0
    for policy in policies:
        text, problems = read_policy(policy)
        formatted = text
        if text is not None:
            formatted, problems = _formatted(policy, text)
        show_problems(problems)
        faulty = faulty or bool(problems)
        if formatted is None or formatted == text:
            continue
        changed += 1
        if not check:
            _replace(policy.path.resolve(), formatted.encode())
        print(policy.shown)
    _summarize(len(policies), changed, check=check)
    return int(faulty or (check and changed > 0))


def _of_site(site: Path) -> tuple[list[PolicyFile], bool]:
    """The policies of a site, and whether what names them is faulty."""
    file = TomlFile.load(site / SITE_FILE, name=SITE_FILE)
    found, _window_ms, problems = policy_files(file, site)
    return list(found.values()), show_problems(problems)


def _of_path(path: Path) -> PolicyFile:
    return PolicyFile(path.stem, path, str(path))


def _formatted(policy: PolicyFile, text: str) -> tuple[str | None, list[Problem]]:
    try:
        return format_policy(text, name=policy.name), []
    except PolicyError as error:
        return None, placed(policy, error.problems)


def _replace(path: Path, raw: bytes) -> None:
    """Puts `raw` in the place of the file at once, with the file's rights."""
    try:
        with atomic_replacement(path) as temporary:
            temporary.write_bytes(raw)
            shutil.copymode(path, temporary)
    except OSError as error:
        raise StoreUnavailable(
            f"cannot write {path}: {error.strerror}",
            code="store.disk_failed",
            hint="look at the rights of the file and its directory; the file is as it was",
        ) from None


def _summarize(count: int, changed: int, *, check: bool) -> None:
    doing = "would change" if check else "changed"
    print_note(f"{count} polic{'y' if count == 1 else 'ies'}, {changed} {doing}")


_SHOWN = 6


def show_similar(name: str, site: Path, *, limit: int, as_json: bool) -> None:
    """Prints them with what they have in common; raises UnknownName."""
    if limit < 1:
        raise wrong_use(
            f"cannot list {limit} policies", "--limit is 1 or more; leave it out for 10"
        )
    loaded = load_site(site, refusing_policies=False)
    if name not in loaded.policies:
        raise unknown("policy", name, loaded.policies, if_none=NO_POLICIES, code="policy.unknown")
    conditions_plan(loaded.policies[name].plan, "a comparison with other policies")
    known = loaded.policies.items()
    plans = {each: one.plan for each, one in known if isinstance(one, CompiledConditions)}
    found = most_similar(name, plans, limit=limit)
    if as_json:
        write_json([{"policy": one.policy, "score": round(one.score, 3)} for one in found])
        return
    rows = [
        (f"{one.score:.0%}", one.policy, _in_common(plans[name], plans[one.policy]))
        for one in found
    ]
    write_table(f"like {name}", ("alike", "policy", "both speak of"), rows)
    if not found:
        print_note(f"no other policy speaks of what {name} does")


def _in_common(one: Plan, other: Plan) -> str:
    """Attributes, properties and relationships of both, as features name them."""
    kinds = ("attribute ", "property ", "relation ")
    both = features(one).keys() & features(other).keys()
    shown = [text.removeprefix(kind) for kind in kinds for text in sorted(both) if kind in text]
    return ", ".join(shown[:_SHOWN]) + (", ..." if len(shown) > _SHOWN else "")
