"""Lint of one policy's words: aliases nobody needs or that can coincide, properties that exclude
each other, actions said twice. [PO-12]
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from rapport.policy.language.faults import Faults
from rapport.policy.language.tree import PolicyTree
from rapport.policy.linting.requirements import can_coincide
from rapport.policy.plan import Constraint

Constraints = Mapping[str, tuple[Constraint, ...]]


def lint_aliases(
    tree: PolicyTree, constraints: Constraints, used: frozenset[str], faults: Faults
) -> None:
    """Notes unused aliases, aliases that can coincide, properties that exclude each other, and
    actions said twice.

    `used` are the aliases that some condition names.
    """
    _unused(tree, used, faults)
    _contradictions(tree, constraints, faults)
    _coincidences(tree, constraints, used, faults)
    _pointless_distinct(tree, faults)
    _repeated_actions(tree, faults)


def _unused(tree: PolicyTree, used: frozenset[str], faults: Faults) -> None:
    for concept in tree.concepts:
        if concept.alias not in used:
            faults.add(
                "policy.unused_alias",
                f"no condition speaks of {concept.alias!r}",
                concept.alias_place,
                hint="leave it out",
                severity="warning",
            )


def _contradictions(tree: PolicyTree, constraints: Constraints, faults: Faults) -> None:
    for concept in tree.concepts:
        if not can_coincide(constraints.get(concept.alias, ()), ()):
            faults.add(
                "policy.never_satisfied",
                f"no {concept.concept} can have all properties of {concept.alias!r}",
                concept.place,
                hint="properties of one alias must all hold; use OR of two aliases instead",
                severity="warning",
            )


def _coincidences(
    tree: PolicyTree, constraints: Constraints, used: frozenset[str], faults: Faults
) -> None:
    named = [concept for concept in tree.concepts if concept.alias in used]
    apart = {frozenset(pair) for pair in tree.distinct}
    for one, other in combinations(named, 2):
        if one.concept != other.concept or frozenset((one.alias, other.alias)) in apart:
            continue
        if can_coincide(constraints.get(one.alias, ()), constraints.get(other.alias, ())):
            faults.add(
                "policy.can_coincide",
                f"{one.alias!r} and {other.alias!r} can be the same {one.concept}",
                other.alias_place,
                hint=f"add the line 'distinct {one.alias}, {other.alias}' if that is not meant",
                severity="hint",
            )


def _pointless_distinct(tree: PolicyTree, faults: Faults) -> None:
    concepts = {concept.alias: concept for concept in tree.concepts}
    for first, second in tree.distinct:
        if concepts[first].concept != concepts[second].concept:
            faults.add(
                "policy.pointless_distinct",
                f"{first!r} and {second!r} are of different concepts and never the same",
                concepts[second].alias_place,
                hint=f"leave 'distinct {first}, {second}' out",
                severity="hint",
            )


def _repeated_actions(tree: PolicyTree, faults: Faults) -> None:
    seen: set[str] = set()
    for action in tree.actions:
        if action.phrase in seen:
            faults.add(
                "policy.repeated_action",
                f"the action {action.phrase!r} stands twice",
                action.place,
                hint="leave one out",
                severity="warning",
            )
        seen.add(action.phrase)
