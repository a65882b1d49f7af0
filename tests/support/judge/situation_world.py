"""A world that is known whole, for the judge of situations: readings, tables through time, and who
is known when. [SI-3, SI-4, SI-11]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from rapport.policy.ontology import Ontology
from rapport.policy.operators.base import PullData
from rapport.tables.tables import BEGINNING_OF_TIME, Tables
from support.judge.holding import Reading

Value = tuple[Any, ...]


class TableVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The tables from `since` on, until the next version."""

    pull: PullData
    since: int = BEGINNING_OF_TIME
    days: Mapping[str, frozenset[str]] = {}
    """The keys of each table without a concept, for `time is on holidays`."""


class PresentValue(NamedTuple):
    """A value at an instant, and the reading that gives it; None where a table does."""

    value: Value
    reading: Reading | None


def version_of_tables(tables: Tables) -> TableVersion:
    """The loaded tables of a site, unchanged through time."""
    declared = tables.declarations()
    keys = {
        name: one.key
        for name, one in declared.items()
        if not one.concept and one.key and not one.further_keys
    }
    days = {
        name: frozenset(key for (key,) in tables.rows(name, [column]))
        for name, column in keys.items()
    }
    return TableVersion(pull=tables, days=days)


def without_late(readings: Iterable[Reading], lateness_ms: int) -> list[Reading]:
    """The readings, given in order of arrival, that are not older than the watermark."""
    kept: list[Reading] = []
    largest: int | None = None
    for reading in readings:
        if largest is None or reading.time >= largest - lateness_ms:
            kept.append(reading)
        largest = reading.time if largest is None else max(largest, reading.time)
    return kept


