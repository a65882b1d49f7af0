"""Events of bronze as rows of silver: one meaning with the node's, by the same code. [PI-3]

`policy/readings.py` decides what a reading says, here as in the policy engine, so a row of silver
can never mean something else than what a policy saw. Pure: batches in, tables out.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.errors import Problem
from rapport.core.event import Event
from rapport.core.release import CORRECTS
from rapport.core.schema import PARTS, AttributeType
from rapport.policy.ontology import Ontology
from rapport.policy.readings import part_type, split_events

COUNTED, LATE, CORRECTED = "counted", "late", "corrected"

_RAW_CHANNEL = "rawchannel"
_LONGEST_COPY = 1_000

UNKNOWN_STREAM = "reading.unknown_stream"

_COMMON = [("time", pa.int64()), ("id", pa.string()), ("stream", pa.string())]
_COMMON += [("source", pa.string()), ("key", pa.string())]
_PLACE = [("position", pa.int64()), ("received", pa.int64()), ("event_source", pa.string())]
_PLACE += [("corrects", pa.string()), ("status", pa.string()), ("reason", pa.string())]

QUARANTINED_SCHEMA = pa.schema(
    [
        ("time", pa.int64()),
        ("source", pa.string()),
        ("id", pa.string()),
        ("stream", pa.string()),
        ("reason", pa.string()),
        ("message", pa.string()),
        ("hint", pa.string()),
        ("found_by", pa.string()),
        ("channel", pa.string()),
        ("position", pa.int64()),
        ("received", pa.int64()),
        ("data", pa.string()),
    ]
)
"""Columns of `silver/quarantined`; `data` is the beginning of the payload, for people."""


class Correction(msgspec.Struct, frozen=True):
    """A reading that stands in for another one of its source."""

    source: str
    original: str


class Decoded(msgspec.Struct, frozen=True, kw_only=True):
    """What events of one type became."""

    readings: pa.Table
    rejected: pa.Table
    corrections: list[Correction]


def silver_schema(kind: AttributeType) -> pa.Schema:
    """The columns of a stream: those of readings, its parts without a prefix, place and state."""
    parts = [(part, part_type(kind)) for part in PARTS[kind]]
    return pa.schema([*_COMMON, *parts, *_PLACE])


def decode_events(rows: pa.RecordBatch, stream: str, ontology: Ontology) -> Decoded:
    """Rows of a channel, all of the type `stream`, as rows of silver in their order, and what
    cannot be read with the reason.
    """
    if stream not in ontology.streams():
        return _unknown(rows, stream)
    events = _events(rows)
    readings, faulty = split_events(events, ontology)
    faults = {id(event): problem for event, problem in faulty}
    kept = np.fromiter((id(event) not in faults for event in events), np.bool_, len(events))
    problems = [faults[id(event)] for event in events if id(event) in faults]
    good, bad = rows.filter(pa.array(kept)), rows.filter(pa.array(~kept))
    table = _silver_table(good, readings, stream, ontology.streams()[stream])
    return Decoded(
        readings=table,
        rejected=quarantined_rows(bad, problems),
        corrections=_corrections(table),
    )


def quarantined_rows(
    rows: pa.RecordBatch, problems: Sequence[Problem], found_by: str = "lake"
) -> pa.Table:
    """Rows of a channel that could not be used, each with its problem."""
    count = rows.num_rows
    data = [raw[:_LONGEST_COPY].decode(errors="replace") for raw in rows["data"].to_pylist()]
    columns = {
        "time": rows["time"],
        "source": rows["source"],
        "id": rows["id"],
        "stream": rows["type"],
        "reason": pa.array([problem.code for problem in problems], pa.string()),
        "message": pa.array([problem.message for problem in problems], pa.string()),
        "hint": pa.array([problem.hint for problem in problems], pa.string()),
        "found_by": pa.array([found_by] * count, pa.string()),
        "channel": rows["channel"],
        "position": rows["position"],
        "received": rows["received"],
        "data": pa.array(data, pa.string()),
    }
    return pa.table(columns, schema=QUARANTINED_SCHEMA)


def conflicting(stream: str, column: str, has: str, had: str) -> Problem:
    """Why readings of a stream cannot stand in its table: a column has another type now."""
    return Problem(
        code="lake.type_conflict",
        message=f"{column!r} of {stream} is {has} now; its table holds {had}",
        hint="give the attribute another name; or make silver again: rapport pipeline silver "
        "--rebuild",
    )


def _unknown(rows: pa.RecordBatch, stream: str) -> Decoded:
    problem = Problem(
        code=UNKNOWN_STREAM,
        message=f"no source of the site gives {stream!r}",
        hint="when the site declares it, make silver again: rapport pipeline silver --rebuild",
    )
    return Decoded(
        readings=silver_schema("text").empty_table(),
        rejected=quarantined_rows(rows, [problem] * rows.num_rows),
        corrections=[],
    )


def _events(rows: pa.RecordBatch) -> list[Event]:
    """The events, of their headers only that which readings depend on."""
    raw = header(rows, _RAW_CHANNEL)
    names = ("source", "id", "type", "subject", "time", "data")
    columns = [rows[name].to_pylist() for name in names]
    if raw.null_count < len(raw):
        told = raw.to_pylist()
        columns.append([{} if one is None else {_RAW_CHANNEL: one} for one in told])
    return [Event(*values) for values in zip(*columns, strict=True)]


def header(rows: pa.RecordBatch, name: str) -> pa.Array:
    """One header of every row, null where it is missing."""
    return pc.map_lookup(rows["headers"], pa.scalar(name), "first")


def _silver_table(
    rows: pa.RecordBatch, readings: pa.RecordBatch, stream: str, kind: AttributeType
) -> pa.Table:
    schema, count = silver_schema(kind), rows.num_rows
    columns = {name: readings[name] for name, _type in _COMMON}
    columns |= {part: readings[f"{stream}.{part}"] for part in PARTS[kind]}
    columns |= {
        "position": rows["position"],
        "received": rows["received"],
        "event_source": rows["source"],
        "corrects": header(rows, CORRECTS),
        "status": pa.repeat(pa.scalar(COUNTED), count),
        "reason": pa.repeat(pa.scalar(""), count),
    }
    return pa.table(columns, schema=schema)


def _corrections(table: pa.Table) -> list[Correction]:
    marked = table.filter(pc.is_valid(table["corrects"]))
    pairs = zip(marked["event_source"].to_pylist(), marked["corrects"].to_pylist(), strict=True)
    return [Correction(*pair) for pair in pairs]
