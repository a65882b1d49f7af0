"""How a plan is run over history on Spark and why, in plain words. [PI-5, PO-5]"""

from __future__ import annotations

from collections.abc import Mapping

from rapport.pipeline.history.choosing import native_needs
from rapport.pipeline.history.keys import choose_key
from rapport.pipeline.history.native.choose import Choice, choose, why_not_native
from rapport.pipeline.history.partitioning import explain_partitioning, why_in_one_piece
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.plan import Plan


def explain_run(
    plan: Plan, pull: PullData, sources: Mapping[str, PushSource] | None = None
) -> list[str]:
    """Sentences: which way, why it is cut so, and what is left out before the operators. Looks at
    the plan and the tables only, no reading.
    """
    known = sources or {}
    by_operators = choose(plan, pull, known, without_native="it may be cheaper")
    cut = f"{_filter(by_operators)}{_cut(plan, pull, known)}"
    told = [f"{plan.policy}: {cut}"]
    reason = why_not_native(plan)
    if not reason:
        told = [
            f"{plan.policy}: native where files have {native_needs()}, else {cut}",
            f"{plan.policy}: one event at a time decides it, so Spark can do all of it by itself; "
            "that costs another reading of every file, and pays only then",
        ]
    told.append(explain_partitioning(plan, known, pull))
    if reason:
        told.append(f"{plan.policy}: not native, because {reason}")
    return [*told, _given(plan, by_operators)]


def _filter(choice: Choice) -> str:
    return "filter + " if choice.way == "filter" else ""


def _cut(plan: Plan, pull: PullData, sources: Mapping[str, PushSource]) -> str:
    if not why_in_one_piece(plan, sources):
        return "slices"
    key = choose_key(plan, pull, sources)
    return "one piece" if isinstance(key, str) else f"buckets by alias {key.alias}"


def _given(plan: Plan, choice: Choice) -> str:
    if choice.way == "filter":
        return f"{plan.policy}: filter while reading: operators are given {choice.wanted}"
    return (
        f"{plan.policy}: hardly anything to leave out while reading: operators are given "
        f"{choice.wanted}"
    )
