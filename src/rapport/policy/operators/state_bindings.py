"""Which bindings a state must be evaluated for, and whether it holds by their last readings. [PO-3,
PO-6]

A term is true, false or unknown, and NOT applies to single terms only. So it suffices to know where
each term as written is true: Kleene's AND and OR are then the usual ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from rapport.policy.operators.base import PullData
from rapport.policy.operators.columns import NO_ROWS, Array, Mask, Rows, spread
from rapport.policy.operators.identities import Identities, IdentityFilter
from rapport.policy.operators.occurrences import Predicate
from rapport.policy.operators.spatial import Grid, Reach
from rapport.policy.operators.timeline import (
    EXPIRED,
    HeldValues,
    LastValues,
    Moments,
    OpenIntervals,
    Track,
    keys_of,
    pairs_of,
)
from rapport.policy.plan import (
    CorrelationTerm,
    LastingTerm,
    QueryTerm,
    Side,
    StateAll,
    StateAtom,
    StateExpression,
    state_atoms,
)

MOST_ROWS = 1 << 19
"""Rows evaluated together: a trade-off between speed and memory."""
_MOST_READINGS = 1 << 16
_FIRST_READINGS = 256
_MARGIN = 1.001
_ROUNDING = 1e-12
_FEW = 64
_STEPS_EACH = 4
"""Readings per identity in a portion: with more, boxes grow and fewer pairs are skipped."""


class StateEnd(NamedTuple):
    """A stream read for the first (0) or second (1) alias of the state."""

    place: int
    stream: str


Holdings = Mapping[StateEnd, HeldValues]
"""The values held at each end; an end without any reading is missing."""


class StateLiteral:
    """One term of a state as written, possibly negated."""

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
            # With a missing value a comparison is unknown, a relationship false.
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
            known &= codes[0] != codes[1]  # a reading forms no pair with itself
        return known

    def _values(self, end: StateEnd | None, held: Holdings, chosen: slice | Rows) -> Array | None:
        return None if end is None else held[end].values[chosen]


class StateTruth:
    """A state over one or two aliases, evaluated for many rows."""

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

    def enumerating_terms(
        self, can_enumerate: Callable[[StateLiteral], bool]
    ) -> list[StateLiteral] | None:
        """Terms of which at least one is true wherever the state is, if all of them satisfy
        `can_enumerate` (can enumerate their bindings); None otherwise."""
        return self._enumerating_terms(self.state, can_enumerate)

    def _enumerating_terms(
        self, state: StateExpression, can_enumerate: Callable[[StateLiteral], bool]
    ) -> list[StateLiteral] | None:
        if isinstance(state, StateAtom):
            literal = self.literals[state]
            return [literal] if can_enumerate(literal) else None
        parts = [self._enumerating_terms(part, can_enumerate) for part in state.parts]
        named = [part for part in parts if part is not None]
        if isinstance(state, StateAll):
            return named[0] if named else None
        return [one for part in named for one in part] if len(named) == len(parts) else None

    def evaluate(
        self, codes: tuple[Rows, Rows], held: Holdings
    ) -> tuple[Rows, dict[StateEnd, Mask]]:
        """The rows in which the state is true, and for each end in which of these a true term reads
        it."""
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


class BindingRows(NamedTuple):
    """Rows to evaluate: moment, partner and held values."""

    moments: Moments
    rows: Rows
    partners: Rows
    held: dict[StateEnd, HeldValues]


class Bindings(Protocol):
    """Enumerates the bindings that readings may affect."""

    def look(self, tracks: Mapping[str, Track], stretches: OpenIntervals) -> BindingRows | None:
        """Every row in which the state may be true; None if nothing changes."""

    def most_readings(self) -> int:
        """The number of readings in a portion."""


class PortionSize:
    """The number of readings per portion, adapted to the rows they produced."""

    def __init__(self) -> None:
        self._most = _FIRST_READINGS

    def most_readings(self, at_most: int = _MOST_READINGS) -> int:
        """So many that there are about MOST_ROWS rows."""
        return max(min(self._most, at_most), 1)

    def note(self, steps: int, rows: int) -> None:
        """Adapts to a portion; small ones are ignored."""
        if steps >= _FIRST_READINGS or rows > MOST_ROWS:
            self._most = int(MOST_ROWS / max(rows / steps, MOST_ROWS / _MOST_READINGS))


class SingleAliasBindings:
    """A state of one alias: costs its readings."""

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
    """A state of one alias with readings and one from tables.

    If a point must lie in a rectangle of a table, a grid enumerates the instances; otherwise all
    instances that satisfy the constraints are evaluated.
    """

    def __init__(
        self, truth: StateTruth, place: int, id_filter: IdentityFilter, partners: Identities
    ) -> None:
        """`place`: of the alias with readings; `id_filter`: of the other one."""
        self._truth, self._place, self._partners = truth, place, partners
        self._pace = PortionSize()
        known = self._partners.encode_list(self._partners.instances.ids)
        self._codes = known[id_filter.allowed()[known]]
        named = self._truth.enumerating_terms(self._can_enumerate)
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
        found = [NO_ROWS]
        for index in self._indexes:
            rows, codes = index.candidates(held)
            found.append(rows * span + codes)
        keys = found[1] if len(found) == 2 else np.unique(np.concatenate(found))
        return keys // span, keys % span

    def _can_enumerate(self, literal: StateLiteral) -> bool:
        term = literal.atom.term
        return (
            isinstance(term, QueryTerm)
            and literal.predicate.contains
            and not literal.atom.negated
            and literal.places == (self._place, 1 - self._place)
            and literal.sides[0] is not None
            and not np.isinf(self._bounds(literal)).any()
        )

    def _bounds(self, literal: StateLiteral) -> Array:
        values = self._partners.values(literal.atom.term.second.attribute, self._codes)
        return literal.predicate.bounds(values)

    def _index(self, literal: StateLiteral) -> _Index:
        rectangles = self._bounds(literal)
        complete = ~np.isnan(rectangles).any(axis=1)
        end = literal.sides[0]
        assert end is not None
        return _Index(end, rectangles[complete], self._codes[complete])


class _Index:
    """Table rectangles in a grid, queried with the points held at one end."""

    def __init__(self, end: StateEnd, rectangles: Array, codes: Rows) -> None:
        self._end, self._codes = end, codes
        self._grid = Grid(rectangles) if len(codes) else None

    def candidates(self, held: Mapping[StateEnd, HeldValues]) -> tuple[Rows, Rows]:
        """Pairs (row, code), a superset of those that hold."""
        if self._grid is None or self._end not in held:
            return NO_ROWS, NO_ROWS
        known = np.flatnonzero(held[self._end].known)
        rows, found = self._grid.candidates(held[self._end].values[known])
        return known[rows], self._codes[found]


def moments_of(tracks: Mapping[str, Track], streams: list[str]) -> Moments | None:
    """All steps of some streams by identity; None if there are none."""
    own = [tracks[stream] for stream in dict.fromkeys(streams) if stream in tracks]
    codes = np.concatenate([NO_ROWS, *(track.codes for track in own)])
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
    """The values held by identities at each end, at positions in the order."""
    return {end: tracks[end.stream].held(codes, order) for end in ends if end.stream in tracks}


class Boxes(NamedTuple):
    """The bounding boxes of all points held in a portion; NaN without any."""

    low: Array
    high: Array


def boxes_of(track: Track, codes: Rows, reach: Reach) -> Boxes:
    """The bounding boxes of identities (sorted codes) within a portion."""
    last = track.last
    last.grow(int(codes.max()) + 1 if len(codes) else 0, track.rows.values)
    assert last.values is not None
    low = np.array(reach.positions(last.values[codes]))
    low[~last.known[codes]] = np.nan
    high = low.copy()
    readings = np.flatnonzero(track.readings != EXPIRED)
    if len(readings) and len(codes):
        owners = track.codes[readings]
        points = reach.positions(track.rows.values[track.readings[readings]])
        starts = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
        places = np.minimum(np.searchsorted(codes, owners[starts]), len(codes) - 1)
        queried = codes[places] == owners[starts]
        places = places[queried]
        low[places] = np.fmin(low[places], np.fmin.reduceat(points, starts)[queried])
        high[places] = np.fmax(high[places], np.fmax.reduceat(points, starts)[queried])
    return Boxes(low, high)


def near_pairs(first: Boxes, second: Boxes, reach: float) -> tuple[Rows, Rows]:
    """Rows whose boxes are at most about `reach` apart; a superset of the near ones.

    Sorted along one axis, so the cost depends on neighbours there.
    """
    rows = np.flatnonzero(~np.isnan(first.low).any(axis=1))
    others = np.flatnonzero(~np.isnan(second.low).any(axis=1))
    others = others[np.argsort(second.low[others, 0])]
    if not len(rows) or not len(others):
        return rows[:0], others[:0]
    pad = reach * _MARGIN
    low, high = first.low[rows] - pad, first.high[rows] + pad
    left = second.low[others, 0]
    with np.errstate(invalid="ignore"):
        widest = np.nan_to_num(second.high[others, 0] - left, nan=np.inf).max()
        from_left = low[:, 0] - widest
        from_left -= np.abs(from_left) * _ROUNDING
    start = np.searchsorted(left, np.nan_to_num(from_left, nan=-np.inf))
    stop = np.searchsorted(left, high[:, 0], side="right")
    queried, places = spread(start, np.maximum(start, stop))
    apart = (second.low[others[places]] > high[queried]) | (
        second.high[others[places]] < low[queried]
    )
    near = ~apart.any(axis=1)
    return rows[queried[near]], others[places[near]]


class PairBindings:
    """A state of two aliases with readings: each reading of one affects its pairs with all
    identities of the other.

    If the state requires nearness, pairs that stay apart throughout a portion are skipped.
    Otherwise a reading costs the number of known identities.
    """

    def __init__(
        self,
        truth: StateTruth,
        id_filters: tuple[IdentityFilter, IdentityFilter],
        last: Mapping[str, LastValues],
    ) -> None:
        self._ends, self._id_filters, self._last = truth.ends, id_filters, last
        self._pace = PortionSize()
        self._near = truth.enumerating_terms(_requires_nearness)
        self._streams = tuple(
            [end.stream for end in self._ends if end.place == place] for place in (0, 1)
        )

    def most_readings(self) -> int:
        people = max(int(last.seen.sum()) for last in self._last.values())
        if self._near is not None:
            return self._pace.most_readings(_STEPS_EACH * max(people, _FEW))
        # Each reading gives a row with every known identity and every new one of the portion.
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
        rows = np.flatnonzero(_seen(held, 0) & _seen(held, 1)) if len(held) else NO_ROWS
        held = {end: one.at(rows) for end, one in held.items()}
        return BindingRows(moments, rows, moments.partner[rows], held)

    def _pairs(
        self, tracks: Mapping[str, Track], steps: list[Moments | None], stretches: OpenIntervals
    ) -> tuple[Rows, Rows]:
        """The pairs with a step in this portion that may be true in it or were before it."""
        people = [self._people(place, tracks) for place in (0, 1)]
        moved = [
            people[place][np.isin(people[place], NO_ROWS if own is None else own.keys)]
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
        """The identities of an alias seen before the end of this portion."""
        found = [NO_ROWS]
        for stream in self._streams[place]:
            if stream in tracks:
                found += [tracks[stream].codes, np.flatnonzero(tracks[stream].last.seen)]
        codes = np.unique(np.concatenate(found))
        return codes[self._id_filters[place].allowed()[codes]]

    def _candidates(
        self, tracks: Mapping[str, Track], first: Rows, second: Rows
    ) -> list[tuple[Rows, Rows]]:
        if self._near is None:
            return [(np.repeat(first, len(second)), np.tile(second, len(first)))]
        return [_near(literal, tracks, (first, second)) for literal in self._near]


def _requires_nearness(literal: StateLiteral) -> bool:
    return (
        isinstance(literal.atom.term, CorrelationTerm)
        and not literal.atom.negated
        and literal.predicate.reach is not None
        and set(literal.places) == {0, 1}
    )


def _near(
    literal: StateLiteral, tracks: Mapping[str, Track], people: tuple[Rows, Rows]
) -> tuple[Rows, Rows]:
    """The pairs whose boxes in this portion are near enough."""
    ends: dict[int, StateEnd] = {end.place: end for end in literal.ends}
    if any(end.stream not in tracks for end in ends.values()):
        return NO_ROWS, NO_ROWS
    reach = literal.predicate.reach
    assert reach is not None
    first, second = (boxes_of(tracks[ends[place].stream], people[place], reach) for place in (0, 1))
    rows, others = near_pairs(first, second, reach.least())
    return people[0][rows], people[1][others]


def _pair_moments(steps: list[Moments | None], own: Rows, partner: Rows) -> Moments | None:
    """Every step of either side of a pair, each once, by pair and order."""
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
    # A step of both aliases bound to the same identity is one moment.
    _, first = np.unique(pairs * (int(order.max()) + 1) + order, return_index=True)
    pairs = pairs[first]
    return Moments(own[pairs], partner[pairs], order[first], times[first], paired=True)


def _seen(held: Mapping[StateEnd, HeldValues], place: int) -> Mask:
    """Where the alias has a reading at any of its ends."""
    rows = len(next(iter(held.values())).seen)
    found = np.zeros(rows, np.bool_)
    for end, one in held.items():
        if end.place == place:
            found |= one.seen
    return found
