"""What occurs in a small world: readings, and the occurrences of terms by rule 1, one at a time.
[PO-7]
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from rapport.core.detection import Cause
from rapport.policy import relations
from rapport.policy.language.tree import ConceptDef, PolicyTree, Property
from rapport.policy.ontology import Ontology
from rapport.policy.runners.base import PullData
from rapport.testing.normal_form import TermKey

_METRES = {"m": 1.0, "cm": 0.01, "mm": 0.001, "km": 1000.0}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    ">": lambda left, right: left > right,
    "<=": lambda left, right: left <= right,
    ">=": lambda left, right: left >= right,
}


class Reading(msgspec.Struct, frozen=True):
    """One event of a stream: the instance `key` of its concept had `value` at `time`."""

    time: int
    id: str
    stream: str
    key: str
    value: tuple[float | str | bool, ...]
    source: str = ""
    """Empty: whichever gives the stream."""

    @property
    def cause(self) -> Cause:
        return (self.time, self.id)


class Occurrence(msgspec.Struct, frozen=True):
    """A term holding: identities of its aliases, and the one or two events that show it (none: a
    fact).
    """

    pairs: tuple[tuple[str, str], ...]
    events: tuple[Reading, ...]

    @property
    def bindings(self) -> dict[str, str]:
        return dict(self.pairs)

    @property
    def start(self) -> int:
        return min(event.time for event in self.events)

    @property
    def end(self) -> int:
        return max(event.time for event in self.events)


class _Side(msgspec.Struct, frozen=True):
    alias: str
    concept: str
    attribute: str
    properties: tuple[Property, ...]
    stream: str | None


class KnownWorld:
    """The readings and instances of one policy, and what occurs in them."""

    def __init__(
        self,
        tree: PolicyTree,
        ontology: Ontology,
        pull: PullData,
        readings: Iterable[Reading],
        window: int,
    ) -> None:
        self._tree, self._ontology, self._pull, self._window = tree, ontology, pull, window
        self._readings = sorted(readings, key=lambda reading: reading.cause)
        self._aliases = {concept.alias: concept for concept in tree.concepts}
        self._used: dict[TermKey, list[Occurrence]] = {}
        self._all: dict[TermKey, list[Occurrence]] = {}

    def has_events(self, term: TermKey) -> bool:
        """Whether events decide the term (else it is a fact of the tables)."""
        return bool(self.streams(term))

    def streams(self, term: TermKey) -> set[str]:
        """The streams whose events decide the term."""
        return {side.stream for side in self._sides(term) if side.stream is not None}

    def occurrences(self, term: TermKey) -> list[Occurrence]:
        """Occurrences where the term stands positive: correlations use events up."""
        if term not in self._used:
            first, second = self._sides(term)
            both = first.stream is not None and second.stream is not None
            self._used[term] = (
                list(self._consumed(term)) if both else list(self.all_occurrences(term))
            )
        return self._used[term]

    def all_occurrences(self, term: TermKey) -> list[Occurrence]:
        """Occurrences where the term stands under a NOT: every pair counts."""
        if term not in self._all:
            self._all[term] = list(self._every(term))
        return self._all[term]

    def _every(self, term: TermKey) -> Iterator[Occurrence]:
        first, second = self._sides(term)
        for left in self._holders(first):
            for right in self._holders(second):
                if occurrence := self._occurrence(term, left, right):
                    yield occurrence

    def _occurrence(
        self, term: TermKey, left: Reading | str, right: Reading | str
    ) -> Occurrence | None:
        """The occurrence of two holders (an event or an instance each), if they make one."""
        first, second = self._sides(term)
        events = tuple(holder for holder in (left, right) if isinstance(holder, Reading))
        if len(events) == 2 and (
            events[0] == events[1] or not abs(events[0].time - events[1].time) < self._window
        ):
            return None
        if not self._holds(term, self._value(first, left), self._value(second, right)):
            return None
        bound = {first.alias: _identity(left)}
        if bound.setdefault(second.alias, _identity(right)) != _identity(right):
            return None
        return Occurrence(tuple(sorted(bound.items())), events)

    def _consumed(self, term: TermKey) -> Iterator[Occurrence]:
        """Pairs of events where each arriving event takes the oldest (or newest) unused one that
        fits.
        """
        first, second = self._sides(term)
        used: dict[tuple[str, str], set[Reading]] = {}
        for number, event in enumerate(self._readings):
            earlier = self._readings[:number]
            for as_first in (True, False):
                own, other = (first, second) if as_first else (second, first)
                if not self._is_of(own, event):
                    continue
                for identity in sorted({old.key for old in earlier if self._is_of(other, old)}):
                    pair = (event.key, identity) if as_first else (identity, event.key)
                    gone = used.setdefault(pair, set())
                    olds = [
                        old
                        for old in earlier
                        if old.key == identity and self._is_of(other, old) and old not in gone
                    ]
                    taken = self._take(term, event, olds, gone, as_first)
                    if taken is not None:
                        yield taken

    def _take(
        self, term: TermKey, event: Reading, olds: list[Reading], gone: set[Reading], as_first: bool
    ) -> Occurrence | None:
        if event in gone:
            return None
        recent = self._tree.consumption == "recent"
        for old in reversed(olds) if recent else olds:
            sides = (event, old) if as_first else (old, event)
            occurrence = self._occurrence(term, *sides)
            if occurrence is not None:
                gone.update({event, old})
                if recent:
                    gone.update(olds[: olds.index(old)])
                return occurrence
        return None

    def _sides(self, term: TermKey) -> tuple[_Side, _Side]:
        """The term's ends as written, each with the attribute the relationship gives it."""
        relationship = self._relationship(term)
        attributes = relationship.first[1], relationship.second[1]
        if self._is_reversed(term):
            attributes = attributes[1], attributes[0]
        return self._side(term.first, attributes[0]), self._side(term.second, attributes[1])

    def _side(self, alias: str, attribute: str) -> _Side:
        concept: ConceptDef = self._aliases[alias]
        stream = f"{concept.concept}.{attribute}"
        return _Side(
            alias,
            concept.concept,
            attribute,
            concept.properties,
            stream if stream in self._ontology.streams() else None,
        )

    def _relationship(self, term: TermKey) -> Any:
        known = {name.lower(): item for name, item in self._ontology.relationships.items()}
        return known[term.function]

    def _is_reversed(self, term: TermKey) -> bool:
        relationship = self._relationship(term)
        concepts = self._aliases[term.first].concept, self._aliases[term.second].concept
        return concepts != (relationship.first[0], relationship.second[0])

    def _holders(self, side: _Side) -> list[Reading] | list[str]:
        if side.stream is not None:
            return [reading for reading in self._readings if self._is_of(side, reading)]
        ids = self._pull.instances(side.concept).ids
        return [identity for identity in ids if self._satisfies(side, identity)]

    def _is_of(self, side: _Side, reading: Reading) -> bool:
        return reading.stream == side.stream and self._satisfies(side, reading.key)

    def _satisfies(self, side: _Side, identity: str) -> bool:
        instances = self._pull.instances(side.concept)
        row = instances.row(identity)
        for wanted in side.properties:
            if row < 0 or wanted.attribute not in instances.columns:
                return False
            value = instances.columns[wanted.attribute][row]
            if value is None or (isinstance(value, float) and math.isnan(value)):
                return False
            if not _COMPARE[wanted.operator](value, _constant(value, wanted.value)):
                return False
        return True

    def _value(self, side: _Side, holder: Reading | str) -> Any:
        if isinstance(holder, Reading):
            return holder.value
        instances = self._pull.instances(side.concept)
        value = instances.columns[side.attribute][instances.row(holder)]
        return tuple(value) if getattr(value, "ndim", 0) else (value,)

    def _holds(self, term: TermKey, left: Any, right: Any) -> bool:
        relation = relations.get(self._relationship(term).function)
        if self._is_reversed(term):
            left, right = right, left
        return bool(relation.holds(left, right, _metres(term.parameter)))


def _identity(holder: Reading | str) -> str:
    return holder.key if isinstance(holder, Reading) else holder


def _metres(parameter: str) -> float | None:
    if not parameter:
        return None
    found = re.fullmatch(r"([0-9.]+)([a-z]*)", parameter.lower())
    assert found is not None, parameter
    return float(found[1]) * _METRES[found[2] or "m"]


def _constant(value: Any, wanted: str | float) -> Any:
    """The constant in the type of the attribute: `true` for booleans, numbers for numbers."""
    if isinstance(value, bool):
        return str(wanted).lower() == "true"
    if isinstance(value, str):
        return str(wanted)
    return float(wanted)
