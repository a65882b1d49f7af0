"""What occurs in a small world: the occurrences of every kind of term by rule 2, one at a time.
[PO-7]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec

from rapport.policy.language.tree import Consumption
from support.judge.holding import End, Events, Reading
from support.judge.keys import Key, LastingKey, RelationKey, SilentKey
from support.judge.known_world import KnownWorld, Occurrence
from support.judge.silences import silences
from support.judge.states import stretches

__all__ = ["Occurrence", "Occurrences", "Reading", "windowed"]


class Occurrences:
    """What occurs in the world, found once per term."""

    def __init__(self, world: KnownWorld, consumption: Consumption) -> None:
        self.world, self._holding = world, world.holding
        self._recent = consumption == "recent"
        self._used: dict[Key, list[Occurrence]] = {}
        self._all: dict[Key, list[Occurrence]] = {}

    def occurrences(self, key: Key) -> list[Occurrence]:
        """Occurrences where the term stands positive: correlations use events up."""
        if key not in self._used:
            self._used[key] = (
                list(self._consumed(key))
                if isinstance(key, RelationKey) and self.world.is_correlation(key)
                else self.all_occurrences(key)
            )
        return self._used[key]

    def all_occurrences(self, key: Key) -> list[Occurrence]:
        """Occurrences where the term stands under a NOT: every pair counts."""
        if key not in self._all:
            self._all[key] = list(self._every(key))
        return self._all[key]

    def _every(self, key: Key) -> Iterator[Occurrence]:
        match key:
            case LastingKey():
                yield from stretches(self.world, key)
            case SilentKey():
                yield from silences(self.world, key)
            case _:
                ends = self._holding.event_ends(key)
                for events in itertools.product(*(self._events_at(end) for end in ends)):
                    yield from self._shown_by(key, dict(zip(ends, events, strict=True)))

    def _events_at(self, end: End) -> list[Reading]:
        return [reading for reading in self.world.readings if self.world.is_at(end, reading)]

    def _shown_by(self, key: RelationKey, events: Events) -> Iterator[Occurrence]:
        """The occurrences that these events (none: a fact) show together with the tables."""
        shown = tuple(events.values())
        if len(shown) == 2 and not self._make_a_pair(key, *shown):
            return
        bound: dict[str, str] = {}
        for end, event in events.items():
            if bound.setdefault(end.alias, event.key) != event.key:
                return
        others = [end.alias for end in self._holding.ends(key) if end.alias not in bound]
        free = list(dict.fromkeys(others))
        until = max((event.time for event in shown), default=None)
        for identities in itertools.product(*(self._holding.instances(alias) for alias in free)):
            bindings = {**bound, **dict(zip(free, identities, strict=True))}
            if self._holding.truth(key, bindings, events):
                yield self.world.occurrence(bindings, shown, until)

    def _make_a_pair(self, key: RelationKey, one: Reading, other: Reading) -> bool:
        assert key.window is not None, key
        return one != other and abs(one.time - other.time) < key.window

    # How correlations use events up.

    def _consumed(self, key: RelationKey) -> Iterator[Occurrence]:
        """Pairs of events where each arriving event takes the oldest (or newest) unused one that
        fits.
        """
        first, second = self._holding.event_ends(key)
        used: dict[tuple[str, str], set[Reading]] = {}
        for number, event in enumerate(self.world.readings):
            earlier = self.world.readings[:number]
            for own, other in ((first, second), (second, first)):
                if not self.world.is_at(own, event):
                    continue
                for identity in sorted(
                    {old.key for old in earlier if self.world.is_at(other, old)}
                ):
                    pair = (event.key, identity) if own == first else (identity, event.key)
                    gone = used.setdefault(pair, set())
                    olds = [
                        old
                        for old in earlier
                        if old.key == identity and self.world.is_at(other, old) and old not in gone
                    ]
                    yield from self._take(key, (own, event), (other, olds), gone)

    def _take(
        self,
        key: RelationKey,
        arriving: tuple[End, Reading],
        waiting: tuple[End, list[Reading]],
        gone: set[Reading],
    ) -> Iterator[Occurrence]:
        (own, event), (other, olds) = arriving, waiting
        if event in gone:
            return
        for old in reversed(olds) if self._recent else olds:
            events = {own: event, other: old}
            in_order = {end: events[end] for end in self._holding.event_ends(key)}
            for occurrence in self._shown_by(key, in_order):
                gone.update({event, old})
                if self._recent:
                    gone.update(olds[: olds.index(old)])
                yield occurrence
                return


def windowed(key: Key, window: int) -> Key:
    """The same correlation with this window, which is a part of it."""
    assert isinstance(key, RelationKey), key
    return msgspec.structs.replace(key, window=window)
