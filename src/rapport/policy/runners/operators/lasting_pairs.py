"""Which pairs a state is asked about where both aliases have readings. [PO-3, PO-6]"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from rapport.policy.plan import CorrelationTerm
from rapport.policy.runners.operators.identities import IdentityFilter
from rapport.policy.runners.operators.lasting_bindings import (
    MOST_ROWS,
    BindingRows,
    PortionSize,
    holdings,
    moments_of,
)
from rapport.policy.runners.operators.lasting_boxes import boxes_of, near_pairs
from rapport.policy.runners.operators.lasting_moments import Moments, keys_of, pairs_of
from rapport.policy.runners.operators.lasting_stretches import OpenIntervals
from rapport.policy.runners.operators.lasting_track import HeldValues, Track
from rapport.policy.runners.operators.lasting_truth import StateEnd, StateLiteral, StateTruth
from rapport.policy.runners.operators.state_values import LastValues
from rapport.policy.runners.operators.table import Mask, Rows, spread

_NONE = np.zeros(0, np.int64)
_FEW = 64
_STEPS_EACH = 4
"""Readings of each person in a portion: the more, the further they move and the less can be
passed over."""


class PairBindings:
    """Both aliases have readings, and each reading of one is a moment of its pairs with everybody
    of the other.

    Where the state asks that two be near each other, pairs that stay apart throughout a portion
    are passed over. Else a reading costs as much as there are people who were ever heard of.
    """

    def __init__(
        self,
        truth: StateTruth,
        leaves: tuple[IdentityFilter, IdentityFilter],
        last: Mapping[str, LastValues],
    ) -> None:
        self._ends, self._leaves, self._last = truth.ends, leaves, last
        self._pace = PortionSize()
        self._near = truth.naming(_asks_nearness)
        self._streams = tuple(
            [end.stream for end in self._ends if end.place == place] for place in (0, 1)
        )

    def most_readings(self) -> int:
        people = max(int(last.seen.sum()) for last in self._last.values())
        if self._near is not None:
            return self._pace.most_readings(_STEPS_EACH * max(people, _FEW))
        # Each reading makes a row with everybody known, and with everybody who may come with it.
        return max(int(math.sqrt(people * people + 4 * MOST_ROWS) - people) // 2, 1)

    def look(self, tracks: Mapping[str, Track], stretches: OpenIntervals) -> BindingRows | None:
        steps = [moments_of(tracks, streams) for streams in self._streams]
        own, partner = self._pairs(tracks, steps, stretches)
        moments = _pair_moments(steps, own, partner)
        if moments is None:
            return None
        self._pace.note(sum(len(one.own) for one in steps if one is not None), len(moments.own))
        codes = moments.own, moments.partner
        held: dict[StateEnd, HeldValues] = {}
        for end in self._ends:
            held |= holdings(tracks, (end,), codes[end.place], moments.order)
        rows = np.flatnonzero(_seen(held, 0) & _seen(held, 1)) if len(held) else _NONE
        held = {end: one.at(rows) for end, one in held.items()}
        return BindingRows(moments, rows, moments.partner[rows], held)

    def _pairs(
        self, tracks: Mapping[str, Track], steps: list[Moments | None], stretches: OpenIntervals
    ) -> tuple[Rows, Rows]:
        """The pairs of which one has a step in this portion, and that may be true in it or were
        before it.
        """
        people = [self._people(place, tracks) for place in (0, 1)]
        moved = [
            people[place][np.isin(people[place], _NONE if own is None else own.keys)]
            for place, own in enumerate(steps)
        ]
        found = [
            *self._candidates(tracks, moved[0], people[1]),
            *self._candidates(tracks, people[0], moved[1]),
            stretches.pairs(),
        ]
        keys = [keys_of(own, partner, paired=True) for own, partner in found]
        return pairs_of(np.unique(np.concatenate(keys)))

    def _people(self, place: int, tracks: Mapping[str, Track]) -> Rows:
        """Who of an alias was heard of before the end of this portion."""
        found = [_NONE]
        for stream in self._streams[place]:
            if stream in tracks:
                found += [tracks[stream].codes, np.flatnonzero(tracks[stream].last.seen)]
        codes = np.unique(np.concatenate(found))
        return codes[self._leaves[place].allowed()[codes]]

    def _candidates(
        self, tracks: Mapping[str, Track], first: Rows, second: Rows
    ) -> list[tuple[Rows, Rows]]:
        if self._near is None:
            return [(np.repeat(first, len(second)), np.tile(second, len(first)))]
        return [_near(literal, tracks, (first, second)) for literal in self._near]


def _asks_nearness(literal: StateLiteral) -> bool:
    return (
        isinstance(literal.atom.term, CorrelationTerm)
        and not literal.atom.negated
        and literal.predicate.reach is not None
        and set(literal.places) == {0, 1}
    )


def _near(
    literal: StateLiteral, tracks: Mapping[str, Track], people: tuple[Rows, Rows]
) -> tuple[Rows, Rows]:
    """The pairs whose whereabouts in this portion come near enough to each other."""
    ends: dict[int, StateEnd] = {end.place: end for end in literal.ends}
    if any(end.stream not in tracks for end in ends.values()):
        return _NONE, _NONE
    first, second = (boxes_of(tracks[ends[place].stream], people[place]) for place in (0, 1))
    assert literal.predicate.reach is not None
    rows, others = near_pairs(first, second, literal.predicate.reach)
    return people[0][rows], people[1][others]


def _pair_moments(steps: list[Moments | None], own: Rows, partner: Rows) -> Moments | None:
    """Every step of either of a pair, each once, by pair and order."""
    parts = []
    for moments, codes in zip(steps, (own, partner), strict=True):
        if moments is not None:
            group = np.minimum(np.searchsorted(moments.keys, codes), len(moments.keys) - 1)
            starts = moments.starts[group]
            ends = np.where(moments.keys[group] == codes, moments.ends[group], starts)
            pairs, places = spread(starts, ends)
            parts.append((pairs, moments.order[places], moments.times[places]))
    if not parts or not sum(len(part[0]) for part in parts):
        return None
    pairs, order, times = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    # One step of both aliases, bound to the same identity, is one moment: it has one place.
    _, first = np.unique(pairs * (int(order.max()) + 1) + order, return_index=True)
    pairs = pairs[first]
    return Moments(own[pairs], partner[pairs], order[first], times[first], paired=True)


def _seen(held: Mapping[StateEnd, HeldValues], place: int) -> Mask:
    """Where the alias was heard of at any of its ends."""
    rows = len(next(iter(held.values())).seen)
    found = np.zeros(rows, np.bool_)
    for end, one in held.items():
        if end.place == place:
            found |= one.seen
    return found
