"""Whether a state is true of identities, by the last readings they are held to have. [PO-3, PO-6]

A term is true, false or unknown, and NOT stands before single terms only. So it is enough to know
where each term as written is true: AND and OR by Kleene then are those of plain logic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from rapport.policy.plan import LastingTerm, Side, StateAll, StateAtom, StateExpression, state_atoms
from rapport.policy.runners.base import PullData
from rapport.policy.runners.operators.identities import Identities
from rapport.policy.runners.operators.lasting_track import HeldValues
from rapport.policy.runners.operators.predicate import Predicate
from rapport.policy.runners.operators.table import Array, Mask, Rows


class StateEnd(NamedTuple):
    """A stream read on behalf of one alias: the first (0) or second (1) of the state."""

    place: int
    stream: str


Holdings = Mapping[StateEnd, HeldValues]
"""What is held at each end; an end of which nothing was ever read is not there."""


class StateLiteral:
    """One term of a state as written, perhaps negated."""

    def __init__(
        self,
        atom: StateAtom,
        places: Mapping[str, int],
        identities: Mapping[str, Identities],
        pull: PullData,
    ) -> None:
        self.atom, self._places = atom, places
        self.predicate = Predicate(atom.term, identities, pull)
        self.sides = tuple(self._end(side) for side in (atom.term.first, atom.term.second))
        self.places = tuple(places[side.alias] for side in (atom.term.first, atom.term.second))
        self.ends = tuple(dict.fromkeys(end for end in self.sides if end is not None))

    def true_of(self, codes: tuple[Rows, Rows], held: Holdings) -> Mask:
        """The rows in which it is true; `codes` are those of both aliases."""
        if any(end not in held for end in self.ends):
            return np.zeros(len(codes[0]), np.bool_)
        known = self._known(codes, held)
        if not known.any():
            return known
        chosen = slice(None) if known.all() else np.flatnonzero(known)
        own = [codes[place][chosen] for place in self.places]
        values = [self._values(end, held, chosen) for end in self.sides]
        found = self.predicate.holds(values[0], values[1], own[0], own[1])
        if self.atom.negated:
            found = ~found
            # A comparison that misses a value is unknown; a relationship that does is false.
            if self.atom.term.compared is not None:
                found &= self.predicate.known(values[0], values[1], own[0], own[1])
        known[chosen] = found
        return known

    def _end(self, side: Side) -> StateEnd | None:
        return None if side.stream is None else StateEnd(self._places[side.alias], side.stream)

    def _known(self, codes: tuple[Rows, Rows], held: Holdings) -> Mask:
        known = np.ones(len(codes[0]), np.bool_)
        for end in self.ends:
            known &= held[end].known
        if len(self.ends) == 2 and self.ends[0].stream == self.ends[1].stream:
            known &= codes[0] != codes[1]  # a reading makes no pair with itself
        return known

    def _values(self, end: StateEnd | None, held: Holdings, chosen: slice | Rows) -> Array | None:
        return None if end is None else held[end].values[chosen]


class StateTruth:
    """A state over one or two aliases, asked of many rows at once."""

    def __init__(
        self, term: LastingTerm, identities: Mapping[str, Identities], pull: PullData
    ) -> None:
        self.state = term.state
        self.places = {term.second.alias: 1} | {term.first.alias: 0}
        atoms = dict.fromkeys(state_atoms(term.state))
        self.literals = {atom: StateLiteral(atom, self.places, identities, pull) for atom in atoms}
        self.ends = tuple(
            dict.fromkeys(end for literal in self.literals.values() for end in literal.ends)
        )

    def naming(self, can_name: Callable[[StateLiteral], bool]) -> list[StateLiteral] | None:
        """Terms at least one of which is true wherever the state is, all of which can name whom
        they are true of; None where there are no such.
        """
        return self._naming(self.state, can_name)

    def _naming(
        self, state: StateExpression, can_name: Callable[[StateLiteral], bool]
    ) -> list[StateLiteral] | None:
        if isinstance(state, StateAtom):
            literal = self.literals[state]
            return [literal] if can_name(literal) else None
        parts = [self._naming(part, can_name) for part in state.parts]
        named = [part for part in parts if part is not None]
        if isinstance(state, StateAll):
            return named[0] if named else None
        return [one for part in named for one in part] if len(named) == len(parts) else None

    def judge(self, codes: tuple[Rows, Rows], held: Holdings) -> tuple[Rows, dict[StateEnd, Mask]]:
        """The rows in which the state is true, and for each end in which of these a true term
        reads it.
        """
        masks = {atom: literal.true_of(codes, held) for atom, literal in self.literals.items()}
        rows = np.flatnonzero(_combined(self.state, masks))
        shown: dict[StateEnd, Mask] = {}
        for atom, literal in self.literals.items():
            for end in literal.ends:
                mask = masks[atom][rows]
                shown[end] = shown[end] | mask if end in shown else mask
        return rows, shown


def _combined(state: StateExpression, masks: Mapping[StateAtom, Mask]) -> Mask:
    if isinstance(state, StateAtom):
        return masks[state]
    parts = [_combined(part, masks) for part in state.parts]
    every = isinstance(state, StateAll)
    return np.asarray(np.logical_and.reduce(parts) if every else np.logical_or.reduce(parts))
