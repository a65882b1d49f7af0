"""A small world that is known whole: its readings in order, its tables, and what an occurrence is.
[PO-7]
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rapport.policy.language.tree import PolicyTree
from rapport.policy.ontology import Ontology
from rapport.policy.operators.base import PullData
from support.judge.holding import End, Holding, Reading
from support.judge.keys import Key, LastingKey, RelationKey, SilentKey, stated_in


class Occurrence(msgspec.Struct, frozen=True):
    """A term holding: identities of its aliases, the events that show it, and when it ends (None:
    a fact, which takes no part in any test of time).
    """

    pairs: tuple[tuple[str, str], ...]
    events: tuple[Reading, ...]
    until: int | None
    uncertainty: int = 0
    """How far the clocks of its events' sources may be wrong."""

    @property
    def bindings(self) -> dict[str, str]:
        return dict(self.pairs)

    @property
    def is_fact(self) -> bool:
        return self.until is None

    @property
    def start(self) -> int:
        return min((event.time for event in self.events), default=self.end)

    @property
    def end(self) -> int:
        assert self.until is not None, "a fact has no end"
        return self.until


class KnownWorld:
    """The readings and instances that one policy is judged by."""

    def __init__(
        self, tree: PolicyTree, ontology: Ontology, pull: PullData, readings: Iterable[Reading]
    ) -> None:
        self.holding = Holding(tree, ontology, pull)
        self.readings = sorted(
            (_with_source(reading, ontology) for reading in readings),
            key=lambda one: (one.time, one.id, one.stream, one.key),
        )
        self._ontology = ontology

    # What decides a term.

    def has_events(self, key: Key) -> bool:
        """Whether events decide the term (else it is a fact of the tables)."""
        return bool(self.streams(key))

    def is_correlation(self, key: Key) -> bool:
        """Whether it takes two events."""
        return isinstance(key, RelationKey) and len(self.holding.event_ends(key)) == 2

    def streams(self, key: Key) -> set[str]:
        """The streams whose events decide the term."""
        match key:
            case SilentKey():
                concept = self.holding.concept(key.alias)
                streams = {name for name in self._ontology.streams() if _concept(name) == concept}
                return {f"{concept}.{key.attribute}"} if key.attribute else streams
            case LastingKey():
                keys = [stated.key for stated in stated_in(key.state)]
                return set().union(*(self.streams(one) for one in keys))
            case _:
                ends = self.holding.event_ends(key)
                return {stream for end in ends if (stream := self.holding.stream(end))}

    def is_at(self, end: End, reading: Reading) -> bool:
        """Whether the reading is one of the end's stream, of an instance that its alias may be."""
        return reading.stream == self.holding.stream(end) and self.holding.satisfies(
            end.alias, reading.key
        )

    def occurrence(
        self, bindings: dict[str, str], events: Iterable[Reading], until: int | None
    ) -> Occurrence:
        """With the uncertainty of its events."""
        shown = tuple(events)
        sources = self._ontology.sources
        unsure = max((sources[event.source].uncertainty_ms for event in shown), default=0)
        return Occurrence(tuple(sorted(bindings.items())), shown, until, unsure)

    def stale_after(self, reading: Reading) -> int:
        """How long the reading says something, by its source; 0: until the next."""
        return self._ontology.sources[reading.source].stale_after_ms


def _with_source(reading: Reading, ontology: Ontology) -> Reading:
    if reading.source:
        return reading
    giving = [name for name, one in ontology.sources.items() if reading.stream in one.streams]
    return msgspec.structs.replace(reading, source=giving[-1])


def _concept(stream: str) -> str:
    return stream.partition(".")[0]
