"""Functions that are looked up in a table, and instances that the table says nothing of. [PO-12]

What a table does not say makes no comparison true, so who was forgotten there is never reported.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.tree import PolicyTree
from rapport.policy.linting.possible import place_of_alias
from rapport.policy.operators.base import PullData
from rapport.policy.operators.identities import satisfies
from rapport.policy.plan import (
    LastingTerm,
    LookedUp,
    Plan,
    Side,
    SideValue,
    SilentTerm,
    StateTerm,
    state_atoms,
)

_SHOWN = 5


def lint_lookups(tree: PolicyTree, plan: Plan, pull: PullData, faults: Diagnostics) -> None:
    """Points out instances that no row of a looked-up function names. A table that names fewer than
    half of them is taken to be meant so. Costs one pass over table and instances per function.
    """
    told: set[tuple[str, frozenset[str]]] = set()
    for function, side, attribute in _asked(plan):
        named = {text for key in pull.pairs(function) for text in key}
        wanted = _values(side, attribute, pull)
        missing = wanted - named
        if not missing or 2 * len(missing) >= len(wanted) or (function, missing) in told:
            continue
        told.add((function, missing))
        shown = ", ".join(sorted(missing)[:_SHOWN])
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        faults.add(
            "policy.not_in_table",
            f"the table of {function!r} says nothing of {shown}{more}",
            place_of_alias(tree, side.alias),
            hint="add rows, or leave it if nothing is to be found there",
            severity="hint",
        )


def _asked(plan: Plan) -> Iterator[tuple[str, Side, str]]:
    """Every function that is looked up, with the side and the attribute it is asked by."""
    for term in _terms(plan):
        if term.compared is None:
            continue
        for operand in (term.compared.left, term.compared.right):
            if isinstance(operand, LookedUp):
                for value in operand.of:
                    yield operand.function, _side(term, value), value.attribute


def _terms(plan: Plan) -> Iterator[StateTerm]:
    for term in plan.terms:
        if isinstance(term, LastingTerm):
            yield from (atom.term for atom in state_atoms(term.state))
        elif not isinstance(term, SilentTerm):
            yield term


def _side(term: StateTerm, value: SideValue) -> Side:
    return term.second if value.side else term.first


def _values(side: Side, attribute: str, pull: PullData) -> frozenset[str]:
    """What the function can be asked by: of the instances with the alias's properties."""
    instances = pull.instances(side.concept)
    rows = np.flatnonzero(satisfies(instances, side.constraints)).tolist()
    if attribute == "id":
        return frozenset(instances.ids[row] for row in rows)
    column = instances.columns.get(attribute)
    if column is None:
        return frozenset()
    return frozenset(str(column[row]) for row in rows if column[row] is not None)
