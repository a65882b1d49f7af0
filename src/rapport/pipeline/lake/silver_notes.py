"""What silver says about its tables, and which readings no longer fit them. [PI-3]"""

from __future__ import annotations

from pathlib import Path

import msgspec

from rapport.core.errors import Problem
from rapport.core.schema import PARTS
from rapport.pipeline.lake.places import DETECTED, QUARANTINED, table_folder
from rapport.pipeline.lake.sidecars import TableNotes, noted, read_notes, stream_units
from rapport.pipeline.lake.silver_findings import DETECTED_SCHEMA
from rapport.pipeline.lake.silver_rows import QUARANTINED_SCHEMA, conflicting, silver_schema
from rapport.policy.ontology import Ontology


def find_conflicts(lake: Path, ontology: Ontology) -> dict[str, Problem]:
    """Streams whose table has a column of another type than the site now says."""
    found: dict[str, Problem] = {}
    for stream, kind in ontology.streams().items():
        notes = read_notes(table_folder(lake, stream), stream)
        conflict = notes.conflict(silver_schema(kind))
        if conflict is not None:
            found[stream] = conflicting(stream, *conflict)
    return found


def table_notes(before: TableNotes, table: str, ontology: Ontology, day: str) -> TableNotes:
    """The notes of a table as they are from this day on."""
    if table == QUARANTINED:
        return noted(_meant(before, "what could not be used"), QUARANTINED_SCHEMA, day)
    if table == DETECTED:
        return noted(_meant(before, "what policies detected"), DETECTED_SCHEMA, day)
    kind = ontology.streams()[table]
    units = stream_units(ontology, table, PARTS[kind])
    return noted(_meant(before, f"readings of {table}"), silver_schema(kind), day, units)


def _meant(notes: TableNotes, meaning: str) -> TableNotes:
    return msgspec.structs.replace(notes, meaning=meaning)
