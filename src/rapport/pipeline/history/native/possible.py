"""Which identities an alias can stand for in any match of a plan, by the tables alone. [PI-5]"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rapport.policy.operators.base import PullData
from rapport.policy.operators.identities import Identities, satisfies
from rapport.policy.operators.occurrences import Predicate, constraint_pairs
from rapport.policy.plan import ConstraintTerm, Plan, Positive, Side

_MOST_PAIRS = 10_000_000
"""More pairs of instances are not tried here: the operators will, where it is needed."""

Possible = Mapping[str, frozenset[str]]
"""By alias; one that is not there can be anybody who satisfies its constraints."""


def possible_identities(plan: Plan, pull: PullData) -> Possible:
    """The identities that satisfy every fact which each match of the plan needs.

    Such a fact is a term of tables that makes up a clause alone: it binds its aliases in every
    match, and what absence is looked for with those identities too. So readings of others can be
    left out, whatever else the plan asks.
    """
    found: dict[str, frozenset[str]] = {}
    facts = [fact for term in _needed_facts(plan) if (fact := _pairs(term, pull)) is not None]
    changed = True
    while changed:
        changed = False
        for (first, second), pairs in facts:
            left = [
                pair
                for pair in pairs
                if _is_among(found, first, pair[0]) and _is_among(found, second, pair[1])
            ]
            for alias, place in ((first, 0), (second, 1)):
                ids = frozenset(pair[place] for pair in left)
                if alias not in found or found[alias] != ids & found[alias]:
                    found[alias] = ids & found.get(alias, ids)
                    changed = True
    return found


def satisfying(side: Side, pull: PullData, possible: Possible) -> frozenset[str] | None:
    """The identities that can stand at a side; None: anybody, also who is in no table."""
    among = possible.get(side.alias)
    if not side.constraints:
        return among
    instances = pull.instances(side.concept)
    rows = np.flatnonzero(satisfies(instances, side.constraints))
    ids = frozenset(instances.ids[row] for row in rows)
    return ids if among is None else ids & among


def _needed_facts(plan: Plan) -> list[ConstraintTerm]:
    alone = [clause.children[0] for clause in plan.clauses if len(clause.children) == 1]
    terms = [plan.terms[child.term] for child in alone if isinstance(child, Positive)]
    return [term for term in terms if isinstance(term, ConstraintTerm)]


def _pairs(
    term: ConstraintTerm, pull: PullData
) -> tuple[tuple[str, str], list[tuple[str, str]]] | None:
    """Both aliases of a fact and the identities of which it holds; None where there are too many
    to try.
    """
    sides = (term.first, term.second)
    sizes = [len(pull.instances(side.concept)) for side in sides]
    if sizes[0] * sizes[1] > _MOST_PAIRS:
        return None
    identities = {side.concept: Identities(pull.instances(side.concept)) for side in sides}
    first, second = (identities[side.concept] for side in sides)
    predicate = Predicate(term, identities, pull)
    ours, theirs = constraint_pairs(term, first, second, predicate)
    named = zip(first.texts(ours).tolist(), second.texts(theirs).tolist(), strict=True)
    return (term.first.alias, term.second.alias), list(named)


def _is_among(found: Possible, alias: str, identity: str) -> bool:
    known = found.get(alias)
    return known is None or identity in known
