"""The report: detections, deliveries, time from sensor to phone, what was left out. [PI-6]

A Spark job over the bronze lake; its result tables stay in `gold/` for whoever asks next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from rapport.core.times import format_time
from rapport.pipeline.faults import spark_faults
from rapport.pipeline.figures.report_tables import result_tables
from rapport.pipeline.lake.files import write_gold

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PolicyCount(msgspec.Struct, frozen=True):
    """How often a policy was detected, and when first and last (event time)."""

    policy: str
    count: int
    first: int
    last: int


class DeliveryCount(msgspec.Struct, frozen=True):
    """How many deliveries through an adapter are in a state now."""

    adapter: str
    state: str
    count: int


class MessageCount(msgspec.Struct, frozen=True):
    """How many messages ended in a result (done, failed, timed_out), or are open or unmapped."""

    result: str
    count: int


class Spread(msgspec.Struct, frozen=True):
    """How long something took, in milliseconds."""

    median: float
    p90: float
    p99: float
    longest: int


class SensorToPhone(msgspec.Struct, frozen=True):
    """How fast the deliveries of a policy were that a medium took.

    `from_door`: since the door had the last reading of the situation; a window that had to pass
    before the situation was certain is in it. `after_due`: since the situation was certain.
    """

    policy: str
    deliveries: int
    from_door: Spread
    after_due: Spread


class ReasonCount(msgspec.Struct, frozen=True):
    """How many events went to quarantine for a reason."""

    reason: str
    count: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What the lake says happened."""

    readings: int
    late: int
    quarantined: tuple[ReasonCount, ...]
    detections: tuple[PolicyCount, ...]
    messages: tuple[MessageCount, ...]
    answered: int
    """Messages that at least one person answered."""
    deliveries: tuple[DeliveryCount, ...]
    sensor_to_phone: tuple[SensorToPhone, ...]


class ReportTable(msgspec.Struct, frozen=True):
    """One part of the report as text, for a terminal or a page."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def make_report(spark: SparkSession, lake: Path) -> Report:
    """Reads the lake (any part of it may be missing), writes `gold/`, returns the figures.

    Takes a few seconds on a small lake. Raises Corrupt that names a damaged file.
    """
    with spark_faults("making the report"):
        results = {name: rows.toArrow() for name, rows in result_tables(spark, lake).items()}
    for name, table in results.items():
        write_gold(lake, name, table)
    return _report(results)


def report_rows(report: Report) -> list[ReportTable]:
    """The report as titled tables of text; parts without rows are left out."""
    tables = [
        ReportTable("Totals", ("what", "count"), _total_rows(report)),
        ReportTable(
            "Detections",
            ("policy", "count", "first", "last"),
            tuple(
                (item.policy, str(item.count), format_time(item.first), format_time(item.last))
                for item in report.detections
            ),
        ),
        ReportTable(
            "Deliveries",
            ("adapter", "state", "count"),
            tuple((item.adapter, item.state, str(item.count)) for item in report.deliveries),
        ),
        ReportTable(
            "From sensor to phone",
            ("policy", "deliveries", "from", "median", "90 %", "99 %", "longest"),
            tuple(row for item in report.sensor_to_phone for row in _spread_rows(item)),
        ),
        ReportTable(
            "Quarantine",
            ("reason", "count"),
            tuple((item.reason, str(item.count)) for item in report.quarantined),
        ),
    ]
    return [table for table in tables if table.rows]


def report_text(report: Report) -> str:
    """The report as plain text in columns, ending with a newline."""
    return "\n".join(_plain(table) for table in report_rows(report))


def _report(results: dict[str, pa.Table]) -> Report:
    totals = results["totals"].to_pylist()[0]
    deliveries = results["deliveries"].to_pylist()
    return Report(
        readings=totals["readings"],
        late=totals["late"],
        quarantined=tuple(ReasonCount(**row) for row in results["quarantine"].to_pylist()),
        detections=tuple(PolicyCount(**row) for row in results["detections"].to_pylist()),
        messages=_message_counts(deliveries, totals["messages"]),
        answered=len({row["message"] for row in deliveries if row["answered_at"] is not None}),
        deliveries=_delivery_counts(deliveries),
        sensor_to_phone=_sensor_to_phone(results["sensor_to_phone"].to_pylist()),
    )


def _delivery_counts(deliveries: Sequence[dict[str, Any]]) -> tuple[DeliveryCount, ...]:
    counts = Counter((row["adapter"], row["state"]) for row in deliveries if row["address"])
    return tuple(DeliveryCount(*key, count) for key, count in sorted(counts.items()))


def _message_counts(deliveries: Sequence[dict[str, Any]], written: int) -> tuple[MessageCount, ...]:
    """Results of whole messages, told by lines without a person; messages without one are open.

    `unmapped` are actions that the site maps to nothing: no message was written for them.
    """
    ended = Counter(row["result"] for row in deliveries if not row["peer"] and row["result"])
    ended["open"] = written - (ended.total() - ended["unmapped"])
    return tuple(MessageCount(*item) for item in sorted(ended.items()) if item[1] > 0)


def _sensor_to_phone(rows: Sequence[dict[str, Any]]) -> tuple[SensorToPhone, ...]:
    """Deliveries whose readings the lake has, by policy."""
    complete = [row for row in rows if row["received_at"] is not None]
    found = []
    for policy in sorted({row["policy"] for row in complete}):
        own = [row for row in complete if row["policy"] == policy]
        from_door = _spread([row["handed_at"] - row["received_at"] for row in own])
        after_due = _spread([row["handed_at"] - row["due_at"] for row in own])
        found.append(SensorToPhone(policy, len(own), from_door, after_due))
    return tuple(found)


def _spread(durations: Sequence[int]) -> Spread:
    median, p90, p99 = np.percentile(durations, (50, 90, 99)).tolist()
    return Spread(median, p90, p99, max(durations))


def _total_rows(report: Report) -> tuple[tuple[str, str], ...]:
    left_out = sum(item.count for item in report.quarantined)
    totals = {
        "readings": report.readings,
        "late readings": report.late,
        "in quarantine": left_out,
        "detections": sum(item.count for item in report.detections),
        **{f"messages {item.result}": item.count for item in report.messages},
        "messages answered": report.answered,
    }
    return tuple((name, str(count)) for name, count in totals.items())


def _spread_rows(item: SensorToPhone) -> list[tuple[str, ...]]:
    named = (("the last reading", item.from_door), ("certainty", item.after_due))
    return [
        (item.policy, str(item.deliveries), name, *map(_seconds, msgspec.structs.astuple(part)))
        for name, part in named
    ]


def _seconds(duration_ms: float) -> str:
    return f"{duration_ms / 1000:.3f} s"


def _plain(table: ReportTable) -> str:
    widths = [max(map(len, column)) for column in zip(table.columns, *table.rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (table.columns, *table.rows)
    ]
    return "\n".join([table.title, *(f"  {line}" for line in lines)]) + "\n"