class KnownRecord:
    """Readings and tables of one site from `start` to `end`, both included."""

    def __init__(
        self,
        ontology: Ontology,
        tables: Sequence[TableVersion],
        readings: Iterable[Reading],
        *,
        start: int | None = None,
        until: int | None = None,
        also_at: Iterable[int] = (),
    ) -> None:
        self.ontology, self.zone = ontology, ontology.zone or "UTC"
        self._also_at = frozenset(also_at)
        self.tables = sorted(tables, key=lambda one: one.since)
        self.readings = sorted(readings, key=lambda one: (one.time, one.id))
        times = [reading.time for reading in self.readings]
        fallback = until if start is None else start
        self.start = start if start is not None else min(times, default=fallback or 0)
        self.end = max([*times, *([] if until is None else [until]), *([] if times else [0])])
        self._of: dict[tuple[str, str], list[Reading]] = {}
        for reading in self.readings:
            self._of.setdefault((reading.stream, reading.key), []).append(reading)
        self._streams = ontology.streams()
        self._giving = {
            stream: name for name, one in ontology.sources.items() for stream in one.streams
        }
        self._present: dict[object, PresentValue | None] = {}
        self._known: dict[object, bool] = {}

    # Readings.

    def of(self, concept: str, attribute: str, identity: str) -> list[Reading]:
        """The readings of an attribute of an identity, by (time, id)."""
        return self._of.get((f"{concept}.{attribute}", identity), [])

    def window(
        self, concept: str, attribute: str, identity: str, t: int, length: int
    ) -> list[Reading]:
        """Those with `t - length < time <= t`."""
        return [
            reading
            for reading in self.of(concept, attribute, identity)
            if t - length < reading.time <= t
        ]

    def event_attributes(self, concept: str) -> list[str]:
        """The attributes of a concept that sources give."""
        names = self.ontology.concepts[concept]
        return [name for name in names if self.is_event(concept, name)]

    def is_event(self, concept: str, attribute: str) -> bool:
        return f"{concept}.{attribute}" in self._streams

    def expires(self, reading: Reading) -> int | None:
        """The instant from which the reading says nothing more; None: never."""
        source = reading.source or self._giving[reading.stream]
        after = self.ontology.sources[source].stale_after_ms
        return reading.time + after if after else None

    # Rule 1: present values.

    def present(self, concept: str, attribute: str, identity: str, t: int) -> PresentValue | None:
        """None: unknown."""
        key = (concept, attribute, identity, t)
        if key not in self._present:
            self._present[key] = self._find_present(*key)
        return self._present[key]

    def _find_present(
        self, concept: str, attribute: str, identity: str, t: int
    ) -> PresentValue | None:
        if attribute == "id":
            return PresentValue((identity,), None)
        if not self.is_event(concept, attribute):
            value = self.table_value(concept, attribute, identity, t)
            return None if value is None else PresentValue(value, None)
        before = [one for one in self.of(concept, attribute, identity) if one.time <= t]
        if not before:
            return None
        newest = before[-1]
        expiry = self.expires(newest)
        if expiry is not None and t >= expiry:
            return None
        value = complete(newest.value)
        return None if value is None else PresentValue(value, newest)

    def table_value(self, concept: str, attribute: str, identity: str, t: int) -> Value | None:
        """None: missing."""
        instances = self.tables_at(t).pull.instances(concept)
        row = instances.row(identity)
        if row < 0 or attribute not in instances.columns:
            return None
        cell = instances.columns[attribute][row]
        parts = cell.tolist() if hasattr(cell, "tolist") else cell
        return complete(tuple(parts) if isinstance(parts, list) else (parts,))

    def tables_at(self, t: int) -> TableVersion:
        """Before the first version, the first."""
        valid = [version for version in self.tables if version.since <= t]
        return valid[-1] if valid else self.tables[0]

    # Rule 1: who is known.

    def identities(self, concept: str) -> set[str]:
        """Every identity that is ever known."""
        listed = {identity for one in self.tables for identity in one.pull.instances(concept).ids}
        streams = {f"{concept}.{name}" for name in self.event_attributes(concept)}
        return listed | {key for stream, key in self._of if stream in streams}

    def is_known(self, concept: str, identity: str, t: int) -> bool:
        """While a table has it; one that no table had up to now, from its first reading."""
        key = (concept, identity, t)
        if key not in self._known:
            self._known[key] = self._find_known(*key)
        return self._known[key]

    def _find_known(self, concept: str, identity: str, t: int) -> bool:
        if t < self.start:
            return False
        if self._has(self.tables_at(t), concept, identity):
            return True
        former = [self.tables_at(self.start)]
        former += [version for version in self.tables if self.start <= version.since <= t]
        if any(self._has(version, concept, identity) for version in former):
            return False
        first = self._first_reading(concept, identity)
        return first is not None and first <= t

    def known_since(self, concept: str, identity: str, t: int) -> int:
        """The beginning of the stretch, up to t, in which a known identity is known."""
        first = self._first_reading(concept, identity)
        changes = {self.start, *(version.since for version in self.tables)}
        changes |= set() if first is None else {first}
        since = t
        for change in sorted((one for one in changes if self.start <= one <= t), reverse=True):
            if not self.is_known(concept, identity, change):
                break
            since = change
        return since

    def _has(self, version: TableVersion, concept: str, identity: str) -> bool:
        return version.pull.instances(concept).row(identity) >= 0

    def _first_reading(self, concept: str, identity: str) -> int | None:
        names = self.event_attributes(concept)
        times = [one.time for name in names for one in self.of(concept, name, identity)]
        return min(times, default=None)

    # When anything can change.

    def changes(self) -> set[int]:
        """The start, and every instant of a reading, of its expiry or of a change of the tables."""
        found = {self.start, *self._also_at, *(version.since for version in self.tables)}
        for reading in self.readings:
            found.add(reading.time)
            expiry = self.expires(reading)
            if expiry is not None:
                found.add(expiry)
        return found

    def within(self, instants: Iterable[int]) -> list[int]:
        """Those from start to end, in order."""
        return sorted({t for t in instants if self.start <= t <= self.end})


def complete(value: Value) -> Value | None:
    """None if a part is missing or no finite number."""
    for part in value:
        if part is None or (isinstance(part, float) and not math.isfinite(part)):
            return None
    return value
