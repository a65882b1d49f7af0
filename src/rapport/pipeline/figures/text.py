"""The report as text: headline figures for a terminal, tables behind the plots of a page. [PI-6]"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from rapport.core.times import format_time
from rapport.pipeline.figures.reports import Report
from rapport.pipeline.figures.rows import FunnelRow, Spread

_PERCENTILES = "median, 90 %, 99 %, longest"
_SPREAD = f"timed, {_PERCENTILES}"
_CLOCK = (
    (("d", 86_400), ("h", 3_600)),
    (("h", 3_600), ("min", 60)),
    (("min", 60), ("s", 1)),
)


class ReportTable(msgspec.Struct, frozen=True):
    """One part of the report as text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def report_tables(report: Report) -> dict[str, ReportTable]:
    """Every part of the report by a short name; some have no rows."""
    return {name: make(report) for name, make in _TABLES.items()}


def report_lead(report: Report) -> str:
    """How many events the report rests on, and their time."""
    if not report.channels:
        return "The lake is empty."
    first = min(row.first for row in report.channels)
    last = max(row.last for row in report.channels)
    events = sum(row.events for row in report.channels)
    return f"{events:,} events received from {_minute(first)} to {_minute(last)} (UTC)"


def headline_text(report: Report) -> str:
    """The figures that matter as text of less than a screen, without a newline at its end."""
    rows = _totals(report).rows
    name_width, count_width = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = [f"  {name.ljust(name_width)}  {count.rjust(count_width)}" for name, count in rows]
    return "\n".join([report_lead(report), *lines])


def shown_duration(duration_ms: int) -> str:
    """For people: the unit fits the size.

    >>> [shown_duration(ms) for ms in (7, 1_234, 33_338, 75_000, 7_260_000, 90_000_000, -1_500)]
    ['7 ms', '1.234 s', '33.3 s', '1 min 15 s', '2 h 1 min', '1 d 1 h', '-1.500 s']
    """
    if duration_ms < 0:
        return f"-{shown_duration(-duration_ms)}"
    if duration_ms < 1_000:
        return f"{duration_ms} ms"
    if duration_ms < 59_950:
        return f"{duration_ms / 1_000:.{3 if duration_ms < 10_000 else 1}f} s"
    seconds = round(duration_ms / 1_000)
    large, small = next(pair for pair in _CLOCK if seconds >= pair[0][1])
    rest = seconds % large[1] // small[1]
    return f"{seconds // large[1]:,} {large[0]}" + (f" {rest} {small[0]}" if rest else "")


