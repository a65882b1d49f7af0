"""Which bindings a state is asked about at which moments: one alias alone, or beside one of the
tables. [PO-3, PO-6]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from rapport.policy.plan import QueryTerm
from rapport.policy.runners.operators.grid import Grid
from rapport.policy.runners.operators.identities import Identities, IdentityFilter
from rapport.policy.runners.operators.lasting_moments import Moments
from rapport.policy.runners.operators.lasting_stretches import OpenIntervals
from rapport.policy.runners.operators.lasting_track import HeldValues, Track
from rapport.policy.runners.operators.lasting_truth import StateEnd, StateLiteral, StateTruth
from rapport.policy.runners.operators.table import Array, Rows

MOST_ROWS = 1 << 19
"""Rows looked at together: enough for columns to pay, few enough for memory."""
_MOST_READINGS = 1 << 16
_FIRST_READINGS = 256


class BindingRows(NamedTuple):
    """Rows to be judged: the number of a moment and who else is bound, with what is held."""

    moments: Moments
    rows: Rows
    partners: Rows
    held: dict[StateEnd, HeldValues]


class Bindings(Protocol):
    """All that may be bound where readings come, as rows to be judged."""

    def look(self, tracks: Mapping[str, Track], stretches: OpenIntervals) -> BindingRows | None:
        """Every row in which the state may be true; None where nothing changes."""

    def most_readings(self) -> int:
        """How many readings make a portion that can be looked at together."""


class PortionSize:
    """How many readings to look at together, by how many rows the last ones made."""

    def __init__(self) -> None:
        self._most = _FIRST_READINGS

    def most_readings(self, at_most: int = _MOST_READINGS) -> int:
        """So many that the rows stay about MOST_ROWS."""
        return max(min(self._most, at_most), 1)

    def note(self, steps: int, rows: int) -> None:
        """Learns from a portion; single steps say little."""
        if steps >= _FIRST_READINGS or rows > MOST_ROWS:
            self._most = int(MOST_ROWS / max(rows / steps, MOST_ROWS / _MOST_READINGS))


class SingleAliasBindings:
    """One alias: costs its readings."""

    def __init__(self, truth: StateTruth) -> None:
        self._ends = truth.ends

    def most_readings(self) -> int:
        return _MOST_READINGS

    def look(self, tracks: Mapping[str, Track], stretches: OpenIntervals) -> BindingRows | None:
        moments = moments_of(tracks, [end.stream for end in self._ends])
        if moments is None:
            return None
        held = holdings(tracks, self._ends, moments.own, moments.order)
        return BindingRows(moments, np.arange(len(moments.own)), moments.partner, held)


class TableBindings:
    """One alias with readings, one of the tables.

    Where a point of the readings must lie in a rectangle of the tables, a grid names the few
    instances in question; else every instance that satisfies the constraints is.
    """

    def __init__(
        self, truth: StateTruth, place: int, leaf: IdentityFilter, partners: Identities
    ) -> None:
        """`place` is that of the alias with readings, `leaf` that of the other one."""
        self._truth, self._place, self._partners = truth, place, partners
        self._pace = PortionSize()
        known = self._partners.encode_list(self._partners.instances.ids)
        self._codes = known[leaf.allowed()[known]]
        named = self._truth.naming(self._can_name)
        self._indexes = None if named is None else [self._index(literal) for literal in named]

    def most_readings(self) -> int:
        if self._indexes is not None:
            return self._pace.most_readings()
        return max(MOST_ROWS // max(len(self._codes), 1), 1)

    def look(self, tracks: Mapping[str, Track], stretches: OpenIntervals) -> BindingRows | None:
        moments = moments_of(tracks, [end.stream for end in self._truth.ends])
        if moments is None:
            return None
        held = holdings(tracks, self._truth.ends, moments.own, moments.order)
        rows, partners = self._candidates(len(moments.own), held)
        self._pace.note(len(moments.own), len(rows))
        return BindingRows(
            moments, rows, partners, {end: own.at(rows) for end, own in held.items()}
        )

    def _candidates(self, moments: int, held: Mapping[StateEnd, HeldValues]) -> tuple[Rows, Rows]:
        if self._indexes is None:
            return (
                np.repeat(np.arange(moments), len(self._codes)),
                np.tile(self._codes, moments),
            )
        span = int(self._codes.max()) + 1 if len(self._codes) else 1
        found = [np.zeros(0, np.int64)]
        for index in self._indexes:
            rows, codes = index.candidates(held)
            found.append(rows * span + codes)
        keys = found[1] if len(found) == 2 else np.unique(np.concatenate(found))
        return keys // span, keys % span

    def _can_name(self, literal: StateLiteral) -> bool:
        term = literal.atom.term
        return (
            isinstance(term, QueryTerm)
            and literal.predicate.contains
            and not literal.atom.negated
            and literal.places == (self._place, 1 - self._place)
            and literal.sides[0] is not None
            and not np.isinf(self._rectangles(literal)).any()
        )

    def _rectangles(self, literal: StateLiteral) -> Array:
        return self._partners.values(literal.atom.term.second.attribute, self._codes)

    def _index(self, literal: StateLiteral) -> _Index:
        rectangles = self._rectangles(literal)
        complete = ~np.isnan(rectangles).any(axis=1)
        end = literal.sides[0]
        assert end is not None
        return _Index(end, rectangles[complete], self._codes[complete])


class _Index:
    """Rectangles of the tables in a grid, asked by the points held at one end."""

    def __init__(self, end: StateEnd, rectangles: Array, codes: Rows) -> None:
        self._end, self._codes = end, codes
        self._grid = Grid(rectangles) if len(codes) else None

    def candidates(self, held: Mapping[StateEnd, HeldValues]) -> tuple[Rows, Rows]:
        """Pairs (row, code) among which are all that hold."""
        if self._grid is None or self._end not in held:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        known = np.flatnonzero(held[self._end].known)
        rows, found = self._grid.candidates(held[self._end].values[known])
        return known[rows], self._codes[found]


def moments_of(tracks: Mapping[str, Track], streams: list[str]) -> Moments | None:
    """All steps of some streams, by identity; None where there are none."""
    own = [tracks[stream] for stream in dict.fromkeys(streams) if stream in tracks]
    codes = np.concatenate([np.zeros(0, np.int64), *(track.codes for track in own)])
    if not len(codes):
        return None
    order = np.concatenate([track.order for track in own])
    times = np.concatenate([track.times for track in own])
    if len(own) > 1:
        sorting = np.argsort(codes * (int(order.max()) + 1) + order)
        codes, order, times = codes[sorting], order[sorting], times[sorting]
    return Moments(codes, codes, order, times)


def holdings(
    tracks: Mapping[str, Track], ends: tuple[StateEnd, ...], codes: Rows, order: Rows
) -> dict[StateEnd, HeldValues]:
    """What is held of identities at each end, at places in the order."""
    return {end: tracks[end.stream].held(codes, order) for end in ends if end.stream in tracks}
