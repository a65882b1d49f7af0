"""Which policies a changed ontology breaks, and why. [PO-1, PO-9]"""

from __future__ import annotations

from collections.abc import Mapping

from rapport.core.errors import PolicyError, Problem
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.language.printer import print_policy
from rapport.policy.language.tree import PolicyTree
from rapport.policy.ontology import Ontology

_ANY_WINDOW_MS = 5_000
"""Whether a policy compiles does not depend on it."""


def broken_by(
    old: Ontology, new: Ontology, trees: Mapping[str, PolicyTree]
) -> dict[str, list[Problem]]:
    """Of each policy that compiled under the old ontology and does not under the new one, all
    faults. Costs one compilation per policy, two for those that break.

    Args:
        trees: in root's terms; places of the faults are those of the policy as printed.
    """
    found: dict[str, list[Problem]] = {}
    for name, tree in trees.items():
        faults = faults_under(new, name, tree)
        if faults and not faults_under(old, name, tree):
            found[name] = faults
    return found


def faults_under(ontology: Ontology, name: str, tree: PolicyTree) -> list[Problem]:
    """The errors of a policy under an ontology; none when it compiles."""
    try:
        compile_policy(print_policy(tree), name=name, ontology=ontology, window_ms=_ANY_WINDOW_MS)
    except PolicyError as error:
        return [problem for problem in error.problems if problem.severity == "error"]
    return []
