"""The report as one page of HTML: nothing else is needed to read, print or hear it; behind every
plot stands its table. Pure. [PI-6, CO-18]
"""

from __future__ import annotations

from collections import Counter
from html import escape
from itertools import groupby

import numpy as np

from rapport.pipeline.drawing import html
from rapport.pipeline.drawing.calendar import Calendar, months
from rapport.pipeline.drawing.days import bars_plot, calendar_plot, hours_plot
from rapport.pipeline.drawing.style import style
from rapport.pipeline.figures.plots import series_plot, shares_plot, spreads_plot, steps_plot
from rapport.pipeline.figures.provenance_plot import provenance_plot
from rapport.pipeline.figures.reports import Report
from rapport.pipeline.figures.text import ReportTable, report_lead, report_tables, shown_duration

_EXTRA = """
svg .thick{stroke:var(--bar);stroke-width:6;stroke-linecap:round}
svg .thin{stroke:var(--bar);stroke-width:2}
svg .edge{fill:none;stroke:var(--both);stroke-width:1.2;opacity:.7}
svg .node{fill:var(--card);stroke:var(--line)}
svg .node.good{stroke:var(--good)}svg .node.bad{stroke:var(--bad);stroke-dasharray:4 2}
svg .node.answer{stroke:var(--good);stroke-width:2.5}
svg .more{fill:none}
svg .on-bar{fill:var(--ground)}svg .on-first{fill:var(--ground)}
.wide{overflow-x:auto}.wide th{white-space:nowrap}
@media print{.wide{overflow:visible}.wide table{font-size:9px}nav{display:none}}
nav{margin:18px 0 0;color:var(--soft)}nav a{color:inherit;margin-right:14px;white-space:nowrap}
"""
_STEPS = ("detected", "with_message", "messages", "handed", "confirmed", "answered")
_MOST_ROWS, _MOST_PLOTTED, _MOST_MONTHS = 500, 30, 24


def report_page(report: Report, *, site: str, lake_files: str = "gold/") -> str:
    """The whole page. `site`: its name; `lake_files`: where the whole tables lie."""
    parts = _Page(report, lake_files)
    title = f"What happened at {site}" if site else "What happened"
    return html.page(title, style() + _EXTRA, parts.head(), parts.body(), parts.foot())


