"""What the node found out about readings: late, set aside, held back; and its detections. [PI-3]

Read from the channels `detections` and `quarantine` of bronze. Pure: batches in, tables and
verdicts out.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pyarrow as pa

from rapport.core.detection import DETECTED, UNDECIDED
from rapport.core.errors import Problem
from rapport.core.release import REEVALUATION
from rapport.pipeline.lake.silver_rows import QUARANTINED_SCHEMA, header, quarantined_rows
from rapport.policy.engine.stream_steps import LATE_TYPE, QUARANTINED_TYPE

LATE_REASON = "policy.late"

DETECTED_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("kind", pa.string()),
        ("policy", pa.string()),
        ("version", pa.string()),
        ("time", pa.int64()),
        ("bindings", pa.map_(pa.string(), pa.string())),
        ("cause_times", pa.list_(pa.int64())),
        ("cause_ids", pa.list_(pa.string())),
        ("silent", pa.list_(pa.string())),
        ("second_look", pa.string()),
        ("position", pa.int64()),
        ("received", pa.int64()),
    ]
)
"""Columns of `gold/detected`: one row per detection, and per situation left undecided."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the policy engine said about a reading: too late, or of no use to policies."""

    kind: Literal["late", "aside"]
    time: int
    id: str
    source: str = ""
    """Of what is late the engine tells time and id only."""
    received: int


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What some rows of a channel told."""

    table: pa.Table
    verdicts: list[Verdict] = []
    unreadable: int = 0


class _Late(msgspec.Struct):
    id: str
    time: int


class _Found(msgspec.Struct):
    policy: str
    time: int
    bindings: dict[str, str]
    causes: list[tuple[int, str]]
    version: str = ""
    silent: list[str] | None = None


class _Held(msgspec.Struct):
    reason: str
    message: str = ""
    hint: str = ""
    raw: dict[str, Any] | None = None
    event: dict[str, Any] | None = None


def read_detections(rows: pa.RecordBatch) -> Findings:
    """Detections and what is undecided as rows of gold, and who was late; other events of the
    channel tell nothing about readings.
    """
    verdicts: list[Verdict] = []
    found: list[dict[str, Any]] = []
    unreadable = 0
    second_looks = header(rows, REEVALUATION).to_pylist()
    for row, second_look in zip(_plain(rows), second_looks, strict=True):
        try:
            if row["type"] == LATE_TYPE:
                late = msgspec.json.decode(row["data"], type=_Late)
                verdicts.append(
                    Verdict(kind="late", time=late.time, id=late.id, received=row["received"])
                )
            elif row["type"] in (DETECTED, UNDECIDED):
                found.append(_detected(row, second_look or ""))
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
            unreadable += 1
    table = pa.Table.from_pylist(found, schema=DETECTED_SCHEMA)
    return Findings(table=table, verdicts=verdicts, unreadable=unreadable)


def read_quarantine(rows: pa.RecordBatch) -> Findings:
    """What the node held back, as rows of silver, and which readings policies did not use."""
    problems: list[Problem] = []
    about: list[dict[str, Any]] = []
    verdicts: list[Verdict] = []
    for row in _plain(rows):
        held = _held(row["data"])
        problems.append(Problem(code=held.reason, message=held.message, hint=held.hint))
        event = held.event or held.raw or {}
        told = {"source": row["source"], "id": row["id"], "type": row["type"]}
        told |= {name: str(event[name]) for name in told if name in event}
        by = "policy" if row["type"] == QUARANTINED_TYPE else "mediation"
        about.append(told | {"by": by, "data": _payload(event, row["data"])})
        if row["type"] == QUARANTINED_TYPE and held.event is not None:
            verdicts.append(_aside(row, told))
    table = quarantined_rows(rows, problems)
    columns = {"source": "source", "id": "id", "stream": "type", "found_by": "by", "data": "data"}
    for name, key in columns.items():
        values = pa.array([one[key] for one in about], pa.string())
        table = table.set_column(QUARANTINED_SCHEMA.names.index(name), name, values)
    return Findings(table=table, verdicts=verdicts)


def _plain(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    names = ["position", "received", "time", "source", "id", "type", "data"]
    plain: list[dict[str, Any]] = rows.select(names).to_pylist()
    return plain


def _detected(row: dict[str, Any], second_look: str) -> dict[str, Any]:
    found = msgspec.json.decode(row["data"], type=_Found)
    return {
        "id": row["id"],
        "kind": row["type"].rpartition(".")[2],
        "policy": found.policy,
        "version": found.version,
        "time": found.time,
        "bindings": list(found.bindings.items()),
        "cause_times": [time for time, _id in found.causes],
        "cause_ids": [id for _time, id in found.causes],
        "silent": found.silent,
        "second_look": second_look,
        "position": row["position"],
        "received": row["received"],
    }


def _held(data: bytes) -> _Held:
    try:
        return msgspec.json.decode(data, type=_Held)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return _Held(reason="quarantine.bad_data", message="the rejection itself cannot be read")


def _payload(event: dict[str, Any], data: bytes) -> str:
    if "data" in event:
        return msgspec.json.encode(event["data"]).decode()[:1_000]
    return str(event.get("data_base64", "") if event else data[:1_000].decode(errors="replace"))


def _aside(row: dict[str, Any], told: dict[str, Any]) -> Verdict:
    return Verdict(
        kind="aside",
        time=row["time"],
        id=told["id"],
        source=told["source"],
        received=row["received"],
    )
