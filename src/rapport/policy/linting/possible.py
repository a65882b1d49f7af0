"""Lint of a policy that never can fire, or only otherwise than it seems. [PO-12]"""

from __future__ import annotations

from rapport.policy.language.faults import Faults
from rapport.policy.language.tree import Place, PolicyTree
from rapport.policy.linting.impossible import LintReason, excluding_readings, never_fires
from rapport.policy.linting.requirements import can_coincide
from rapport.policy.plan import Plan


def lint_satisfiable(tree: PolicyTree, plan: Plan, faults: Faults) -> None:
    """Warns of a policy that no readings and no tables can make fire, and of lines that exclude
    each other in one reading.
    """
    why = never_fires(plan)
    if why is not None and not _is_told(plan, why):
        faults.add(
            "policy.never_fires",
            f"the policy never fires: {why.reason}",
            place_of_alias(tree, why.aliases[0]),
            hint="two lines are joined by AND; write OR between them if either is enough",
            severity="warning",
        )
    for meant in excluding_readings(plan):
        faults.add(
            "policy.excluding_readings",
            meant.reason,
            place_of_alias(tree, meant.aliases[0]),
            hint="write OR between them if either is enough",
            severity="warning",
        )


def place_of_alias(tree: PolicyTree, alias: str) -> Place | None:
    """Where an alias is defined."""
    return next((one.place for one in tree.concepts if one.alias == alias), None)


def _is_told(plan: Plan, why: LintReason) -> bool:
    """Whether the reason is properties that exclude each other, which have a warning already."""
    sides = [side for term in plan.terms for side in (term.first, term.second)]
    return any(
        side.alias in why.aliases and not can_coincide(side.constraints, ()) for side in sides
    )
