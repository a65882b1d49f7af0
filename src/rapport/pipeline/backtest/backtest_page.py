"""A back-test as a page, with the explanations of its examples. [PI-9, PO-11]"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from rapport.core.times import format_time
from rapport.pipeline.backtest.findings import (
    BackTest,
    Comparison,
    Example,
    Tally,
    lasted_text,
)
from rapport.pipeline.backtest.sweep import SweepResult
from rapport.pipeline.drawing.calendar import WEEKDAYS, Calendar, Month, months
from rapport.pipeline.drawing.days import (
    bars_plot,
    calendar_plot,
    curve_plot,
    difference_plot,
    hours_plot,
)
from rapport.pipeline.drawing.html import behind, cards, section, table
from rapport.pipeline.drawing.html import page as whole_page
from rapport.pipeline.drawing.style import style
from rapport.policy.explain.answer import Candidate, ConditionNode, Truth, WhyNotAnswer
from rapport.policy.explain.situation_evidence import SituationEvidence
from rapport.policy.explain.situation_wording import evidence_nodes
from rapport.policy.explain.wording import bindings_text, duration, relative
from rapport.policy.lifecycle.registry import text_difference

_HELD_MARKS: dict[Truth, tuple[str, str]] = {
    "true": ("✓", "true"),
    "false": ("✗", "not true"),
    "unknown": ("?", "not known"),
}


def explained(example: Example, calendar: Calendar, number: int) -> str:
    """One finding with why it was found and why the other version did not find it."""
    when, about = calendar.clock(example.detection.time), bindings_text(example.detection.bindings)
    parts = [f'<article id="why-{number}"><h3>{escape(when)} · {escape(about)}</h3>']
    if example.why is not None:
        parts.append(f"<p>Why <b>{escape(example.why.policy)}</b> fired</p>")
        if example.why.situation is not None:
            parts.append(_evidence(example.why.situation))
        elif example.why.held is None:
            parts.append('<p class="soft">The readings around it do not tell.</p>')
        else:
            parts.append(_candidate(example.why.held))
    if example.why_not is not None:
        parts.append(_answer(example.why_not))
    return "".join([*parts, "</article>"])


def _evidence(evidence: SituationEvidence) -> str:
    nodes = "".join(_node(node, evidence.time) for node in evidence_nodes(evidence))
    return f'<ul class="why">{nodes}</ul>'


def _answer(answer: WhyNotAnswer) -> str:
    if answer.situation is not None:
        head = f"{escape(answer.policy)}</b> at the time: the situation is {answer.situation.truth}"
        return f"<p><b>{head}</p>{_evidence(answer.situation)}"
    did = "fired, too" if answer.fired else "did not"
    parts = [f"<p>Why <b>{escape(answer.policy)}</b> {did}</p>"]
    shown = answer.fired or answer.candidates
    parts.append(_candidate(shown[0]) if shown else '<p class="soft">Nobody came near.</p>')
    if answer.nearest is not None and not answer.fired:
        said = f"Nearest miss: {answer.nearest.text}, and it would have fired."
        parts.append(f"<p>{escape(said)}</p>")
    return "".join(parts)


def _candidate(candidate: Candidate) -> str:
    nodes = "".join(_node(node, candidate.time) for node in candidate.clauses)
    told = f"times are told from {format_time(candidate.time)}"
    return f'<ul class="why">{nodes}</ul><p class="soft">{escape(told)}</p>'


def _node(node: ConditionNode, reference: int) -> str:
    mark, said = _HELD_MARKS[node.truth]
    because = f'<br><span class="soft">{escape(node.because)}</span>' if node.because else ""
    readings = "".join(
        f"<li>{escape(one.text)} <span class='soft'>{escape(relative(one.time - reference))}, "
        f"{escape(one.source)}, {escape(one.id)}</span></li>"
        for one in node.readings
    )
    children = "".join(_node(child, reference) for child in node.children)
    below = f'<ul class="why">{readings}{children}</ul>' if readings or children else ""
    sign = f'<span class="{node.truth}" role="img" aria-label="{said}">{mark}</span>'
    return f"<li>{sign} {escape(node.text)}{because}{below}</li>"


_MARKS = {"first": "−", "second": "+"}
_MOST_MONTHS = 60


def report_page(told: BackTest, calendar: Calendar) -> str:
    page = _Page(told, calendar)
    title = f"Back-test of {told.policy}"
    if told.comparison is not None:
        title += f" and {told.tallies[1].label}"
    return whole_page(title, style(), page.head(), page.body(), page.foot())


class _Page:
    """Says the parts of one back-test."""

    def __init__(self, told: BackTest, calendar: Calendar) -> None:
        self._told, self._calendar = told, calendar
        comparison = told.comparison
        self._examples = told.examples if comparison is None else comparison.examples
        self._numbers = {
            id(one): number for number, one in enumerate(self._examples, 1) if one.why is not None
        }

    def head(self) -> str:
        """What was tested on what, and the figures that matter."""
        told = self._told
        span = ""
        if told.span is not None:
            first, last = (self._calendar.clock(time)[:16] for time in told.span)
            span = f", {first} to {last} ({told.zone})"
        lead = f"{told.events:,} readings of {told.history}{span}"
        figures = [(f"{told.tallies[0].detections:,}", f"found by {told.tallies[0].label}")]
        figures.append((f"{len(told.tallies[0].days):,}", "days with findings"))
        if told.comparison is not None:
            figures[1:] = [
                (f"{told.tallies[1].detections:,}", f"found by {told.tallies[1].label}"),
                (f"{told.comparison.only_first:,}", f"only by {told.tallies[0].label}"),
                (f"{told.comparison.only_second:,}", f"only by {told.tallies[1].label}"),
            ]
        if told.late:
            figures.append((f"{told.late:,}", "readings too late to count"))
        for tally in told.tallies:
            figures += _besides(tally)
        notes = "".join(
            f'<p class="note">{escape(problem.as_text())}</p>' for problem in told.problems
        )
        return f'<p class="lead">{escape(lead)}</p>{cards(figures)}{notes}'

    def body(self) -> str:
        tallies = self._told.tallies
        calendars = [self._days(tally) for tally in tallies]
        details = [part for tally in tallies if tally.detections for part in self._details(tally)]
        comparison = self._told.comparison
        if comparison is None:
            return "".join([*calendars, *details, self._findings(), self._policies()])
        differences = [self._findings(), self._policies()]
        return "".join([self._comparison(comparison), *calendars, *differences, *details])

    def foot(self) -> str:
        told = self._told
        how = f"{told.engine} engine, {told.seconds:.1f} s" if told.seconds else told.engine
        return f"Made by rapport backtest: {escape(how)}. Times are {escape(told.zone)}."

    # --- sections ---

    def _days(self, tally: Tally) -> str:
        if not tally.detections:
            never = "begun" if tally.episodes is not None else "fired"
            return section(f"{tally.label} per day", f"<p>It would never have {never}.</p>")
        shown, left_out = self._months(tally)
        title = f"{_what(tally)} of {tally.label} per day"
        calendar = calendar_plot(shown, title)
        if left_out:
            calendar += f'<p class="soft">{left_out:,} months without any are left out.</p>'
        days = table(
            title, ("day", _what(tally).lower()), ([day, f"{n:,}"] for day, n in tally.days.items())
        )
        return section(f"{tally.label} per day", calendar + _behind(days))

    def _details(self, tally: Tally) -> tuple[str, str]:
        """Hours of the week, and who."""
        title = f"{_what(tally)} of {tally.label} by weekday and hour"
        by_hour = table(
            title,
            ("weekday", *(f"{hour:02}" for hour in range(24))),
            (
                [name, *(f"{count:,}" for count in row)]
                for name, row in zip(WEEKDAYS, tally.hours, strict=True)
            ),
        )
        hours = hours_plot(tally.hours, title) + _behind(by_hour)
        return section(f"{tally.label} by weekday and hour", hours), self._who(tally)

    def _who(self, tally: Tally) -> str:
        blocks = []
        for one in tally.who:
            title = f"Most often as {one.alias}"
            more = f'<p class="soft">and {one.others:,} more</p>' if one.others else ""
            top = table(
                title, (one.alias, _what(tally).lower()), ([i, f"{n:,}"] for i, n in one.top)
            )
            blocks.append(
                f"<div><h3>{escape(title)}</h3>{bars_plot(one.top, title)}{more}"
                f"{_behind(top)}</div>"
            )
        return section(
            f"Whom {tally.label} is about", f'<div class="columns">{"".join(blocks)}</div>'
        )

    def _comparison(self, found: Comparison) -> str:
        labels = (self._told.tallies[0].label, self._told.tallies[1].label)
        lead = (
            f"{found.both:,} were found by both, {found.only_first:,} only by {labels[0]} (−), "
            f"{found.only_second:,} only by {labels[1]} (+). The same is what is about the same "
            f"{' and '.join(found.by)} and rests on the same readings, or has the same time."
        )
        if found.of_episodes:
            about = f" about the same {' and '.join(found.by)}" if found.by else ""
            lead = (
                f"{found.both:,} episodes of {labels[0]} overlap one of {labels[1]}{about}, "
                f"{found.only_first:,} are only of {labels[0]} (−), {found.only_second:,} only of "
                f"{labels[1]} (+)."
            )
        title = f"{labels[0]} and {labels[1]} compared"
        days = self._every_day(found)
        compared = table(
            title,
            ("day", "both", f"only {labels[0]}", f"only {labels[1]}"),
            ([day, *(f"{n:,}" for n in counts)] for day, counts in found.days.items()),
        )
        plot = difference_plot(days, labels, title) if days else ""
        return section("Compared", f"<p>{escape(lead)}</p>{plot}{_behind(compared)}")

    def _findings(self) -> str:
        examples = self._examples
        if not examples:
            return ""
        rows = [self._row(one) for one in examples]
        total = self._told.tallies[0].detections
        heading = "Findings"
        if self._told.comparison is not None:
            total = self._told.comparison.only_first + self._told.comparison.only_second
            heading = "What only one of them found"
        left = total - len(examples)
        more = f'<p class="soft">and {left:,} more; rapport backtest --out writes all.</p>'
        listed = (
            f"<table><caption>The first {len(examples):,}</caption><thead><tr>"
            '<th scope="col">when</th><th scope="col">about</th><th scope="col">why</th></tr>'
            f"</thead><tbody>{''.join(rows)}</tbody></table>"
        )
        told = "".join(
            explained(one, self._calendar, self._numbers[id(one)])
            for one in examples
            if id(one) in self._numbers
        )
        return section(heading, listed + (more if left else "") + told)

    def _row(self, one: Example) -> str:
        when = escape(self._calendar.clock(one.detection.time))
        about = escape(bindings_text(one.detection.bindings) or "nobody in particular")
        about += escape(lasted_text(one))
        if self._told.comparison is not None:
            label = self._told.tallies[0 if one.found_by == "first" else 1].label
            sign = (
                f'<span class="mark-{one.found_by}" role="img" aria-label="only {escape(label)}">'
            )
            about = f"{sign}{_MARKS[one.found_by]}</span> {about}"
        why = f"<code>{escape(one.command)}</code>" if one.command else ""
        if id(one) in self._numbers:
            why = f'<a href="#why-{self._numbers[id(one)]}">explained below</a>'
        return f"<tr><td>{when}</td><td>{about}</td><td>{why}</td></tr>"

    def _policies(self) -> str:
        parts = [
            f"<h3>{escape(tally.label)}, version {escape(tally.version)}</h3>"
            f"<pre>{escape(tally.text.rstrip())}</pre>"
            for tally in self._told.tallies
            if tally.text
        ]
        if len(self._told.tallies) == 2:
            first, second = self._told.tallies
            changed = text_difference(first.text, second.text, first.label, second.label)
            if changed:
                parts.append(f"<h3>The difference</h3><pre>{escape(changed.rstrip())}</pre>")
        return section("The policies", "".join(parts)) if parts else ""

    def _months(self, tally: Tally) -> tuple[list[Month], int]:
        """Every month of the history; of very long ones those with findings, and how many not."""
        first, last = self._ends(tally.days)
        every = months(tally.days, first, last)
        if len(every) <= _MOST_MONTHS:
            return every, 0
        some = [month for month in every if month.total]
        return some, len(every) - len(some)

    def _every_day(self, found: Comparison) -> list[tuple[str, tuple[int, int, int]]]:
        if not found.days:
            return []
        first, last = self._ends(found.days)
        names = [
            f"{month.name}-{place + 1:02}"
            for month in months(dict.fromkeys(found.days, 0), first, last)
            for place, day in enumerate(month.days)
            if day is not None
        ]
        return [(name, found.days.get(name, (0, 0, 0))) for name in names]

    def _ends(self, days: Iterable[str]) -> tuple[str, str]:
        """The first and the last day to draw."""
        ends = [*days]
        if self._told.span is not None:
            ends += [self._calendar.day_of(time) for time in self._told.span]
        return min(ends), max(ends)


def sweep_page(result: SweepResult, calendar: Calendar) -> str:
    """What each value of a constant gives, as curves and as a table."""
    span = ""
    if result.first is not None and result.last is not None:
        first, last = (calendar.clock(time)[:16] for time in (result.first, result.last))
        span = f", {first} to {last} ({result.zone})"
    lead = f"{result.events:,} readings of {result.history}{span}"
    notes = "".join(
        f'<p class="note">{escape(problem.as_text())}</p>' for problem in result.problems
    )
    lasting = any(one.figures is not None for one in result.rows)
    counted = "episodes" if lasting else "detections"
    points = [(one.number, float(one.detections)) for one in result.rows]
    plots = curve_plot(points, counted.capitalize(), result.unit)
    heads, words = ["value", counted], [[one.value, f"{one.detections:,}"] for one in result.rows]
    if lasting:
        heads += ["hours", "longest", "still open"]
        hours = []
        for row, one in zip(words, result.rows, strict=True):
            assert one.figures is not None
            total = one.figures.total_ms / 3_600_000
            hours.append((one.number, total))
            row += [f"{total:,.1f}", duration(one.figures.longest_ms), f"{one.figures.open:,}"]
        plots += curve_plot(hours, "Hours", result.unit)
    title = f"{result.policy} with other values of {result.constant}"
    body = section("By value", plots + table(title, heads, words))
    body += section("The policy", f"<pre>{escape(result.text.rstrip())}</pre>")
    how = f"{result.engine} engine, {result.seconds:.1f} s" if result.seconds else result.engine
    foot = f"Made by rapport backtest: {escape(how)}. Times are {escape(result.zone)}."
    head = f'<p class="lead">{escape(lead)}</p>{notes}'
    return whole_page(title, style(), head, body, foot)


def _what(tally: Tally) -> str:
    return "Detections" if tally.episodes is None else "Episodes"


def _besides(tally: Tally) -> list[tuple[str, str]]:
    found = []
    if tally.episodes is not None:
        figures = tally.episodes
        found.append((duration(figures.total_ms), f"{tally.label} in all"))
        found.append((duration(figures.longest_ms), f"the longest of {tally.label}"))
        if figures.open:
            found.append((f"{figures.open:,}", f"of {tally.label} open at the end"))
    if tally.undecided:
        silent = f" ({', '.join(tally.silent)} silent)" if tally.silent else ""
        found.append((f"{tally.undecided:,}", f"undecided by {tally.label}{silent}"))
    if tally.suppressed:
        period = duration(tally.once_per_ms or 0)
        found.append((f"{tally.suppressed:,}", f"left out by {tally.label}: once per {period}"))
    return found


def _behind(shown: str) -> str:
    """The figures of a plot."""
    return behind("The same as a table", shown)
