"""Rows of silver and of `gold/detected`: their columns, and how events become them.
[LK-2, LK-4, PI-3]

`policy/readings.py` decides what a reading is, here as in the policy engine, so a row of silver
cannot differ from what a policy saw. Pure: Arrow batches in, Arrow tables out; Spark's tasks call
these functions (`mapInArrow`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import DETECTED, UNDECIDED
from rapport.core.errors import Problem
from rapport.core.event import Event
from rapport.core.release import REEVALUATION
from rapport.core.schema import PARTS, AttributeType
from rapport.lake.bronze import DAY_MS, FIRST_MS, LAST_MS, TIME
from rapport.lake.table import field
from rapport.policy.engine.stream_steps import LATE_TYPE, QUARANTINED_TYPE
from rapport.policy.ontology import Ontology
from rapport.policy.readings import (
    FARTHEST_MS,
    columns_of_data,
    part_type,
    split_events,
)

COUNTED, LATE, CORRECTED = "counted", "late", "corrected"
LATE_REASON = "policy.late"
UNKNOWN_STREAM = "reading.unknown_stream"
TYPE_CONFLICT = "lake.type_conflict"
_LONGEST_COPY = 1_000
_MEANINGS = {"value": "the value", "x": "first coordinate", "y": "second coordinate"}

_DAY = field("day", pa.date32(), meaning="day of event time, UTC")
_TIME = field("time", TIME, meaning="event time; null outside of the years 1 to 9999")
_TIME_MS = field("time_ms", pa.int64(), unit="ms", meaning="event time where `time` is null")
_POSITION = field("position", pa.int64(), meaning="place in the channel")
_RECEIVED = field("received", TIME, meaning="when it was received")

QUARANTINED_SCHEMA = pa.schema(
    [
        field("day", pa.date32(), meaning="day of arrival, UTC"),
        _TIME,
        field("source", pa.string(), meaning="source as the event names it"),
        field("id", pa.string(), meaning="id of the event"),
        field("stream", pa.string(), meaning="type of the event"),
        field("reason", pa.string(), meaning="why it cannot be used, for programs"),
        field("message", pa.string(), meaning="what is wrong"),
        field("hint", pa.string(), meaning="what to do about it"),
        field("found_by", pa.string(), meaning="mediation, policy or lake"),
        field("channel", pa.string(), meaning="channel in which it lies"),
        _POSITION,
        _RECEIVED,
        field("data", pa.string(), meaning="the beginning of its payload"),
        _TIME_MS,
    ]
)
DETECTED_SCHEMA = pa.schema(
    [
        _DAY,
        field("id", pa.string(), meaning="id of the detection"),
        field("kind", pa.string(), meaning="detected or undecided"),
        field("policy", pa.string(), meaning="name of the policy"),
        field("version", pa.string(), meaning="version of the policy"),
        _TIME,
        field("bindings", pa.map_(pa.string(), pa.string()), meaning="instance of each alias"),
        field("cause_times", pa.list_(pa.int64()), unit="ms", meaning="times of its readings"),
        field("cause_ids", pa.list_(pa.string()), meaning="ids of its readings"),
        field("silent", pa.list_(pa.string()), meaning="sources that did not report"),
        field("second_look", pa.string(), meaning="release after which it was found"),
        _POSITION,
        _RECEIVED,
        _TIME_MS,
    ]
)
VERDICT_SCHEMA = pa.schema(
    [
        field("day", pa.date32(), meaning="day on which the verdict was received, UTC"),
        field("kind", pa.string(), meaning="late, or aside: policies do not use it"),
        field("time_ms", pa.int64(), unit="ms", meaning="event time of the reading"),
        field("source", pa.string(), meaning="source of the reading; null of late ones"),
        field("id", pa.string(), meaning="id of the reading"),
        _RECEIVED,
    ]
)
FINDING_SCHEMA = DETECTED_SCHEMA
"""What `detection_rows` returns: rows of `gold/detected`, and verdicts of the kind `late`."""
HELD_SCHEMA = QUARANTINED_SCHEMA.append(pa.field("aside", pa.bool_())).append(
    pa.field("about_ms", pa.int64())
)
"""What `quarantine_rows` returns: rows of `silver/quarantined`; `aside` where the row is also a
verdict about a reading at the time `about_ms`."""
CHECK_SCHEMA = pa.schema(
    [
        ("position", pa.int64()),
        ("source", pa.string()),
        ("id", pa.string()),
        ("corrects", pa.string()),
        ("time_ms", pa.int64()),
        ("received", TIME),
        ("reason", pa.string()),
    ]
)
"""What `check_events` returns: `reason` is null for a reading."""


class SilverBatch(msgspec.Struct, frozen=True):
    """Events of one type: readings, and the others with their reasons."""

    readings: pa.Table
    rejected: pa.Table


def silver_schema(kind: AttributeType, unit: str = "") -> pa.Schema:
    """The columns of a stream's table; `unit` is that of its values."""
    parts = [
        field(part, part_type(kind), unit=unit, meaning=_MEANINGS.get(part, "coordinate"))
        for part in PARTS[kind]
    ]
    return pa.schema(
        [
            _DAY,
            _TIME,
            field("id", pa.string(), meaning="id of the event"),
            field("key", pa.string(), meaning="identity of the instance"),
            field("source", pa.string(), meaning="source of the site"),
            field("event_source", pa.string(), meaning="source as the event names it"),
            *parts,
            _POSITION,
            _RECEIVED,
            field("corrects", pa.string(), meaning="id of the reading that it replaces"),
            field("status", pa.string(), meaning="counted, late or corrected"),
            field("reason", pa.string(), meaning="why it does not count"),
            _TIME_MS,
        ]
    )


