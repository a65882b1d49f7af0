"""The sides of terms, and terms with other sides: how equal terms with other names are told.
[PO-13]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from rapport.policy.plan import (
    LastingTerm,
    ReadingTerm,
    Side,
    SilentTerm,
    StateAtom,
    StateExpression,
    TermStep,
    state_atoms,
)
from rapport.policy.runners.operators.predicate import is_of_tables_alone

Change = Callable[[Side], Side]
_replace = msgspec.structs.replace


def sides_of(term: TermStep) -> Iterator[Side]:
    """All sides of a term, those of a state inside it too."""
    yield term.first
    yield term.second
    if isinstance(term, LastingTerm):
        for atom in state_atoms(term.state):
            yield from sides_of(atom.term)


def with_changed_sides(term: TermStep, change: Change) -> TermStep:
    """The term with every side changed, those of a state inside it too."""
    if isinstance(term, ReadingTerm | SilentTerm):
        return _replace(term, first=change(term.first))
    if isinstance(term, LastingTerm):
        state = _changed_state(term.state, change)
        return _replace(term, first=change(term.first), second=change(term.second), state=state)
    return _replace(term, first=change(term.first), second=change(term.second))


def renamed(terms: Iterable[TermStep]) -> tuple[tuple[TermStep, ...], dict[str, str]]:
    """The terms with their aliases called 0, 1, 2, ... in the order in which they come, and by
    alias its new name: equal for terms that say the same under other names.
    """
    names: dict[str, str] = {}

    def rename(side: Side) -> Side:
        return _replace(side, alias=names.setdefault(side.alias, str(len(names))))

    return tuple(with_changed_sides(term, rename) for term in terms), names


def is_shareable(term: TermStep) -> bool:
    """Whether tables and readings alone decide of it, so that plans may have it in common."""
    if isinstance(term, LastingTerm):
        return all(is_of_tables_alone(atom.term) for atom in state_atoms(term.state))
    return isinstance(term, SilentTerm) or is_of_tables_alone(term)


def _changed_state(state: StateExpression, change: Change) -> StateExpression:
    if isinstance(state, StateAtom):
        return _replace(state, term=with_changed_sides(state.term, change))
    return _replace(state, parts=tuple(_changed_state(part, change) for part in state.parts))