def shown_micros(duration_us: int) -> str:
    """The same for microseconds.

    >>> [shown_micros(us) for us in (7, 153, 2_549, 10_900, 1_234_567)]
    ['7 us', '153 us', '2.5 ms', '10 ms', '1.234 s']
    """
    if duration_us < 1_000:
        return f"{duration_us} us"
    if duration_us < 10_000:
        return f"{duration_us // 100 / 10} ms"
    return shown_duration(duration_us // 1_000)


def share(part: int, whole: int) -> str:
    """A part in percent.

    >>> share(1, 3), share(0, 0)
    ('33.3 %', '')
    """
    return f"{part / whole:.1%}".replace("%", " %") if whole else ""


def spread_cells(
    spread: Spread | None, shown: Callable[[int], str] = shown_duration
) -> tuple[str, ...]:
    if spread is None:
        return ("0", "", "", "", "")
    return (f"{spread.timed:,}", *map(shown, msgspec.structs.astuple(spread)[1:]))


def per_minute(count: int, covered_ms: int) -> str:
    """How many in a minute, of so many in a stretch of time.

    >>> per_minute(30, 120_000), per_minute(3, 0)
    ('15.0', '')
    """
    return f"{count * 60_000 / covered_ms:,.1f}" if covered_ms > 0 else ""


def _totals(report: Report) -> ReportTable:
    totals = {
        "readings": report.readings,
        "late readings": report.late,
        "in quarantine": sum(row.count for row in report.quarantined),
        "detections": sum(row.count for row in report.detections),
        "undecided": sum(row.undecided for row in report.detections),
        **{f"messages {row.result.replace('_', ' ')}": row.count for row in report.messages},
        "messages answered": report.answered,
    }
    return _table("Totals", "what, count", totals.items())


def _peers(report: Report) -> ReportTable:
    columns = (
        "peer, asked, reached, share, answered, share, unanswered, unreached, failed, timed out, "
        f"refused, held, {_SPREAD}"
    )
    rows = (
        (
            *(row.peer, row.asked, row.reached, share(row.reached, row.asked), row.answered),
            *(share(row.answered, row.asked), row.unanswered, row.unreached, row.failed),
            *(row.timed_out, row.refused, row.held, *spread_cells(row.response)),
        )
        for row in report.peers
    )
    return _table("Response time and reliability of peers", columns, rows)


def _adapters(report: Report) -> ReportTable:
    columns = (
        "adapter, deliveries, attempts, failed attempts, reached, share, confirmed, failed, "
        "waiting, stopped, timed out, answered"
    )
    rows = (
        (
            *(row.adapter, row.deliveries, row.attempts, row.failed_attempts, row.reached),
            *(share(row.reached, row.deliveries), row.confirmed, row.failed, row.waiting),
            *(row.stopped, row.timed_out, row.answered),
        )
        for row in report.adapters
    )
    return _table("Reliability of adapters", columns, rows)


def _adapter_times(report: Report) -> ReportTable:
    rows = (
        (row.adapter, name, *spread_cells(spread))
        for row in report.adapters
        for name, spread in (
            ("queued to handed", row.handing),
            ("handed to answered", row.response),
        )
    )
    return _table("Times of adapters", f"adapter, from, {_SPREAD}", rows)


def _sensor_to_phone(report: Report) -> ReportTable:
    rows = (
        (row.policy, name, *spread_cells(part))
        for row in report.sensor_to_phone
        for name, part in (("the last reading", row.from_door), ("certainty", row.after_due))
    )
    return _table("From sensor to phone", f"policy, from, {_SPREAD}", rows)


def _detections(report: Report) -> ReportTable:
    columns = "policy, detections, undecided, by a second look, first, last"
    rows = (
        (
            *(row.policy, row.count, row.undecided, row.second_look),
            *(_time(row.first), _time(row.last)),
        )
        for row in report.detections
    )
    return _table("Detections", columns, rows)


def _hours(report: Report) -> ReportTable:
    rows = ((one.policy, _time(one.hour)[:16], one.detected, one.undecided) for one in report.hours)
    return _table("Detections per hour", "policy, hour, detected, undecided", rows)


def _late(report: Report) -> ReportTable:
    rows = (
        (row.source or "(not in the lake)", row.count, _time(row.first), _time(row.last))
        for row in report.late_readings
    )
    return _table("Late readings", "source, count, first, last", rows)


def _quarantine(report: Report) -> ReportTable:
    columns = "reason, source, interpretation, found by, count, times, first, last"
    rows = (
        (
            *(row.reason, row.source, row.interpretation, row.found_by),
            *(row.count, row.times, _time(row.first), _time(row.last)),
        )
        for row in report.quarantined
    )
    return _table("Quarantine", columns, rows)


def _channels(report: Report) -> ReportTable:
    columns = (
        "channel, events, first, last, minutes with events, most in a minute, missing positions, "
        "gaps, longest gap"
    )
    rows = (
        (
            *(row.channel, row.events, _time(row.first), _time(row.last)),
            *(row.minutes, row.busiest, row.missing, row.gaps),
            shown_duration(row.longest_gap) if row.gaps else "",
        )
        for row in report.channels
    )
    return _table("Channels", columns, rows)


def _series(report: Report) -> ReportTable:
    rows = ((row.channel, _time(row.begin), row.events) for row in report.series)
    title = f"Events per channel and {shown_duration(report.series_step)}"
    return _table(title, "channel, from, events", rows)


def _gaps(report: Report) -> ReportTable:
    rows = (
        (row.channel, _time(row.begin), _time(row.end), shown_duration(row.duration))
        for row in report.gaps
    )
    return _table("Longest gaps", "channel, from, to, without an event", rows)


def _delays(report: Report) -> ReportTable:
    rows = ((row.channel, row.source, row.ahead, *spread_cells(row.delay)) for row in report.delays)
    columns = f"channel, source, ahead of the clock, events, {_PERCENTILES}"
    return _table("Delay from event time to arrival", columns, rows)


def _gossip(report: Report) -> ReportTable:
    columns = (
        "node, from, to, told of, messages sent, a minute, received, first heard, replaced, "
        f"known at the end, {_SPREAD}"
    )
    rows = (
        (
            *(row.node, _time(row.begin), _time(row.end), shown_duration(row.covered)),
            *(row.sent, per_minute(row.sent, row.covered), row.received),
            *(row.first, row.replaced, row.replicas, *spread_cells(row.age)),
        )
        for row in report.gossip
    )
    return _table("Age of knowledge when newer came, by node", columns, rows)


def _gossip_messages(report: Report) -> ReportTable:
    rows = (
        (row.node, row.kind.replace("_", " "), row.sent, row.received)
        for row in report.gossip_messages
    )
    return _table("Messages of gossip", "node, kind, sent, received", rows)


def _brokers(report: Report) -> ReportTable:
    rows = (
        (
            *(row.broker, row.answer.replace("_", " "), row.requests),
            *spread_cells(row.response_us, shown_micros)[1:],
        )
        for row in report.brokers
    )
    columns = f"broker, answer, requests, {_PERCENTILES}"
    return _table("Response times of brokers", columns, rows)


def _edges(report: Report) -> ReportTable:
    rows = (
        (
            *(row.relation, f"{row.from_kind} {row.from_id}", f"{row.to_kind} {row.to_id}"),
            *(row.via, row.state, _time(row.time)),
        )
        for row in report.edges
    )
    return _table("Newest conversations", "relation, from, to, via, state, time", rows)


def _as_they_are(
    title: str, columns: str, rows: Callable[[Report], Iterable[msgspec.Struct]]
) -> Callable[[Report], ReportTable]:
    return lambda report: _table(title, columns, map(msgspec.structs.astuple, rows(report)))


_STEPS = ", ".join(name.replace("_", " ") for name in FunnelRow.__struct_fields__)
_TABLES: dict[str, Callable[[Report], ReportTable]] = {
    "totals": _totals,
    "funnel": _as_they_are("Delivery funnel", _STEPS, lambda report: report.funnel),
    "peers": _peers,
    "adapters": _adapters,
    "adapter_times": _adapter_times,
    "deliveries": _as_they_are(
        "Deliveries", "adapter, newest state, count", lambda report: report.deliveries
    ),
    "sensor_to_phone": _sensor_to_phone,
    "detections": _detections,
    "hours": _hours,
    "undecided": _as_they_are(
        "Undecided", "policy, silent source, count", lambda report: report.undecided
    ),
    "late": _late,
    "mediation": _as_they_are(
        "Mediation",
        "source, interpretation, readings, released, corrections, rejected, set aside",
        lambda report: report.mediation,
    ),
    "quarantine": _quarantine,
    "channels": _channels,
    "series": _series,
    "gaps": _gaps,
    "delays": _delays,
    "gossip": _gossip,
    "gossip_messages": _gossip_messages,
    "brokers": _brokers,
    "provenance": _as_they_are(
        "Provenance of messages",
        "relation, edges, conversations",
        lambda report: report.edge_counts,
    ),
    "edges": _edges,
}


def _table(title: str, columns: str, rows: Iterable[Iterable[object]]) -> ReportTable:
    """`columns`: their names with commas between; whole numbers get separators."""
    cells = tuple(tuple(map(_cell, row)) for row in rows)
    return ReportTable(title, tuple(columns.split(", ")), cells)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _time(time_ms: int | None) -> str:
    return "" if time_ms is None else format_time(time_ms)


def _minute(time_ms: int) -> str:
    return format_time(time_ms)[:16].replace("T", " ")