def stream_schema(ontology: Ontology, stream: str) -> pa.Schema:
    """The columns of a stream's table as the site declares it today."""
    return silver_schema(ontology.streams()[stream], stream_unit(ontology, stream))


def stream_unit(ontology: Ontology, stream: str) -> str:
    """The unit of a stream's values by the site, empty without one."""
    concept, _, attribute = stream.partition(".")
    return ontology.units.get(concept, {}).get(attribute, "")


# --- events ---------------------------------------------------------------------------------------


def rows_by_type(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    kinds = pc.unique(rows["type"]).to_pylist()
    for kind in kinds:
        yield kind, rows if len(kinds) == 1 else rows.filter(pc.equal(rows["type"], kind))


def decode_events(
    rows: pa.RecordBatch,
    stream: str,
    ontology: Ontology,
    conflicts: Mapping[str, Problem] | None = None,
) -> SilverBatch:
    """Events of the type `stream` in their order. `conflicts` names streams whose table has a
    column of another type: their readings are rejected.

    The columns of `rows`: position, received, time_ms, source, id, type, rawchannel, corrects, data
    (octets), and the marks `status` and `reason`, null for a reading that counts.
    """
    if conflicts and stream in conflicts:
        return _all_rejected(rows, conflicts[stream])
    if stream not in ontology.streams():
        return _all_rejected(rows, _unknown_stream(stream))
    kind = ontology.streams()[stream]
    times = rows["time_ms"].to_numpy()
    near = bool(len(times)) and -FARTHEST_MS < times.min() <= times.max() < FARTHEST_MS
    found = columns_of_data(rows["data"], kind) if near else None
    if found is not None:
        keys, parts = found
        table = _silver_table(rows, kind, keys, _sources(rows, ontology), parts)
        return SilverBatch(table, QUARANTINED_SCHEMA.empty_table())
    return _decode_each(rows, stream, kind, ontology)


def check_events(
    rows: pa.RecordBatch, ontology: Ontology, conflicts: Mapping[str, Problem]
) -> Iterator[pa.RecordBatch]:
    """Which events are readings, and why the others are none."""
    for stream, own in rows_by_type(rows):
        decoded = decode_events(own, stream, ontology, conflicts)
        reasons = dict(
            zip(
                decoded.rejected["position"].to_pylist(),
                decoded.rejected["reason"].to_pylist(),
                strict=True,
            )
        )
        columns = {name: own[name] for name in CHECK_SCHEMA.names if name != "reason"}
        why = [reasons.get(position) for position in own["position"].to_pylist()]
        columns["reason"] = pa.array(why, pa.string())
        yield from pa.table(columns, schema=CHECK_SCHEMA).to_batches()


def rejected_rows(
    rows: pa.RecordBatch, problems: Sequence[Problem], found_by: str = "lake"
) -> pa.Table:
    """Events that cannot be used, each with its problem."""
    count = rows.num_rows
    data = [raw[:_LONGEST_COPY].decode(errors="replace") for raw in rows["data"].to_pylist()]
    received = rows["received"].cast(TIME)
    columns = {
        "day": received.cast(pa.date32()),
        **time_columns(rows["time_ms"].to_numpy()),
        "source": rows["source"],
        "id": rows["id"],
        "stream": rows["type"],
        "reason": pa.array([problem.code for problem in problems], pa.string()),
        "message": pa.array([problem.message for problem in problems], pa.string()),
        "hint": pa.array([problem.hint for problem in problems], pa.string()),
        "found_by": pa.array([found_by] * count, pa.string()),
        "channel": pa.array(["events"] * count, pa.string()),
        "position": rows["position"],
        "received": received,
        "data": pa.array(data, pa.string()),
    }
    return pa.table([columns[name] for name in QUARANTINED_SCHEMA.names], QUARANTINED_SCHEMA)


def type_conflict(stream: str, column: str, has: str, had: str) -> Problem:
    """Why readings of a stream cannot be in its table: a column has another type now."""
    return Problem(
        code=TYPE_CONFLICT,
        message=f"{column!r} of {stream} is {has} now; its table holds {had}",
        hint="give the attribute another name; or make silver again: rapport pipeline silver "
        "--rebuild",
    )


def time_columns(times: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
    """Event times in milliseconds as `time` and, where a timestamp cannot hold them, `time_ms`."""
    outside = (times < FIRST_MS) | (times > LAST_MS)
    if not outside.any():
        return {
            "time": pa.array(times * 1_000).cast(TIME),
            "time_ms": pa.nulls(len(times), pa.int64()),
        }
    return {
        "time": pa.array(np.where(outside, 0, times) * 1_000, mask=outside).cast(TIME),
        "time_ms": pa.array(times, mask=~outside),
    }


def days_of(times: npt.NDArray[np.int64]) -> pa.Array:
    """Days of times in milliseconds; null outside of the years 1 to 9999."""
    outside = (times < FIRST_MS) | (times > LAST_MS)
    days = np.where(outside, 0, times // DAY_MS).astype(np.int32)
    return pa.array(days, mask=outside if outside.any() else None).cast(pa.date32())


def _decode_each(
    rows: pa.RecordBatch, stream: str, kind: AttributeType, ontology: Ontology
) -> SilverBatch:
    """Where an event is not in the canonical encoding, or is no reading."""
    names = ("source", "id", "type", "time_ms", "data", "rawchannel")
    columns = zip(*(rows[name].to_pylist() for name in names), strict=True)
    events = [
        Event(source, id, type, "", time, data, {} if raw is None else {"rawchannel": raw})
        for source, id, type, time, data, raw in columns
    ]
    readings, faulty = split_events(events, ontology)
    faults = {id(event): problem for event, problem in faulty}
    kept = np.fromiter((id(event) not in faults for event in events), np.bool_, len(events))
    problems = [faults[id(event)] for event in events if id(event) in faults]
    good, bad = rows.filter(pa.array(kept)), rows.filter(pa.array(~kept))
    parts = [readings[f"{stream}.{part}"] for part in PARTS[kind]]
    table = _silver_table(good, kind, readings["key"], readings["source"], parts)
    return SilverBatch(table, rejected_rows(bad, problems))


def _silver_table(
    rows: pa.RecordBatch,
    kind: AttributeType,
    keys: pa.Array,
    sources: pa.Array,
    parts: Sequence[pa.Array],
) -> pa.Table:
    times = rows["time_ms"].to_numpy()
    columns = {
        "day": days_of(times),
        **time_columns(times),
        "id": rows["id"],
        "key": keys,
        "source": sources,
        "event_source": rows["source"],
        **dict(zip(PARTS[kind], parts, strict=True)),
        "position": rows["position"],
        "received": rows["received"].cast(TIME),
        "corrects": rows["corrects"],
        "status": pc.fill_null(rows["status"], COUNTED),
        "reason": pc.fill_null(rows["reason"], ""),
    }
    schema = silver_schema(kind)
    return pa.table([columns[name] for name in schema.names], schema)


def _sources(rows: pa.RecordBatch, ontology: Ontology) -> pa.Array:
    """The push source of each event, as `policy/readings.py` determines it."""
    named = ontology.sources.keys()
    if set(pc.unique(rows["source"]).to_pylist()) <= named:
        return rows["source"]
    pairs = zip(rows["source"].to_pylist(), rows["rawchannel"].to_pylist(), strict=True)
    texts = [
        source if source in named else (raw or "").removeprefix("raw.") or source
        for source, raw in pairs
    ]
    return pa.array(texts, pa.string())


def _all_rejected(rows: pa.RecordBatch, problem: Problem) -> SilverBatch:
    rejected = rejected_rows(rows, [problem] * rows.num_rows)
    return SilverBatch(silver_schema("text").empty_table(), rejected)


def _unknown_stream(stream: str) -> Problem:
    return Problem(
        code=UNKNOWN_STREAM,
        message=f"no source of the site gives {stream!r}",
        hint="when the site declares it, make silver again: rapport pipeline silver --rebuild",
    )


# --- what the node found --------------------------------------------------------------------------


_Time = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _LateReading(msgspec.Struct):
    id: str
    time: _Time


class _DetectionData(msgspec.Struct):
    policy: str
    time: _Time
    bindings: dict[str, str]
    causes: list[tuple[_Time, str]]
    version: str = ""
    silent: list[str] | None = None


class _Rejection(msgspec.Struct):
    reason: str
    message: str = ""
    hint: str = ""
    raw: dict[str, Any] | None = None
    event: dict[str, Any] | None = None


_UNREADABLE = (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError)


def detection_rows(rows: pa.RecordBatch) -> pa.Table:
    """Detections and undecided situations as rows of gold, and readings that were late (`kind` is
    `late`, time and id those of the reading). Other events of the channel are left out, and so are
    unreadable ones.
    """
    found: list[dict[str, Any]] = []
    for row in rows.to_pylist():
        try:
            if row["type"] == LATE_TYPE:
                late = msgspec.json.decode(row["data"], type=_LateReading)
                found.append(_finding(row, late.time, id=late.id, kind=LATE))
            elif row["type"] in (DETECTED, UNDECIDED):
                found.append(_detection(row))
        except _UNREADABLE:
            continue
    times = np.array([row.pop("at") for row in found], np.int64)
    own = [one for one in FINDING_SCHEMA if one.name not in ("day", "time", "time_ms")]
    table = pa.Table.from_pylist(found, schema=pa.schema(own))
    columns = {"day": days_of(times), **time_columns(times)}
    columns |= {one.name: table[one.name] for one in own}
    return pa.table([columns[name] for name in FINDING_SCHEMA.names], FINDING_SCHEMA)


def quarantine_rows(rows: pa.RecordBatch) -> pa.Table:
    """Events that the node rejected, as rows of silver."""
    problems: list[Problem] = []
    about: list[dict[str, Any]] = []
    for row in rows.to_pylist():
        held = _rejection(row["data"])
        problems.append(Problem(code=held.reason, message=held.message, hint=held.hint))
        event = held.event or held.raw or {}
        told = {"source": row["source"], "id": row["id"], "stream": row["type"]}
        told |= {
            name: str(event[key])
            for name, key in (("source", "source"), ("id", "id"), ("stream", "type"))
            if key in event
        }
        by_policy = row["type"] == QUARANTINED_TYPE
        told |= {
            "found_by": "policy" if by_policy else "mediation",
            "data": _payload(event, row["data"]),
            "channel": "quarantine",
            "aside": by_policy and held.event is not None,
            "about_ms": row["time_ms"],
        }
        about.append(told)
    table = rejected_rows(rows, problems)
    columns = {name: table[name] for name in table.schema.names}
    for name in ("source", "id", "stream", "found_by", "data", "channel", "aside", "about_ms"):
        columns[name] = pa.array([one[name] for one in about], HELD_SCHEMA.field(name).type)
    return pa.table([columns[name] for name in HELD_SCHEMA.names], HELD_SCHEMA)


def _finding(row: dict[str, Any], time: int, **more: Any) -> dict[str, Any]:
    return {"at": time, "position": row["position"], "received": row["received"], **more}


def _detection(row: dict[str, Any]) -> dict[str, Any]:
    found = msgspec.json.decode(row["data"], type=_DetectionData)
    return _finding(
        row,
        found.time,
        id=row["id"],
        kind=row["type"].rpartition(".")[2],
        policy=found.policy,
        version=found.version,
        bindings=list(found.bindings.items()),
        cause_times=[time for time, _id in found.causes],
        cause_ids=[id for _time, id in found.causes],
        silent=found.silent,
        second_look=row[REEVALUATION] or "",
    )


def _rejection(data: bytes) -> _Rejection:
    try:
        return msgspec.json.decode(data, type=_Rejection)
    except _UNREADABLE:
        return _Rejection(
            reason="quarantine.bad_data", message="the rejection itself cannot be read"
        )


def _payload(event: dict[str, Any], data: bytes) -> str:
    if "data" in event:
        return msgspec.json.encode(event["data"]).decode()[:_LONGEST_COPY]
    if event:
        return str(event.get("data_base64", ""))
    return data[:_LONGEST_COPY].decode(errors="replace")
