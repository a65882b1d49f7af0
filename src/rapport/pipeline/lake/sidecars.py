"""What people read about a table: its columns, their units and meaning, since when. [PI-3]

`_table.json` beside a table's files. A column never changes its type: old files stay as they are,
and readers see nulls where a file is older than the column.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pyarrow as pa

from rapport.core.errors import Corrupt
from rapport.pipeline.lake.places import SIDECAR
from rapport.policy.ontology import Ontology


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One column of a table."""

    name: str
    type: str
    unit: str = ""
    meaning: str = ""
    since: str = ""
    """The day of the first rows that can have it."""
    until: str = ""
    """The day from which new rows have none; empty while they have."""


WIDER = {("int32", "int64"), ("int32", "double"), ("int64", "double"), ("float", "double")}
"""Types whose values the second can hold as well: readers see the wider one."""


class TableNotes(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a table."""

    format: int = 1
    table: str
    meaning: str = ""
    columns: list[Column] = []

    def conflict(self, schema: pa.Schema) -> tuple[str, str, str] | None:
        """Name, new and old type of the first column that has another type than it had."""
        known = {column.name: column.type for column in self.columns}
        for field in schema:
            had, has = known.get(field.name, str(field.type)), str(field.type)
            if had != has and (had, has) not in WIDER:
                return field.name, has, had
        return None


MEANINGS = {
    "time": "event time, milliseconds UTC",
    "id": "id of the event",
    "stream": "concept and attribute",
    "source": "source of the site that gave it",
    "key": "identity of the instance",
    "position": "place in the channel",
    "received": "when it was received, milliseconds UTC",
    "event_source": "source as the event names it; with id the event's identity",
    "corrects": "id of the reading that this one stands in for",
    "status": "counted, late, or corrected by another reading",
    "reason": "why it is not counted",
    "value": "the value",
    "x": "first coordinate",
    "y": "second coordinate",
    "message": "what is wrong",
    "hint": "what to do about it",
    "found_by": "who held it back: mediation, policy, or lake",
    "channel": "channel in which it lies",
    "data": "its payload, as text",
    "type": "type of the event",
    "subject": "what the event is about",
    "headers": "headers of the event",
    "policy": "name of the policy",
    "version": "version of the policy",
    "bindings": "who stands for each alias",
    "cause_times": "times of the readings it rests on",
    "cause_ids": "ids of the readings it rests on",
    "silent": "sources that should have been heard",
    "kind": "detected or undecided",
    "second_look": "the release after which it was found",
}

UNITS = {"time": "ms", "received": "ms", "cause_times": "ms"}


def noted(
    notes: TableNotes, schema: pa.Schema, day: str, units: Mapping[str, str] | None = None
) -> TableNotes:
    """The notes with new columns of the schema; those that it no longer has are marked as ended."""
    known = {column.name: column for column in notes.columns}
    for column in notes.columns:
        is_there = column.name in schema.names
        if is_there == bool(column.until):
            until = "" if is_there else day
            known[column.name] = msgspec.structs.replace(column, until=until)
    for field in schema:
        unit = (units or {}).get(field.name, UNITS.get(field.name, ""))
        if field.name not in known:
            known[field.name] = Column(
                name=field.name,
                type=str(field.type),
                unit=unit,
                meaning=MEANINGS.get(field.name, ""),
                since=day,
            )
        else:
            known[field.name] = msgspec.structs.replace(
                known[field.name], unit=unit, type=str(field.type)
            )
    return msgspec.structs.replace(notes, columns=list(known.values()))


def stream_units(ontology: Ontology, stream: str, parts: tuple[str, ...]) -> dict[str, str]:
    """The unit of each part of a stream, where the site says one."""
    concept, _, attribute = stream.partition(".")
    unit = ontology.units.get(concept, {}).get(attribute, "")
    return dict.fromkeys(parts, unit) if unit else {}


def read_notes(table: Path, name: str) -> TableNotes:
    """A table's notes, empty ones when it has none; raises Corrupt when they cannot be read."""
    path = table / SIDECAR
    try:
        return msgspec.json.decode(path.read_bytes(), type=TableNotes)
    except FileNotFoundError:
        return TableNotes(table=name)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, OSError) as error:
        raise Corrupt(
            f"{path} cannot be read: {error}",
            code="lake.bad_sidecar",
            hint="remove it: the next run of rapport pipeline silver writes it again",
        ) from None


def write_notes(path: Path, notes: TableNotes) -> None:
    """Writes notes to a prepared file."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(notes), indent=2))
