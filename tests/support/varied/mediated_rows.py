"""Raw events of many sources, and what the node makes of each, to hold other ways of mediating
against. [ME-14, PI-4]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import msgspec

from rapport.core.event import Event, StoredEvent
from rapport.mediation.interpretations.repository import ActiveInterpretations
from rapport.mediation.reader import build_transformer
from rapport.mediation.source_bindings import RAW_PREFIX
from rapport.pipeline.mediation.meanings import Meanings, SentTables
from rapport.policy.ontology import Ontology
from rapport.policy.readings import split_events
from rapport.tables.loaded_table import KeyedRows
from rapport.tables.rows import RowFile
from support.event_readings import readings_from_events
from support.varied.fields_form import fields_case
from support.varied.interpretations import TABLES, Case, in_force_of, ontology_of, payload
from support.varied.typed_form import typed_case

TIMES = (*range(-9, 9), 1_772_442_845_300, 2**61)


class RawRow(msgspec.Struct, frozen=True):
    """A raw event in its channel."""

    channel: str
    position: int
    event: Event

    def as_row(self) -> tuple[Any, ...]:
        """In the order of a channel's columns."""
        event = self.event
        named = (event.source, event.id, event.type, event.subject)
        place = (self.channel, self.position, 0, event.time)
        return (*place, *named, event.headers, bytearray(event.data))


class VariedSources(msgspec.Struct, frozen=True):
    """Random sources of both forms, and events of each."""

    cases: Sequence[Case]
    meanings: Meanings
    rows: Sequence[RawRow]


def varied_sources(seed: int, *, forms: int, events: int) -> VariedSources:
    """So many sources of each form, with so many events each; the same for the same seed."""
    chance = Random(seed)
    cases = [fields_case(f"fields{number}", chance) for number in range(forms)]
    cases += [typed_case(f"typed{number}", chance) for number in range(forms)]
    meanings = meanings_with(in_force_of(cases), cases, ontology_of(cases))
    rows = []
    for case in cases:
        source = case.binding.source
        for number in range(events):
            named = chance.choice((source, source, "somebody"))
            data, time = payload(case, chance), chance.choice(TIMES)
            event = Event(named, f"{source}-{number}", "x.raw", "", time, data)
            rows.append(RawRow(RAW_PREFIX + source, number + 1, event))
    return VariedSources(cases, meanings, rows)


def meanings_with(
    in_force: ActiveInterpretations, cases: Iterable[Case], ontology: Ontology
) -> Meanings:
    """With the tables of `varied_interpretations`."""
    return Meanings(
        in_force=in_force,
        bindings={case.binding.source: case.binding for case in cases},
        ontology=ontology,
        tables=SentTables(
            {name: _lookup(name) for name in TABLES},
            {name: tuple(rows) for name, rows in TABLES.items()},
        ),
    )


def _lookup(name: str) -> KeyedRows:
    rows = TABLES[name]
    header = list(next(iter(rows.values())))
    cells = [[row[column] for column in header] for row in rows.values()]
    return KeyedRows(name, RowFile(name, header, cells, ""), list(rows))


def by_the_node(meanings: Meanings, rows: Sequence[RawRow]) -> Counter[tuple[Any, ...]]:
    """What the node's own transformers give: readings as policies see them, and rejections."""
    found: Counter[tuple[Any, ...]] = Counter()
    for source, binding in meanings.bindings.items():
        meaning = build_transformer(binding, meanings.in_force, lookups=meanings.tables)
        own = [row for row in rows if row.channel == RAW_PREFIX + source]
        for row in own:
            place = (row.channel, row.position)
            stored = [StoredEvent(row.position, 0, row.event)]
            readings, rejections = meaning.apply_many(stored)
            for reading in readings:
                found[(*place, *_told(reading, meanings.ontology))] += 1
            for each in rejections:
                told = (each.interpretation, each.code, each.message, each.hint)
                found[(*place, "rejected", *told)] += 1
    return found


def _told(reading: Event, ontology: Ontology) -> tuple[Any, ...]:
    stamp = reading.headers["interpretation"]
    rejected = split_events([reading], ontology)[1]
    if rejected:
        fault = rejected[0][1]
        return ("rejected", stamp, fault.code, fault.message, fault.hint)
    (row,) = readings_from_events([reading], ontology).to_pylist()
    parts = {name: value for name, value in row.items() if value is not None}
    return ("reading", stamp, *(f"{name}={value!r}" for name, value in sorted(parts.items())))


def by_spark(readings: Iterable[Any], rejected: Iterable[Any]) -> Counter[tuple[Any, ...]]:
    """The same from the rows that Spark collected."""
    found: Counter[tuple[Any, ...]] = Counter()
    own = ("channel", "position", "received", "interpretation")
    for row in readings:
        parts = {name: each for name, each in row.asDict().items() if name not in own}
        said = (f"{name}={value!r}" for name, value in sorted(parts.items()) if value is not None)
        found[row.channel, row.position, "reading", row.interpretation, *said] += 1
    for row in rejected:
        told = (row.interpretation, row.reason, row.message, row.hint)
        found[row.channel, row.position, "rejected", *told] += 1
    return found