class _Page:
    """Says the parts of one report."""

    def __init__(self, report: Report, lake_files: str) -> None:
        self._report, self._tables = report, report_tables(report)
        self._calendar, self._lake_files = Calendar(), lake_files
        every = (
            ("funnel", "From detection to answer", self._funnel()),
            ("peers", "Who is reached and answers", self._peers()),
            ("adapters", "How the media do", self._adapters()),
            ("phone", "From sensor to phone", self._phone()),
            ("detections", "What was detected", self._detections()),
            ("undecided", "What was left undecided", self._undecided()),
            ("mediation", "What was understood", self._mediation()),
            ("late", "What came late", self._late()),
            ("gossip", "How knowledge spread", self._gossip()),
            ("brokers", "How fast brokers answered", self._brokers()),
            ("channels", "What the channels received", self._channels()),
            ("provenance", "Where messages came from", self._provenance()),
        )
        self._sections = [part for part in every if part[2]]

    def head(self) -> str:
        """The time that it speaks of, and the figures that matter."""
        report = self._report
        cards = [
            (f"{report.readings:,}", "readings"),
            (f"{sum(row.count for row in report.detections):,}", "detections"),
            (f"{sum(row.messages for row in report.funnel):,}", "messages"),
            (f"{report.answered:,}", "messages answered"),
            (f"{sum(row.undecided for row in report.detections):,}", "left undecided"),
            (f"{report.late:,}", "late readings"),
            (f"{sum(row.count for row in report.quarantined):,}", "in quarantine"),
        ]
        links = " ".join(
            f'<a href="#{name}">{escape(title)}</a>' for name, title, _content in self._sections
        )
        lead = escape(report_lead(report))
        return f'<p class="lead">{lead}</p>{html.cards(cards)}<nav>{links}</nav>'

    def body(self) -> str:
        """All sections that have something to say."""
        return "".join(
            html.section(title, content, name=name) for name, title, content in self._sections
        )

    def foot(self) -> str:
        """How it was made and what is not in it."""
        return (
            "Made by rapport pipeline report. Times are UTC; percentiles are values that occurred "
            "(nearest rank); those of gossip and brokers are counted by steps and at most 3 % too "
            f"low. The whole tables lie in {escape(self._lake_files)}."
        )

    # --- sections ---

    def _funnel(self) -> str:
        report = self._report
        if not report.funnel:
            return ""
        names = [name.replace("_", " ") for name in _STEPS]
        sums = [sum(getattr(row, step) for row in report.funnel) for step in _STEPS]
        note = (
            "Each step is counted by its own lines in the log; a message counts once, however many "
            "people were told. Handed: a medium took it. Confirmed: a medium said it arrived."
        )
        plot = steps_plot(list(zip(names, sums, strict=True)), "From detection to answer")
        results = [(row.result.replace("_", " "), row.count) for row in report.messages]
        ends = f"<h3>How messages ended</h3>{bars_plot(results, 'How messages ended')}"
        return f'<p class="soft">{note}</p>{plot}{self._behind("funnel")}' + (
            ends + self._behind("totals") if results else ""
        )

    def _peers(self) -> str:
        rows = self._report.peers
        if not rows:
            return ""
        shown = sorted(rows, key=lambda row: -row.asked)[:_MOST_PLOTTED]
        shares = [
            (
                row.peer,
                (
                    ("bar", "answered", row.answered),
                    ("s1", "reached, no answer", row.unanswered),
                    ("first", "not reached", row.unreached),
                ),
            )
            for row in shown
        ]
        plot = shares_plot(shares, "What became of messages, by peer")
        times = [(row.peer, row.response) for row in shown if row.response is not None]
        title = "Time from the first medium that took it to the answer"
        spreads = f"<h3>{title}</h3>{spreads_plot(times, title)}" if times else ""
        return plot + spreads + _cut_note(len(rows), len(shown)) + self._behind("peers")

    def _adapters(self) -> str:
        rows = self._report.adapters
        if not rows:
            return ""
        shares = [
            (
                row.adapter,
                (
                    ("bar", "confirmed", row.confirmed),
                    ("s1", "handed", row.reached - row.confirmed),
                    ("both", "on the way or stopped", self._on_the_way(row.adapter)),
                    ("first", "failed", self._failed(row.adapter)),
                ),
            )
            for row in rows
        ]
        content = shares_plot(shares, "How far deliveries came, by adapter")
        content += self._behind("adapters")
        for title, times in (
            ("Time until the medium took it", [(row.adapter, row.handing) for row in rows]),
            ("Time from there to the answer", [(row.adapter, row.response) for row in rows]),
        ):
            known = [(name, spread) for name, spread in times if spread is not None]
            content += f"<h3>{title}</h3>{spreads_plot(known, title)}" if known else ""
        return content + self._behind("adapter_times")

    def _failed(self, adapter: str) -> int:
        """Deliveries that no medium took and that are given up."""
        (row,) = (row for row in self._report.adapters if row.adapter == adapter)
        return min(row.failed, row.deliveries - row.reached)

    def _on_the_way(self, adapter: str) -> int:
        (row,) = (row for row in self._report.adapters if row.adapter == adapter)
        return row.deliveries - row.reached - self._failed(adapter)

    def _phone(self) -> str:
        rows = self._report.sensor_to_phone
        if not rows:
            return ""
        spreads = [
            (f"{row.policy}: {name}", spread)
            for row in rows[: _MOST_PLOTTED // 2]
            for name, spread in (("reading", row.from_door), ("certain", row.after_due))
        ]
        note = (
            "From the moment the door had the last reading of the situation (a window that had to "
            "pass is in it), and from the moment the situation was certain."
        )
        title = "From sensor to phone"
        return (
            f'<p class="soft">{note}</p>{spreads_plot(spreads, title)}'
            f"{self._behind('sensor_to_phone')}"
        )

    def _detections(self) -> str:
        report = self._report
        if not report.detections:
            return ""
        counts = [(row.policy, row.count) for row in report.detections if row.count]
        counts.sort(key=lambda pair: -pair[1])
        content = bars_plot(counts[:_MOST_PLOTTED], "Detections per policy") if counts else ""
        content += _cut_note(len(counts), min(len(counts), _MOST_PLOTTED))
        content += self._behind("detections") + self._when()
        return content

    def _when(self) -> str:
        """Days and hours of the detections of all policies."""
        rows = [row for row in self._report.hours if row.detected]
        if not rows:
            return ""
        days: Counter[str] = Counter()
        by_hour = np.zeros((7, 24), np.int64)
        for row in rows:
            days[self._calendar.day_of(row.hour)] += row.detected
            by_hour += row.detected * np.array(self._calendar.by_hour(np.array([row.hour])))
        every = months(dict(days), min(days), max(days))
        shown = [month for month in every if month.total] if len(every) > _MOST_MONTHS else every
        calendar = calendar_plot(shown[-_MOST_MONTHS:], "Detections per day")
        week = hours_plot([[int(n) for n in day] for day in by_hour], "Detections by hour")
        return (
            f"<h3>Per day</h3>{calendar}{_cut_note(len(shown), _MOST_MONTHS, 'months')}"
            f"<h3>By weekday and hour</h3>{week}{self._behind('hours', words=2)}"
        )

    def _undecided(self) -> str:
        rows = self._report.undecided
        if not rows:
            return ""
        pairs = [(f"{row.silent} · {row.policy}", row.count) for row in rows]
        pairs.sort(key=lambda pair: -pair[1])
        note = "Sources that promised to be heard and were not, by the policy that needed them."
        plot = bars_plot(pairs[:_MOST_PLOTTED], "Undecided by silent source")
        return f'<p class="soft">{note}</p>{plot}{self._behind("undecided", words=2)}'

    def _mediation(self) -> str:
        report = self._report
        content = ""
        if report.mediation:
            rows = [
                (
                    f"{row.source} · {row.interpretation}" if row.interpretation else row.source,
                    (
                        ("bar", "readings", row.readings),
                        ("first", "without a meaning", row.rejected),
                        ("both", "of no use to policies", row.set_aside),
                    ),
                )
                for row in report.mediation[:_MOST_PLOTTED]
            ]
            content = shares_plot(rows, "What became of events, by source and interpretation")
            content += _cut_note(len(report.mediation), len(rows))
            content += self._behind("mediation", words=2)
        if report.quarantined:
            reasons = [(f"{row.reason} · {row.source}", row.count) for row in report.quarantined]
            title = "Held back, by reason and source"
            content += f"<h3>{title}</h3>{bars_plot(reasons[:_MOST_PLOTTED], title)}"
            content += self._behind("quarantine", words=4)
        return content

    def _late(self) -> str:
        rows = self._report.late_readings
        if not rows:
            return ""
        pairs = [(row.source or "not in the lake", row.count) for row in rows]
        pairs.sort(key=lambda pair: -pair[1])
        return bars_plot(pairs[:_MOST_PLOTTED], "Late readings by source") + self._behind("late")

    def _channels(self) -> str:
        report = self._report
        if not report.channels:
            return ""
        points = {
            name: list(own) for name, own in groupby(report.series, key=lambda row: row.channel)
        }
        title = f"Events per channel, each bar {shown_duration(report.series_step)}"
        content = f"<h3>{title}</h3>{series_plot(points, report.series_step, title)}"
        content += self._behind("channels") + self._behind("series", words=2)
        if report.delays:
            rows = sorted(report.delays, key=lambda row: -row.events)[:_MOST_PLOTTED]
            spreads = [(f"{row.channel} · {row.source}", row.delay) for row in rows]
            title = "Delay from event time to arrival"
            content += f"<h3>{title}</h3>{spreads_plot(spreads, title)}"
            content += _cut_note(len(report.delays), len(rows)) + self._behind("delays", words=2)
        if report.gaps:
            content += self._behind("gaps", words=3)
        return content

    def _gossip(self) -> str:
        report = self._report
        if not report.gossip:
            return ""
        shown = sorted(report.gossip, key=lambda row: -row.replaced)[:_MOST_PLOTTED]
        ages = [(row.node, row.age) for row in shown if row.age is not None]
        note = (
            "From the summaries of ensemble nodes, one a minute. A version's age is counted when a "
            "newer one takes its place at another node: from its creation there to that moment "
            "here."
        )
        content = f'<p class="soft">{note}</p>'
        if ages:
            title = "Age of knowledge when newer came"
            content += f"<h3>{title}</h3>{spreads_plot(ages, title)}"
        content += _cut_note(len(report.gossip), len(shown)) + self._behind("gossip")
        counts: Counter[str] = Counter()
        for row in report.gossip_messages:
            counts[f"{row.kind.replace('_', ' ')}, sent"] += row.sent
            counts[f"{row.kind.replace('_', ' ')}, received"] += row.received
        bars = bars_plot(sorted(counts.items()), "Messages of gossip")
        return f"{content}<h3>Messages</h3>{bars}{self._behind('gossip_messages', words=2)}"

    def _brokers(self) -> str:
        rows = self._report.brokers
        if not rows:
            return ""
        shown = sorted(rows, key=lambda row: -row.requests)[:_MOST_PLOTTED]
        spreads = [
            (f"{row.broker} · {row.answer.replace('_', ' ')}", row.response_us)
            for row in shown
            if row.response_us is not None
        ]
        note = (
            "From the broker's having the request until its answer was sent, by its own clock. "
            "Here: it had the record itself; elsewhere: another broker had it."
        )
        plot = spreads_plot(spreads, "Response times of brokers", in_micros=True)
        more = _cut_note(len(rows), len(shown))
        return f'<p class="soft">{note}</p>{plot}{more}{self._behind("brokers", words=2)}'

    def _provenance(self) -> str:
        report = self._report
        if not report.edges:
            return ""
        shown = len({edge.conversation for edge in report.edges})
        whole = next(row for row in report.edge_counts if row.relation == "all")
        note = (
            f"The newest {shown:,} of {whole.conversations:,} conversations, {len(report.edges):,} "
            f"of {whole.edges:,} edges. A solid frame: it went well; a dashed one: it did not; a "
            "thick one: somebody answered."
        )
        return (
            f'<p class="soft">{note}</p>{provenance_plot(report.edges, "Where messages came from")}'
            f"{self._behind('edges', words=6)}{self._shown('provenance')}"
        )

    # --- tables ---

    def _behind(self, name: str, *, words: int = 1) -> str:
        title = self._tables[name].title
        return html.behind(f"{title}, as a table", self._shown(name, words=words))

    def _shown(self, name: str, *, words: int = 1) -> str:
        table: ReportTable = self._tables[name]
        rows = table.rows[:_MOST_ROWS]
        more = _cut_note(len(table.rows), len(rows), "rows")
        return html.table(table.title, table.columns, rows, words=words) + more


def _cut_note(whole: int, shown: int, what: str = "") -> str:
    if whole <= shown:
        return ""
    left_out = f"{whole - shown:,} more {what}".strip()
    return f'<p class="soft">and {left_out}, which are in the lake</p>'
