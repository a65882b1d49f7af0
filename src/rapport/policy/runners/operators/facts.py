"""Terms that no event takes part in: facts of the tables, the same for all plans. [PO-6, PO-13]"""

from __future__ import annotations

import numpy as np

from rapport.policy.plan import ConstraintTerm, Side
from rapport.policy.runners.operators.causes import NO_EVENT
from rapport.policy.runners.operators.identities import Identities
from rapport.policy.runners.operators.lookup import constraint_pairs
from rapport.policy.runners.operators.predicate import Predicate
from rapport.policy.runners.operators.table import Table


def facts_of_tables(
    term: ConstraintTerm, first: Identities, second: Identities, predicate: Predicate
) -> Table:
    """All pairs of instances of which the term holds, without events and times."""
    ours, theirs = constraint_pairs(term, first, second, predicate)
    zeros, none = np.zeros(len(ours), np.int64), np.full(len(ours), NO_EVENT)
    return Table(
        {
            "first": ours,
            "second": theirs,
            "end": zeros,
            "start": zeros,
            "event": none,
            "other": none,
        }
    )


def unnamed_facts(term: ConstraintTerm) -> tuple[ConstraintTerm, bool]:
    """What its facts depend on: all but the names of the aliases, and whether these are one."""
    first, second = (
        Side("", side.concept, side.attribute, side.constraints, side.stream)
        for side in (term.first, term.second)
    )
    blank = ConstraintTerm(first, second, term.function, term.parameter, term.compared)
    return blank, term.first.alias == term.second.alias
