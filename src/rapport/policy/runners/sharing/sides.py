"""A plan with other sides, or without what makes it one policy's. [PO-13]"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from rapport.policy.plan import (
    LastingTerm,
    Plan,
    ReadingTerm,
    Side,
    SilentTerm,
    StateAtom,
    StateExpression,
    TermStep,
    state_atoms,
)

replace = msgspec.structs.replace
Change = Callable[[Side], Side]


def sides_of(term: TermStep) -> Iterator[Side]:
    """All sides of a term, those of a state inside it too."""
    yield term.first
    yield term.second
    if isinstance(term, LastingTerm):
        for atom in state_atoms(term.state):
            yield from sides_of(atom.term)


def with_sides(plan: Plan, change: Change) -> Plan:
    """The plan with every side changed."""
    return replace(plan, terms=tuple(_changed(term, change) for term in plan.terms))


def unnamed(plan: Plan) -> Plan:
    """The plan without its name and actions, which no operator looks at."""
    return replace(plan, policy="", actions=(), deliveries=())


def _changed(term: TermStep, change: Change) -> TermStep:
    if isinstance(term, ReadingTerm | SilentTerm):
        return replace(term, first=change(term.first))
    if isinstance(term, LastingTerm):
        state = _changed_state(term.state, change)
        return replace(term, first=change(term.first), second=change(term.second), state=state)
    return replace(term, first=change(term.first), second=change(term.second))


def _changed_state(state: StateExpression, change: Change) -> StateExpression:
    if isinstance(state, StateAtom):
        return replace(state, term=_changed(state.term, change))
    return replace(state, parts=tuple(_changed_state(part, change) for part in state.parts))
